// SPDX-License-Identifier: Apache-2.0
// The cache of plans: from a call of a public function to its plan in one probe, by the identity of what the call names.
#pragma once
#include "groups.hpp"
#include "lists.hpp"
#include "results.hpp"

namespace gpucast {

enum : int { most_functions = 32, most_parameters = 20, most_keyed = 8, most_kinds = 64 };

// How an argument takes part in the search for a plan: by what it is, by whether it is there, or not at all.
enum Role : char { keyed = 'k', flagged = 'f', free_of = '.' };

// A public function, whose first two arguments are an array, or a list of such, and what it is to become.
struct Function {
    int count;
    char roles[most_parameters];
    // The places of keyed and of flagged arguments.
    int keys, flags, key_places[most_keyed], flag_places[most_parameters];
    // Of all but the array: names, which are interned, and the values of those that a call leaves out; null for a second
    // argument that none may leave out.
    PyObject *names[most_parameters], *defaults[most_parameters];
    // Of the latest call, which the next one is like in most cases; null for none.
    const struct Slot* latest;
};
static Function functions[most_functions];
static int function_count;

// What a plan depends on beside the values of keyed arguments. `given`: a bit for each flagged argument that is there.
struct Key {
    const Function* function;
    PyTypeObject* kind;
    PyObject *dtype, *to;
    u32 given;
};

struct Slot {
    size_t hash;
    Key key;
    PyObject* values[most_keyed];
    Plan* plan;
};

enum : size_t { slots = 1 << 12 };
static Slot* table;
static size_t kept;
// The classes of arrays for which a plan was ever kept: nothing is asked of others. They live on.
static PyTypeObject* kinds[most_kinds];
static int kind_count;
// Whether no plan is run in a thread.
static __thread bool is_paused;

// What each call goes through is in one piece: a cast of one element takes no longer.
#define QUICK inline __attribute__((always_inline))

QUICK bool is_same(const Key& one, const Key& other) {
    if (one.function != other.function || one.kind != other.kind || one.given != other.given) return false;
    return one.dtype == other.dtype && is_same(one.to, other.to);
}

QUICK bool is_same(const Slot& slot, const Key& key, PyObject* const* arguments) {
    if (!is_same(slot.key, key)) return false;
    for (int i = 0; i < key.function->keys; ++i) {
        if (!is_same(slot.values[i], arguments[key.function->key_places[i]])) return false;
    }
    return true;
}

// The hash of a text is kept in it; that of other objects may be computed by Python.
inline size_t hash_of(PyObject* name) {
    return PyUnicode_CheckExact(name) ? size_t(PyObject_Hash(name)) : reinterpret_cast<size_t>(name) >> 4;
}

QUICK size_t hash_of(const Key& key) {
    const size_t mixed = (reinterpret_cast<size_t>(key.dtype) >> 4) * 31 + hash_of(key.to) * 17 + (reinterpret_cast<size_t>(key.kind) >> 4);
    return ((mixed + key.given + reinterpret_cast<size_t>(key.function)) * 0x9E3779B97F4A7C15u) >> 20;
}

// The dtype of x, with a reference of its own; null, without an exception, for what has none. Each array of a list may have
// another one.
QUICK PyObject* dtype_in(PyObject* x) {
    return !PyArray_CheckExact(x) && PyList_CheckExact(x) ? Py_NewRef(Py_None) : dtype_of(x);
}

// NumPy's own object for a dtype: it stands for all that mean the same, of which pickle makes one for each array. Others'
// names stand for themselves. Nothing that it returns is held: NumPy's own objects live.
inline PyObject* own_name(PyObject* name) {
    if (PyUnicode_CheckExact(name) || !PyArray_DescrCheck(name)) return name;
    const int number = number_of(reinterpret_cast<PyArray_Descr*>(name));
    if (!number) return name;
    PyArray_Descr* own = PyArray_DescrFromType(number - 1);
    if (!own) PyErr_Clear();
    Py_XDECREF(reinterpret_cast<PyObject*>(own));
    return own ? reinterpret_cast<PyObject*>(own) : name;
}

// The same key by NumPy's own objects, by which plans are kept. Whether it is another one.
inline bool rename(Key* key) {
    PyObject *dtype = own_name(key->dtype), *to = own_name(key->to);
    const bool is_other = dtype != key->dtype || to != key->to;
    key->dtype = dtype, key->to = to;
    return is_other;
}

// Whether no plan is for a name: each dtype of NumPy that has no number may be another object at every call.
inline bool is_passing(PyObject* name) {
    return !PyUnicode_CheckExact(name) && PyArray_DescrCheck(name) && !number_of(reinterpret_cast<PyArray_Descr*>(name));
}

// The class of x; that of a list is the class of its arrays.
QUICK PyTypeObject* kind_of(PyObject* x) {
    return !PyArray_CheckExact(x) && PyList_CheckExact(x) && PyList_Size(x) ? Py_TYPE(PyList_GetItem(x, 0)) : Py_TYPE(x);
}

QUICK bool is_kind(PyTypeObject* kind) {
    int i = 0;
    while (i < kind_count && kinds[i] != kind) ++i;
    return i < kind_count;
}

// Whether a class has its place.
inline bool keep_kind(PyTypeObject* kind) {
    if (is_kind(kind)) return true;
    if (kind_count == most_kinds) return false;
    kinds[kind_count++] = reinterpret_cast<PyTypeObject*>(Py_NewRef(reinterpret_cast<PyObject*>(kind)));
    return true;
}

QUICK Key key_of(const Function* function, PyObject* const* arguments, PyTypeObject* kind, PyObject* dtype) {
    Key key = {function, kind, dtype, arguments[of_to], 0};
    for (int i = 0; i < function->flags; ++i) key.given |= u32(!is_none(arguments[function->flag_places[i]])) << i;
    return key;
}

inline Slot* find_slot(const Key& key, size_t hash, PyObject* const* arguments) {
    size_t at = hash % slots;
    while (table[at].plan && !(table[at].hash == hash && is_same(table[at], key, arguments))) at = (at + 1) % slots;
    return &table[at];
}

// The plan of a call; null where there is none.
QUICK Plan* find_plan(Function* function, Key* key, PyObject* const* arguments) {
    if (function->latest && is_same(*function->latest, *key, arguments)) return function->latest->plan;
    const Slot* slot = find_slot(*key, hash_of(*key), arguments);
    if (!slot->plan && rename(key)) slot = find_slot(*key, hash_of(*key), arguments);
    if (slot->plan) function->latest = slot;
    return slot->plan;
}

// Drops all plans. What they refer to goes last, because that may run any code of Python's.
inline bool forget_plans() {
    Slot* fresh = static_cast<Slot*>(PyMem_Calloc(slots, sizeof(Slot)));
    if (!fresh) {
        PyErr_NoMemory();
        return false;
    }
    Slot* old = table;
    table = fresh;
    kept = 0;
    for (int i = 0; i < function_count; ++i) functions[i].latest = nullptr;
    for (size_t i = 0; old && i < slots; ++i) {
        if (!old[i].plan) continue;
        const Key& key = old[i].key;
        Py_DECREF(reinterpret_cast<PyObject*>(key.kind));
        Py_DECREF(key.dtype);
        Py_DECREF(key.to);
        for (int j = 0; j < key.function->keys; ++j) Py_DECREF(old[i].values[j]);
        Py_DECREF(reinterpret_cast<PyObject*>(old[i].plan));
    }
    PyMem_Free(old);
    return true;
}

// Puts the values of keywords in their places, the second argument's among them where it is `...`; false, without an
// exception, for one that the function has not, or that is missing.
QUICK bool take_keywords(const Function* function, PyObject* given, PyObject** arguments) {
    const int first = arguments[of_to] == Py_Ellipsis ? of_to : of_to + 1;
    if (first == of_to) arguments[of_to] = function->defaults[of_to];
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(given, &at, &name, &value)) {
        int i = first;
        // The names of keywords are interned where a call spells them.
        while (i < function->count && name != function->names[i]) ++i;
        if (i == function->count) {
            i = first;
            while (i < function->count && !is_same(name, function->names[i])) ++i;
        }
        if (i == function->count) return false;
        arguments[i] = value;
    }
    return arguments[of_to] != nullptr;
}

// By the plan's function of Python: of x, and of all arguments that are not keyed, in their order.
inline PyObject* call_function(const Function* function, const Plan* plan, PyObject* const* arguments) {
    Py_ssize_t count = 1;
    for (int i = of_to + 1; i < function->count; ++i) count += function->roles[i] != keyed;
    PyObject* given = PyTuple_New(count);
    if (!given) return nullptr;
    PyTuple_SetItem(given, 0, Py_NewRef(arguments[of_x]));
    for (int i = of_to + 1, at = 1; i < function->count; ++i) {
        if (function->roles[i] != keyed) PyTuple_SetItem(given, at++, Py_NewRef(arguments[i]));
    }
    PyObject* result = PyObject_CallObject(plan->function, given);
    Py_DECREF(given);
    return result;
}

inline PyObject* run_nothing(Plan*, PyObject* const*) { return nothing(); }

// hit(x, to, keywords) or hit(x, to, ...), with all arguments in their order: the result of a call that a plan is for; None,
// nothing done, for any other call. In the first form `to` may be `...`, which stands for none.
inline PyObject* hit(Function* function, PyObject* const* given, Py_ssize_t count) {
    PyObject* arguments[most_parameters];
    if (!kept || is_paused || !count) return nothing();
    PyTypeObject* const kind = kind_of(given[of_x]);
    if (!PyArray_CheckExact(given[of_x]) && !is_kind(kind)) return nothing();
    if (count == of_to + 2) {
        if (!PyDict_CheckExact(given[of_to + 1])) {
            PyErr_SetString(PyExc_TypeError, "hit: the keywords must be a dict");
            return nullptr;
        }
        memcpy(arguments, function->defaults, sizeof arguments);
        arguments[of_x] = given[of_x], arguments[of_to] = given[of_to];
        if (!take_keywords(function, given[of_to + 1], arguments)) return nothing();
        given = arguments;
    } else if (!is_call(count, function->count, "hit")) {
        return nullptr;
    }
    PyObject* dtype = dtype_in(given[of_x]);
    if (!dtype) return nothing();
    Key key = key_of(function, given, kind, dtype);
    Plan* plan = find_plan(function, &key, given);
    Py_DECREF(dtype);
    if (!plan) return nothing();
    // Others may drop the plan meanwhile.
    Py_INCREF(reinterpret_cast<PyObject*>(plan));
    // A call by its name takes less than one by an address.
    PyObject* result = plan->run == run_numpy ? run_numpy(plan, given) : plan->run(plan, given);
    if (result == Py_None && plan->function) {
        Py_DECREF(result);
        result = call_function(function, plan, given);
    } else if (result == Py_NotImplemented) {
        Py_DECREF(result);
        result = nothing();
    }
    Py_DECREF(reinterpret_cast<PyObject*>(plan));
    return result;
}

// keep(x, to, ..., plan), with all arguments in their order: the plan serves later calls like this one.
inline PyObject* keep(const Function* function, PyObject* const* arguments, Py_ssize_t count) {
    if (!is_call(count, function->count + 1, "keep")) return nullptr;
    PyObject* plan = arguments[function->count];
    if (Py_TYPE(plan) != plan_type) {
        PyErr_SetString(PyExc_TypeError, "keep: the last argument must be a plan");
        return nullptr;
    }
    if (2 * kept >= slots && !forget_plans()) return nullptr;
    PyObject* dtype = dtype_in(arguments[of_x]);
    if (!dtype) return nothing();
    Key key = key_of(function, arguments, kind_of(arguments[of_x]), dtype);
    rename(&key);
    Py_INCREF(key.dtype);
    Py_DECREF(dtype);
    if (is_passing(key.dtype) || is_passing(key.to) || !keep_kind(key.kind)) {
        Py_DECREF(key.dtype);
        return nothing();
    }
    const size_t hash = hash_of(key);
    Slot* slot = find_slot(key, hash, arguments);
    if (slot->plan) {
        Plan* old = slot->plan;
        slot->plan = reinterpret_cast<Plan*>(Py_NewRef(plan));
        Py_DECREF(key.dtype);
        Py_DECREF(reinterpret_cast<PyObject*>(old));
        return nothing();
    }
    Py_INCREF(reinterpret_cast<PyObject*>(key.kind));
    Py_INCREF(key.to);
    slot->hash = hash, slot->key = key, slot->plan = reinterpret_cast<Plan*>(Py_NewRef(plan));
    for (int i = 0; i < function->keys; ++i) slot->values[i] = Py_NewRef(arguments[function->key_places[i]]);
    ++kept;
    return nothing();
}

// Both of a function, by its place in the table.
template <int place>
struct MethodsOf {
    static PyObject* own_hit(PyObject*, PyObject* const* given, Py_ssize_t count) { return hit(&functions[place], given, count); }
    static PyObject* own_keep(PyObject*, PyObject* const* given, Py_ssize_t count) { return keep(&functions[place], given, count); }
};

template <typename Fast>
PyCFunction as_method(Fast* function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

template <int... place>
inline PyMethodDef* methods_at(int at, std::integer_sequence<int, place...>) {
    static PyMethodDef each[][2] = {{{"hit", as_method(MethodsOf<place>::own_hit), METH_FASTCALL, nullptr},
                                     {"keep", as_method(MethodsOf<place>::own_keep), METH_FASTCALL, nullptr}}...};
    return each[at];
}

// function(second, default, names, defaults, roles): `hit` and `keep` of a public function. Of its second argument the name,
// and what it is where a call leaves it out, or `...`; the names and defaults of its keywords in the order of its arguments;
// a letter of `roles` is a Role.
inline PyObject* new_function(PyObject*, PyObject* arguments) {
    PyObject *second, *stands, *names, *defaults;
    const char* roles;
    if (!PyArg_ParseTuple(arguments, "UOO!O!s", &second, &stands, &PyTuple_Type, &names, &PyTuple_Type, &defaults, &roles)) return nullptr;
    const Py_ssize_t count = PyTuple_Size(names);
    int keys = 0;
    for (const char* role = roles; *role; ++role) keys += *role == keyed;
    if (PyTuple_Size(defaults) != count || Py_ssize_t(strlen(roles)) != count || count > most_parameters - 2 || keys > most_keyed ||
        function_count == most_functions) {
        PyErr_Format(PyExc_TypeError, "function: expected %zd defaults and roles of %zd names, and not so many", count, count);
        return nullptr;
    }
    // Those of an earlier call stay, because a plan may name them.
    Function* function = &functions[function_count];
    function->count = int(count) + of_to + 1;
    const auto name_argument = [&](Py_ssize_t at, PyObject* name, PyObject* value) {
        PyObject* own = Py_NewRef(name);
        PyUnicode_InternInPlace(&own);
        function->names[at] = own, function->defaults[at] = value == Py_Ellipsis ? nullptr : Py_NewRef(value);
    };
    name_argument(of_to, second, stands);
    for (Py_ssize_t i = 0; i < count; ++i) {
        const Py_ssize_t at = i + of_to + 1;
        name_argument(at, PyTuple_GetItem(names, i), PyTuple_GetItem(defaults, i));
        function->roles[at] = roles[i];
        if (roles[i] == keyed) function->key_places[function->keys++] = int(at);
        if (roles[i] == flagged) function->flag_places[function->flags++] = int(at);
    }
    PyMethodDef* own = methods_at(function_count++, std::make_integer_sequence<int, most_functions>());
    PyObject* module_name = PyUnicode_FromString("gpucast._host");
    PyObject *one = PyCFunction_NewEx(own, nullptr, module_name), *other = PyCFunction_NewEx(own + 1, nullptr, module_name);
    PyObject* both = one && other ? PyTuple_Pack(2, one, other) : nullptr;
    PyObject* const held[] = {module_name, one, other};
    for (PyObject* each : held) Py_XDECREF(each);
    return both;
}

inline PyObject* forget(PyObject*, PyObject*) { return forget_plans() ? nothing() : nullptr; }

// pause(whether): no plan is run in this thread until it ends. Returns whether that was so before.
inline PyObject* pause(PyObject*, PyObject* whether) {
    const bool before = is_paused;
    is_paused = whether == Py_True;
    return Py_NewRef(before ? Py_True : Py_False);
}

inline PyObject* count_plans(PyObject*, PyObject*) { return PyLong_FromSize_t(kept); }

// plan(kind, function, empty, src, dst, works, kernels, kernels_by_float, library, made, src_bits, dst_bits): a plan that is run for arrays of
// "numpy", "cupy", "packed" in bytes of NumPy, "tensors", a list of the host ("list": `kernels` are its plans by dtype), of the host that are "quantized" or
// "dequantized" (`kernels` are lists of entries by shape), or by its function alone ("").
inline PyObject* new_plan(PyObject*, PyObject* arguments) {
    PyObject *function, *empty, *src, *dst, *works, *kernels, *by_float, *library, *made;
    const char* kind;
    unsigned src_bits, dst_bits;
    if (!PyArg_ParseTuple(arguments, "sOOOOOOOOOII", &kind, &function, &empty, &src, &dst, &works, &kernels, &by_float, &library, &made,
                          &src_bits, &dst_bits)) {
        return nullptr;
    }
    struct {
        const char* name;
        Run* run;
        // Whether it has dtypes and works, a dictionary, a function that gives results, and a library.
        bool casts, has_kernels, allocates, is_library;
    } const kinds[] = {{"numpy", run_numpy, true, false, false, false}, {"cupy", run_placed, true, true, true, false},
                       {"packed", run_packed, true, false, false, false}, {"tensors", run_tensor, true, true, true, true}, {"list", run_list, false, true, false, false},
                       {"quantized", run_quantized, false, true, false, false}, {"dequantized", run_dequantized, false, true, false, false},
                       {"", run_nothing, false, false, false, false}};
    const auto is_dict = [](PyObject* given) { return is_none(given) || PyDict_CheckExact(given); };
    TensorLibrary asked;
    for (const auto& one : kinds) {
        if (strcmp(one.name, kind) != 0) continue;
        if (one.casts == is_none(src) || one.casts == is_none(works) || one.has_kernels == is_none(kernels) || !is_dict(kernels) ||
            !is_dict(by_float) || one.allocates == is_none(empty) || (one.is_library && is_none(library)) ||
            (one.run == run_nothing && is_none(function)) || (dst_bits && !PyType_Check(library))) {
            break;
        }
        // Calls read it again, and find no error.
        if ((one.is_library || (one.run == run_list && !is_none(library))) && !asked.read(library)) return nullptr;
        Plan* plan = make_plan(src, dst, works);
        if (!plan) return nullptr;
        // One plan serves packed elements of both sides.
        plan->run = src_bits ? run_packed : one.run, plan->function = held(function), plan->empty = held(empty);
        plan->kernels = held(kernels), plan->kernels_by_float = held(by_float);
        plan->library = held(library), plan->made = held(made);
        plan->src_bits = src_bits, plan->dst_bits = dst_bits;
        return reinterpret_cast<PyObject*>(plan);
    }
    PyErr_Format(PyExc_TypeError, "plan: '%s' with these arguments is no plan", kind);
    return nullptr;
}

}  // namespace gpucast

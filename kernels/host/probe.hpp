// SPDX-License-Identifier: Apache-2.0
// The cache of plans: from a call of gpucast.cast to its plan in one probe, by the identity of what the call names.
#pragma once
#include "device.hpp"

namespace gpucast {

// The arguments of `hit` and `keep`, in their order.
enum Argument : int {
    of_x, of_to, of_saturate, of_round_mode, of_opset, of_rounding, of_overflow, of_seed, of_offset, of_scale, of_amax,
    of_device, of_out, of_copy, arguments_of_hit
};

// The names of the keywords, which are interned, and the values of those that a call leaves out.
static PyObject *keyword_names[arguments_of_hit], *keyword_defaults[arguments_of_hit];

// What a plan depends on. The keywords are those from `saturate` to `overflow`.
enum : int { keywords = of_overflow - of_saturate + 1 };

// A dtype of NumPy by its number, which is 0 for all else: that counts by its identity.
struct Name {
    PyObject* object;
    int number;
};

struct Key {
    PyTypeObject* kind;
    Name dtype, to;
    PyObject* keyword[keywords];
    // Whether the call fuses anything with the cast, and then whether there is a scale.
    bool is_fused, is_scaled;
};

struct Slot {
    size_t hash;
    Key key;
    Plan* plan;
};

enum : size_t { slots = 1 << 12 };
static Slot* table;
static size_t kept;

// Texts count by their value, all else by identity: most texts are the same object at every call.
inline bool is_same(PyObject* one, PyObject* other) {
    if (one == other) return true;
    return PyUnicode_CheckExact(one) && PyUnicode_CheckExact(other) && PyUnicode_Compare(one, other) == 0;
}

inline bool is_same(const Name& one, const Name& other) {
    return one.number == other.number && (one.number || is_same(one.object, other.object));
}

inline bool is_same(const Key& one, const Key& other) {
    if (one.kind != other.kind || one.is_fused != other.is_fused || one.is_scaled != other.is_scaled) return false;
    if (!is_same(one.dtype, other.dtype) || !is_same(one.to, other.to)) return false;
    for (int i = 0; i < keywords; ++i) {
        if (!is_same(one.keyword[i], other.keyword[i])) return false;
    }
    return true;
}

// The hash of a text is kept in it; that of other objects may be computed by Python.
inline size_t hash_of(const Name& name) {
    if (name.number) return size_t(name.number);
    return PyUnicode_CheckExact(name.object) ? size_t(PyObject_Hash(name.object)) : reinterpret_cast<size_t>(name.object) >> 4;
}

inline size_t hash_of(const Key& key) {
    const size_t mixed = hash_of(key.dtype) * 31 + hash_of(key.to) * 17 + (reinterpret_cast<size_t>(key.kind) >> 4);
    return (mixed * 0x9E3779B97F4A7C15u) >> 20;
}

// The dtype of x, with a reference of its own; null, without an exception, for what has none.
inline PyObject* dtype_of(PyObject* x) {
    if (PyArray_CheckExact(x)) return Py_NewRef(reinterpret_cast<PyObject*>(PyArray_DESCR(array_of(x))));
    PyObject* dtype = PyObject_GetAttr(x, dtype_name);
    if (!dtype) PyErr_Clear();
    return dtype;
}

inline Name name_of(PyObject* object) {
    const bool is_dtype = !PyUnicode_CheckExact(object) && PyArray_DescrCheck(object);
    return {object, is_dtype ? number_of(reinterpret_cast<PyArray_Descr*>(object)) : 0};
}

// Whether no plan is for a name: each dtype of NumPy that has no number may be another object at every call.
inline bool is_passing(const Name& name) { return !name.number && PyArray_DescrCheck(name.object); }

inline Key key_of(PyObject* const* arguments, PyObject* dtype) {
    Key key;
    PyObject* x = arguments[of_x];
    key.kind = Py_TYPE(x), key.to = name_of(arguments[of_to]);
    key.dtype = PyArray_CheckExact(x) ? Name{dtype, number_of(PyArray_DESCR(array_of(x)))} : name_of(dtype);
    for (int i = 0; i < keywords; ++i) key.keyword[i] = arguments[of_saturate + i];
    key.is_scaled = arguments[of_scale] != Py_None;
    key.is_fused = key.is_scaled || arguments[of_seed] != Py_None || arguments[of_amax] != Py_None;
    return key;
}

inline Slot* find_slot(const Key& key, size_t hash) {
    size_t at = hash % slots;
    while (table[at].plan && !(table[at].hash == hash && is_same(table[at].key, key))) at = (at + 1) % slots;
    return &table[at];
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
    for (size_t i = 0; old && i < slots; ++i) {
        if (!old[i].plan) continue;
        const Key& key = old[i].key;
        Py_DECREF(reinterpret_cast<PyObject*>(key.kind));
        Py_DECREF(key.dtype.object);
        Py_DECREF(key.to.object);
        for (int j = 0; j < keywords; ++j) Py_DECREF(key.keyword[j]);
        Py_DECREF(reinterpret_cast<PyObject*>(old[i].plan));
    }
    PyMem_Free(old);
    return true;
}

inline bool is_call(Py_ssize_t count, Py_ssize_t wanted, const char* name) {
    if (count == wanted) return true;
    PyErr_Format(PyExc_TypeError, "%s: %zd arguments; expected %zd", name, count, wanted);
    return false;
}

// name_keywords(names, defaults): what `hit` calls the arguments after `to`.
inline PyObject* name_keywords(PyObject*, PyObject* arguments) {
    PyObject *names, *defaults;
    if (!PyArg_ParseTuple(arguments, "O!O!", &PyTuple_Type, &names, &PyTuple_Type, &defaults)) return nullptr;
    const Py_ssize_t count = arguments_of_hit - of_saturate;
    if (PyTuple_Size(names) != count || PyTuple_Size(defaults) != count) {
        PyErr_Format(PyExc_TypeError, "name_keywords: expected %zd names, and as many values", count);
        return nullptr;
    }
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* name = Py_NewRef(PyTuple_GetItem(names, i));
        PyUnicode_InternInPlace(&name);
        // Once in a process: those of an earlier call stay, because a plan may still name them.
        keyword_names[of_saturate + i] = name;
        keyword_defaults[of_saturate + i] = Py_NewRef(PyTuple_GetItem(defaults, i));
    }
    return nothing();
}

// Puts the values of keywords in their places; false, without an exception, for one that a cast has not.
inline bool take_keywords(PyObject* given, PyObject** arguments) {
    PyObject *name, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(given, &at, &name, &value)) {
        int i = of_saturate;
        // The names of keywords are interned where a call spells them.
        while (i < arguments_of_hit && name != keyword_names[i]) ++i;
        for (int j = of_saturate; i == arguments_of_hit && j < arguments_of_hit; ++j) {
            if (is_same(name, keyword_names[j])) i = j;
        }
        if (i == arguments_of_hit) return false;
        arguments[i] = value;
    }
    return true;
}

inline PyObject* hit_call(PyObject* const* arguments);

// hit(x, to, keywords) or hit(x, to, saturate, ...): the result of a call that a plan is for; None, nothing done, for any
// other call.
inline PyObject* hit(PyObject*, PyObject* const* given, Py_ssize_t count) {
    if (count != of_saturate + 1) return is_call(count, arguments_of_hit, "hit") ? hit_call(given) : nullptr;
    if (!PyDict_CheckExact(given[of_saturate])) {
        PyErr_SetString(PyExc_TypeError, "hit: the keywords must be a dict");
        return nullptr;
    }
    PyObject* arguments[arguments_of_hit];
    memcpy(arguments, keyword_defaults, sizeof arguments);
    arguments[of_x] = given[of_x], arguments[of_to] = given[of_to];
    return take_keywords(given[of_saturate], arguments) ? hit_call(arguments) : nothing();
}

inline PyObject* hit_call(PyObject* const* arguments) {
    PyObject *x = arguments[of_x], *copy = arguments[of_copy];
    if (arguments[of_device] != Py_None || !kept) return nothing();
    PyObject* dtype = dtype_of(x);
    if (!dtype) return nothing();
    const Key key = key_of(arguments, dtype);
    Plan* plan = find_slot(key, hash_of(key))->plan;
    Py_DECREF(dtype);
    if (!plan || !(copy == Py_True || (copy == Py_False && plan->changes))) return nothing();
    if (!key.is_fused) {
        // An offset belongs to random rounding alone: the checked path raises.
        if (arguments[of_offset] != zero) return nothing();
    }
    // Others may drop the plan meanwhile.
    Py_INCREF(reinterpret_cast<PyObject*>(plan));
    PyObject* out = arguments[of_out];
    PyObject* result;
    if (!plan->run) {
        const FusedKeywords fused = {arguments[of_seed], arguments[of_offset], arguments[of_scale], arguments[of_amax]};
        result = run_numpy(plan, x, out, key.is_fused ? &fused : nullptr);
    } else if (key.is_fused) {
        result = PyObject_CallFunctionObjArgs(plan->run, x, out, arguments[of_seed], arguments[of_offset], arguments[of_scale],
                                              arguments[of_amax], nullptr);
    } else {
        result = out == Py_None ? nothing() : run_cupy(plan, x, out);
        if (result == Py_None) {
            Py_DECREF(result);
            result = PyObject_CallFunctionObjArgs(plan->run, x, out, nullptr);
        }
    }
    Py_DECREF(reinterpret_cast<PyObject*>(plan));
    return result;
}

// keep(x, to, saturate, ..., plan): the plan serves later calls like this one.
inline PyObject* keep(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!is_call(count, arguments_of_hit + 1, "keep")) return nullptr;
    PyObject* plan = arguments[arguments_of_hit];
    if (Py_TYPE(plan) != plan_type) {
        PyErr_SetString(PyExc_TypeError, "keep: the last argument must be a plan");
        return nullptr;
    }
    if (2 * kept >= slots && !forget_plans()) return nullptr;
    PyObject* dtype = dtype_of(arguments[of_x]);
    if (!dtype) return nothing();
    const Key key = key_of(arguments, dtype);
    if (is_passing(key.dtype) || is_passing(key.to)) {
        Py_DECREF(dtype);
        return nothing();
    }
    const size_t hash = hash_of(key);
    Slot* slot = find_slot(key, hash);
    if (slot->plan) {
        Plan* old = slot->plan;
        slot->plan = reinterpret_cast<Plan*>(Py_NewRef(plan));
        Py_DECREF(dtype);
        Py_DECREF(reinterpret_cast<PyObject*>(old));
        return nothing();
    }
    Py_INCREF(reinterpret_cast<PyObject*>(key.kind));
    Py_INCREF(key.to.object);
    for (int i = 0; i < keywords; ++i) Py_INCREF(key.keyword[i]);
    *slot = {hash, key, reinterpret_cast<Plan*>(Py_NewRef(plan))};
    ++kept;
    return nothing();
}

inline PyObject* forget(PyObject*, PyObject*) { return forget_plans() ? nothing() : nullptr; }

inline PyObject* count_plans(PyObject*, PyObject*) { return PyLong_FromSize_t(kept); }

}  // namespace gpucast

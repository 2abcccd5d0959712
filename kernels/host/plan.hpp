// SPDX-License-Identifier: Apache-2.0
// Plans: what a call that looks like an earlier one has to do. gpucast/casting/plans.py makes them.
#pragma once
#include "arrays.hpp"

namespace gpucast {

struct Plan;

// The result of a call by a plan, of whose function the arguments come in their order; nothing done, None where the plan's
// function of Python may serve, or only the checked path can tell what is right; NotImplemented for the latter alone.
typedef PyObject* Run(Plan* plan, PyObject* const* arguments);

// The memory of a list: so many extents that are written, then those that are read.
struct Extents {
    Extent* all;
    size_t writes, reads;

    size_t bytes() const { return (writes + reads) * sizeof *all; }
    bool is_same(const Extents& other) const {
        return all && writes == other.writes && reads == other.reads && memcmp(all, other.all, bytes()) == 0;
    }
    void keep(const Extents& other) {
        Extent* own = static_cast<Extent*>(PyMem_Realloc(all, other.bytes()));
        if (!own) return;
        memcpy(own, other.all, other.bytes());
        *this = {own, other.writes, other.reads};
    }
};

struct Plan {
    PyObject_HEAD
    Run* run;
    // A function of Python: it does what the module leaves to it, or all; or null.
    PyObject* function;
    // Gives a new result for x, or None; null where the module does it.
    PyObject* empty;
    PyArray_Descr *src, *dst;
    // Of these, by which equal ones are known.
    int src_number, dst_number;
    Work work;
    // Of a fused plan: the same by a scale that FLOAT has.
    Work by_float;
    // Those of devices, by their index, and those by a scale that FLOAT has: dictionaries that others fill; or null.
    PyObject *kernels, *kernels_by_float;
    // What the module asks of the library of tensors, and their dtype of results; or null. Of arrays of CuPy the class of
    // packed results, and their dtype.
    PyObject *library, *made;
    // Of packed elements of arrays of CuPy; else 0.
    u32 src_bits, dst_bits;
    // DLPack's types of elements, once tensors were looked at; else 0.
    u32 src_type, dst_type;
    // Of lists: those of the latest call, which share nothing that is written.
    Extents disjoint;
};

static PyTypeObject* plan_type;
// The text "dtype", and Python's integer 0.
static PyObject *dtype_name, *zero;

// The arguments of gpucast.cast, in their order.
enum Argument : int {
    of_x, of_to, of_saturate, of_round_mode, of_opset, of_rounding, of_overflow, of_seed, of_offset, of_scale, of_amax,
    of_device, of_out, of_copy, arguments_of_cast
};

inline PyObject* nothing() { Py_RETURN_NONE; }

inline bool is_none(PyObject* given) { return given == Py_None; }

// Texts count by their value, tuples by what is in them, all else by identity: most are the same object at every call.
inline bool is_same(PyObject* one, PyObject* other) {
    if (one == other) return true;
    if (PyTuple_CheckExact(one) && PyTuple_CheckExact(other) && PyTuple_Size(one) == PyTuple_Size(other)) {
        Py_ssize_t i = 0, n = PyTuple_Size(one);
        while (i < n && PyTuple_GetItem(one, i) == PyTuple_GetItem(other, i)) ++i;
        return i == n;
    }
    return PyUnicode_CheckExact(one) && PyUnicode_CheckExact(other) && PyUnicode_Compare(one, other) == 0;
}

inline bool is_call(Py_ssize_t count, Py_ssize_t wanted, const char* name) {
    if (count == wanted) return true;
    PyErr_Format(PyExc_TypeError, "%s: %zd arguments; expected %zd", name, count, wanted);
    return false;
}

enum : int { most_references = 5 };

// References of a call, which end with it.
struct References {
    PyObject* each[most_references] = {};
    int count = 0;

    References() = default;
    ~References() { clear(); }
    References(const References&) = delete;
    References& operator=(const References&) = delete;

    void clear() {
        while (count) Py_DECREF(each[--count]);
    }
    // Takes a reference over; false for null.
    bool take(PyObject* one) {
        if (one) each[count++] = one;
        return one != nullptr;
    }
};

// ---- what is fused with a cast ----

// A number in memory: of the host, unless it is on a device of that library's kind.
struct Single {
    u8* data = nullptr;
    bool is_double = false;
    int device_type = 0, device = 0;

    Extent extent() const { return gpucast::extent(data, is_double ? 8 : 4); }
};

struct Fusion {
    bool is_float = true;
    double number = 1;
    // Their data is null where there is none, or where the scale is a number.
    Single scale, amax;
    u64 seed = 0, offset = 0;
};

// An array of NumPy that has one FLOAT or DOUBLE.
inline bool take_array(PyObject* given, Single* single) {
    if (!PyArray_CheckExact(given)) return false;
    PyArrayObject* array = array_of(given);
    const int kind = PyArray_TYPE(array);
    if ((kind != NPY_FLOAT && kind != NPY_DOUBLE) || size_of(array) != 1 || PyArray_ISBYTESWAPPED(array)) return false;
    single->data = static_cast<u8*>(PyArray_DATA(array)), single->is_double = kind == NPY_DOUBLE;
    return true;
}

// Whether FLOAT has a number, but for its subnormals, for which products of DOUBLEs serve as well.
inline bool is_float(u64 bits) {
    const u64 exponent = bits >> 52 & 0x7ff;
    return !(bits & ((u64(1) << 29) - 1)) && ((897 <= exponent && exponent <= 1150) || bits << 1 == 0);
}

inline void set_number(Fusion* fusion, double number) {
    u64 bits;
    memcpy(&bits, &number, sizeof bits);
    fusion->number = number, fusion->is_float = is_float(bits);
}

// Reads a scale of the host. False for a subnormal FLOAT, which the processor may flush.
inline bool read_scale(Fusion* fusion) {
    const u8* data = fusion->scale.data;
    double number;
    if (fusion->scale.is_double) {
        memcpy(&number, data, sizeof number);
    } else {
        u32 code;
        float narrow;
        memcpy(&code, data, sizeof code);
        if (!(code & 0x7f800000) && code << 1) return false;
        memcpy(&narrow, data, sizeof narrow);
        number = narrow;
    }
    set_number(fusion, number);
    return true;
}

// Whether a call fuses nothing with its cast.
inline bool is_plain(PyObject* const* arguments, bool is_random) {
    return !is_random && is_none(arguments[of_seed]) && arguments[of_offset] == zero && is_none(arguments[of_scale]) && is_none(arguments[of_amax]);
}

// What a call fuses with its cast; false, without an exception, for what only the checked path knows, or refuses.
// take(given, single): whether something is an array of one FLOAT or DOUBLE in its library.
template <typename Take>
inline bool take_fusion(PyObject* const* arguments, bool is_random, const Take& take, Fusion* fusion) {
    PyObject *seed = arguments[of_seed], *offset = arguments[of_offset], *scale = arguments[of_scale], *amax = arguments[of_amax];
    // An offset belongs to random rounding alone: the checked path raises.
    if (!is_random && !(is_none(seed) && offset == zero)) return false;
    if (PyFloat_CheckExact(scale) || PyLong_CheckExact(scale)) {
        const double number = PyFloat_AsDouble(scale);
        PyErr_Clear();  // An integer may be too large: -1 then.
        u64 bits;
        memcpy(&bits, &number, sizeof bits);
        if (bits >= u64(0x7ff) << 52) return false;
        set_number(fusion, number);
    } else if (!is_none(scale) && !take(scale, &fusion->scale)) {
        return false;
    }
    if (!is_none(amax) && !(take(amax, &fusion->amax) && !fusion->amax.is_double)) return false;
    if (!is_random) return true;
    if (!PyLong_CheckExact(seed) || !PyLong_CheckExact(offset)) return false;
    fusion->seed = PyLong_AsUnsignedLongLong(seed);
    fusion->offset = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(offset);
    const bool is_known = !PyErr_Occurred();
    PyErr_Clear();
    return is_known;
}

// What multiplies the results of a cast back.
inline double inverse_of(const Fusion& fusion) {
    const Exactly exactly;
    return fusion.is_float ? double(1.0f / float(fusion.number)) : 1 / fusion.number;
}

// Whether a plan can take a scale: one of casts there and back needs its inverse.
inline bool is_scale_of(const Plan* plan, const Fusion& fusion) {
    if (plan->work.kind != WorkKind::there_and_back) return true;
    const double inverse = inverse_of(fusion);
    return inverse > 0 && inverse - inverse == 0;
}

inline Work work_of(const Plan* plan, const Fusion& fusion) {
    Work work = fusion.is_float ? plan->by_float : plan->work;
    work.fused.scale = fusion.number;
    work.wants_largest = fusion.amax.data != nullptr;
    if (work.kind == WorkKind::there_and_back) work.back.scale = inverse_of(fusion);
    if (work.is_ordered()) {
        work.seed = work.fused.seed = fusion.seed;
        work.first = fusion.offset / 4, work.skip = fusion.offset % 4;
    }
    return work;
}

// Keeps the larger code, as an integer with a sign; any NaN that was found is the positive one.
inline void keep_largest(void* amax, u32 found) {
    int before, now = int(found > 0x7f800000 ? 0x7fc00000 : found);
    memcpy(&before, amax, sizeof before);
    if (now > before) memcpy(amax, &now, sizeof now);
}

// Whether the cast of x and what is fused with it write no memory that they read, or write elsewhere. out: empty for a
// new one; fusion: null for a plain cast.
inline bool are_disjoint(const Extent& x, const Extent& out, const Fusion* fusion) {
    if (!fusion || !(fusion->amax.data || fusion->scale.data)) return !x.meets(out) || x.begin == x.end || out.begin == out.end;
    Extent written[2], read[2];
    size_t writes = 0, reads = 0;
    if (out.begin != out.end) written[writes++] = out;
    if (fusion->amax.data) written[writes++] = fusion->amax.extent();
    if (x.begin != x.end) read[reads++] = x;
    if (fusion->scale.data) read[reads++] = fusion->scale.extent();
    return are_disjoint(written, writes, read, reads);
}

// Casts x into an array of its shape, all of which is disjoint. False after an exception.
inline bool cast_fused(const Plan* plan, const Layout& x, const Layout& out, const Fusion* fusion) {
    Found found;
    if (!fusion) return cast_arrays(x, out, plan->work, &found);
    u8* const largest = x.size ? fusion->amax.data : nullptr;
    if (!cast_arrays(x, out, work_of(plan, *fusion), &found)) return false;
    if (largest) keep_largest(largest, found.largest);
    return true;
}

// ---- arrays of NumPy ----

// Whether an array has a dtype, or one that means the same.
inline bool is_of(PyArrayObject* x, PyArray_Descr* dtype, int number) {
    return PyArray_DESCR(x) == dtype || number_of(PyArray_DESCR(x)) == number;
}

inline bool is_writable(PyObject* array) { return PyArray_ISWRITEABLE(array_of(array)); }

// What a call on the host fuses with its cast, with arrays of NumPy; false, without an exception, as for `take_fusion`.
inline bool take_of_host(const Plan* plan, PyObject* const* arguments, bool is_random, Fusion* fusion) {
    return take_fusion(arguments, is_random, take_array, fusion) && (!fusion->scale.data || read_scale(fusion)) &&
           (!fusion->amax.data || is_writable(arguments[of_amax])) && is_scale_of(plan, *fusion);
}

// By a plan of one array, where `out` is a place for it; fusion: null for a plain cast.
inline __attribute__((always_inline)) PyObject* cast_numpy(Plan* plan, PyArrayObject* given, PyObject* out, const Fusion* fusion) {
    const bool is_new = is_none(out);
    if (!is_new) {
        if (!PyArray_CheckExact(out) || !is_of(array_of(out), plan->dst, plan->dst_number) || !is_writable(out)) return nothing();
    }
    out = is_new ? new_array(given, plan->dst) : Py_NewRef(out);
    if (!out) return nullptr;
    // A new array may have run others' code, which reshaped x.
    const Layout x = layout_of(given), y = layout_of(array_of(out));
    bool is_place = is_same_shape(x, y);
    if (is_place && (!is_new || (fusion && fusion->amax.data))) {
        const Extent written = is_new ? Extent{0, 0} : extent(y);
        is_place = (is_new || is_sound(y)) && are_disjoint(extent(x), written, fusion);
    }
    if (is_place && cast_fused(plan, x, y, fusion)) return out;
    Py_DECREF(out);
    return is_place ? nullptr : nothing();
}

// The same for a plain cast of a few adjacent elements, which most short calls are; null, without an exception, for any other.
inline __attribute__((always_inline)) PyObject* cast_few(const Plan* plan, PyArrayObject* x, PyObject* out) {
    const u64 size = size_of(x);
    if (!is_flat(x) || size > lasting || !size) return nullptr;
    if (is_none(out)) {
        Py_INCREF(reinterpret_cast<PyObject*>(plan->dst));
        out = PyArray_NewFromDescr(&PyArray_Type, plan->dst, PyArray_NDIM(x), PyArray_DIMS(x), nullptr, nullptr, 0, nullptr);
        if (!out) PyErr_Clear();
        // That may have run others' code, which reshaped x.
        if (!out || !is_flat(x) || size_of(x) != size) {
            Py_XDECREF(out);
            return nullptr;
        }
    } else {
        if (!PyArray_CheckExact(out) || !is_of(array_of(out), plan->dst, plan->dst_number) || !is_writable(out)) return nullptr;
        PyArrayObject* y = array_of(out);
        if (!is_flat(y) || !is_same_shape(x, y)) return nullptr;
        if (extent(PyArray_DATA(x), size * itemsize_of(plan->src)).meets(extent(PyArray_DATA(y), size * itemsize_of(plan->dst)))) return nullptr;
        Py_INCREF(out);
    }
    Found found;
    plan->work.run(PyArray_DATA(x), PyArray_DATA(array_of(out)), size, 0, &found);
    return out;
}

inline PyObject* run_numpy(Plan* plan, PyObject* const* arguments) {
    PyObject* given = arguments[of_x];
    if (!PyArray_CheckExact(given) || !is_of(array_of(given), plan->src, plan->src_number)) return nothing();
    const bool is_random = plan->work.is_ordered();
    if (is_plain(arguments, is_random)) {
        PyObject* result = cast_few(plan, array_of(given), arguments[of_out]);
        return result ? result : cast_numpy(plan, array_of(given), arguments[of_out], nullptr);
    }
    Fusion fusion;
    if (!take_of_host(plan, arguments, is_random, &fusion)) return nothing();
    return cast_numpy(plan, array_of(given), arguments[of_out], &fusion);
}

// ---- plans as objects of Python ----

// The dtype of x, with a reference of its own; null, without an exception, for what has none.
inline PyObject* dtype_of(PyObject* x) {
    if (PyArray_CheckExact(x)) return Py_NewRef(reinterpret_cast<PyObject*>(PyArray_DESCR(array_of(x))));
    PyObject* dtype = PyObject_GetAttr(x, dtype_name);
    if (!dtype) PyErr_Clear();
    return dtype;
}

static void forget_plan(PyObject* self) {
    Plan* plan = reinterpret_cast<Plan*>(self);
    PyObject* const held[] = {plan->function, plan->empty, reinterpret_cast<PyObject*>(plan->src), reinterpret_cast<PyObject*>(plan->dst),
                              plan->kernels, plan->kernels_by_float, plan->library, plan->made};
    for (PyObject* one : held) Py_XDECREF(one);
    PyMem_Free(plan->disjoint.all);
    PyTypeObject* kind = Py_TYPE(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(kind, Py_tp_free))(self);
    Py_DECREF(kind);
}

inline PyObject* held(PyObject* given) { return is_none(given) ? nullptr : Py_NewRef(given); }

// A plan without a `run`; null after an exception. src and dst: native dtypes, or both None. works: the bytes of a Work, or of
// a fused plan's two; or None.
inline Plan* make_plan(PyObject* src, PyObject* dst, PyObject* works) {
    Work found[2] = {};
    const int src_number = PyArray_DescrCheck(src) ? number_of(reinterpret_cast<PyArray_Descr*>(src)) : 0;
    const int dst_number = PyArray_DescrCheck(dst) ? number_of(reinterpret_cast<PyArray_Descr*>(dst)) : 0;
    if (!(src_number && dst_number) && !(is_none(src) && is_none(dst))) {
        PyErr_SetString(PyExc_TypeError, "plan: src and dst must be native dtypes of numbers");
        return nullptr;
    }
    if (!is_none(works)) {
        char* bytes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(works, &bytes, &size) < 0) return nullptr;
        if (size != sizeof(Work) && size != sizeof found) {
            PyErr_SetString(PyExc_ValueError, "plan: work has another size");
            return nullptr;
        }
        memcpy(found, bytes, size_t(size));
    }
    Plan* plan = reinterpret_cast<Plan*>(PyType_GenericAlloc(plan_type, 0));
    if (!plan) return nullptr;
    if (src_number) {
        plan->src = reinterpret_cast<PyArray_Descr*>(Py_NewRef(src));
        plan->dst = reinterpret_cast<PyArray_Descr*>(Py_NewRef(dst));
    }
    plan->src_number = src_number, plan->dst_number = dst_number;
    plan->work = found[0], plan->by_float = found[1].function ? found[1] : found[0];
    return plan;
}

}  // namespace gpucast

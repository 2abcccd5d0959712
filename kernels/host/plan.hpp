// SPDX-License-Identifier: Apache-2.0
// Plans: what a call that looks like an earlier one has to do. gpucast/casting/plans.py makes them.
#pragma once
#include "memory.hpp"
#include "walk.hpp"

namespace gpucast {

struct Plan {
    PyObject_HEAD
    // The CastRule, and whether the result is never the source itself.
    PyObject* rule;
    int changes;
    // Null for a plan of NumPy's arrays: this file runs it. Else a function of Python, called with x and out, and in a fused
    // plan with seed, offset, scale and amax.
    PyObject* run;
    PyArray_Descr *src, *dst;
    Work work;
    // Of a fused plan: the same by a scale that FLOAT has.
    Work by_float;
    // Those of devices, by their index: a dictionary that others fill; or null.
    PyObject* kernels;
};

static PyTypeObject* plan_type;
// The text "dtype", and Python's integer 0.
static PyObject *dtype_name, *zero;

inline u64 itemsize_of(PyArray_Descr* dtype) { return u64(PyDataType_ELSIZE(dtype)); }

// The number of elements. PyArray_SIZE is a call, which takes as long as the cast of an element.
inline u64 size_of(PyArrayObject* x) {
    u64 size = 1;
    for (int i = 0; i < PyArray_NDIM(x); ++i) size *= u64(PyArray_DIM(x, i));
    return size;
}

inline bool is_row_major(PyArrayObject* x) {
    return (PyArray_FLAGS(x) & (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED)) == (NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED);
}

inline bool is_same_shape(PyArrayObject* x, PyArrayObject* y) {
    const int count = PyArray_NDIM(x);
    return PyArray_NDIM(y) == count && memcmp(PyArray_DIMS(x), PyArray_DIMS(y), count * sizeof(npy_intp)) == 0;
}

struct Extent {
    const u8 *begin, *end;

    bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};

// The bytes from the first to the last one of an array.
inline Extent extent(PyArrayObject* x) {
    const u8 *begin = static_cast<const u8*>(PyArray_DATA(x)), *end = begin;
    if (size_of(x) == 0) return {begin, begin};
    for (int i = 0; i < PyArray_NDIM(x); ++i) {
        const npy_intp reach = PyArray_STRIDE(x, i) * (PyArray_DIM(x, i) - 1);
        (reach < 0 ? begin : end) += reach;
    }
    return {begin, end + PyArray_ITEMSIZE(x)};
}

// Whether an array can take results: each element has a place of its own, as far as its strides tell.
inline bool is_sound(PyArrayObject* out) {
    if (!PyArray_ISWRITEABLE(out)) return false;
    if (PyArray_IS_C_CONTIGUOUS(out)) return true;
    npy_intp strides[max_dimensions], lengths[max_dimensions];
    int count = 0;
    for (int i = 0; i < PyArray_NDIM(out); ++i) {
        const npy_intp stride = magnitude(PyArray_STRIDE(out, i)), length = PyArray_DIM(out, i);
        if (length == 1) continue;
        int at = count++;
        for (; at && strides[at - 1] > stride; --at) strides[at] = strides[at - 1], lengths[at] = lengths[at - 1];
        strides[at] = stride, lengths[at] = length;
    }
    // From the shortest stride to the longest: each steps over all that the shorter ones reach.
    npy_intp reached = PyArray_ITEMSIZE(out);
    for (int i = 0; i < count; ++i) {
        if (strides[i] < reached) return false;
        reached += strides[i] * (lengths[i] - 1);
    }
    return true;
}

inline bool is_target(PyArrayObject* out, PyArrayObject* x, PyArray_Descr* dtype) {
    return PyArray_DESCR(out) == dtype && is_same_shape(x, out) && is_sound(out) && !extent(out).meets(extent(x));
}

inline Side side_of(PyArrayObject* x) {
    return {static_cast<u8*>(PyArray_DATA(x)), u32(PyArray_ITEMSIZE(x)), 0, PyArray_ISBYTESWAPPED(x) != 0};
}

inline void set_loops(Walk* walk, PyArrayObject* x, PyArrayObject* out) {
    walk->count = PyArray_NDIM(x);
    for (int i = 0; i < walk->count; ++i) walk->loops[i] = {PyArray_DIM(x, i), PyArray_STRIDE(x, i), PyArray_STRIDE(out, i)};
}

// Casts x into out, which has its shape and shares no memory with it. False after an exception.
inline bool cast_arrays(PyArrayObject* x, PyArrayObject* out, const Work& work, Found* found) {
    const u64 size = size_of(x);
    if (size <= lasting && is_row_major(x) && is_row_major(out) && !PyArray_ISBYTESWAPPED(x) && !PyArray_ISBYTESWAPPED(out)) {
        if (size) work.run(PyArray_DATA(x), PyArray_DATA(out), size, 0, found);
        return true;
    }
    Walk walk;
    walk.src = side_of(x), walk.dst = side_of(out), walk.size = size, walk.is_ordered = work.is_ordered();
    set_loops(&walk, x, out);
    return run_walk(walk, work, found);
}

inline PyObject* new_array(PyArrayObject* like, PyArray_Descr* dtype) {
    const LargeMemory own(size_of(like) * itemsize_of(dtype));
    Py_INCREF(dtype);
    if (PyArray_IS_C_CONTIGUOUS(like)) {
        return PyArray_NewFromDescr(&PyArray_Type, dtype, PyArray_NDIM(like), PyArray_DIMS(like), nullptr, nullptr, 0, nullptr);
    }
    return PyArray_NewLikeArray(like, NPY_KEEPORDER, dtype, 0);
}

inline PyObject* nothing() { Py_RETURN_NONE; }

// The keywords of a fused cast.
struct FusedKeywords {
    PyObject *seed, *offset, *scale, *amax;
};

// The bits of the number that a scale is; false, without an exception, for what only the checked path knows, or refuses.
inline bool read_scale(PyObject* given, u64* bits) {
    double number;
    if (PyFloat_CheckExact(given) || PyLong_CheckExact(given)) {
        number = PyFloat_AsDouble(given);
        PyErr_Clear();  // An integer may be too large: -1 then.
        memcpy(bits, &number, sizeof number);
        return *bits < u64(0x7ff) << 52;
    }
    if (!PyArray_CheckExact(given)) return false;
    PyArrayObject* array = reinterpret_cast<PyArrayObject*>(given);
    if (size_of(array) != 1 || PyArray_ISBYTESWAPPED(array)) return false;
    if (PyArray_TYPE(array) == NPY_DOUBLE) {
        memcpy(bits, PyArray_DATA(array), sizeof *bits);
        return true;
    }
    u32 code;
    if (PyArray_TYPE(array) != NPY_FLOAT) return false;
    memcpy(&code, PyArray_DATA(array), sizeof code);
    // The processor may flush a subnormal number.
    if (!(code & 0x7f800000) && code << 1) return false;
    float narrow;
    memcpy(&narrow, &code, sizeof narrow);
    number = narrow;
    memcpy(bits, &number, sizeof number);
    return true;
}

// Whether FLOAT has a number, but for its subnormals, for which products of DOUBLEs serve as well.
inline bool is_float(u64 bits) {
    const u64 exponent = bits >> 52 & 0x7ff;
    return !(bits & ((u64(1) << 29) - 1)) && ((897 <= exponent && exponent <= 1150) || bits << 1 == 0);
}

// What a call of a fused plan does; false, without an exception, where only the checked path can tell.
inline bool take_fused(const Plan* plan, const FusedKeywords& given, PyArrayObject* x, Work* work) {
    u64 scale = 0;
    if (given.scale != Py_None && !read_scale(given.scale, &scale)) return false;
    *work = is_float(scale) ? plan->by_float : plan->work;
    if (given.scale != Py_None) memcpy(&work->fused.scale, &scale, sizeof scale);
    work->wants_largest = given.amax != Py_None;
    if (given.amax != Py_None) {
        if (!PyArray_CheckExact(given.amax)) return false;
        PyArrayObject* amax = reinterpret_cast<PyArrayObject*>(given.amax);
        if (PyArray_TYPE(amax) != NPY_FLOAT || PyArray_ISBYTESWAPPED(amax) || size_of(amax) != 1) return false;
        if (!PyArray_ISWRITEABLE(amax) || extent(amax).meets(extent(x))) return false;
    }
    if (!work->is_ordered()) return given.seed == Py_None && given.offset == zero;
    if (!PyLong_CheckExact(given.seed) || !PyLong_CheckExact(given.offset)) return false;
    work->fused.seed = PyLong_AsUnsignedLongLong(given.seed);
    const u64 offset = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(given.offset);
    work->first = offset / 4, work->skip = offset % 4;
    const bool is_known = !PyErr_Occurred();
    PyErr_Clear();
    return is_known;
}

// Keeps the larger code, as an integer with a sign; any NaN that was found is the positive one.
inline void keep_largest(PyArrayObject* amax, u32 found) {
    int before, now = int(found > 0x7f800000 ? 0x7fc00000 : found);
    memcpy(&before, PyArray_DATA(amax), sizeof before);
    if (now > before) memcpy(PyArray_DATA(amax), &now, sizeof now);
}

// The cast of an array by a plan of NumPy's: None, nothing done, where only the checked path can tell what is right.
// fused: null for a plain cast.
inline PyObject* run_numpy(Plan* plan, PyObject* given, PyObject* out, const FusedKeywords* fused) {
    if (!PyArray_CheckExact(given)) return nothing();
    PyArrayObject* x = reinterpret_cast<PyArrayObject*>(given);
    if (PyArray_DESCR(x) != plan->src) return nothing();
    Work own;
    if (fused && !take_fused(plan, *fused, x, &own)) return nothing();
    PyArrayObject* amax = fused && own.wants_largest ? reinterpret_cast<PyArrayObject*>(fused->amax) : nullptr;
    if (out == Py_None) {
        out = new_array(x, plan->dst);
        if (!out) return nullptr;
    } else if (PyArray_CheckExact(out) && is_target(reinterpret_cast<PyArrayObject*>(out), x, plan->dst) &&
               !(amax && extent(amax).meets(extent(reinterpret_cast<PyArrayObject*>(out))))) {
        Py_INCREF(out);
    } else {
        return nothing();
    }
    Found found;
    if (cast_arrays(x, reinterpret_cast<PyArrayObject*>(out), fused ? own : plan->work, &found)) {
        if (amax && size_of(x)) keep_largest(amax, found.largest);
        return out;
    }
    Py_DECREF(out);
    return nullptr;
}

static void forget_plan(PyObject* self) {
    Plan* plan = reinterpret_cast<Plan*>(self);
    Py_XDECREF(plan->rule);
    Py_XDECREF(plan->run);
    Py_XDECREF(reinterpret_cast<PyObject*>(plan->src));
    Py_XDECREF(reinterpret_cast<PyObject*>(plan->dst));
    Py_XDECREF(plan->kernels);
    PyTypeObject* kind = Py_TYPE(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(kind, Py_tp_free))(self);
    Py_DECREF(kind);
}

// plan(rule, changes, run, src, dst, work, kernels): src and dst are dtypes, or both None. work: the bytes of a Work, of a
// fused plan's two, or None where a function `run` does it. kernels: a dictionary, or None.
inline PyObject* new_plan(PyObject*, PyObject* arguments) {
    PyObject *rule, *run, *src, *dst, *work, *kernels;
    int changes;
    if (!PyArg_ParseTuple(arguments, "OpOOOOO", &rule, &changes, &run, &src, &dst, &work, &kernels)) return nullptr;
    Work found[2] = {};
    const bool has_dtypes = PyArray_DescrCheck(src) && PyArray_DescrCheck(dst);
    if (!has_dtypes && !(run != Py_None && src == Py_None && dst == Py_None)) {
        PyErr_SetString(PyExc_TypeError, "plan: src and dst must be dtypes");
        return nullptr;
    }
    if (kernels != Py_None && !PyDict_CheckExact(kernels)) {
        PyErr_SetString(PyExc_TypeError, "plan: kernels must be a dict");
        return nullptr;
    }
    if (work != Py_None || run == Py_None) {
        char* bytes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(work, &bytes, &size) < 0) return nullptr;
        if (size != sizeof(Work) && size != sizeof found) {
            PyErr_SetString(PyExc_ValueError, "plan: work has another size");
            return nullptr;
        }
        memcpy(found, bytes, size_t(size));
    }
    Plan* plan = reinterpret_cast<Plan*>(PyType_GenericAlloc(plan_type, 0));
    if (!plan) return nullptr;
    plan->rule = Py_NewRef(rule);
    plan->changes = changes;
    if (run != Py_None) plan->run = Py_NewRef(run);
    if (has_dtypes) {
        plan->src = reinterpret_cast<PyArray_Descr*>(Py_NewRef(src));
        plan->dst = reinterpret_cast<PyArray_Descr*>(Py_NewRef(dst));
    }
    if (kernels != Py_None) plan->kernels = Py_NewRef(kernels);
    plan->work = found[0], plan->by_float = found[1];
    return reinterpret_cast<PyObject*>(plan);
}

}  // namespace gpucast

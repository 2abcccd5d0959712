// SPDX-License-Identifier: Apache-2.0
// Plans: what a call that looks like an earlier one has to do. gpucast/casting/plans.py makes them.
#pragma once
#include "arrays.hpp"

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
    // Of these, by which equal ones are known.
    int src_number, dst_number;
    Work work;
    // Of a fused plan: the same by a scale that FLOAT has.
    Work by_float;
    // Those of devices, by their index: a dictionary that others fill; or null.
    PyObject* kernels;
};

static PyTypeObject* plan_type;
// The text "dtype", and Python's integer 0.
static PyObject *dtype_name, *zero;

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
inline bool take_fused(const Plan* plan, const FusedKeywords& given, Work* work) {
    u64 scale = 0;
    if (given.scale != Py_None && !read_scale(given.scale, &scale)) return false;
    *work = is_float(scale) ? plan->by_float : plan->work;
    if (given.scale != Py_None) memcpy(&work->fused.scale, &scale, sizeof scale);
    work->wants_largest = given.amax != Py_None;
    if (given.amax != Py_None) {
        if (!PyArray_CheckExact(given.amax)) return false;
        PyArrayObject* amax = reinterpret_cast<PyArrayObject*>(given.amax);
        if (PyArray_TYPE(amax) != NPY_FLOAT || PyArray_ISBYTESWAPPED(amax) || size_of(amax) != 1) return false;
        if (!PyArray_ISWRITEABLE(amax)) return false;
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
inline void keep_largest(void* amax, u32 found) {
    int before, now = int(found > 0x7f800000 ? 0x7fc00000 : found);
    memcpy(&before, amax, sizeof before);
    if (now > before) memcpy(amax, &now, sizeof now);
}

// Whether `out` can take the cast of x, which has its shape, and `amax`, or null, what is found: all are disjoint.
inline bool are_targets(PyArrayObject* out, bool is_new, PyArrayObject* amax, PyArrayObject* x) {
    Extent written[2], read = extent(x);
    size_t writes = 0;
    if (!is_new) {
        if (!is_sound(out)) return false;
        written[writes] = extent(out);
        writes += size_of(out) != 0;
    }
    if (amax) written[writes++] = extent(amax);
    return are_disjoint(written, writes, &read, size_of(x) != 0);
}

// The cast of an array by a plan of NumPy's: None, nothing done, where only the checked path can tell what is right.
// fused: null for a plain cast.
inline PyObject* run_numpy(Plan* plan, PyObject* given, PyObject* out, const FusedKeywords* fused) {
    if (!PyArray_CheckExact(given)) return nothing();
    PyArrayObject *x = array_of(given), *amax = nullptr;
    if (number_of(PyArray_DESCR(x)) != plan->src_number) return nothing();
    Work own;
    if (fused && !take_fused(plan, *fused, &own)) return nothing();
    if (fused && own.wants_largest) amax = array_of(fused->amax);
    const bool is_new = out == Py_None;
    if (!is_new && !(PyArray_CheckExact(out) && number_of(PyArray_DESCR(array_of(out))) == plan->dst_number)) return nothing();
    out = is_new ? new_array(x, plan->dst) : Py_NewRef(out);
    if (!out) return nullptr;
    // A new array may have run others' code, which reshaped x.
    const bool is_place = is_same_shape(x, array_of(out)) && ((is_new && !amax) || are_targets(array_of(out), is_new, amax, x));
    if (!is_place) {
        Py_DECREF(out);
        return nothing();
    }
    Found found;
    void* const largest = amax && size_of(x) ? PyArray_DATA(amax) : nullptr;
    if (cast_arrays(x, array_of(out), fused ? own : plan->work, &found)) {
        if (largest) keep_largest(largest, found.largest);
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
    const int src_number = PyArray_DescrCheck(src) ? number_of(reinterpret_cast<PyArray_Descr*>(src)) : 0;
    const int dst_number = PyArray_DescrCheck(dst) ? number_of(reinterpret_cast<PyArray_Descr*>(dst)) : 0;
    const bool has_dtypes = src_number && dst_number;
    if (!has_dtypes && !(run != Py_None && src == Py_None && dst == Py_None)) {
        PyErr_SetString(PyExc_TypeError, "plan: src and dst must be native dtypes of numbers");
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
        plan->src_number = src_number, plan->dst_number = dst_number;
    }
    if (kernels != Py_None) plan->kernels = Py_NewRef(kernels);
    plan->work = found[0], plan->by_float = found[1];
    return reinterpret_cast<PyObject*>(plan);
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// Casts of many arrays of the host in one call: those of NumPy, and tensors.
#pragma once
#include <stdlib.h>

#include "tensors.hpp"

namespace gpucast {

struct Item {
    PyObject *x, *y;
    Plan* plan;
    // Of tensors.
    Plain src, dst;
    u64 size;
    Extent reads, writes;
};

inline PyArrayObject* array_of(PyObject* x) { return reinterpret_cast<PyArrayObject*>(x); }

// The items of a call, and the references that it holds: lists may change while other code of Python's runs.
struct Items {
    explicit Items(Py_ssize_t n) : count(n), first(static_cast<Item*>(PyMem_Calloc(size_t(n ? n : 1), sizeof(Item)))) {}
    ~Items() {
        for (Py_ssize_t i = 0; first && i < count; ++i) {
            Py_XDECREF(first[i].x);
            Py_XDECREF(first[i].y);
        }
        PyMem_Free(first);
    }
    Items(const Items&) = delete;
    Items& operator=(const Items&) = delete;
    const Py_ssize_t count;
    Item* const first;
};

inline Extent extent(const Plain& plain, PyArray_Descr* dtype) {
    return {plain.data, plain.data + plain.size * itemsize_of(dtype)};
}

// Whether the source of an item can be read; then what it reads.
inline bool take_source(Item* item, View* view) {
    if (view) {
        if (!is_plain(item->x, view, itemsize_of(item->plan->src), &item->src)) return false;
        item->size = item->src.size, item->reads = extent(item->src, item->plan->src);
        return true;
    }
    item->size = size_of(array_of(item->x)), item->reads = extent(array_of(item->x));
    return true;
}

// Whether the result of an item can be written; then what it writes. is_given: by the caller, who has looked at dtypes and
// shapes of tensors.
inline bool take_target(Item* item, View* view, bool is_given) {
    if (view) {
        if (!is_plain(item->y, view, itemsize_of(item->plan->dst), &item->dst) || item->dst.size != item->size) return false;
        item->writes = extent(item->dst, item->plan->dst);
        return true;
    }
    if (is_given) {
        if (!PyArray_CheckExact(item->y)) return false;
        PyArrayObject* out = array_of(item->y);
        if (PyArray_DESCR(out) != item->plan->dst || !is_same_shape(array_of(item->x), out) || !is_sound(out)) return false;
    }
    item->writes = extent(array_of(item->y));
    return true;
}

// Extents by where they begin.
inline int compare_extents(const void* one, const void* other) {
    const Extent *a = static_cast<const Extent*>(one), *b = static_cast<const Extent*>(other);
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

// Whether nothing that is written shares memory with anything else.
inline bool are_disjoint(const Items& items, const Extent* finite) {
    const size_t n = size_t(items.count);
    Extent *written = static_cast<Extent*>(PyMem_Malloc(2 * (n + 1) * sizeof(Extent))), *read = written + n + 1;
    if (!written) return false;
    size_t writes = 0, reads = 0;
    for (size_t i = 0; i < n; ++i) {
        const Item& item = items.first[i];
        if (!item.size) continue;
        read[reads++] = item.reads;
        if (item.y) written[writes++] = item.writes;
    }
    if (finite) written[writes++] = *finite;
    qsort(written, writes, sizeof *written, compare_extents);
    qsort(read, reads, sizeof *read, compare_extents);
    bool found = true;
    for (size_t i = 1; found && i < writes; ++i) found = written[i - 1].end <= written[i].begin;
    // What is read may overlap; what is written does not, so that each end is at or behind the one before.
    for (size_t i = 0, j = 0; found && i < reads; ++i) {
        while (j < writes && written[j].end <= read[i].begin) ++j;
        found = j == writes || read[i].end <= written[j].begin;
    }
    PyMem_Free(written);
    return found;
}

// The plan for an object's dtype; null where there is none, or after an exception.
inline Plan* find_plan(PyObject* plans, PyObject* x, PyObject** last_dtype, Plan** last) {
    PyObject* dtype = dtype_of(x);
    if (!dtype) return nullptr;
    if (dtype != *last_dtype) {
        PyObject* found = PyDict_GetItemWithError(plans, dtype);
        *last_dtype = dtype, *last = found ? plan_of(found) : nullptr;
    }
    // The dictionary's keys live, those that are not in it end the call.
    Py_DECREF(dtype);
    return *last;
}

inline Work work_of(const Item& item, const double* scale) {
    Work work = item.plan->work;
    if (scale) work.fused.scale = *scale;
    return work;
}

// False after an exception.
inline bool run_arrays(const Items& items, const double* scale, Found* found) {
    for (Py_ssize_t i = 0; i < items.count; ++i) {
        const Item& item = items.first[i];
        const Work& own = item.plan->work;
        if (!cast_arrays(array_of(item.x), array_of(item.y), scale ? work_of(item, scale) : own, found)) return false;
    }
    return true;
}

inline bool run_tensors(const Items& items, u64 size, const double* scale, Found* found) {
    Unlocked unlocked(size);
    for (Py_ssize_t i = 0; i < items.count; ++i) {
        const Item& item = items.first[i];
        if (!run_plain(item.plan, work_of(item, scale), item.src, item.dst, found, &unlocked)) return false;
    }
    return true;
}

// cast_each(plans, arrays, outs, scale, finite, view, empty_like): a list of the results of a list of arrays, or `outs`, a
// list of arrays that are written; None, nothing done, where only the checked path can tell what is right. plans: by the
// dtype of an array. scale: None or a float. finite: None or an array of one byte. view and empty_like: of tensors, as for
// cast_tensor; else None.
inline PyObject* cast_each(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!is_call(count, 7, "cast_each")) return nullptr;
    PyObject *plans = arguments[0], *arrays = arguments[1], *outs = arguments[2], *scale = arguments[3];
    PyObject *finite = arguments[4], *empty_like = arguments[6];
    View* view = arguments[5] == Py_None ? nullptr : function_at<View>(arguments[5]);
    if (!PyDict_Check(plans) || !PyList_CheckExact(arrays) || !(outs == Py_None || PyList_CheckExact(outs))) return nothing();
    Items items(PyList_Size(arrays));
    if (!items.first) return PyErr_NoMemory();
    if (outs != Py_None && PyList_Size(outs) != items.count) return nothing();
    PyObject* last_dtype = nullptr;
    Plan* last = nullptr;
    u64 size = 0;
    for (Py_ssize_t i = 0; i < items.count; ++i) {
        Item& item = items.first[i];
        item.x = Py_XNewRef(PyList_GetItem(arrays, i));
        if (!item.x) return nullptr;
        if (!view && !PyArray_CheckExact(item.x)) return nothing();
        item.plan = find_plan(plans, item.x, &last_dtype, &last);
        if (PyErr_Occurred()) return nullptr;
        if (!item.plan) return nothing();
        if (!take_source(&item, view)) return nothing();
        size += item.size;
        if (outs == Py_None) continue;
        item.y = Py_XNewRef(PyList_GetItem(outs, i));
        if (!item.y) return nullptr;
        if (!take_target(&item, view, true)) return nothing();
    }
    u8* flag = nullptr;
    if (finite != Py_None) {
        if (!PyArray_CheckExact(finite) || PyArray_NBYTES(array_of(finite)) != 1) return nothing();
        flag = static_cast<u8*>(PyArray_DATA(array_of(finite)));
    }
    const Extent flags = {flag, flag + 1};
    if ((outs != Py_None || flag) && !are_disjoint(items, flag ? &flags : nullptr)) return nothing();
    double factor = 0;
    if (scale != Py_None) {
        factor = PyFloat_AsDouble(scale);
        if (PyErr_Occurred()) return nullptr;
    }
    for (Py_ssize_t i = 0; outs == Py_None && i < items.count; ++i) {
        Item& item = items.first[i];
        item.y = view ? PyObject_CallFunctionObjArgs(empty_like, item.x, nullptr)
                      : new_array(array_of(item.x), item.plan->dst);
        if (!item.y) return nullptr;
        if (!take_target(&item, view, false)) return nothing();
        if (view) ask_for_large_pages(item.dst.data, item.dst.size * itemsize_of(item.plan->dst));
    }
    Found found;
    const bool done = view ? run_tensors(items, size, scale == Py_None ? nullptr : &factor, &found)
                           : run_arrays(items, scale == Py_None ? nullptr : &factor, &found);
    if (flag && !found.finite) *flag = 0;
    if (!done) return nullptr;
    if (outs != Py_None) return Py_NewRef(outs);
    PyObject* results = PyList_New(items.count);
    for (Py_ssize_t i = 0; results && i < items.count; ++i) PyList_SetItem(results, i, Py_NewRef(items.first[i].y));
    return results;
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// Casts of many arrays of the host in one call: those of NumPy, and tensors.
#pragma once
#include "tensors.hpp"

namespace gpucast {

// A cast of a list: all that is known of its arrays is read before anything is cast, because others may reshape them then.
struct Item {
    PyObject *x, *y;
    Plan* plan;
    u64 size;
    Extent reads, writes;
    // The bytes in use of a Walk; null where both sides are flat.
    void* walk;
};

// The items of a call, and the references that it holds: lists may change while other code of Python's runs.
struct Items {
    explicit Items(Py_ssize_t n) : count(n), first(static_cast<Item*>(PyMem_Calloc(size_t(n ? n : 1), sizeof(Item)))) {}
    ~Items() {
        for (Py_ssize_t i = 0; first && i < count; ++i) {
            Py_XDECREF(first[i].x);
            Py_XDECREF(first[i].y);
            Py_XDECREF(reinterpret_cast<PyObject*>(first[i].plan));
            PyMem_Free(first[i].walk);
        }
        PyMem_Free(first);
    }
    Items(const Items&) = delete;
    Items& operator=(const Items&) = delete;
    const Py_ssize_t count;
    Item* const first;
};

// Reads all of an item that its cast needs; false, without an exception, where only the checked path can tell what is right.
// is_new: y was made for x.
inline bool read_arrays(Item* item, bool is_new) {
    PyArrayObject *x = array_of(item->x), *y = array_of(item->y);
    if (number_of(PyArray_DESCR(x)) != item->plan->src_number || number_of(PyArray_DESCR(y)) != item->plan->dst_number) return false;
    if (!is_same_shape(x, y) || !(is_new || is_sound(y))) return false;
    item->size = size_of(x), item->reads = extent(x), item->writes = extent(y);
    if (is_flat(x) && is_flat(y)) return true;
    Walk walk;
    set_walk(&walk, x, y, item->plan->work.is_ordered());
    simplify(&walk);
    item->walk = PyMem_Malloc(walk.used_bytes());
    if (item->walk) memcpy(item->walk, &walk, walk.used_bytes());
    return item->walk != nullptr;
}

inline bool read_tensors(Item* item, View* view) {
    Plain src, dst;
    if (!are_plain(item->plan, item->x, item->y, view, &src, &dst) || src.device_type != on_host) return false;
    item->size = src.size, item->reads = extent(src, item->plan->src), item->writes = extent(dst, item->plan->dst);
    return true;
}

// Whether nothing that is written shares memory with anything else.
inline bool are_disjoint(const Items& items, const Extent* finite) {
    const size_t n = size_t(items.count);
    Extent *written = static_cast<Extent*>(PyMem_Malloc(2 * (n + 1) * sizeof(Extent))), *read = written + n + 1;
    if (!written) return false;
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
        const Item& item = items.first[i];
        if (item.size) read[count] = item.reads, written[count++] = item.writes;
    }
    if (finite) written[count] = *finite;
    const bool found = are_disjoint(written, count + (finite != nullptr), read, count);
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

// False after an exception.
inline bool run(const Item& item, const Work& work, Found* found, Unlocked* unlocked) {
    if (!item.walk) {
        u8 *src = reinterpret_cast<u8*>(item.reads.begin), *dst = reinterpret_cast<u8*>(item.writes.begin);
        const u32 src_bytes = u32(itemsize_of(item.plan->src)), dst_bytes = u32(itemsize_of(item.plan->dst));
        return !item.size || walk_flat(src, src_bytes, dst, dst_bytes, item.size, work, found, unlocked);
    }
    Walk walk;
    memcpy(&walk, item.walk, offsetof(Walk, loops));
    memcpy(&walk, item.walk, walk.used_bytes());
    return run_walk(walk, work, found, unlocked);
}

inline bool run(const Items& items, const double* scale, Found* found) {
    u64 size = 0;
    for (Py_ssize_t i = 0; i < items.count; ++i) size += items.first[i].size;
    Unlocked unlocked(size);
    for (Py_ssize_t i = 0; i < items.count; ++i) {
        const Item& item = items.first[i];
        Work scaled;
        if (scale) scaled = item.plan->work, scaled.fused.scale = *scale;
        if (!run(item, scale ? scaled : item.plan->work, found, &unlocked)) return false;
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
    const bool is_new = outs == Py_None;
    if (!is_new && PyList_Size(outs) != items.count) return nothing();
    PyObject* last_dtype = nullptr;
    Plan* last = nullptr;
    for (Py_ssize_t i = 0; i < items.count; ++i) {
        Item& item = items.first[i];
        Plain plain;
        item.x = Py_XNewRef(PyList_GetItem(arrays, i));
        if (!item.x) return nullptr;
        if (!view && !PyArray_CheckExact(item.x)) return nothing();
        Plan* plan = find_plan(plans, item.x, &last_dtype, &last);
        if (PyErr_Occurred()) return nullptr;
        if (!plan || (view && !is_plain(item.x, view, itemsize_of(plan->src), &plain))) return nothing();
        item.plan = reinterpret_cast<Plan*>(Py_NewRef(reinterpret_cast<PyObject*>(plan)));
        if (is_new) continue;
        item.y = Py_XNewRef(PyList_GetItem(outs, i));
        if (!item.y) return nullptr;
        if (!view && !PyArray_CheckExact(item.y)) return nothing();
    }
    double factor = 0;
    if (scale != Py_None) {
        factor = PyFloat_AsDouble(scale);
        if (PyErr_Occurred()) return nullptr;
    }
    for (Py_ssize_t i = 0; is_new && i < items.count; ++i) {
        Item& item = items.first[i];
        item.y = view ? PyObject_CallFunctionObjArgs(empty_like, item.x, nullptr)
                      : new_array(array_of(item.x), item.plan->dst);
        if (!item.y) return nullptr;
    }
    // From here on no code of others runs before all is read.
    for (Py_ssize_t i = 0; i < items.count; ++i) {
        Item& item = items.first[i];
        if (!(view ? read_tensors(&item, view) : read_arrays(&item, is_new))) return nothing();
        if (view && is_new) ask_for_large_pages(reinterpret_cast<u8*>(item.writes.begin), item.writes.end - item.writes.begin);
    }
    u8* flag = nullptr;
    if (finite != Py_None) {
        if (!PyArray_CheckExact(finite) || PyArray_NBYTES(array_of(finite)) != 1) return nothing();
        flag = static_cast<u8*>(PyArray_DATA(array_of(finite)));
    }
    const Extent flags = extent(flag, 1);
    if ((!is_new || flag) && !are_disjoint(items, flag ? &flags : nullptr)) return nothing();
    Found found;
    const bool done = run(items, scale == Py_None ? nullptr : &factor, &found);
    if (flag && !found.finite) *flag = 0;
    if (!done) return nullptr;
    if (!is_new) return Py_NewRef(outs);
    PyObject* results = PyList_New(items.count);
    for (Py_ssize_t i = 0; results && i < items.count; ++i) PyList_SetItem(results, i, Py_NewRef(items.first[i].y));
    return results;
}

}  // namespace gpucast

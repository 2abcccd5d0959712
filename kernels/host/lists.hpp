// SPDX-License-Identifier: Apache-2.0
// Casts of many arrays of the host in one call: those of NumPy, and tensors.
#pragma once
#include "tensors.hpp"

namespace gpucast {

// The arguments of gpucast.cast_many are those of gpucast.cast, and these.
enum : int { of_finite = arguments_of_cast, of_floating_only, arguments_of_many };

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
// is_new: y was made for x. library: null for arrays of NumPy.
inline bool read_item(Item* item, bool is_new, const TensorLibrary* library) {
    const Plan* plan = item->plan;
    Layout x, y;
    if (library) {
        Placement src, dst;
        if (!src.look_at(item->x, library->view, itemsize_of(plan->src)) || !dst.look_at(item->y, library->view, itemsize_of(plan->dst))) return false;
        if (src.device_type != on_host || dst.device_type != on_host) return false;
        x = src.layout, y = dst.layout;
        if (is_new) ask_for_large_pages(y.data, y.size * y.itemsize);
    } else {
        if (number_of(PyArray_DESCR(array_of(item->x))) != plan->src_number || number_of(PyArray_DESCR(array_of(item->y))) != plan->dst_number) return false;
        if (!is_new && !is_writable(item->y)) return false;
        x = layout_of(array_of(item->x)), y = layout_of(array_of(item->y));
    }
    if (!is_same_shape(x, y) || !(is_new || is_sound(y))) return false;
    item->size = x.size, item->reads = extent(x), item->writes = extent(y);
    if (x.is_flat && y.is_flat) return true;
    Walk walk;
    set_walk(&walk, x, y, plan->work.is_ordered());
    simplify(&walk);
    item->walk = PyMem_Malloc(walk.used_bytes());
    if (item->walk) memcpy(item->walk, &walk, walk.used_bytes());
    return item->walk != nullptr;
}

// Whether nothing that is written shares memory with anything else.
inline bool are_disjoint(const Items& items, const Fusion& fusion, const Extent* finite) {
    const size_t n = size_t(items.count) + 2;
    Extent *written = static_cast<Extent*>(PyMem_Malloc(2 * n * sizeof(Extent))), *read = written + n;
    if (!written) return false;
    size_t writes = 0, reads = 0;
    for (Py_ssize_t i = 0; i < items.count; ++i) {
        const Item& item = items.first[i];
        if (item.size) read[reads++] = item.reads, written[writes++] = item.writes;
    }
    if (finite) written[writes++] = *finite;
    if (fusion.amax.data) written[writes++] = fusion.amax.extent();
    if (fusion.scale.data) read[reads++] = fusion.scale.extent();
    const bool found = are_disjoint(written, writes, read, reads);
    PyMem_Free(written);
    return found;
}

// The plan for an object's dtype; null where there is none, or after an exception.
inline Plan* find_plan(PyObject* plans, PyObject* x, PyObject** last_dtype, Plan** last) {
    PyObject* dtype = dtype_of(x);
    if (!dtype) return nullptr;
    if (dtype != *last_dtype) {
        PyObject* found = PyDict_GetItemWithError(plans, dtype);
        *last_dtype = dtype, *last = found && Py_TYPE(found) == plan_type ? reinterpret_cast<Plan*>(found) : nullptr;
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

// Random words go on from item to item.
inline bool run(const Items& items, Fusion fusion, bool is_fused, bool wants_finite, Found* found) {
    u64 size = 0;
    for (Py_ssize_t i = 0; i < items.count; ++i) size += items.first[i].size;
    Unlocked unlocked(size);
    for (Py_ssize_t i = 0; i < items.count; ++i) {
        const Item& item = items.first[i];
        if (is_fused) {
            Work work = work_of(item.plan, fusion);
            work.wants_finite = wants_finite;
            if (!run(item, work, found, &unlocked)) return false;
            fusion.offset += item.size;
        } else if (!run(item, item.plan->work, found, &unlocked)) {
            return false;
        }
    }
    return true;
}

// The address of the byte that `finite` is; null for None. False for what only the checked path can tell.
inline bool take_flag(PyObject* finite, u8** flag) {
    *flag = nullptr;
    if (is_none(finite)) return true;
    if (!PyArray_CheckExact(finite) || !is_writable(finite) || PyArray_NBYTES(array_of(finite)) != 1) return false;
    const int kind = PyArray_TYPE(array_of(finite));
    *flag = static_cast<u8*>(PyArray_DATA(array_of(finite)));
    return kind == NPY_BOOL || kind == NPY_UBYTE;
}

// A list of the results of a list of arrays, or `out`, a list of arrays that are written. The plan has plans by the dtype of
// an array.
inline PyObject* run_list(Plan* plan, PyObject* const* arguments) {
    PyObject *arrays = arguments[of_x], *outs = arguments[of_out], *amax = arguments[of_amax];
    const bool is_new = is_none(outs);
    if (!PyList_CheckExact(arrays) || !(is_new || PyList_CheckExact(outs)) || arguments[of_floating_only] != Py_False) return nothing();
    TensorLibrary known;
    const TensorLibrary* library;
    if (!find_library(plan->library, &known, &library)) return PyErr_Occurred() ? nullptr : nothing();
    Items items(PyList_Size(arrays));
    if (!items.first) return PyErr_NoMemory();
    if (!items.count || (!is_new && PyList_Size(outs) != items.count)) return nothing();
    PyTypeObject* const kind = library ? Py_TYPE(PyList_GetItem(arrays, 0)) : &PyArray_Type;
    PyObject* last_dtype = nullptr;
    Plan* last = nullptr;
    for (Py_ssize_t i = 0; i < items.count; ++i) {
        Item& item = items.first[i];
        item.x = Py_XNewRef(PyList_GetItem(arrays, i));
        if (!item.x) return nullptr;
        if (Py_TYPE(item.x) != kind) return nothing();
        Plan* own = find_plan(plan->kernels, item.x, &last_dtype, &last);
        if (PyErr_Occurred()) return nullptr;
        if (!own) return nothing();
        item.plan = reinterpret_cast<Plan*>(Py_NewRef(reinterpret_cast<PyObject*>(own)));
        Placement placed;
        if (library && !(placed.look_at(item.x, library->view, itemsize_of(own->src)) && placed.device_type == on_host &&
                         is_simple(item.x, placed.layout.data, placed.layout.itemsize))) {
            return nothing();
        }
        if (is_new) continue;
        item.y = Py_XNewRef(PyList_GetItem(outs, i));
        if (!item.y) return nullptr;
        if (!(library ? is_kind(item.y, kind, own->made) : PyArray_CheckExact(item.y))) return nothing();
        if (library && !(placed.look_at(item.y, library->view, itemsize_of(own->dst)) &&
                         is_simple(item.y, placed.layout.data, placed.layout.itemsize))) {
            return nothing();
        }
    }
    for (Py_ssize_t i = 0; is_new && i < items.count; ++i) {
        Item& item = items.first[i];
        item.y = library ? PyObject_CallFunctionObjArgs(item.plan->empty, item.x, nullptr) : new_array(array_of(item.x), item.plan->dst);
        if (!item.y) return nullptr;
    }
    // From here on no code of others runs before all is read.
    for (Py_ssize_t i = 0; i < items.count; ++i) {
        if (!read_item(&items.first[i], is_new, library)) return nothing();
    }
    Fusion fusion;
    const auto take = [&](PyObject* given, Single* single) {
        if (library && Py_TYPE(given) == kind) return take_tensor(given, library->view, single) && single->device_type == on_host;
        return take_array(given, single);
    };
    u8* flag;
    bool is_random = false;
    for (Py_ssize_t i = 0; i < items.count; ++i) is_random = is_random || items.first[i].plan->work.is_ordered();
    if (!take_fusion(arguments, is_random, take, &fusion) || !take_flag(arguments[of_finite], &flag)) return nothing();
    if (fusion.scale.data && !read_scale(&fusion)) return nothing();
    if (PyArray_CheckExact(amax) && !is_writable(amax)) return nothing();
    // The words of each array are counted in 64 bits.
    if (fusion.offset >> 62) return nothing();
    const Extent flags = extent(flag, 1);
    if ((!is_new || flag || fusion.amax.data) && !are_disjoint(items, fusion, flag ? &flags : nullptr)) return nothing();
    Found found;
    u64 size = 0;
    for (Py_ssize_t i = 0; i < items.count; ++i) size += items.first[i].size;
    const bool done = run(items, fusion, flag || !is_plain(arguments, is_random), flag != nullptr, &found);
    if (flag && !found.finite) *flag = 0;
    if (!done) return nullptr;
    if (fusion.amax.data && size) keep_largest(fusion.amax.data, found.largest);
    if (library && !is_new && !tell(library->written, outs)) return nullptr;
    if (Py_TYPE(amax) == kind && library && !tell(library->written, amax)) return nullptr;
    if (!is_new) return Py_NewRef(outs);
    PyObject* results = PyList_New(items.count);
    for (Py_ssize_t i = 0; results && i < items.count; ++i) PyList_SetItem(results, i, Py_NewRef(items.first[i].y));
    return results;
}

}  // namespace gpucast

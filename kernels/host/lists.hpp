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

// Reads the items of a call.
struct ListReader {
    ListReader(const TensorLibrary* from, PyObject* by_dtype, bool makes_new) : library(from), plans(by_dtype), is_new(makes_new) {}

    // Null for arrays of NumPy.
    const TensorLibrary* const library;
    // Plans by dtype.
    PyObject* const plans;
    // Whether each y was made for its x, and whether nothing may be asked of others' code.
    const bool is_new;
    bool is_last = false;
    // The item before, and whether code of others ran since the first one was read.
    const Item* before = nullptr;
    bool has_asked = false;

    // Finds the plan for an item's dtype. False where there is none, or after an exception.
    bool find(Item* item) {
        PyObject* dtype = dtype_of(item->x);
        if (!dtype) return false;
        if (dtype != last_dtype_) {
            PyObject* found = PyDict_GetItemWithError(plans, dtype);
            last_dtype_ = dtype, last_ = found && Py_TYPE(found) == plan_type ? reinterpret_cast<Plan*>(found) : nullptr;
        }
        // The dictionary's keys live, those that are not in it end the call.
        Py_DECREF(dtype);
        return last_ && set_plan(item, last_);
    }

    // Reads all that the casts need, as the last thing before them that others' code could change. False where only the
    // checked path can tell what is right, or after an exception.
    bool read(Items* items) {
        for (;; is_last = true, has_asked = false, before = nullptr) {
            for (Py_ssize_t i = 0; i < items->count; ++i) {
                if (!read_item(&items->first[i])) return false;
                before = &items->first[i];
            }
            if (!has_asked) return true;
        }
    }

   private:
    PyObject* last_dtype_ = nullptr;
    Plan* last_ = nullptr;

    // Whether others' code may run, which is noted.
    bool may_ask() {
        has_asked = has_asked || before;
        return !is_last;
    }

    static bool set_plan(Item* item, Plan* found) {
        if (!item->plan) item->plan = reinterpret_cast<Plan*>(Py_NewRef(reinterpret_cast<PyObject*>(found)));
        return item->plan == found;
    }

    // Tensors of one type of DLPack's have one dtype, which takes longer to ask for.
    bool look_at_source(Item* item, Placement* src) {
        Tensor tensor;
        if (!Placement::see(item->x, library->view, &tensor)) return false;
        if (!item->plan && before && before->plan->src_type == tensor.type()) set_plan(item, before->plan);
        if (!item->plan || item->plan->src_type != tensor.type()) {
            if (!may_ask() || !find(item) || !Placement::see(item->x, library->view, &tensor)) return false;
            if (item->plan->src_type && item->plan->src_type != tensor.type()) return false;
            item->plan->src_type = tensor.type();
        }
        return src->set(tensor, itemsize_of(item->plan->src));
    }

    bool look_at_result(Item* item, Placement* dst) {
        Plan* plan = item->plan;
        Tensor tensor;
        if (!Placement::see(item->y, library->view, &tensor)) return false;
        if (!is_new && plan->dst_type != tensor.type()) {
            has_asked = true;
            if (is_last || plan->dst_type || !is_kind(item->y, Py_TYPE(item->x), plan->made)) return false;
            if (!Placement::see(item->y, library->view, &tensor)) return false;
            plan->dst_type = tensor.type();
        }
        return dst->set(tensor, itemsize_of(plan->dst));
    }

    bool has_memory(PyObject* x, const Placement& placed) {
        if (placed.is_far() || is_last) return true;
        has_asked = true;
        return gpucast::has_memory(x, placed.layout.data, placed.layout.itemsize);
    }

    bool read_tensors(Item* item, Layout* x, Layout* y) {
        Placement src, dst;
        if (!look_at_source(item, &src) || !look_at_result(item, &dst)) return false;
        if (src.device_type != on_host || dst.device_type != on_host) return false;
        if (!has_memory(item->x, src) || !(is_new || has_memory(item->y, dst))) return false;
        *x = src.layout, *y = dst.layout;
        if (is_new) ask_for_large_pages(y->data, y->size * y->itemsize);
        return true;
    }

    bool read_arrays(Item* item, Layout* x, Layout* y) {
        PyArrayObject *given = array_of(item->x), *out = array_of(item->y);
        if (!item->plan && !find(item)) return false;
        const Plan* plan = item->plan;
        if (!is_of(given, plan->src, plan->src_number) || !is_of(out, plan->dst, plan->dst_number)) return false;
        if (!is_new && !is_writable(item->y)) return false;
        *x = layout_of(given), *y = layout_of(out);
        return true;
    }

    bool read_item(Item* item) {
        Layout x, y;
        if (!(library ? read_tensors(item, &x, &y) : read_arrays(item, &x, &y))) return false;
        if (!is_same_shape(x, y) || !(is_new || is_sound(y))) return false;
        item->size = x.size, item->reads = extent(x), item->writes = extent(y);
        PyMem_Free(item->walk);
        item->walk = nullptr;
        if (x.is_flat && y.is_flat) return true;
        Walk walk;
        set_walk(&walk, x, y, item->plan->work.is_ordered());
        simplify(&walk);
        item->walk = PyMem_Malloc(walk.used_bytes());
        if (item->walk) memcpy(item->walk, &walk, walk.used_bytes());
        return item->walk != nullptr;
    }
};

// Whether nothing that is written shares memory with anything else. The plan keeps the latest extents of which that is so:
// lists are written again more often than not, and to sort them takes as long as short casts.
inline bool are_disjoint(Plan* plan, const Items& items, const Fusion& fusion, const Extent* finite) {
    const size_t n = size_t(items.count) + 2;
    Extent *written = static_cast<Extent*>(PyMem_Malloc(4 * n * sizeof(Extent))), *read = written + n, *const all = read + n;
    if (!written) return false;
    size_t writes = 0, reads = 0;
    for (Py_ssize_t i = 0; i < items.count; ++i) {
        const Item& item = items.first[i];
        if (item.size) read[reads++] = item.reads, written[writes++] = item.writes;
    }
    if (finite) written[writes++] = *finite;
    if (fusion.amax.data) written[writes++] = fusion.amax.extent();
    if (fusion.scale.data) read[reads++] = fusion.scale.extent();
    Extents found = {all, writes, reads};
    memcpy(all, written, writes * sizeof(Extent));
    memcpy(all + writes, read, reads * sizeof(Extent));
    const bool is_known = plan->disjoint.is_same(found);
    const bool is_so = is_known || are_disjoint(written, writes, read, reads);
    if (is_so && !is_known) plan->disjoint.keep(found);
    PyMem_Free(written);
    return is_so;
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
    // Lists may change meanwhile.
    const auto take_item = [&](PyObject* list, Py_ssize_t i, PyObject** place) {
        *place = Py_XNewRef(PyList_GetItem(list, i));
        return *place && Py_TYPE(*place) == kind && (!library || is_quiet(*place));
    };
    ListReader reader(library, plan->kernels, is_new);
    for (Py_ssize_t i = 0; i < items.count; ++i) {
        Item& item = items.first[i];
        if (!take_item(arrays, i, &item.x) || !(is_new || take_item(outs, i, &item.y))) return PyErr_Occurred() ? nullptr : nothing();
        // Those on a device are not for this function.
        if (library && !i && !is_on_host(item.x, library->view)) return nothing();
        if (is_new && !reader.find(&item)) return PyErr_Occurred() ? nullptr : nothing();
    }
    for (Py_ssize_t i = 0; is_new && i < items.count; ++i) {
        Item& item = items.first[i];
        item.y = library ? PyObject_CallFunctionObjArgs(item.plan->empty, item.x, nullptr) : new_array(array_of(item.x), item.plan->dst);
        if (!item.y) return nullptr;
    }
    // From here on no code of others runs before all is read.
    if (!reader.read(&items)) return PyErr_Occurred() ? nullptr : nothing();
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
    if ((!is_new || flag || fusion.amax.data) && !are_disjoint(plan, items, fusion, flag ? &flags : nullptr)) return nothing();
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

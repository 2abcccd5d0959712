// SPDX-License-Identifier: Apache-2.0
// Casts of packed elements: those in bytes of NumPy, and by plans those in bytes of CuPy too.
#pragma once
#include "device.hpp"

namespace gpucast {

// The walk over elements in row-major order, of which one side or both lie packed in a flat array of bytes (their bits are
// not 0 then). False where that has too few bytes, or the other side is another number of elements.
inline bool set_packed_walk(Walk* walk, PyArrayObject* x, u32 src_bits, PyArrayObject* out, u32 dst_bits, u64 size) {
    walk->src = layout_of(x).side(), walk->dst = layout_of(out).side();
    walk->src.bits = src_bits, walk->dst.bits = dst_bits;
    walk->size = size, walk->is_ordered = true;
    PyArrayObject* const shaped = !src_bits ? x : !dst_bits ? out : nullptr;
    walk->count = shaped ? PyArray_NDIM(shaped) : 1;
    if (!shaped) walk->loops[0] = {npy_intp(size), 1, 1};
    npy_intp behind = 1;
    for (int i = walk->count; shaped && i-- > 0; behind *= PyArray_DIM(shaped, i)) {
        const npy_intp stride = PyArray_STRIDE(shaped, i);
        walk->loops[i] = {PyArray_DIM(shaped, i), src_bits ? behind : stride, dst_bits ? behind : stride};
    }
    const auto has_bytes = [size](PyArrayObject* bytes, u32 bits) { return !bits || u64(PyArray_NBYTES(bytes)) >= (size * bits + 7) / 8; };
    return (!shaped || size_of(shaped) == size) && has_bytes(x, src_bits) && has_bytes(out, dst_bits);
}

// The bytes of a PackedArray of NumPy, with a reference of its own; null, without an exception, for any other object.
inline PyObject* bytes_of(PyObject* packed, u64 size, u64 bits) {
    PyObject* found = PyObject_GetAttr(packed, data_name);
    if (!found) PyErr_Clear();
    if (found && PyArray_CheckExact(found) && PyArray_TYPE(array_of(found)) == NPY_UBYTE && PyArray_NDIM(array_of(found)) == 1 &&
        is_flat(array_of(found)) && u64(PyArray_NBYTES(array_of(found))) == (size * bits + 7) / 8) {
        return found;
    }
    Py_XDECREF(found);
    return nullptr;
}

// The shape of an array of NumPy, or of packed elements, and their number. False, without an exception, for any other.
struct Shape {
    npy_intp lengths[max_dimensions];
    int dimensions;
    u64 size = 1;

    bool take(PyObject* shape) {
        if (!shape || !PyTuple_CheckExact(shape) || PyTuple_Size(shape) > max_dimensions) return false;
        dimensions = int(PyTuple_Size(shape));
        for (int i = 0; i < dimensions; ++i) {
            lengths[i] = PyLong_AsSsize_t(PyTuple_GetItem(shape, i));
            if (lengths[i] < 0 || (lengths[i] && size > (u64(1) << 60) / u64(lengths[i]))) return PyErr_Clear(), false;
            size *= u64(lengths[i]);
        }
        return true;
    }
    bool take_of(PyObject* packed) {
        PyObject* found = PyObject_GetAttr(packed, shape_name);
        if (!found) PyErr_Clear();
        const bool is_known = take(found);
        Py_XDECREF(found);
        return is_known;
    }
};

// A new PackedArray over these bytes, which it takes over.
inline PyObject* new_packed(const Plan* plan, PyObject* bytes, PyObject* like) {
    PyObject* packed = bytes ? PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(plan->library), 0) : nullptr;
    PyObject* shape = packed ? PyObject_GetAttr(like, shape_name) : nullptr;
    const bool is_done = shape && PyObject_SetAttr(packed, data_name, bytes) == 0 && PyObject_SetAttr(packed, dtype_name, plan->made) == 0 &&
                         PyObject_SetAttr(packed, shape_name, shape) == 0;
    Py_XDECREF(shape);
    Py_XDECREF(bytes);
    if (!is_done) Py_CLEAR(packed);
    return packed;
}

inline PyObject* run_packed(Plan* plan, PyObject* const* arguments) {
    PyObject *x = arguments[of_x], *out = arguments[of_out];
    Shape shape, other;
    if (!shape.take_of(x)) return nothing();
    References held;
    if (!held.take(bytes_of(x, shape.size, plan->src_bits))) return run_placed(plan, arguments);
    PyObject *const bytes = held.each[0], *target = out;
    if (is_none(out)) {
        const npy_intp n = npy_intp((shape.size * plan->dst_bits + 7) / 8);
        const bool packs = plan->dst_bits != 0;
        PyArray_Descr* kind = packs ? PyArray_DescrFromType(NPY_UBYTE) : reinterpret_cast<PyArray_Descr*>(Py_NewRef(reinterpret_cast<PyObject*>(plan->dst)));
        const LargeMemory own(packs ? u64(n) : shape.size * itemsize_of(kind));
        target = PyArray_NewFromDescr(&PyArray_Type, kind, packs ? 1 : shape.dimensions, packs ? &n : shape.lengths, nullptr, nullptr, 0, nullptr);
        if (!held.take(target)) return nullptr;
    } else if (plan->dst_bits) {
        if (!takes_results(plan, x, out) || !other.take_of(out)) return nothing();
        if (!is_same_shape(shape.dimensions, shape.lengths, other.dimensions, other.lengths)) return nothing();
        target = bytes_of(out, shape.size, plan->dst_bits);
        if (!held.take(target) || !is_writable(target)) return nothing();
    } else if (!PyArray_CheckExact(out) || !is_of(array_of(out), plan->dst, plan->dst_number) || !is_writable(out) ||
               !is_same_shape(shape.dimensions, shape.lengths, PyArray_NDIM(array_of(out)), PyArray_DIMS(array_of(out)))) {
        return nothing();
    }
    Fusion own;
    const bool is_random = plan->work.is_ordered(), is_fused = !is_plain(arguments, is_random);
    if (is_fused && !take_of_host(plan, arguments, is_random, &own)) return nothing();
    const Layout from = layout_of(array_of(bytes)), to = layout_of(array_of(target));
    if (!is_sound(to) || !are_disjoint(extent(from), is_none(out) ? Extent{0, 0} : extent(to), &own)) return nothing();
    Walk walk;
    if (!set_packed_walk(&walk, array_of(bytes), plan->src_bits, array_of(target), plan->dst_bits, shape.size)) return nothing();
    Found found;
    if (shape.size) {
        Unlocked unlocked(shape.size);
        if (!run_walk(walk, is_fused ? work_of(plan, own) : plan->work, &found, &unlocked)) return nullptr;
        if (own.amax.data) keep_largest(own.amax.data, found.largest);
    }
    if (!is_none(out)) return Py_NewRef(out);
    return plan->dst_bits ? new_packed(plan, Py_NewRef(target), x) : Py_NewRef(target);
}

}  // namespace gpucast

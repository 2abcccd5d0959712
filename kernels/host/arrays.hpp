// SPDX-License-Identifier: Apache-2.0
// Arrays of NumPy as a cast needs them, and where their memory is.
#pragma once
#include <stdlib.h>

#include "memory.hpp"
#include "walk.hpp"

namespace gpucast {

inline PyArrayObject* array_of(PyObject* x) { return reinterpret_cast<PyArrayObject*>(x); }

inline u64 itemsize_of(PyArray_Descr* dtype) { return u64(PyDataType_ELSIZE(dtype)); }

// The number of a native dtype of numbers, which all dtypes have that mean the same: those that pickle makes are objects of
// their own. 0 for any other, such as those of texts and records, of which many have one number.
inline int number_of(PyArray_Descr* dtype) {
    const int number = dtype->type_num;
    if (!PyArray_ISNBO(dtype->byteorder)) return 0;
    if (number == NPY_LONGLONG && sizeof(npy_longlong) == sizeof(npy_long)) return NPY_LONG + 1;
    if (number == NPY_ULONGLONG && sizeof(npy_longlong) == sizeof(npy_long)) return NPY_ULONG + 1;
    return number <= NPY_DOUBLE || number == NPY_HALF || PyTypeNum_ISUSERDEF(number) ? number + 1 : 0;
}

// The number of elements. PyArray_SIZE is a call, which takes as long as the cast of an element.
inline u64 size_of(PyArrayObject* x) {
    u64 size = 1;
    for (int i = 0; i < PyArray_NDIM(x); ++i) size *= u64(PyArray_DIM(x, i));
    return size;
}

// Whether the elements of an array are native, aligned and adjacent, in row-major order.
inline bool is_flat(PyArrayObject* x) {
    const int flags = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
    return (PyArray_FLAGS(x) & flags) == flags && !PyArray_ISBYTESWAPPED(x);
}

// An array or a tensor of the host as casts see it. The lengths and strides are its own, and live as long as it keeps them.
struct Layout {
    u8* data;
    u64 size;
    u32 itemsize;
    int dimensions;
    const npy_intp *lengths, *strides;
    // Bytes of a stride of 1.
    npy_intp unit;
    bool is_swapped, is_flat;

    npy_intp stride(int i) const { return strides[i] * unit; }
    Side side() const { return {data, itemsize, 0, is_swapped}; }
};

inline Layout layout_of(PyArrayObject* x) {
    return {static_cast<u8*>(PyArray_DATA(x)), size_of(x), u32(PyArray_ITEMSIZE(x)), PyArray_NDIM(x), PyArray_DIMS(x),
            PyArray_STRIDES(x), 1, PyArray_ISBYTESWAPPED(x) != 0, is_flat(x)};
}

// Shapes of no lengths may be null.
template <typename Length>
inline bool is_same_shape(int dimensions, const Length* one, int others, const Length* other) {
    if (dimensions != others) return false;
    for (int i = 0; i < dimensions; ++i) {
        if (one[i] != other[i]) return false;
    }
    return true;
}

inline bool is_same_shape(PyArrayObject* x, PyArrayObject* y) {
    return is_same_shape(PyArray_NDIM(x), PyArray_DIMS(x), PyArray_NDIM(y), PyArray_DIMS(y));
}

inline bool is_same_shape(const Layout& x, const Layout& y) { return is_same_shape(x.dimensions, x.lengths, y.dimensions, y.lengths); }

// ---- overlap ----

// Addresses from the first byte of some memory to behind the last one, on the host or on a device.
struct Extent {
    u64 begin, end;

    bool meets(const Extent& other) const { return begin < other.end && other.begin < end; }
};

// Of adjacent elements.
inline Extent extent(u64 begin, u64 bytes) { return {begin, begin + bytes}; }
inline Extent extent(const void* data, u64 bytes) { return extent(reinterpret_cast<Address>(data), bytes); }

inline Extent extent(const Layout& x) {
    if (x.is_flat || !x.size) return extent(x.data, x.size * x.itemsize);
    u64 begin = reinterpret_cast<Address>(x.data), end = begin;
    for (int i = 0; i < x.dimensions; ++i) {
        const npy_intp reach = x.stride(i) * (x.lengths[i] - 1);
        (reach < 0 ? begin : end) += u64(reach);
    }
    return {begin, end + x.itemsize};
}

inline int compare_extents(const void* one, const void* other) {
    const Extent *a = static_cast<const Extent*>(one), *b = static_cast<const Extent*>(other);
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

// Whether no memory that is written is any that is read, or written elsewhere. None of it is empty. Sorts both.
inline bool are_disjoint(Extent* written, size_t writes, Extent* read, size_t reads) {
    if (writes > 2 || reads > 1) {
        qsort(written, writes, sizeof *written, compare_extents);
        qsort(read, reads, sizeof *read, compare_extents);
    } else if (writes == 2 && written[1].begin < written[0].begin) {
        const Extent first = written[1];
        written[1] = written[0], written[0] = first;
    }
    for (size_t i = 1; i < writes; ++i) {
        if (written[i - 1].meets(written[i])) return false;
    }
    // What is read may overlap; what is written does not, so that each end is at or behind the one before.
    for (size_t i = 0, j = 0; i < reads; ++i) {
        while (j < writes && written[j].end <= read[i].begin) ++j;
        if (j < writes && written[j].meets(read[i])) return false;
    }
    return true;
}

// Whether each element has a place of its own, as far as strides tell.
inline bool is_sound(const Layout& out) {
    if (out.is_flat) return true;
    npy_intp strides[max_dimensions], lengths[max_dimensions];
    int count = 0;
    for (int i = 0; i < out.dimensions; ++i) {
        const npy_intp stride = magnitude(out.stride(i)), length = out.lengths[i];
        if (length == 1) continue;
        int at = count++;
        for (; at && strides[at - 1] > stride; --at) strides[at] = strides[at - 1], lengths[at] = lengths[at - 1];
        strides[at] = stride, lengths[at] = length;
    }
    // From the shortest stride to the longest: each steps over all that the shorter ones reach.
    npy_intp reached = npy_intp(out.itemsize);
    for (int i = 0; i < count; ++i) {
        if (strides[i] < reached) return false;
        reached += strides[i] * (lengths[i] - 1);
    }
    return true;
}

// ---- casts ----

// The walk over two arrays of one shape.
inline void set_walk(Walk* walk, const Layout& x, const Layout& out, bool is_ordered) {
    walk->src = x.side(), walk->dst = out.side(), walk->size = x.size, walk->is_ordered = is_ordered;
    walk->count = x.dimensions;
    for (int i = 0; i < walk->count; ++i) walk->loops[i] = {x.lengths[i], x.stride(i), out.stride(i)};
}

// Casts x into out, which has its shape and shares no memory with it. False after an exception.
inline bool cast_arrays(const Layout& x, const Layout& out, const Work& work, Found* found) {
    if (x.size <= lasting && x.is_flat && out.is_flat) {
        if (x.size) work.run(x.data, out.data, x.size, 0, found);
        return true;
    }
    // All that is read of the arrays: others may reshape them as soon as the lock is released.
    Walk walk;
    set_walk(&walk, x, out, work.is_ordered());
    Unlocked unlocked(walk.size);
    return run_walk(walk, work, found, &unlocked);
}

inline PyObject* new_array(PyArrayObject* like, PyArray_Descr* dtype) {
    const LargeMemory own(size_of(like) * itemsize_of(dtype));
    Py_INCREF(dtype);
    if (PyArray_IS_C_CONTIGUOUS(like)) {
        return PyArray_NewFromDescr(&PyArray_Type, dtype, PyArray_NDIM(like), PyArray_DIMS(like), nullptr, nullptr, 0, nullptr);
    }
    return PyArray_NewLikeArray(like, NPY_KEEPORDER, dtype, 0);
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// What is done to arrays of the host around their blocks: axes are swapped, numbers transformed, and scales brought to the orders
// of gpucast/quantization/scale_orders.py.
#pragma once
#include "arrays.hpp"
#include "memory.hpp"
#include "moves.hpp"
#include "quantizing.hpp"

namespace gpucast {

// An order of scales, which come as rows of so many bytes. Memory has them as words, padded; a row's number has digits, the last
// one the lowest; and the next row by a digit, and the next word of a row, are so many words away.
struct ScaleOrder {
    // Of all in that order; 0 for scales that stay as they are.
    u64 bytes;
    u64 rows, row_bytes, lengths[3], strides[3], next;
};

// Calls each(row, place): the bytes of a row, and the words of the order where it begins.
template <typename Each>
inline void each_row(const ScaleOrder& how, u8* rows, u8* ordered, const Each& each) {
    for (u64 row = 0; row < how.rows; ++row) {
        u64 at = 0, rest = row;
        for (int i = 3; i-- > 0; rest /= how.lengths[i]) at += rest % how.lengths[i] * how.strides[i];
        u8 *own = rows + row * how.row_bytes, *place = ordered + at * 4;
        u64 left = how.row_bytes;
        for (; left >= 4; left -= 4, own += 4, place += how.next * 4) each(own, place, 4);
        if (left) each(own, place, left);
    }
}

inline void put_in_order(const ScaleOrder& how, u8* rows, u8* ordered) {
    memset(ordered, 0, how.bytes);
    each_row(how, rows, ordered, [](const u8* own, u8* place, u64 bytes) { bytes == 4 ? memcpy(place, own, 4) : memcpy(place, own, bytes); });
}

inline void take_from_order(const ScaleOrder& how, u8* ordered, u8* rows) {
    each_row(how, rows, ordered, [](u8* own, const u8* place, u64 bytes) { bytes == 4 ? memcpy(own, place, 4) : memcpy(own, place, bytes); });
}

// Matrices whose axes are swapped before; none for arrays that stay as they are.
struct Turning {
    u64 matrices, rows, columns;
};

// False after an exception.
inline bool turn(const Turning& how, const u8* from, u8* to, u64 itemsize) {
    const u64 size = how.rows * how.columns, stride = how.columns * itemsize;
    Unlocked unlocked(how.matrices * size);
    for (u64 i = 0; i < how.matrices; ++i, from += size * itemsize, to += size * itemsize) {
        // By the rows of the result.
        const int done = in_parts_of_blocks(how.columns, how.rows, &unlocked, [&](u64 begin, u64 end) {
            transpose(from + begin * itemsize, npy_intp(stride), to + begin * how.rows * itemsize, npy_intp(how.rows), npy_intp(end - begin), u32(itemsize));
            return true;
        });
        if (done < 0) return false;
    }
    return true;
}

// A Hadamard transform of all runs of adjacent numbers; of size 0 none.
struct Transforming {
    u64 size, length, src_bytes;
    void (*run)();
    // `Transform` of hadamard.hpp.
    u32 negative[4];
    float factor;
    u32 inverse;
};

// To FLOATs. False after an exception.
inline bool transform_all(const Transforming& how, u8* x, u8* floats) {
    Unlocked unlocked(how.size);
    return in_parts_of_blocks(how.size / how.length, how.length, &unlocked, [&](u64 begin, u64 end) {
        const Exactly exactly;
        const u64 first = begin * how.length, n = (end - begin) * how.length;
        reinterpret_cast<RunLoop*>(how.run)(x + first * how.src_bytes, floats + first * 4, n, 0, how.length, nullptr, const_cast<u32*>(how.negative));
        return true;
    }) >= 0;
}

// Memory of a call, which goes when this does, both with Python's lock: much of it comes from where that of large new arrays
// does. None for no bytes; false where it is short.
struct Scratch {
    explicit Scratch(u64 bytes) : bytes_(bytes) {
        if (!bytes) return;
        if (bytes < array_bytes) {
            data = static_cast<u8*>(malloc(bytes));
            return;
        }
        const LargeMemory own(bytes);
        npy_intp length = npy_intp(bytes);
        array_ = PyArray_New(&PyArray_Type, 1, &length, NPY_UINT8, nullptr, nullptr, 0, 0, nullptr);
        if (array_) data = static_cast<u8*>(PyArray_DATA(array_of(array_)));
        else PyErr_Clear();
    }
    ~Scratch() {
        if (!array_) free(data);
        Py_XDECREF(array_);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    explicit operator bool() const { return data || !bytes_; }
    u8* data = nullptr;

   private:
    enum : u64 { array_bytes = 1 << 20 };
    const u64 bytes_;
    PyObject* array_ = nullptr;
};

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// What is done to arrays of the host around their blocks: axes are swapped, numbers transformed, and scales brought to the orders
// of gpucast/quantization/scale_orders.py.
#pragma once
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

inline void turn(const Turning& how, const u8* from, u8* to, u64 itemsize) {
    const u64 bytes = how.rows * how.columns * itemsize;
    for (u64 i = 0; i < how.matrices; ++i) {
        transpose(from + i * bytes, npy_intp(how.columns * itemsize), to + i * bytes, npy_intp(how.rows), npy_intp(how.columns), u32(itemsize));
    }
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
    const Exactly exactly;
    const struct {
        u64 shape[3], lengths[3], grid[3];
    } blocks = {{1, 1, how.size}, {1, 1, how.length}, {1, 1, how.size / how.length}};
    Unlocked unlocked(how.size);
    return each_run(run_of(blocks, how.run, x, how.src_bytes, floats, 4, floats, 4, how.negative), &unlocked);
}

}  // namespace gpucast

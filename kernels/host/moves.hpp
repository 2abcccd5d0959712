// SPDX-License-Identifier: Apache-2.0
// Elements to and from a buffer where they are adjacent: by strides and byte order, transposed, and packed (by packing.hpp).
#pragma once
#include <string.h>

#include <utility>

#include "levels.hpp"

namespace gpucast {

inline npy_intp magnitude(npy_intp stride) { return stride < 0 ? -stride : stride; }

// ---- elements to and from a buffer ----

template <typename Word>
inline Word swapped(Word word) {
    if constexpr (sizeof word == 2) return __builtin_bswap16(word);
    else if constexpr (sizeof word == 4) return __builtin_bswap32(word);
    else if constexpr (sizeof word == 8) return __builtin_bswap64(word);
    else return word;
}

template <typename Word, bool swaps, int count>
inline void move_few(const u8* from, npy_intp from_stride, u8* to, npy_intp to_stride) {
    Word words[count];
    for (int i = 0; i < count; ++i) __builtin_memcpy(&words[i], from + i * from_stride, sizeof(Word));
    for (int i = 0; swaps && i < count; ++i) words[i] = swapped(words[i]);
    for (int i = 0; i < count; ++i) __builtin_memcpy(to + i * to_stride, &words[i], sizeof(Word));
}

template <typename Word, bool swaps>
inline void move_words(const u8* from, npy_intp from_stride, u8* to, npy_intp to_stride, u64 n) {
    // Some at a time: one by one, the steps take as long as the words.
    const int count = 4;
    for (; n >= count; n -= count, from += count * from_stride, to += count * to_stride) {
        move_few<Word, swaps, count>(from, from_stride, to, to_stride);
    }
    for (; n; --n, from += from_stride, to += to_stride) move_few<Word, swaps, 1>(from, from_stride, to, to_stride);
}

template <typename Word>
inline void move_words(const u8* from, npy_intp from_stride, u8* to, npy_intp to_stride, u64 n, bool swaps) {
    const npy_intp unit = sizeof(Word);
    if (swaps) move_words<Word, true>(from, from_stride, to, to_stride, n);
    else if (from_stride == unit && to_stride == unit) memcpy(to, from, n * sizeof(Word));
    else if (to_stride == unit) move_words<Word, false>(from, from_stride, to, unit, n);
    else if (from_stride == unit) move_words<Word, false>(from, unit, to, to_stride, n);
    else move_words<Word, false>(from, from_stride, to, to_stride, n);
}

inline void move(const u8* from, npy_intp from_stride, u8* to, npy_intp to_stride, u64 n, u32 itemsize, bool swaps) {
    switch (itemsize) {
        case 1: return move_words<u8>(from, from_stride, to, to_stride, n, false);
        case 2: return move_words<u16>(from, from_stride, to, to_stride, n, swaps);
        case 4: return move_words<u32>(from, from_stride, to, to_stride, n, swaps);
        default: return move_words<u64>(from, from_stride, to, to_stride, n, swaps);
    }
}

// ---- transposition ----

template <typename Word>
struct LanesOf {
    typedef Word type __attribute__((vector_size(16)));
};
template <typename Word>
using Lanes = typename LanesOf<Word>::type;

// Lanes of two vectors in turn, from the first one on.
template <typename Word, int first, int... lane>
inline Lanes<Word> interleaved(Lanes<Word> a, Lanes<Word> b, std::integer_sequence<int, lane...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, (first + lane / 2 + lane % 2 * int(sizeof...(lane)))...);
#else
    return __builtin_shuffle(a, b, Lanes<Word>{Word(first + lane / 2 + lane % 2 * int(sizeof...(lane)))...});
#endif
}

// A square of as many rows as a vector has lanes. Each round moves the upper bit of an element's row to the lower end of
// its column, and the upper bit of its column to the lower end of its row.
template <typename Word>
inline void transpose_square(const u8* from, npy_intp from_stride, u8* to, npy_intp to_stride) {
    const int count = 16 / sizeof(Word);
    typedef std::make_integer_sequence<int, count> Each;
    Lanes<Word> rows[count], next[count];
    for (int i = 0; i < count; ++i) __builtin_memcpy(&rows[i], from + i * from_stride, sizeof rows[i]);
    for (int round = 1; round < count; round *= 2) {
        for (int i = 0; i < count / 2; ++i) {
            next[2 * i] = interleaved<Word, 0>(rows[i], rows[i + count / 2], Each());
            next[2 * i + 1] = interleaved<Word, count / 2>(rows[i], rows[i + count / 2], Each());
        }
        for (int i = 0; i < count; ++i) rows[i] = next[i];
    }
    for (int i = 0; i < count; ++i) __builtin_memcpy(to + i * to_stride, &rows[i], sizeof rows[i]);
}

// Brings together `along` rows, of `across` adjacent elements each, as `across` rows.
template <typename Word>
inline void transpose(const u8* from, npy_intp from_stride, u8* to, npy_intp along, npy_intp across) {
    const npy_intp unit = sizeof(Word), count = 16 / unit, to_stride = along * unit;
    const npy_intp rows = along - along % count, columns = across - across % count;
    for (npy_intp i = 0; i < rows; i += count) {
        for (npy_intp j = 0; j < columns; j += count) {
            transpose_square<Word>(from + i * from_stride + j * unit, from_stride, to + j * to_stride + i * unit, to_stride);
        }
    }
    for (npy_intp i = 0; i < along; ++i) {
        const npy_intp j = i < rows ? columns : 0;
        move_words<Word, false>(from + i * from_stride + j * unit, unit, to + j * to_stride + i * unit, to_stride, u64(across - j));
    }
}

inline void transpose(const u8* from, npy_intp from_stride, u8* to, npy_intp along, npy_intp across, u32 itemsize) {
    switch (itemsize) {
        case 1: return transpose<u8>(from, from_stride, to, along, across);
        case 2: return transpose<u16>(from, from_stride, to, along, across);
        case 4: return transpose<u32>(from, from_stride, to, along, across);
        default: return transpose<u64>(from, from_stride, to, along, across);
    }
}

// ---- packed elements ----

// The loop of packing.hpp for elements of so many bits.
inline CastArray* packing_loop(bool packs, u32 bits) {
    static CastArray* const loops[2][3] = {
        {reinterpret_cast<CastArray*>(find_function("gpucast_unpack_2")), reinterpret_cast<CastArray*>(find_function("gpucast_unpack_4")),
         reinterpret_cast<CastArray*>(find_function("gpucast_unpack_6"))},
        {reinterpret_cast<CastArray*>(find_function("gpucast_pack_2")), reinterpret_cast<CastArray*>(find_function("gpucast_pack_4")),
         reinterpret_cast<CastArray*>(find_function("gpucast_pack_6"))},
    };
    return loops[packs][bits / 2 - 1];
}

inline void unpack(const u8* from, u32 bits, u8* to, u64 n) { packing_loop(false, bits)(from, to, n); }
inline void pack(const u8* from, u8* to, u32 bits, u64 n) { packing_loop(true, bits)(from, to, n); }

}  // namespace gpucast

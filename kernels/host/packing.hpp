// SPDX-License-Identifier: Apache-2.0
// Elements of 2, 4 and 6 bits, packed and a byte each. Packed ones begin with a whole byte: n is a multiple of 8, or the rest of an
// array.
#include <string.h>

namespace gpucast {

// Elements that have whole bytes together.
template <u32 bits>
constexpr u32 packed_together = bits == 6 ? 4 : 8 / bits;

template <u32 bits>
inline void unpack_rest(const u8* from, u8* to, u64 n) {
    for (u64 i = 0, bit = 0; i < n; ++i, bit += bits) {
        u32 word = from[bit / 8];
        if (bit % 8 + bits > 8) word |= u32(from[bit / 8 + 1]) << 8;
        to[i] = u8(word >> (bit % 8) & ((1u << bits) - 1));
    }
}

template <u32 bits>
inline void pack_rest(const u8* from, u8* to, u64 n) {
    const u32 each = packed_together<bits>;
    for (u64 i = 0; i < n; i += each, to += each * bits / 8) {
        u32 word = 0;
        const u32 count = n - i < each ? u32(n - i) : each;
        for (u32 j = 0; j < count; ++j) word |= (from[i + j] & ((1u << bits) - 1)) << (bits * j);
        for (u32 j = 0; j < (count * bits + 7) / 8; ++j) to[j] = u8(word >> (8 * j));
    }
}

// Those of 2 and 4 bits: of a word, whose bytes are the elements, a byte; and back.
template <typename Word>
inline void pack_words(const u8* __restrict__ from, u8* __restrict__ to, u64 words) {
    for (u64 i = 0; i < words; ++i) {
        Word w;
        memcpy(&w, from + i * sizeof w, sizeof w);
        if constexpr (sizeof w == 2) to[i] = u8((w & 0xf) | (w >> 4 & 0xf0));
        else to[i] = u8((w & 3) | (w >> 6 & 0xc) | (w >> 12 & 0x30) | (w >> 18 & 0xc0));
    }
}

template <typename Word>
inline void unpack_words(const u8* __restrict__ from, u8* __restrict__ to, u64 words) {
    for (u64 i = 0; i < words; ++i) {
        Word w = from[i];
        if constexpr (sizeof w == 2) w = Word((w | w << 4) & 0x0f0f);
        else w = (w | w << 6 | w << 12 | w << 18) & 0x03030303;
        memcpy(to + i * sizeof w, &w, sizeof w);
    }
}

// Those of 6 bits: 16 are 12 bytes, of which four are three bytes of a word.
typedef u8 SixteenBytes __attribute__((vector_size(16)));
typedef u32 FourWords __attribute__((vector_size(16)));
enum : u64 { sixes = 16, sixes_bytes = 12 };

#if defined(__clang__)
#define GPUCAST_BYTES_OF(a, ...) __builtin_shufflevector(a, a, __VA_ARGS__)
#else
#define GPUCAST_BYTES_OF(a, ...) __builtin_shuffle(a, SixteenBytes{__VA_ARGS__})
#endif

inline SixteenBytes packed_sixes(const u8* from) {
    FourWords w;
    memcpy(&w, from, sizeof w);
    const FourWords pairs = (w & 0x003f003f) | (w >> 2 & 0x0fc00fc0), fours = (pairs & 0xfff) | (pairs >> 4 & 0xfff000);
    return GPUCAST_BYTES_OF(SixteenBytes(fours), 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 3, 7, 11, 15);
}

inline void pack_sixes(const u8* __restrict__ from, u8* __restrict__ to, u64 groups) {
    // All 16 bytes are stored, the last four of which belong to the next group.
    for (u64 i = 0; i + 1 < groups; ++i) {
        const SixteenBytes bytes = packed_sixes(from + i * sixes);
        memcpy(to + i * sixes_bytes, &bytes, sizeof bytes);
    }
    if (!groups) return;
    const SixteenBytes last = packed_sixes(from + (groups - 1) * sixes);
    memcpy(to + (groups - 1) * sixes_bytes, &last, sixes_bytes);
}

inline void unpack_sixes(const u8* __restrict__ from, u8* __restrict__ to, u64 groups) {
    const auto unpack = [to](u64 i, SixteenBytes bytes) {
        // A fourth byte of each word is cut off.
        const FourWords fours = FourWords(GPUCAST_BYTES_OF(bytes, 0, 1, 2, 15, 3, 4, 5, 15, 6, 7, 8, 15, 9, 10, 11, 15));
        const FourWords pairs = (fours & 0xfff) | (fours << 4 & 0xfff0000), each = (pairs & 0x003f003f) | (pairs << 2 & 0x3f003f00);
        memcpy(to + i * sixes, &each, sizeof each);
    };
    SixteenBytes bytes = {};
    for (u64 i = 0; i + 1 < groups; ++i) {
        memcpy(&bytes, from + i * sixes_bytes, sizeof bytes);
        unpack(i, bytes);
    }
    if (!groups) return;
    memcpy(&bytes, from + (groups - 1) * sixes_bytes, sixes_bytes);
    unpack(groups - 1, bytes);
}
#undef GPUCAST_BYTES_OF

static void gpucast_pack_2(const void* from, void* to, u64 n) {
    const u8* src = static_cast<const u8*>(from);
    pack_words<u32>(src, static_cast<u8*>(to), n / 4);
    pack_rest<2>(src + n / 4 * 4, static_cast<u8*>(to) + n / 4, n % 4);
}
static void gpucast_pack_4(const void* from, void* to, u64 n) {
    const u8* src = static_cast<const u8*>(from);
    pack_words<u16>(src, static_cast<u8*>(to), n / 2);
    pack_rest<4>(src + n / 2 * 2, static_cast<u8*>(to) + n / 2, n % 2);
}
static void gpucast_pack_6(const void* from, void* to, u64 n) {
    const u8* src = static_cast<const u8*>(from);
    pack_sixes(src, static_cast<u8*>(to), n / sixes);
    pack_rest<6>(src + n / sixes * sixes, static_cast<u8*>(to) + n / sixes * sixes_bytes, n % sixes);
}
static void gpucast_unpack_2(const void* from, void* to, u64 n) {
    const u8* src = static_cast<const u8*>(from);
    unpack_words<u32>(src, static_cast<u8*>(to), n / 4);
    unpack_rest<2>(src + n / 4, static_cast<u8*>(to) + n / 4 * 4, n % 4);
}
static void gpucast_unpack_4(const void* from, void* to, u64 n) {
    const u8* src = static_cast<const u8*>(from);
    unpack_words<u16>(src, static_cast<u8*>(to), n / 2);
    unpack_rest<4>(src + n / 2, static_cast<u8*>(to) + n / 2 * 2, n % 2);
}
static void gpucast_unpack_6(const void* from, void* to, u64 n) {
    const u8* src = static_cast<const u8*>(from);
    unpack_sixes(src, static_cast<u8*>(to), n / sixes);
    unpack_rest<6>(src + n / sixes * sixes_bytes, static_cast<u8*>(to) + n / sixes * sixes, n % sixes);
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// Casts of codes of one byte by the results of all 256, which the rules gave, in vector registers: a look-up in memory takes
// about a cycle for each element.
namespace gpucast {

// Bytes of a vector; 0: 16 bytes at a time take as long as the table in memory.
#if defined(__AVX512BW__)
#define GPUCAST_TABLE_BYTES 64
#elif defined(__AVX2__)
#define GPUCAST_TABLE_BYTES 32
#else
#define GPUCAST_TABLE_BYTES 0
#endif

#if GPUCAST_TABLE_BYTES
typedef u8 Bytes __attribute__((vector_size(GPUCAST_TABLE_BYTES)));
typedef signed char SignedBytes __attribute__((vector_size(GPUCAST_TABLE_BYTES)));
typedef u16 BytePairs __attribute__((vector_size(GPUCAST_TABLE_BYTES)));

GPUCAST_INLINE Bytes load(const void* from) {
    Bytes d;
    __builtin_memcpy(&d, from, sizeof d);
    return d;
}
// Past the caches `to` is aligned.
template <typename Vector>
GPUCAST_INLINE void store(void* to, Vector a, bool is_past) {
    if (is_past) asm volatile("vmovntdq %1, (%0)" : : "r"(to), "v"(a) : "memory");
    else __builtin_memcpy(to, &a, sizeof a);
}
// Before others read what was stored past the caches.
GPUCAST_INLINE void finish_stores(bool is_past) {
    if (is_past) asm volatile("sfence" : : : "memory");
}

// Bytes of `a`, and of `b` where the top bit of a byte of `choice` is set.
GPUCAST_INLINE Bytes chosen(Bytes choice, Bytes a, Bytes b) { return SignedBytes(choice) < 0 ? b : a; }

// Bytes of a table of 16, which each 16 bytes hold, by the lower halves of `index`.
GPUCAST_INLINE Bytes sixteenth(const Bytes& table, Bytes index) {
    Bytes d;
    asm("vpshufb %2, %1, %0" : "=v"(d) : "v"(table), "v"(index));
    return d;
}

// Those of 2^(bits + 4) bytes, by the lower halves of `low` and the top bits of `choices`.
template <u32 bits>
GPUCAST_INLINE Bytes looked_up(const Bytes* tables, Bytes low, const Bytes* choices) {
    if constexpr (bits == 0) {
        return sixteenth(*tables, low);
    } else {
        const Bytes a = looked_up<bits - 1>(tables, low, choices);
        return chosen(choices[bits - 1], a, looked_up<bits - 1>(tables + (1 << (bits - 1)), low, choices));
    }
}

static __attribute__((noinline)) void look_up_sixteenths(const u8* __restrict__ src, u8* __restrict__ dst, u64 n,
                                                         const u8* __restrict__ table, bool is_past) {
    Bytes tables[16];
    for (u32 i = 0; i < 16; ++i) {
        for (u32 at = 0; at < sizeof(Bytes); at += 16) __builtin_memcpy(reinterpret_cast<u8*>(&tables[i]) + at, table + 16 * i, 16);
    }
    u64 i = 0;
    for (; i + sizeof(Bytes) <= n; i += sizeof(Bytes)) {
        const Bytes x = load(src + i);
        // The fifth bit of each byte on top, and so on.
        const Bytes choices[4] = {Bytes(BytePairs(x) << 3), Bytes(BytePairs(x) << 2), Bytes(BytePairs(x) << 1), x};
        store(dst + i, looked_up<4>(tables, x & 15, choices), is_past);
    }
    finish_stores(is_past);
    for (; i < n; ++i) dst[i] = table[src[i]];
}
#endif

#if GPUCAST_TABLE_BYTES == 64
// Whether the processor looks up 128 bytes at a time (AVX-512 VBMI), which the level does not say.
static const bool permutes_bytes __attribute__((unused)) = [] {
    u32 a = 7, b, c = 0, d;
    asm("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    return (c >> 1 & 1) != 0;
}();

// Bytes of a table of 128, by the lower 7 bits of `index`.
GPUCAST_INLINE Bytes half(Bytes index, Bytes first, Bytes second) {
    asm("vpermi2b %2, %1, %0" : "+v"(index) : "v"(first), "v"(second));
    return index;
}

GPUCAST_INLINE Bytes permuted(Bytes a, Bytes index) {
    Bytes d;
    asm("vpermb %1, %2, %0" : "=v"(d) : "v"(a), "v"(index));
    return d;
}

// Pieces of so many bytes of the lower or upper halves of each 16 bytes, in turn.
template <u32 bytes>
GPUCAST_INLINE Bytes interleaved(Bytes a, Bytes b, bool is_upper) {
    Bytes d;
    if (bytes == 1 && is_upper) asm("vpunpckhbw %2, %1, %0" : "=v"(d) : "v"(a), "v"(b));
    else if (bytes == 1) asm("vpunpcklbw %2, %1, %0" : "=v"(d) : "v"(a), "v"(b));
    else if (bytes == 2 && is_upper) asm("vpunpckhwd %2, %1, %0" : "=v"(d) : "v"(a), "v"(b));
    else if (bytes == 2) asm("vpunpcklwd %2, %1, %0" : "=v"(d) : "v"(a), "v"(b));
    else if (is_upper) asm("vpunpckhdq %2, %1, %0" : "=v"(d) : "v"(a), "v"(b));
    else asm("vpunpckldq %2, %1, %0" : "=v"(d) : "v"(a), "v"(b));
    return d;
}

// Stores 64 codes of which each vector has one byte.
template <u32 bytes, u32 count>
GPUCAST_INLINE void store_interleaved(const Bytes* each, u8* to, bool is_past) {
    if constexpr (bytes == count) {
        for (u32 i = 0; i < count; ++i) store(to + sizeof(Bytes) * i, each[i], is_past);
    } else {
        // Of each pair of vectors, which have `bytes` pieces each, twice as many pieces.
        Bytes next[count];
        for (u32 i = 0; i < count; i += 2 * bytes) {
            for (u32 j = 0; j < bytes; ++j) {
                next[i + 2 * j] = interleaved<bytes>(each[i + j], each[i + bytes + j], false);
                next[i + 2 * j + 1] = interleaved<bytes>(each[i + j], each[i + bytes + j], true);
            }
        }
        store_interleaved<2 * bytes, count>(next, to, is_past);
    }
}

template <typename Word>
static __attribute__((noinline)) void look_up_halves(const u8* __restrict__ src, Word* __restrict__ dst, u64 n,
                                                     const Word* __restrict__ table, bool is_past) {
    enum : u32 { count = sizeof(Word), each = 16 / sizeof(Word) };
    alignas(64) u8 bytes[count][256], order[64];
    for (u32 part = 0; part < count; ++part) {
        for (u32 i = 0; i < 256; ++i) bytes[part][i] = u8(table[i] >> (8 * part));
    }
    // The results of `each` adjacent codes of each 16 bytes will be adjacent.
    for (u32 i = 0; i < 64; ++i) order[i] = u8((i % 16 / each * 4 + i / 16) * each + i % each);
    Bytes tables[count][4];
    for (u32 part = 0; part < count; ++part) {
        for (u32 i = 0; i < 4; ++i) tables[part][i] = load(bytes[part] + 64 * i);
    }
    const Bytes places = load(order);
    u64 i = 0;
    for (; i + 64 <= n; i += 64) {
        const Bytes x = count == 1 ? load(src + i) : permuted(load(src + i), places);
        Bytes results[count];
        for (u32 part = 0; part < count; ++part) {
            const Bytes* own = tables[part];
            results[part] = chosen(x, half(x, own[0], own[1]), half(x, own[2], own[3]));
        }
        store_interleaved<1, count>(results, reinterpret_cast<u8*>(dst + i), is_past);
    }
    finish_stores(is_past);
    for (; i < n; ++i) dst[i] = table[src[i]];
}
#endif

// Looks up n codes in registers; false where this processor has no way that is quicker than the table in memory.
template <typename Word>
GPUCAST_INLINE bool look_up([[maybe_unused]] const u8* __restrict__ src, [[maybe_unused]] Word* __restrict__ dst,
                            [[maybe_unused]] u64 n, [[maybe_unused]] const Word* __restrict__ table,
                            [[maybe_unused]] bool is_past) {
#if GPUCAST_TABLE_BYTES == 64
    if (permutes_bytes) {
        look_up_halves(src, dst, n, table, is_past);
        return true;
    }
#endif
#if GPUCAST_TABLE_BYTES
    if constexpr (sizeof(Word) == 1) {
        look_up_sixteenths(src, dst, n, table, is_past);
        return true;
    }
#endif
    return false;
}

}  // namespace gpucast

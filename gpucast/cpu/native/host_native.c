// SPDX-License-Identifier: Apache-2.0
// The quick lanes of the host in C: the same bits as NumPy's lanes, in one pass. Plain loops, which compilers turn into
// vector instructions; nothing here depends on the processor. gpucast/cpu/native/cast.py describes the fields.
#define _FILE_OFFSET_BITS 64
#define _XOPEN_SOURCE 700
#include "host_native.h"

#include <unistd.h>

// Casts n elements. stats: the largest magnitude of a result, NaN counting as the largest number or more; how many
// results are zero, not counting NaN; how many sources are zero.
#define CAST(NAME, SRC, LOAD, DST, CODE)                                                                         \
    EXPORT void NAME(const void* restrict from, void* restrict to, u32 n, const Conversion* of, u32* stats) {    \
        const SRC* restrict src = from;                                                                          \
        DST* restrict dst = to;                                                                                  \
        const Conversion rule = *of;                                                                             \
        u32 top = 0, zeros = 0, least = ~(u32)0;                                                                 \
        for (u32 i = 0; i < n; ++i) {                                                                            \
            const u32 c = LOAD(src[i]), a = c & 0x7fffffff, code = CODE(a, rule);                                \
            const u32 nan = a > rule.numbers, zero = code == 0;                                                  \
            const u32 sign = ((c >> 31) ^ (nan & rule.nan_flip)) & ((zero ^ 1) | rule.zero_sign);                \
            dst[i] = (DST)((nan ? rule.nan : code) | sign << rule.sign);                                         \
            top = max_u32(top, code);                                                                            \
            zeros += zero;                                                                                       \
            least = min_u32(least, a);                                                                           \
        }                                                                                                        \
        u32 none = 0;                                                                                            \
        if (least == 0)                                                                                          \
            for (u32 i = 0; i < n; ++i) none += (LOAD(src[i]) & 0x7fffffff) == 0;                                \
        stats[0] = top;                                                                                          \
        stats[1] = zeros;                                                                                        \
        stats[2] = none;                                                                                         \
    }

CAST(float_to_small8, u32, load_float, u8, small_code)
CAST(float_to_small16, u32, load_float, u16, small_code)
CAST(float_to_upper16, u32, load_float, u16, upper_code)
CAST(upper_half_to_small8, u16, load_upper_half, u8, small_code)
CAST(upper_half_to_small16, u16, load_upper_half, u16, small_code)
CAST(upper_half_to_upper32, u16, load_upper_half, u32, upper_code)
CAST(half_to_small8, u16, load_half, u8, small_code)
CAST(half_to_upper16, u16, load_half, u16, upper_code)
CAST(half_to_upper32, u16, load_half, u32, upper_code)

// The largest magnitude of codes, and how many are zero, of either sign.
#define LOOK(NAME, CODE)                                                                                         \
    EXPORT void NAME(const void* restrict from, u32 n, u32 magnitude, u32* stats) {                              \
        const CODE* restrict src = from;                                                                         \
        u32 top = 0, zeros = 0;                                                                                  \
        for (u32 i = 0; i < n; ++i) {                                                                            \
            const u32 a = src[i] & magnitude;                                                                    \
            top = max_u32(top, a);                                                                               \
            zeros += a == 0;                                                                                     \
        }                                                                                                        \
        stats[0] = top;                                                                                          \
        stats[1] = zeros;                                                                                        \
    }
LOOK(look8, u8)
LOOK(look16, u16)
LOOK(look32, u32)

// The sum of words, as the sums of their low and of their high halves.
EXPORT void sum_words(const u8* bytes, u64 words, u64* sums) {
    u64 low = 0, high = 0;
    for (u64 i = 0; i < words; ++i) {
        u64 word;
        memcpy(&word, bytes + 8 * i, sizeof word);
        low += word & 0xffffffff;
        high += word >> 32;
    }
    sums[0] = low;
    sums[1] = high;
}

// ---- files ----

static int read_all(int file, u8* bytes, u64 count, u64 position) {
    while (count) {
        const ssize_t got = pread(file, bytes, count, (off_t)position);
        if (got <= 0) return 0;
        bytes += got, position += (u64)got, count -= (u64)got;
    }
    return 1;
}

static int write_all(int file, const u8* bytes, u64 count, u64 position) {
    while (count) {
        const ssize_t done = pwrite(file, bytes, count, (off_t)position);
        if (done <= 0) return 0;
        bytes += done, position += (u64)done, count -= (u64)done;
    }
    return 1;
}

typedef void CastFunction(const void* restrict, void* restrict, u32, const Conversion*, u32*);

// The position of the first element in a file, and the bytes of an element.
typedef struct {
    int file;
    u32 itemsize;
    u64 position;
} FilePosition;

// Casts n elements of one file to another by way of `buffer`, which holds `block` elements of both; block is a multiple
// of 8. stats and sums are those of all elements. Returns 0 where a system call failed or was interrupted.
EXPORT int cast_file(CastFunction* cast, const Conversion* rule, FilePosition src, FilePosition dst, u32 n, u8* buffer,
                     u32 block, u32* stats, u64* sums) {
    u8* const results = buffer + (u64)block * src.itemsize;
    stats[0] = stats[1] = stats[2] = 0;
    sums[0] = sums[1] = 0;
    for (u32 i = 0; i < n; i += block) {
        const u32 count = min_u32(block, n - i), bytes = count * dst.itemsize;
        u32 here[3];
        u64 here_sums[2];
        if (!read_all(src.file, buffer, (u64)count * src.itemsize, src.position + (u64)i * src.itemsize)) return 0;
        cast(buffer, results, count, rule, here);
        // Fill the last word with zeros.
        memset(results + bytes, 0, -bytes & 7);
        sum_words(results, (bytes + 7) / 8, here_sums);
        if (!write_all(dst.file, results, bytes, dst.position + (u64)i * dst.itemsize)) return 0;
        stats[0] = max_u32(stats[0], here[0]);
        stats[1] += here[1];
        stats[2] += here[2];
        sums[0] += here_sums[0];
        sums[1] += here_sums[1];
    }
    return 1;
}

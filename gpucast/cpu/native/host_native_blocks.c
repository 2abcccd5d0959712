// SPDX-License-Identifier: Apache-2.0
// Blocks that share a scale: their extremes, and the codes of quotients. The structs are
// described in gpucast/quantization/cpu/native.py.
#include "host_native.h"

// As in gpucast/quantization/cpu/blocks.py: an array of three dimensions, each cut into blocks.
typedef struct {
    u64 shape[3], lengths[3], grid[3];
} Blocks;

// Works on n adjacent elements in blocks of a length; `of` belongs to the blocks, `more` to the whole array.
typedef void Run(const void* restrict from, void* restrict to, u64 n, u64 length, void* of, void* more);

// An array, and the bytes of an element.
typedef struct {
    u8* first;
    u64 itemsize;
} Array;

EXPORT void each_run(Run* run, Array src, Array dst, const Blocks* blocks, Array of, void* more) {
    const u64 *n = blocks->shape, *lengths = blocks->lengths, *grid = blocks->grid;
    for (u64 row = 0; row < n[0] * n[1]; ++row) {
        const u64 block = (row / n[1] / lengths[0] * grid[1] + row % n[1] / lengths[1]) * grid[2];
        run(src.first + row * n[2] * src.itemsize, dst.first + row * n[2] * dst.itemsize, n[2], lengths[2],
            of.first + block * of.itemsize, more);
    }
}

// Lengths of blocks so short that a loop for any length would take longer to start than to run. The shorter one is that
// of two scales.
#define SHORT 32
#define SHORTER 16
// Longer blocks are worked on in pieces, so that the slow case is computed for one piece only.
#define LONG 1024

// Defines a Run that calls NAME##_block for each block, with a loop of its own for blocks of length LEAST.
#define RUN(NAME, SRC, DST, OF, LEAST)                                                                           \
    EXPORT void NAME(const void* restrict from, void* restrict to, u64 n, u64 length, void* of, void* more) {    \
        const SRC* restrict src = from;                                                                          \
        DST* restrict dst = to;                                                                                  \
        OF* own = of;                                                                                            \
        for (u64 start = 0; start < n; start += length, ++own) {                                                 \
            const u64 count = n - start < length ? n - start : length;                                           \
            if (count == SHORT)                                                                                  \
                NAME##_block(src + start, dst + start, SHORT, own, more);                                        \
            else if (count == LEAST)                                                                             \
                NAME##_block(src + start, dst + start, LEAST, own, more);                                        \
            else                                                                                                 \
                for (u64 at = start; at < start + count; at += LONG) {                                           \
                    const u64 rest = start + count - at;                                                         \
                    NAME##_block(src + at, dst + at, rest < LONG ? rest : LONG, own, more);                      \
                }                                                                                                \
        }                                                                                                        \
    }

// The largest magnitude of a block so far, as a code.
#define LARGEST(NAME, CODE, MASK)                                                                                \
    INLINE void NAME##_block(const CODE* restrict src, u8* restrict dst, u64 n, CODE* largest, void* more) {     \
        CODE top = *largest;                                                                                     \
        for (u64 i = 0; i < n; ++i) {                                                                            \
            const CODE a = src[i] & MASK;                                                                        \
            top = a > top ? a : top;                                                                             \
        }                                                                                                        \
        *largest = top;                                                                                          \
        (void)dst, (void)more;                                                                                   \
    }                                                                                                            \
    RUN(NAME, CODE, u8, CODE, SHORTER)

LARGEST(largest_of_32, u32, 0x7fffffff)
LARGEST(largest_of_16, u16, 0x7fff)

// The lowest and the largest number of a block so far, as codes, 0 at first. As unsigned integers the codes of negative
// numbers are above the others, by their magnitude; as signed ones below 0.
#define RANGE(NAME, CODE, SIGNED)                                                                                \
    typedef struct {                                                                                             \
        CODE lowest;                                                                                             \
        SIGNED largest;                                                                                          \
    } NAME##_codes;                                                                                              \
    INLINE void NAME##_block(const CODE* restrict src, u8* restrict dst, u64 n, NAME##_codes* range, void* more) { \
        CODE lowest = range->lowest;                                                                             \
        SIGNED largest = range->largest;                                                                         \
        for (u64 i = 0; i < n; ++i) {                                                                            \
            const CODE code = src[i];                                                                            \
            const SIGNED same = (SIGNED)code;                                                                    \
            lowest = code > lowest ? code : lowest;                                                              \
            largest = same > largest ? same : largest;                                                           \
        }                                                                                                        \
        range->lowest = lowest;                                                                                  \
        range->largest = largest;                                                                                \
        (void)dst, (void)more;                                                                                   \
    }                                                                                                            \
    RUN(NAME, CODE, u8, NAME##_codes, SHORT)

RANGE(range_of_32, u32, i32)
RANGE(range_of_16, u16, i16)

typedef struct {
    Conversion rule;
    // The bits of a quotient's code that are 0 where it may be a midpoint. The bit above them is set then, except in
    // subnormal codes.
    u32 zeros;
} Quotient;

INLINE u8 quotient_code(u32 c, u32 q, Conversion rule) {
    const u32 code = small_code(q, rule);
    return (u8)(code | (c >> 31 & ((u32)(code != 0) | rule.zero_sign)) << rule.sign);
}

// The quotient of a magnitude as DOUBLE, then as a FLOAT on the same side of every midpoint: rounded to odd.
INLINE u32 odd_quotient(u32 a, double d) {
    const double exact = (double)as_float(a) / d;
    const u32 near = bits_of((float)exact);
    const double back = (double)as_float(near);
    return near + (near & 1 ? 0 : back < exact ? 1 : back > exact ? ~(u32)0 : 0);
}

// How many ULPs a quotient can be off where d had to be rounded to FLOAT too, plus one.
#define ULPS 3

// The codes of finite numbers divided by their block's d, or by one that is near a FLOAT, or multiplied by its factor,
// which is a power of two.
#define QUOTIENTS(NAME, SRC, LOAD)                                                                               \
    SELDOM void NAME##_exactly(const SRC* restrict src, u8* restrict dst, u64 n, double d, Conversion rule) {    \
        for (u64 i = 0; i < n; ++i) {                                                                            \
            const u32 c = LOAD(src[i]);                                                                          \
            dst[i] = quotient_code(c, odd_quotient(c & 0x7fffffff, d), rule);                                    \
        }                                                                                                        \
    }                                                                                                            \
    INLINE void NAME##_divided_block(const SRC* restrict src, u8* restrict dst, u64 n, const float* d, const void* more) { \
        const Quotient quotient = *(const Quotient*)more;                                                        \
        const float by = *d;                                                                                     \
        u32 midpoints = 0;                                                                                       \
        for (u64 i = 0; i < n; ++i) {                                                                            \
            const u32 c = LOAD(src[i]), q = bits_of(as_float(c & 0x7fffffff) / by);                              \
            dst[i] = quotient_code(c, q, quotient.rule);                                                         \
            midpoints |= (u32)((q & quotient.zeros) == 0) & (u32)(q != 0) &                                      \
                         ((u32)((q & (quotient.zeros + 1)) != 0) | (u32)(q < quotient.rule.least));              \
        }                                                                                                        \
        if (midpoints) NAME##_exactly(src, dst, n, by, quotient.rule);                                           \
    }                                                                                                            \
    INLINE void NAME##_multiplied_block(const SRC* restrict src, u8* restrict dst, u64 n, const float* factor,   \
                                        const void* more) {                                                      \
        const Conversion rule = ((const Quotient*)more)->rule;                                                   \
        const float by = *factor;                                                                                \
        for (u64 i = 0; i < n; ++i) {                                                                            \
            const u32 c = LOAD(src[i]);                                                                          \
            dst[i] = quotient_code(c, bits_of(as_float(c & 0x7fffffff) * by), rule);                             \
        }                                                                                                        \
    }                                                                                                            \
    INLINE void NAME##_near_block(const SRC* restrict src, u8* restrict dst, u64 n, const double* d, const void* more) { \
        const Quotient quotient = *(const Quotient*)more;                                                        \
        const double exactly = *d;                                                                               \
        const float by = (float)exactly;                                                                         \
        u32 midpoints = !(by >= 0x1p-126f && by <= 0x1.fffffep127f);                                             \
        for (u64 i = 0; i < n; ++i) {                                                                            \
            const u32 c = LOAD(src[i]), q = bits_of(as_float(c & 0x7fffffff) / by);                              \
            dst[i] = quotient_code(c, q, quotient.rule);                                                         \
            midpoints |= (u32)(((q + ULPS) & quotient.zeros) <= 2 * ULPS) & (u32)(q != 0);                       \
        }                                                                                                        \
        if (midpoints) NAME##_exactly(src, dst, n, exactly, quotient.rule);                                      \
    }                                                                                                            \
    RUN(NAME##_divided, SRC, u8, float, SHORT)                                                                   \
    RUN(NAME##_multiplied, SRC, u8, float, SHORT)                                                                \
    RUN(NAME##_near, SRC, u8, double, SHORTER)

QUOTIENTS(float, u32, load_float)
QUOTIENTS(upper_half, u16, load_upper_half)
QUOTIENTS(half, u16, load_half)

typedef struct {
    i32 least, most;  // codes
    u32 mask;         // the bits of one
} Integers;

// Of a block: a FLOAT that divides, and the zero point.
typedef struct {
    float d;
    i32 zero;
} Step;

INLINE u8 integer_code(i32 code, Integers to) {
    const i32 above = code < to.least ? to.least : code;
    return (u8)((u32)(above > to.most ? to.most : above) & to.mask);
}

// The codes of finite numbers whose quotients are all below 2^22. Adding a number whose ULP is 1, and subtracting it
// again, rounds to an integer, ties to even.
#define INTEGERS(NAME, SRC, LOAD)                                                                                \
    SELDOM void NAME##_wholly(const SRC* restrict src, u8* restrict dst, u64 n, Step step, Integers to) {        \
        const double large = 0x1.8p52;                                                                           \
        for (u64 i = 0; i < n; ++i) {                                                                            \
            const double q = (double)as_float(LOAD(src[i])) / (double)step.d;                                    \
            dst[i] = integer_code((i32)(q + large - large) + step.zero, to);                                     \
        }                                                                                                        \
    }                                                                                                            \
    INLINE void NAME##_whole_block(const SRC* restrict src, u8* restrict dst, u64 n, const Step* step, const void* more) { \
        const Integers to = *(const Integers*)more;                                                              \
        const float by = step->d, large = 0x1.8p23f;                                                             \
        const i32 zero = step->zero;                                                                             \
        u32 midpoints = 0;                                                                                       \
        for (u64 i = 0; i < n; ++i) {                                                                            \
            const float q = as_float(LOAD(src[i])) / by, whole = q + large - large, rest = q - whole;            \
            dst[i] = integer_code((i32)whole + zero, to);                                                        \
            midpoints |= (u32)(rest == 0.5f) | (u32)(rest == -0.5f);                                             \
        }                                                                                                        \
        if (midpoints) NAME##_wholly(src, dst, n, *step, to);                                                    \
    }                                                                                                            \
    RUN(NAME##_whole, SRC, u8, const Step, SHORT)

INTEGERS(float, u32, load_float)
INTEGERS(upper_half, u16, load_upper_half)
INTEGERS(half, u16, load_half)

// Counts the numbers beyond their block's limit, a FLOAT. The result is the sum of SHORT counts: in short blocks each
// position has a count of its own, because adding them up would take longer than the comparisons.
#define BEYOND(NAME, SRC, LOAD)                                                                                  \
    INLINE void NAME##_beyond_block(const SRC* restrict src, u8* restrict dst, u64 n, const u32* limit, void* more) { \
        const u32 most = *limit;                                                                                 \
        u32* restrict counts = more;                                                                             \
        u32 beyond = 0;                                                                                          \
        if (n == SHORT)                                                                                          \
            for (u64 i = 0; i < SHORT; ++i) counts[i] += (LOAD(src[i]) & 0x7fffffff) > most;                     \
        else                                                                                                     \
            for (u64 i = 0; i < n; ++i) beyond += (LOAD(src[i]) & 0x7fffffff) > most;                            \
        counts[0] += beyond;                                                                                     \
        (void)dst;                                                                                               \
    }                                                                                                            \
    RUN(NAME##_beyond, SRC, u8, const u32, SHORTER)

BEYOND(float, u32, load_float)
BEYOND(upper_half, u16, load_upper_half)
BEYOND(half, u16, load_half)

// Adds to a count how many codes equal their block's zero point.
INLINE void equal_block(const u8* restrict src, u8* restrict dst, u64 n, const u8* zero, void* more) {
    const u8 code = *zero;
    u32 equal = 0;
    for (u64 i = 0; i < n; ++i) equal += src[i] == code;
    *(u64*)more += equal;
    (void)dst;
}
RUN(equal, u8, u8, const u8, SHORT)

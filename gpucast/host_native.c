// SPDX-License-Identifier: Apache-2.0
// The quick lanes of the host in C: the same bits as NumPy's lanes, in one pass. Plain loops, which compilers turn into
// vector instructions; nothing here depends on the processor. gpucast/host_native.py says what the fields are.
#define _FILE_OFFSET_BITS 64
#define _XOPEN_SOURCE 700
#include <stdint.h>
#include <string.h>
#include <unistd.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int16_t i16;
typedef int32_t i32;

#define INLINE static inline __attribute__((always_inline))
#define SELDOM static __attribute__((noinline, cold))
#define EXPORT __attribute__((visibility("default")))

INLINE float as_float(u32 bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

INLINE u32 bits_of(float x) {
    u32 bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

INLINE u32 min_u32(u32 a, u32 b) { return a < b ? a : b; }
INLINE u32 max_u32(u32 a, u32 b) { return a > b ? a : b; }

// ---- sources: the FLOAT that is the same number ----

INLINE u32 load_float(u32 code) { return code; }
INLINE u32 load_upper_half(u16 code) { return (u32)code << 16; }

// IEEE binary16. An integer becomes the subnormal number that it stands for: no FLOAT here is subnormal.
INLINE u32 load_half(u16 code) {
    const u32 sign = (u32)(code & 0x8000) << 16, a = code & 0x7fff;
    const u32 normal = (a << 13) + ((u32)(127 - 15) << 23) + (a >= 0x7c00 ? (u32)(255 - 143) << 23 : 0);
    const u32 subnormal = bits_of((float)(int)a * 0x1p-24f);
    return sign | (a < 0x400 ? subnormal : normal);
}

// ---- destinations ----

typedef struct {
    u32 last;       // as a FLOAT (small) or a code (others): what is above becomes that
    u32 least;      // as a FLOAT: the smallest normal number
    u32 shift;      // bits of FLOAT's mantissa beyond the destination's
    u32 power;      // added to an exponent: a power of two whose last bit is the destination's last one
    u32 steps;      // what is too much in the sum
    u32 half, odd;  // what is added before the shift, always, and where the last kept bit is set
    u32 numbers;    // the largest code of a FLOAT that does not become NaN
    u32 nan;        // the code of NaN; its sign is as the others' but for
    u32 nan_flip;   // 1: the other sign
    u32 zero_sign;  // 0: zero has no sign
    u32 sign;       // where the sign goes
} Row;

// Of a magnitude: the code of a float with fewer exponents than FLOAT. A power of two is added whose last bit is worth
// the destination's last one at this size: the sum's fraction counts steps, and its exponent tells how many lie below.
INLINE u32 small_code(u32 a, Row row) {
    const u32 b = min_u32(a, row.last);
    const u32 q = (max_u32(b, row.least) & 0x7f800000) + row.power;
    const u32 sum = bits_of(as_float(b) + as_float(q));
    return sum - q + (q >> row.shift) - row.steps;
}

// Of a magnitude: the code of a float with FLOAT's exponents.
INLINE u32 upper_code(u32 a, Row row) {
    return min_u32((a + row.half + (a >> row.shift & row.odd)) >> row.shift, row.last);
}

// Casts n elements. found: the largest magnitude of a result, NaN counting as the largest number or more; how
// many results are zero, those of NaN apart; how many sources.
#define CAST(NAME, SRC, LOAD, DST, CODE)                                                                         \
    EXPORT void NAME(const void* restrict from, void* restrict to, u32 n, const Row* of, u32* found) {           \
        const SRC* restrict src = from;                                                                          \
        DST* restrict dst = to;                                                                                  \
        const Row row = *of;                                                                                     \
        u32 top = 0, zeros = 0, least = ~(u32)0;                                                                 \
        for (u32 i = 0; i < n; ++i) {                                                                            \
            const u32 c = LOAD(src[i]), a = c & 0x7fffffff, code = CODE(a, row);                                 \
            const u32 nan = a > row.numbers, zero = code == 0;                                                   \
            const u32 sign = ((c >> 31) ^ (nan & row.nan_flip)) & ((zero ^ 1) | row.zero_sign);                  \
            dst[i] = (DST)((nan ? row.nan : code) | sign << row.sign);                                           \
            top = max_u32(top, code);                                                                            \
            zeros += zero;                                                                                       \
            least = min_u32(least, a);                                                                           \
        }                                                                                                        \
        u32 none = 0;                                                                                            \
        if (least == 0)                                                                                          \
            for (u32 i = 0; i < n; ++i) none += (LOAD(src[i]) & 0x7fffffff) == 0;                                \
        found[0] = top;                                                                                          \
        found[1] = zeros;                                                                                        \
        found[2] = none;                                                                                         \
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

// ---- blocks that share a scale ----

// As gpucast/quantization/boxes.py has them: an array of three dimensions, each cut into blocks.
typedef struct {
    u64 shape[3], lengths[3], grid[3];
} Blocks;

// What is done with n elements that lie side by side in blocks of a length; `of` belongs to the blocks, `more` to all.
typedef void Run(const void* restrict from, void* restrict to, u64 n, u64 length, void* of, void* more);

// An array, and the bytes of what it holds.
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

// Lengths of blocks that are so short that a loop for any length would take longer to begin than to run. The shorter one
// is that of two scales.
#define SHORT 32
#define SHORTER 16

// The Run that does for each block what NAME##_block does, in a loop of its own for a length of LEAST.
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
                NAME##_block(src + start, dst + start, count, own, more);                                        \
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
    Row row;
    u32 zeros;    // what of a quotient's code is 0 where it may be a midpoint of two codes
    u32 divisor;  // a quotient that is none
} Quotient;

INLINE u8 quotient_code(u32 c, u32 q, Row row) {
    const u32 code = small_code(q, row);
    return (u8)(code | (c >> 31 & ((u32)(code != 0) | row.zero_sign)) << row.sign);
}

// The quotient of a magnitude as DOUBLE, then as a FLOAT on the same side of every midpoint: rounded to odd.
INLINE u32 odd_quotient(u32 a, double d) {
    const double exact = (double)as_float(a) / d;
    const u32 near = bits_of((float)exact);
    const double back = (double)as_float(near);
    return near + (near & 1 ? 0 : back < exact ? 1 : back > exact ? ~(u32)0 : 0);
}

// How many FLOATs a quotient can be beside the rounded true one where d had to be rounded to FLOAT too, and one more.
#define BESIDE 3

// The codes of finite numbers divided by their block's d, or by one that is near a FLOAT, or multiplied by its factor,
// which is a power of two.
#define QUOTIENTS(NAME, SRC, LOAD)                                                                               \
    SELDOM void NAME##_exactly(const SRC* restrict src, u8* restrict dst, u64 n, double d, Row row) {            \
        for (u64 i = 0; i < n; ++i) {                                                                            \
            const u32 c = LOAD(src[i]);                                                                          \
            dst[i] = quotient_code(c, odd_quotient(c & 0x7fffffff, d), row);                                     \
        }                                                                                                        \
    }                                                                                                            \
    INLINE void NAME##_divided_block(const SRC* restrict src, u8* restrict dst, u64 n, const float* d, const void* more) { \
        const Quotient quotient = *(const Quotient*)more;                                                        \
        const float by = *d;                                                                                     \
        u32 midpoints = 0;                                                                                       \
        for (u64 i = 0; i < n; ++i) {                                                                            \
            const u32 c = LOAD(src[i]), q = bits_of(as_float(c & 0x7fffffff) / by);                              \
            dst[i] = quotient_code(c, q, quotient.row);                                                          \
            midpoints |= (u32)((q & quotient.zeros) == 0) & (u32)(q != 0) & (u32)(q != quotient.divisor);        \
        }                                                                                                        \
        if (midpoints) NAME##_exactly(src, dst, n, by, quotient.row);                                            \
    }                                                                                                            \
    INLINE void NAME##_multiplied_block(const SRC* restrict src, u8* restrict dst, u64 n, const float* factor,   \
                                        const void* more) {                                                      \
        const Row row = ((const Quotient*)more)->row;                                                            \
        const float by = *factor;                                                                                \
        for (u64 i = 0; i < n; ++i) {                                                                            \
            const u32 c = LOAD(src[i]);                                                                          \
            dst[i] = quotient_code(c, bits_of(as_float(c & 0x7fffffff) * by), row);                              \
        }                                                                                                        \
    }                                                                                                            \
    INLINE void NAME##_near_block(const SRC* restrict src, u8* restrict dst, u64 n, const double* d, const void* more) { \
        const Quotient quotient = *(const Quotient*)more;                                                        \
        const double exactly = *d;                                                                               \
        const float by = (float)exactly;                                                                         \
        u32 midpoints = !(by >= 0x1p-126f && by <= 0x1.fffffep127f);                                             \
        for (u64 i = 0; i < n; ++i) {                                                                            \
            const u32 c = LOAD(src[i]), q = bits_of(as_float(c & 0x7fffffff) / by);                              \
            dst[i] = quotient_code(c, q, quotient.row);                                                          \
            midpoints |= (u32)(((q + BESIDE) & quotient.zeros) <= 2 * BESIDE) & (u32)(q != 0);                    \
        }                                                                                                        \
        if (midpoints) NAME##_exactly(src, dst, n, exactly, quotient.row);                                       \
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

// The codes of finite numbers, no quotient being 2^22 or more. A number that is so large that its last bit is worth 1 is
// added, and taken away again: what is left is whole, ties to even.
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

// How many numbers are beyond their block's limit, a FLOAT: added to SHORT counts, whose sum matters. Short blocks have
// one for each place: summing up takes longer than to compare.
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

// The largest magnitude of codes, and how many are zero, of either sign.
#define LOOK(NAME, CODE)                                                                                         \
    EXPORT void NAME(const void* restrict from, u32 n, u32 magnitude, u32* found) {                              \
        const CODE* restrict src = from;                                                                         \
        u32 top = 0, zeros = 0;                                                                                  \
        for (u32 i = 0; i < n; ++i) {                                                                            \
            const u32 a = src[i] & magnitude;                                                                    \
            top = max_u32(top, a);                                                                               \
            zeros += a == 0;                                                                                     \
        }                                                                                                        \
        found[0] = top;                                                                                          \
        found[1] = zeros;                                                                                        \
    }
LOOK(look8, u8)
LOOK(look16, u16)
LOOK(look32, u32)

// The sum of words, as the sums of their low and their high halves.
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

typedef void Cast(const void* restrict, void* restrict, u32, const Row*, u32*);

// Elements as they lie in a file: the first one, and its bytes.
typedef struct {
    int file;
    u32 itemsize;
    u64 position;
} Place;

// Casts n elements of one file to another by way of `room`: block elements of both, a multiple of 8. found and sums are
// those of all. 0: a call of the system failed or was interrupted.
EXPORT int cast_file(Cast* cast, const Row* row, Place src, Place dst, u32 n, u8* room, u32 block, u32* found, u64* sums) {
    u8* const results = room + (u64)block * src.itemsize;
    found[0] = found[1] = found[2] = 0;
    sums[0] = sums[1] = 0;
    for (u32 i = 0; i < n; i += block) {
        const u32 count = min_u32(block, n - i), bytes = count * dst.itemsize;
        u32 here[3];
        u64 here_sums[2];
        if (!read_all(src.file, room, (u64)count * src.itemsize, src.position + (u64)i * src.itemsize)) return 0;
        cast(room, results, count, row, here);
        // Up to a whole word.
        memset(results + bytes, 0, -bytes & 7);
        sum_words(results, (bytes + 7) / 8, here_sums);
        if (!write_all(dst.file, results, bytes, dst.position + (u64)i * dst.itemsize)) return 0;
        found[0] = max_u32(found[0], here[0]);
        found[1] += here[1];
        found[2] += here[2];
        sums[0] += here_sums[0];
        sums[1] += here_sums[1];
    }
    return 1;
}

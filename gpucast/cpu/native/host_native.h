// SPDX-License-Identifier: Apache-2.0
// What the C lanes of the host path share: types, sources and destinations.
#include <stdint.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int16_t i16;
typedef int32_t i32;

#define INLINE static inline __attribute__((always_inline))
#define SELDOM static __attribute__((noinline))
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
    u32 last;       // the largest result, as a FLOAT (small) or a code (others): larger magnitudes are clamped to it
    u32 least;      // the smallest normal number, as a FLOAT
    u32 shift;      // bits of FLOAT's mantissa beyond the destination's
    u32 power;      // added to an exponent: gives the power of two whose ULP is the destination's
    u32 steps;      // subtracted from the sum: its excess over the code
    u32 half, odd;  // added before the shift: always, and where the last kept bit is set
    u32 numbers;    // the largest code of a FLOAT that does not become NaN
    u32 nan;        // the code of NaN without its sign
    u32 nan_flip;   // 1: the sign of NaN is flipped
    u32 zero_sign;  // 0: zero has no sign
    u32 sign;       // the bit position of the sign
} Conversion;

// The code of a magnitude in a float type with fewer exponents than FLOAT. Adds a power of two whose ULP is the
// destination's ULP at this magnitude, so that the processor rounds: the sum's fraction counts the ULPs within the
// binade, its exponent those below.
INLINE u32 small_code(u32 a, Conversion rule) {
    const u32 b = min_u32(a, rule.last);
    const u32 q = (max_u32(b, rule.least) & 0x7f800000) + rule.power;
    const u32 sum = bits_of(as_float(b) + as_float(q));
    return sum - q + (q >> rule.shift) - rule.steps;
}

// The code of a magnitude in a float type with FLOAT's exponents.
INLINE u32 upper_code(u32 a, Conversion rule) {
    return min_u32((a + rule.half + (a >> rule.shift & rule.odd)) >> rule.shift, rule.last);
}

// SPDX-License-Identifier: Apache-2.0
// What the instructions of kernels/instructions.cuh do, for the host build. Written from the PTX manual: results that
// are NaN are the canonical NaN, conversions to integers saturate, shifts by more than the width give 0.
#include <cfenv>
#include <cmath>
#include <cstring>
// The host build of single kernels counts accesses at which a GPU stops: of global memory elsewhere, or misaligned.
#ifndef GPUCAST_CHECK_GLOBAL
#define GPUCAST_CHECK_GLOBAL(pointer, bytes)
#endif

namespace gpucast {
namespace ptx {

inline unsigned prmt(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long bytes = (unsigned long long)b << 32 | a;
    unsigned d = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned select = selector >> (4 * i) & 15;
        const unsigned byte = unsigned(bytes >> (8 * (select & 7))) & 255;
        d |= (select & 8 ? (byte & 128 ? 255 : 0) : byte) << (8 * i);
    }
    return d;
}
inline unsigned shl(unsigned a, unsigned b) { return b < 32 ? a << b : 0; }
inline unsigned shr(unsigned a, unsigned b) { return b < 32 ? a >> b : 0; }
inline unsigned long long shl(unsigned long long a, unsigned b) { return b < 64 ? a << b : 0; }
inline unsigned long long shr(unsigned long long a, unsigned b) { return b < 64 ? a >> b : 0; }

inline unsigned long long mul_wide(unsigned a, unsigned b) { return (unsigned long long)a * b; }

inline void ld(const unsigned char* from, unsigned& a, unsigned& b) {
    GPUCAST_CHECK_GLOBAL(from, 8);
    std::memcpy(&a, from, 4);
    std::memcpy(&b, from + 4, 4);
}
inline void ld(const unsigned char* from, unsigned& a, unsigned& b, unsigned& c, unsigned& d) {
    GPUCAST_CHECK_GLOBAL(from, 16);
    ld(from, a, b);
    ld(from + 8, c, d);
}
inline void st(unsigned char* to, unsigned a, unsigned b) {
    GPUCAST_CHECK_GLOBAL(to, 8);
    std::memcpy(to, &a, 4);
    std::memcpy(to + 4, &b, 4);
}
inline void st(unsigned char* to, unsigned a, unsigned b, unsigned c, unsigned d) {
    GPUCAST_CHECK_GLOBAL(to, 16);
    st(to, a, b);
    st(to + 8, c, d);
}
inline void ld_wide(const unsigned char* from, unsigned* d) {
    GPUCAST_CHECK_GLOBAL(from, 32);
    for (int i = 0; i < 8; i += 2) ld(from + 4 * i, d[i], d[i + 1]);
}
inline void st_wide(unsigned char* to, const unsigned* d) {
    GPUCAST_CHECK_GLOBAL(to, 32);
    for (int i = 0; i < 8; i += 2) st(to + 4 * i, d[i], d[i + 1]);
}
inline unsigned ld_bytes(const unsigned char* from, unsigned i, unsigned begin, unsigned count) {
    unsigned d = 0;
    for (unsigned j = 0; j < 4; ++j) {
        if (i + j - begin < count) d |= unsigned(from[j]) << (8 * j);
    }
    return d;
}
inline void st_bytes(unsigned char* to, unsigned bytes, unsigned i, unsigned begin, unsigned count) {
    for (unsigned j = 0; j < 4; ++j) {
        if (i + j - begin < count) to[j] = (unsigned char)(bytes >> (8 * j));
    }
}


// Blocks run one after the other, so that these need no order.
inline void red_max(int* to, int a) {
    GPUCAST_CHECK_GLOBAL(to, sizeof a);
    *to = a > *to ? a : *to;
}
inline void red_max(unsigned* to, unsigned a) {
    GPUCAST_CHECK_GLOBAL(to, sizeof a);
    *to = a > *to ? a : *to;
}
inline void red_max(unsigned long long* to, unsigned long long a) {
    GPUCAST_CHECK_GLOBAL(to, sizeof a);
    *to = a > *to ? a : *to;
}
inline unsigned take(unsigned* at) {
    GPUCAST_CHECK_GLOBAL(at, sizeof *at);
    const unsigned found = *at;
    *at = 0;
    return found;
}
inline unsigned long long take(unsigned long long* at) {
    GPUCAST_CHECK_GLOBAL(at, sizeof *at);
    const unsigned long long found = *at;
    *at = 0;
    return found;
}
inline unsigned count_up(unsigned* at, unsigned last) {
    GPUCAST_CHECK_GLOBAL(at, 4);
    const unsigned found = *at;
    *at = found >= last ? 0 : found + 1;
    return found;
}
inline void fence() {}

inline unsigned bits(float a) {
    unsigned d;
    std::memcpy(&d, &a, sizeof d);
    return d;
}
inline unsigned long long bits(double a) {
    unsigned long long d;
    std::memcpy(&d, &a, sizeof d);
    return d;
}
inline float as_float(unsigned a) {
    float d;
    std::memcpy(&d, &a, sizeof d);
    return d;
}
inline double as_double(unsigned long long a) {
    double d;
    std::memcpy(&d, &a, sizeof d);
    return d;
}

inline float canonical(float a) { return a != a ? as_float(0x7fffffff) : a; }
inline float abs(float a) { return as_float(bits(a) & 0x7fffffff); }
inline float neg(float a) { return as_float(bits(a) ^ 0x80000000); }
inline float min(float a, float b) { return a != a ? canonical(b) : b != b ? a : a < b || (a == b && bits(a) >> 31) ? a : b; }
inline float max(float a, float b) { return a != a ? canonical(b) : b != b ? a : a > b || (a == b && bits(b) >> 31) ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
inline unsigned brev(unsigned a) {
    unsigned d = 0;
    for (int i = 0; i < 32; ++i) d |= (a >> i & 1) << (31 - i);
    return d;
}
template <unsigned Table>
inline unsigned lop3(unsigned a, unsigned b, unsigned c) {
    unsigned d = 0;
    for (unsigned i = 0; i < 8; ++i) {
        if (Table >> i & 1) d |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
    return d;
}
inline unsigned mad(unsigned a, unsigned b, unsigned c) { return a * b + c; }
inline float min_nan(float a, float b) { return canonical(a != a || b != b ? a + b : min(a, b)); }
inline float max_nan(float a, float b) { return canonical(a != a || b != b ? a + b : max(a, b)); }
inline float rcp(float a) { return canonical(1 / a); }
inline void mark_rare() {}
inline void prefetch(const unsigned char*) {}
inline void cp_async(unsigned char* to, const unsigned char* from) {
    GPUCAST_CHECK_GLOBAL(from, 16);
    std::memcpy(to, from, 16);
}
inline void cp_async_wait() {}
inline void cp_async_commit() {}
template <unsigned Last>
inline void cp_async_wait_before() {}
inline float add_rn(float a, float b) { return canonical(a + b); }
inline float sub_rn(float a, float b) { return canonical(a - b); }
inline unsigned set_ne(float a, float b) { return a < b || a > b; }
inline float mul_rn(float a, float b) { return canonical(a * b); }
inline float div_rn(float a, float b) { return canonical(a / b); }
inline float sqrt_rn(float a) { return canonical(std::sqrt(a)); }
inline float fma_rn(float a, float b, float c) { return canonical(std::fmaf(a, b, c)); }
// Of operations on double no caller looks at the bits of a NaN.
inline double add_rn(double a, double b) { return a + b; }
inline double sub_rn(double a, double b) { return a - b; }
inline double mul_rn(double a, double b) { return a * b; }
inline double div_rn(double a, double b) { return a / b; }
inline double sqrt_rn(double a) { return std::sqrt(a); }

// Toward zero: the nearest float, stepped back where it lies farther from zero. `Exact` holds a and every float near it.
template <typename Exact>
inline float toward_zero(Exact a) {
    float nearest = float(a);
    if ((a > 0 && (long double)nearest > (long double)a) || (a < 0 && (long double)nearest < (long double)a)) {
        nearest = std::nextafterf(nearest, 0.0f);
    }
    return canonical(nearest);
}
// A double holds the product.
inline float mul_rz(float a, float b) { return toward_zero(double(a) * double(b)); }
inline float cvt_rn_f32(int a) { return float(a); }
inline float cvt_rn_f32(unsigned a) { return float(a); }
inline float cvt_rn_f32(long long a) { return float(a); }
inline float cvt_rn_f32(unsigned long long a) { return float(a); }
inline float cvt_rn_f32(double a) { return canonical(float(a)); }
inline float cvt_rz_f32(int a) { return toward_zero(a); }
inline float cvt_rz_f32(unsigned a) { return toward_zero(a); }
inline float cvt_rz_f32(long long a) { return toward_zero(a); }
inline float cvt_rz_f32(unsigned long long a) { return toward_zero(a); }
inline float cvt_rz_f32(double a) { return std::isinf(a) ? float(a) : toward_zero(a); }
inline float cvt_rni_f32(float a) { return canonical(std::nearbyintf(a)); }
inline double cvt_rni_f64(double a) { return a != a ? as_double(0x7fffffffffffffff) : std::nearbyint(a); }
inline double cvt_rn_f64(int a) { return double(a); }
inline double cvt_rn_f64(unsigned a) { return double(a); }
inline double cvt_rn_f64(long long a) { return double(a); }
inline double cvt_rn_f64(unsigned long long a) { return double(a); }
inline double cvt_f64(float a) { return a != a ? as_double(0x7fffffffffffffff) : double(a); }

template <typename Integer>
inline Integer saturated(double a, Integer lowest, Integer highest, Integer nan) {
    if (a != a) return nan;
    if (a <= double(lowest)) return lowest;
    return a >= double(highest) ? highest : Integer(a);
}
inline int cvt_rzi_s32(float a) { return saturated<int>(std::trunc(a), -0x7fffffff - 1, 0x7fffffff, 0); }
inline unsigned cvt_rzi_u32(float a) { return saturated<unsigned>(std::trunc(a), 0, 0xffffffff, 0); }
inline int cvt_rni_s32(float a) { return saturated<int>(std::nearbyint(a), -0x7fffffff - 1, 0x7fffffff, 0); }
inline unsigned cvt_rni_u32(float a) { return saturated<unsigned>(std::nearbyint(a), 0, 0xffffffff, 0); }
inline long long cvt_rzi_s64(float a) {
    const long long highest = 0x7fffffffffffffff, lowest = -highest - 1;
    return saturated<long long>(std::trunc(a), lowest, highest, lowest);
}
inline float cvt_f32_f16(unsigned a) {
    const int field = a >> 10 & 31;
    const float fraction = float(a & 1023);
    float d = field == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024.0f + fraction, field - 25);
    if (field == 31) d = a & 1023 ? as_float(0x7fffffff) : as_float(0x7f800000);
    return (a & 0x8000) && d == d ? neg(d) : d;
}

// A format of 16 bits, as the packed instructions see it.
template <int MantissaBits, int Bias>
struct Half {
    static double value(unsigned a) {
        const int field = a >> MantissaBits & (2 * Bias + 1), hidden = 1 << MantissaBits;
        const int fraction = int(a & (hidden - 1));
        double d = std::ldexp(field ? hidden + fraction : fraction, (field ? field : 1) - Bias - MantissaBits);
        if (field == 2 * Bias + 1) d = fraction ? NAN : INFINITY;
        return a & 0x8000 ? -d : d;
    }
    // To nearest, ties to even.
    static unsigned code(double d) {
        const unsigned sign = std::signbit(d) ? 0x8000 : 0, infinite = unsigned(2 * Bias + 1) << MantissaBits;
        if (d != d) return 0x7fff;
        int exponent;
        std::frexp(d, &exponent);
        exponent = exponent - 1 < 1 - Bias ? 1 - Bias : exponent - 1;
        const double steps = std::nearbyint(std::ldexp(std::fabs(d), MantissaBits - exponent));
        if (d == 0) return sign;
        const double found = std::isinf(d) ? infinite : steps + (exponent + Bias - 1) * (1 << MantissaBits);
        return sign | (found > infinite ? infinite : unsigned(found));
    }
    template <typename Operation>
    static unsigned both(unsigned a, unsigned b, unsigned c, Operation operation) {
        unsigned d = 0;
        for (int shift = 0; shift < 32; shift += 16) {
            d |= code(operation(value(a >> shift & 0xffff), value(b >> shift & 0xffff), value(c >> shift & 0xffff))) << shift;
        }
        return d;
    }
};
typedef Half<10, 15> F16;
typedef Half<7, 127> BF16;
// fmin and fmax give the other operand where one is NaN, as PTX does.
inline double lesser(double a, double b, double) { return std::fmin(a, b); }
inline double greater(double a, double b, double) { return std::fmax(a, b); }
inline double lesser_nan(double a, double b, double) { return a != a || b != b ? NAN : std::fmin(a, b); }
inline double greater_nan(double a, double b, double) { return a != a || b != b ? NAN : std::fmax(a, b); }
inline double fused(double a, double b, double c) { return std::fma(a, b, c); }
inline unsigned min_f16x2(unsigned a, unsigned b) { return F16::both(a, b, 0, lesser); }
inline unsigned max_f16x2(unsigned a, unsigned b) { return F16::both(a, b, 0, greater); }
inline unsigned min_nan_f16x2(unsigned a, unsigned b) { return F16::both(a, b, 0, lesser_nan); }
inline unsigned max_nan_f16x2(unsigned a, unsigned b) { return F16::both(a, b, 0, greater_nan); }
inline unsigned abs_f16x2(unsigned a) { return a & 0x7fff7fff; }
inline unsigned fma_rn_f16x2(unsigned a, unsigned b, unsigned c) { return F16::both(a, b, c, fused); }
inline unsigned min_bf16x2(unsigned a, unsigned b) { return BF16::both(a, b, 0, lesser); }
inline unsigned max_bf16x2(unsigned a, unsigned b) { return BF16::both(a, b, 0, greater); }
inline unsigned min_nan_bf16x2(unsigned a, unsigned b) { return BF16::both(a, b, 0, lesser_nan); }
inline unsigned max_nan_bf16x2(unsigned a, unsigned b) { return BF16::both(a, b, 0, greater_nan); }
inline unsigned abs_bf16x2(unsigned a) { return a & 0x7fff7fff; }
inline unsigned fma_rn_bf16x2(unsigned a, unsigned b, unsigned c) { return BF16::both(a, b, c, fused); }

template <typename Integer, typename Operation>
inline unsigned both_integers(unsigned a, unsigned b, Operation operation) {
    const unsigned low = (unsigned short)operation(Integer(a), Integer(b));
    return low | unsigned((unsigned short)operation(Integer(a >> 16), Integer(b >> 16))) << 16;
}
inline int lesser_integer(int a, int b) { return a < b ? a : b; }
inline int greater_integer(int a, int b) { return a > b ? a : b; }
inline unsigned min_s16x2(unsigned a, unsigned b) { return both_integers<short>(a, b, lesser_integer); }
inline unsigned max_s16x2(unsigned a, unsigned b) { return both_integers<short>(a, b, greater_integer); }
inline unsigned min_u16x2(unsigned a, unsigned b) { return both_integers<unsigned short>(a, b, lesser_integer); }
inline unsigned max_u16x2(unsigned a, unsigned b) { return both_integers<unsigned short>(a, b, greater_integer); }

inline void add_rn_f32x2(float a, float b, float x, float y, float& c, float& d) {
    c = add_rn(a, x);
    d = add_rn(b, y);
}
inline void sub_rn_f32x2(float a, float b, float x, float y, float& c, float& d) {
    c = sub_rn(a, x);
    d = sub_rn(b, y);
}
inline void fma_rn_f32x2_squares(float a, float b, float& x, float& y) {
    x = fma_rn(a, a, x);
    y = fma_rn(b, b, y);
}
inline void fma_rn_f32x2(float a, float b, float x, float y, float more, float& c, float& d) {
    c = fma_rn(a, x, more);
    d = fma_rn(b, y, more);
}
inline void fma_rn_f32x2_of(float a, float b, float factor, float x, float y, float& c, float& d) {
    c = fma_rn(a, factor, x);
    d = fma_rn(b, factor, y);
}
inline void mul_rn_f32x2(float a, float b, float factor, float& c, float& d) {
    c = mul_rn(a, factor);
    d = mul_rn(b, factor);
}
inline void fma_rn_f32x2(float a, float b, float factor, float more, float& c, float& d) {
    c = fma_rn(a, factor, more);
    d = fma_rn(b, factor, more);
}

// A float of which the finite numbers count; `Largest` is the code of the largest.
template <int MantissaBits, int Bias, int Largest, int SignBit>
struct Small {
    static float value(unsigned code) {
        const int field = int(code) >> MantissaBits, hidden = 1 << MantissaBits, fraction = int(code) & (hidden - 1);
        return std::ldexp(float(field ? hidden + fraction : fraction), (field ? field : 1) - Bias - MantissaBits);
    }
    // To nearest, ties to the even code, saturating; written as a search, so that it shares nothing with the kernels.
    static unsigned code(float a) {
        // Of 8 bits; of fewer nothing stands for NaN, and it becomes the largest number.
        if (a != a) return SignBit == 7 ? 0x7f : Largest;
        const float magnitude = std::fabs(a);
        unsigned below = 0, above = Largest;
        if (magnitude >= value(Largest)) below = above;
        while (above - below > 1) {
            const unsigned middle = (below + above) / 2;
            (value(middle) <= magnitude ? below : above) = middle;
        }
        const double down = double(magnitude) - value(below), up = double(value(above)) - magnitude;
        const unsigned found = down < up || (down == up && below % 2 == 0) ? below : above;
        return found | (std::signbit(a) ? 1u << SignBit : 0);
    }
};
typedef Small<3, 7, 0x7e, 7> E4M3;
typedef Small<2, 15, 0x7b, 7> E5M2;
typedef Small<1, 1, 7, 3> E2M1;
inline unsigned cvt_e4m3x4(float a, float b, float c, float d) {
    return E4M3::code(a) | E4M3::code(b) << 8 | E4M3::code(c) << 16 | E4M3::code(d) << 24;
}
inline unsigned cvt_e5m2x4(float a, float b, float c, float d) {
    return E5M2::code(a) | E5M2::code(b) << 8 | E5M2::code(c) << 16 | E5M2::code(d) << 24;
}
typedef Small<3, 1, 0x1f, 5> E2M3;
typedef Small<2, 3, 0x1f, 5> E3M2;
inline unsigned cvt_e2m3x4(float a, float b, float c, float d) {
    return E2M3::code(a) | E2M3::code(b) << 8 | E2M3::code(c) << 16 | E2M3::code(d) << 24;
}
inline unsigned cvt_e3m2x4(float a, float b, float c, float d) {
    return E3M2::code(a) | E3M2::code(b) << 8 | E3M2::code(c) << 16 | E3M2::code(d) << 24;
}
// The exponents of floats are those of FLOAT8E8M0; 2^-127 is its lowest number.
inline unsigned ue8m0_code(float a, bool up) {
    const unsigned magnitude = bits(a) & 0x7fffffff, field = magnitude >> 23;
    if (a != a) return 0xff;
    const bool next = up && magnitude > 0x400000 && (magnitude & 0x7fffff) != 0;
    return field + next > 0xfe ? 0xfe : field + next;
}
inline unsigned cvt_rp_ue8m0x4(float a, float b, float c, float d) {
    return ue8m0_code(a, true) | ue8m0_code(b, true) << 8 | ue8m0_code(c, true) << 16 | ue8m0_code(d, true) << 24;
}
inline unsigned cvt_rz_ue8m0x4(float a, float b, float c, float d) {
    return ue8m0_code(a, false) | ue8m0_code(b, false) << 8 | ue8m0_code(c, false) << 16 | ue8m0_code(d, false) << 24;
}
inline unsigned cvt_e4m3x2(float a, float b) { return E4M3::code(a) | E4M3::code(b) << 8; }
inline unsigned cvt_e2m1x8(const float (&a)[8]) {
    unsigned d = 0;
    for (int i = 0; i < 8; ++i) d |= E2M1::code(a[i]) << (4 * i);
    return d;
}
inline unsigned cvt_rz_f16(float a) {
    // Toward zero: as the nearest double of 11 bits below. Beyond the largest number it stays there.
    if (std::isinf(a)) return std::signbit(a) ? 0xfc00 : 0x7c00;
    unsigned nearest = F16::code(a);
    if (a == a && std::fabs(F16::value(nearest)) > std::fabs(a)) --nearest;
    return nearest;
}
inline unsigned cvt_rz_f16x2(float a, float b) { return cvt_rz_f16(a) | cvt_rz_f16(b) << 16; }
inline unsigned cvt_rn_f16x2(float a, float b) { return F16::code(a) | F16::code(b) << 16; }
inline unsigned cvt_rn_bf16x2(float a, float b) { return BF16::code(a) | BF16::code(b) << 16; }
inline void cvt_f32_f16x2(unsigned a, float& low, float& high) {
    low = cvt_f32_f16(a);
    high = cvt_f32_f16(a >> 16);
}
inline void cvt_f16x8_e2m1(unsigned a, unsigned (&d)[4]) {
    for (int i = 0; i < 4; ++i) {
        d[i] = 0;
        for (int j = 0; j < 2; ++j) {
            const unsigned code = a >> (8 * i + 4 * j) & 15;
            d[i] |= (F16::code(E2M1::value(code & 7)) | (code & 8) << 12) << (16 * j);
        }
    }
}
inline unsigned cvt_f16x2_e2m1(unsigned a) {
    unsigned d[4];
    cvt_f16x8_e2m1(a, d);
    return d[0];
}
template <typename Format>
inline unsigned f16_of_6_bits(unsigned code) { return F16::code(Format::value(code & 31)) | (code & 32) << 10; }
inline void cvt_f16x4_e2m3(unsigned a, unsigned& low, unsigned& high) {
    low = f16_of_6_bits<E2M3>(a) | f16_of_6_bits<E2M3>(a >> 8) << 16;
    high = f16_of_6_bits<E2M3>(a >> 16) | f16_of_6_bits<E2M3>(a >> 24) << 16;
}
inline void cvt_f16x4_e3m2(unsigned a, unsigned& low, unsigned& high) {
    low = f16_of_6_bits<E3M2>(a) | f16_of_6_bits<E3M2>(a >> 8) << 16;
    high = f16_of_6_bits<E3M2>(a >> 16) | f16_of_6_bits<E3M2>(a >> 24) << 16;
}
inline unsigned bf16_of_ue8m0(unsigned code) { return code == 0xff ? 0x7fff : code == 0 ? 0x40 : code << 7; }
inline void cvt_bf16x4_ue8m0(unsigned a, unsigned& low, unsigned& high) {
    low = bf16_of_ue8m0(a & 255) | bf16_of_ue8m0(a >> 8 & 255) << 16;
    high = bf16_of_ue8m0(a >> 16 & 255) | bf16_of_ue8m0(a >> 24) << 16;
}
// Of codes of FLOAT8E4M3FN and FLOAT8E5M2; NaN is the canonical one.
inline unsigned f16_of_e4m3(unsigned code) {
    const unsigned sign = (code & 0x80) << 8, magnitude = code & 0x7f;
    return magnitude == 0x7f ? 0x7fff : sign | F16::code(E4M3::value(magnitude));
}
inline unsigned f16_of_e5m2(unsigned code) { return (code & 0x7f) > 0x7c ? 0x7fff : code << 8; }
inline unsigned cvt_f16x2_e4m3(unsigned a) { return f16_of_e4m3(a & 255) | f16_of_e4m3(a >> 8 & 255) << 16; }
inline void cvt_f16x4_e4m3(unsigned a, unsigned& low, unsigned& high) {
    low = cvt_f16x2_e4m3(a);
    high = cvt_f16x2_e4m3(a >> 16);
}
inline void cvt_f16x4_e5m2(unsigned a, unsigned& low, unsigned& high) {
    low = f16_of_e5m2(a & 255) | f16_of_e5m2(a >> 8 & 255) << 16;
    high = f16_of_e5m2(a >> 16 & 255) | f16_of_e5m2(a >> 24) << 16;
}

// Of pairs of float16 or bfloat16.
template <typename Half, typename Format>
inline unsigned small_of_pairs(unsigned low, unsigned high) {
    unsigned d = 0;
    for (int i = 0; i < 4; ++i) d |= Format::code(float(Half::value((i < 2 ? low : high) >> (i % 2 * 16) & 0xffff))) << (8 * i);
    return d;
}
inline unsigned cvt_e4m3x4_f16(unsigned low, unsigned high) { return small_of_pairs<F16, E4M3>(low, high); }
inline unsigned cvt_e5m2x4_f16(unsigned low, unsigned high) { return small_of_pairs<F16, E5M2>(low, high); }
inline unsigned cvt_e4m3x4_bf16(unsigned low, unsigned high) { return small_of_pairs<BF16, E4M3>(low, high); }
inline unsigned cvt_e5m2x4_bf16(unsigned low, unsigned high) { return small_of_pairs<BF16, E5M2>(low, high); }
inline unsigned cvt_e2m3x4_f16(unsigned low, unsigned high) { return small_of_pairs<F16, E2M3>(low, high); }
inline unsigned cvt_e3m2x4_f16(unsigned low, unsigned high) { return small_of_pairs<F16, E3M2>(low, high); }
inline unsigned cvt_e2m3x4_bf16(unsigned low, unsigned high) { return small_of_pairs<BF16, E2M3>(low, high); }
inline unsigned cvt_e3m2x4_bf16(unsigned low, unsigned high) { return small_of_pairs<BF16, E3M2>(low, high); }
template <typename Half>
inline unsigned e2m1_of_pairs(const unsigned* a) {
    unsigned d = 0;
    for (int i = 0; i < 8; ++i) d |= E2M1::code(float(Half::value(a[i / 2] >> (i % 2 * 16) & 0xffff))) << (4 * i);
    return d;
}
inline unsigned cvt_e2m1x8_f16(const unsigned* a) { return e2m1_of_pairs<F16>(a); }
inline unsigned cvt_e2m1x8_bf16(const unsigned* a) { return e2m1_of_pairs<BF16>(a); }
inline unsigned powers_of_pairs(unsigned low, unsigned high, bool up) {
    unsigned d = 0;
    for (int i = 0; i < 4; ++i) d |= ue8m0_code(as_float((i < 2 ? low : high) >> (i % 2 * 16) << 16), up) << (8 * i);
    return d;
}
inline unsigned cvt_rp_ue8m0x4_bf16(unsigned low, unsigned high) { return powers_of_pairs(low, high, true); }
inline unsigned cvt_rz_ue8m0x4_bf16(unsigned low, unsigned high) { return powers_of_pairs(low, high, false); }
// Their float16s hold all numbers of small floats; NaN is the canonical one.
inline unsigned bf16_of_f16(unsigned code) {
    const float value = cvt_f32_f16(code & 0xffff);
    return value != value ? 0x7fff : bits(value) >> 16;
}
inline unsigned bf16x2_of_f16x2(unsigned a) { return bf16_of_f16(a) | bf16_of_f16(a >> 16) << 16; }
#define GPUCAST_BY_F16(NAME, BY)                                      \
    inline void NAME(unsigned a, unsigned& low, unsigned& high) {     \
        BY(a, low, high);                                             \
        low = bf16x2_of_f16x2(low), high = bf16x2_of_f16x2(high);     \
    }
GPUCAST_BY_F16(cvt_bf16x4_e4m3, cvt_f16x4_e4m3)
GPUCAST_BY_F16(cvt_bf16x4_e5m2, cvt_f16x4_e5m2)
GPUCAST_BY_F16(cvt_bf16x4_e2m3, cvt_f16x4_e2m3)
GPUCAST_BY_F16(cvt_bf16x4_e3m2, cvt_f16x4_e3m2)
#undef GPUCAST_BY_F16
inline void cvt_bf16x8_e2m1(unsigned a, unsigned (&d)[4]) {
    cvt_f16x8_e2m1(a, d);
    for (unsigned& pair : d) pair = bf16x2_of_f16x2(pair);
}

}  // namespace ptx
}  // namespace gpucast

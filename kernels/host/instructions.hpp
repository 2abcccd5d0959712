// SPDX-License-Identifier: Apache-2.0
// The instructions of kernels/instructions.cuh that casts use, as plain C++ of which compilers make vector
// instructions. Unlike the model of gpucast/parity they are for speed: the NaN of a result may have any sign and
// payload, because no rule looks at these. Only what every architecture has: two halves at a time would take longer.
#define GPUCAST_HOST
#define GPUCAST_ARCH 750
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __clz(word) __builtin_clz(unsigned(word))
#define __clzll(word) __builtin_clzll((unsigned long long)(word))
#define GPUCAST_INSTRUCTION static inline __attribute__((always_inline))

namespace gpucast {
namespace ptx {

typedef unsigned u32;
typedef long long i64;
typedef unsigned long long u64;

GPUCAST_INSTRUCTION u32 bits(float a) {
    u32 d;
    __builtin_memcpy(&d, &a, sizeof d);
    return d;
}
GPUCAST_INSTRUCTION u64 bits(double a) {
    u64 d;
    __builtin_memcpy(&d, &a, sizeof d);
    return d;
}
GPUCAST_INSTRUCTION float as_float(u32 a) {
    float d;
    __builtin_memcpy(&d, &a, sizeof d);
    return d;
}
GPUCAST_INSTRUCTION double as_double(u64 a) {
    double d;
    __builtin_memcpy(&d, &a, sizeof d);
    return d;
}

GPUCAST_INSTRUCTION u32 shl(u32 a, u32 b) { return b < 32 ? a << b : 0; }
GPUCAST_INSTRUCTION u32 shr(u32 a, u32 b) { return b < 32 ? a >> b : 0; }
GPUCAST_INSTRUCTION u64 shl(u64 a, u32 b) { return b < 64 ? a << b : 0; }
GPUCAST_INSTRUCTION u64 shr(u64 a, u32 b) { return b < 64 ? a >> b : 0; }
GPUCAST_INSTRUCTION u64 mul_wide(u32 a, u32 b) { return u64(a) * b; }
GPUCAST_INSTRUCTION u32 min(u32 a, u32 b) { return a < b ? a : b; }

GPUCAST_INSTRUCTION float abs(float a) { return as_float(bits(a) & 0x7fffffff); }
GPUCAST_INSTRUCTION float neg(float a) { return as_float(bits(a) ^ 0x80000000); }
// Where `a` is NaN, `b`; no caller has a `b` that is NaN.
GPUCAST_INSTRUCTION float min(float a, float b) { return a < b ? a : b; }
GPUCAST_INSTRUCTION float max(float a, float b) { return a > b ? a : b; }
GPUCAST_INSTRUCTION float add_rn(float a, float b) { return a + b; }
GPUCAST_INSTRUCTION double add_rn(double a, double b) { return a + b; }
// `b` is a power of two, so that the product is exact, unless it is too small to matter.
#if defined(__FMA__) || defined(__aarch64__)
GPUCAST_INSTRUCTION float fma_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
GPUCAST_INSTRUCTION double fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
#else
GPUCAST_INSTRUCTION float fma_rn(float a, float b, float c) { return a * b + c; }
GPUCAST_INSTRUCTION double fma_rn(double a, double b, double c) { return a * b + c; }
#endif

GPUCAST_INSTRUCTION float cvt_rn_f32(int a) { return float(a); }
GPUCAST_INSTRUCTION float cvt_rn_f32(u32 a) { return float(a); }
GPUCAST_INSTRUCTION float cvt_rn_f32(i64 a) { return float(a); }
GPUCAST_INSTRUCTION float cvt_rn_f32(u64 a) { return float(a); }
GPUCAST_INSTRUCTION float cvt_rn_f32(double a) { return float(a); }
GPUCAST_INSTRUCTION double cvt_rn_f64(int a) { return double(a); }
GPUCAST_INSTRUCTION double cvt_rn_f64(u32 a) { return double(a); }
GPUCAST_INSTRUCTION double cvt_rn_f64(i64 a) { return double(a); }
GPUCAST_INSTRUCTION double cvt_rn_f64(u64 a) { return double(a); }
GPUCAST_INSTRUCTION double cvt_f64(float a) { return double(a); }

// Toward zero: the nearest float, one step back where it lies beyond the number.
GPUCAST_INSTRUCTION float cvt_rz_f32(double a) {
    const float nearest = float(a);
    const double magnitude = as_double(bits(a) & ~(u64(1) << 63));
    const bool beyond = double(abs(nearest)) > magnitude;
    return as_float(bits(nearest) - u32(beyond));
}
// Of integers all but the upper 24 bits are cleared first, so that the conversion is exact.
GPUCAST_INSTRUCTION u32 upper_bits(u32 a) { return a & ~(0xffu >> __builtin_clz(a | 1)); }
GPUCAST_INSTRUCTION float cvt_rz_f32(u32 a) { return float(upper_bits(a)); }
GPUCAST_INSTRUCTION float cvt_rz_f32(int a) {
    const u32 magnitude = upper_bits(a < 0 ? 0 - u32(a) : u32(a));
    return float(int(a < 0 ? 0 - magnitude : magnitude));
}
// Beyond 2^53 the lowest 11 bits are cut off, so that a double holds the rest: a float has none of them.
GPUCAST_INSTRUCTION float cvt_rz_f32(u64 a) { return cvt_rz_f32(double(a >> 53 != 0 ? a & ~u64(0x7ff) : a)); }
GPUCAST_INSTRUCTION float cvt_rz_f32(i64 a) {
    const float magnitude = cvt_rz_f32(a < 0 ? 0 - u64(a) : u64(a));
    return a < 0 ? -magnitude : magnitude;
}

GPUCAST_INSTRUCTION float cvt_rni_f32(float a) { return __builtin_nearbyintf(a); }
GPUCAST_INSTRUCTION double cvt_rni_f64(double a) { return __builtin_nearbyint(a); }
GPUCAST_INSTRUCTION double cvt_rzi_f64(double a) { return __builtin_trunc(a); }
// To integers conversions saturate; NaN gives 0, in 64 bits the lowest integer. A conversion in C++ of a number out of
// range is undefined, so numbers are clamped to the floats of the range first; `max` makes the lowest of NaN.
GPUCAST_INSTRUCTION int cvt_rzi_s32(float a) {
    const int d = int(min(max(a, -0x1p31f), 0x7fffff80.0p0f));
    return a != a ? 0 : d | (a >= 0x1p31f ? 0x7f : 0);
}
GPUCAST_INSTRUCTION u32 cvt_rzi_u32(float a) {
    return u32(min(max(a, 0.0f), 0xffffff00.0p0f)) | (a >= 0x1p32f ? 0xff : 0);
}
GPUCAST_INSTRUCTION int cvt_rni_s32(float a) { return cvt_rzi_s32(cvt_rni_f32(a)); }
GPUCAST_INSTRUCTION u32 cvt_rni_u32(float a) { return cvt_rzi_u32(cvt_rni_f32(a)); }
GPUCAST_INSTRUCTION i64 cvt_rzi_s64(float a) {
    return i64(min(max(a, -0x1p63f), 0x7fffff8000000000.0p0f)) | (a >= 0x1p63f ? 0x7fffffffff : 0);
}

// The low bits of an integer part; of NaN they are 0. C++ does not say what becomes of numbers out of an integer's range,
// but x86's instructions make its lowest integer of them. Choices would take longer.
#define GPUCAST_UNCHECKED __attribute__((no_sanitize("float-cast-overflow"))) GPUCAST_INSTRUCTION
// Those below bit 31; and those below bit 32 of numbers that are at most 2^31.
#if defined(__SSE2__)
GPUCAST_UNCHECKED u32 low_bits(float a) { return u32(int(a)); }
GPUCAST_UNCHECKED u32 all_low_bits(float a) { return u32(int(a == a ? a : 0.0f)); }
#else
GPUCAST_INSTRUCTION u32 low_bits(float a) { return u32(int(abs(a) < 0x1p31f ? a : 0.0f)); }
GPUCAST_INSTRUCTION u32 all_low_bits(float a) {
    return u32(int(a < 0x1p31f ? a : 0.0f)) | (a == 0x1p31f ? u32(1) << 31 : 0);
}
#endif
// Those below bit 32; not of numbers from 2^51 on, unless GPUCAST_ALL_HAVE_LOW_BITS.
#if defined(__AVX512DQ__)
#define GPUCAST_ALL_HAVE_LOW_BITS 1
GPUCAST_UNCHECKED u32 low_bits(double a) { return u32(i64(a)); }
#else
#define GPUCAST_ALL_HAVE_LOW_BITS 0
GPUCAST_INSTRUCTION u32 low_bits(double a) {
    const double known = a == a ? a : 0.0;
#if defined(__SSE2__)
    // No vector instruction converts it. The sum's ULP is 1, so that its lowest bits are the integer's.
    return u32(bits(cvt_rzi_f64(known) + 0x1.8p52));
#else
    return u32(i64(known));
#endif
}
#endif

// Whether comparisons of 16-bit integers without a sign are vector instructions, and so is what narrows words to these.
#if defined(__AVX512BW__)
#define GPUCAST_COMPARES_HALVES 1
#else
#define GPUCAST_COMPARES_HALVES 0
#endif

// A float16 in the low half. An integer becomes the subnormal number that it stands for: as a float none is subnormal.
GPUCAST_INSTRUCTION float cvt_f32_f16(u32 a) {
    const u32 sign = (a & 0x8000) << 16, magnitude = a & 0x7fff;
    const u32 normal = (magnitude << 13) + ((127u - 15) << 23) + (magnitude >= 0x7c00 ? (255u - 143) << 23 : 0);
    const u32 subnormal = bits(float(int(magnitude)) * 0x1p-24f);
    return as_float(sign | (magnitude < 0x400 ? subnormal : normal));
}

// To and from FLOAT16 by instructions, where the processor has them: GPUCAST_HALVES numbers at a time, because g++ makes
// no vectors of single ones. NaN becomes the quiet one of its sign.
#if defined(__aarch64__) && defined(__ARM_FP16_FORMAT_IEEE)
#define GPUCAST_HALF __fp16
#elif defined(__clang__) && defined(__F16C__)
// Newer ones know the instructions by this type alone, older ones by their names.
#if !__has_builtin(__builtin_ia32_vcvtph2ps256)
#define GPUCAST_HALF _Float16
#endif
#endif
#if defined(__AVX512F__)
#define GPUCAST_HALVES 16
#elif defined(__F16C__)
#define GPUCAST_HALVES 8
#elif defined(GPUCAST_HALF)
#define GPUCAST_HALVES 4
#else
#define GPUCAST_HALVES 0
#endif
#if defined(GPUCAST_HALF)
typedef GPUCAST_HALF Fp16s __attribute__((vector_size(2 * GPUCAST_HALVES)));
#define GPUCAST_TO_HALVES(x) Halves(__builtin_convertvector(x, Fp16s))
#define GPUCAST_OF_HALVES(x) __builtin_convertvector(Fp16s(x), Floats)
#elif defined(__AVX512F__)
#define GPUCAST_TO_HALVES(x) __builtin_ia32_vcvtps2ph512_mask(x, 0, Halves{}, (unsigned short)-1)
#define GPUCAST_OF_HALVES(x) __builtin_ia32_vcvtph2ps512_mask(x, Floats{}, (unsigned short)-1, 4)
#elif defined(__F16C__)
#define GPUCAST_TO_HALVES(x) __builtin_ia32_vcvtps2ph256(x, 0)
#define GPUCAST_OF_HALVES(x) __builtin_ia32_vcvtph2ps256(x)
#endif
#if GPUCAST_HALVES
typedef float Floats __attribute__((vector_size(4 * GPUCAST_HALVES)));
typedef int Words __attribute__((vector_size(4 * GPUCAST_HALVES)));
typedef short Halves __attribute__((vector_size(2 * GPUCAST_HALVES)));
typedef u32 UnsignedWords __attribute__((vector_size(4 * GPUCAST_HALVES)));
typedef unsigned short UnsignedHalves __attribute__((vector_size(2 * GPUCAST_HALVES)));
// Quiet NaNs lose their payload: as a signed integer only a positive NaN exceeds `positive`, as an unsigned one only a negative
// NaN exceeds `negative`. Both minima are instructions.
template <typename Signed, typename Unsigned>
GPUCAST_INSTRUCTION Signed without_payload(Signed code, Signed positive, Unsigned negative) {
    const Unsigned known = Unsigned(code < positive ? code : positive);
    return Signed(known < negative ? known : negative);
}
GPUCAST_INSTRUCTION Floats floats_of_halves(Halves a) { return GPUCAST_OF_HALVES(a); }
GPUCAST_INSTRUCTION void cvt_rn_f16(const float* a, unsigned short* d) {
    Floats x;
    __builtin_memcpy(&x, a, sizeof x);
    const Halves code = GPUCAST_TO_HALVES(x), known = without_payload(code, Halves{} + 0x7e00, UnsignedHalves{} + 0xfe00);
    __builtin_memcpy(d, &known, sizeof known);
}
GPUCAST_INSTRUCTION void cvt_f32_f16(const unsigned short* a, u32* d) {
    Halves x;
    __builtin_memcpy(&x, a, sizeof x);
    const Words code = Words(floats_of_halves(x)), known = without_payload(code, Words{} + 0x7fc00000, UnsignedWords{} + 0xffc00000);
    __builtin_memcpy(d, &known, sizeof known);
}
#else
void cvt_rn_f16(const float*, unsigned short*), cvt_f32_f16(const unsigned short*, u32*);
#endif

// Two words' bytes; `selector` is a constant.
GPUCAST_INSTRUCTION u32 prmt(u32 a, u32 b, u32 selector) {
    const u64 bytes = u64(b) << 32 | a;
    u32 d = 0;
    for (u32 i = 0; i < 4; ++i) {
        const u32 select = selector >> (4 * i) & 15, byte = u32(bytes >> (8 * (select & 7))) & 255;
        d |= (select & 8 ? (byte >> 7) * 255 : byte) << (8 * i);
    }
    return d;
}

// Named in the rules, but never called for GPUCAST_ARCH.
u32 min_f16x2(u32, u32), max_f16x2(u32, u32), fma_rn_f16x2(u32, u32, u32), abs_f16x2(u32);
u32 min_nan_f16x2(u32, u32), max_nan_f16x2(u32, u32), min_nan_bf16x2(u32, u32), max_nan_bf16x2(u32, u32);
u32 min_bf16x2(u32, u32), max_bf16x2(u32, u32), fma_rn_bf16x2(u32, u32, u32), abs_bf16x2(u32);
u32 min_s16x2(u32, u32), max_s16x2(u32, u32), min_u16x2(u32, u32), max_u16x2(u32, u32);
u32 cvt_rn_f16x2(float, float), cvt_rn_bf16x2(float, float);
u32 cvt_e4m3x4(float, float, float, float), cvt_e5m2x4(float, float, float, float);
u32 cvt_e2m3x4(float, float, float, float), cvt_e3m2x4(float, float, float, float);
u32 cvt_rp_ue8m0x4(float, float, float, float), cvt_rz_ue8m0x4(float, float, float, float);
u32 cvt_e2m1x8(const float (&)[8]);
u32 cvt_f16x2_e4m3(u32), cvt_f16x2_e2m1(u32);
void cvt_f16x4_e4m3(u32, u32&, u32&), cvt_f16x4_e5m2(u32, u32&, u32&), cvt_f32_f16x2(u32, float&, float&);
u32 cvt_e4m3x4_f16(u32, u32), cvt_e5m2x4_f16(u32, u32), cvt_e4m3x4_bf16(u32, u32), cvt_e5m2x4_bf16(u32, u32);
u32 cvt_e2m3x4_f16(u32, u32), cvt_e3m2x4_f16(u32, u32), cvt_e2m3x4_bf16(u32, u32), cvt_e3m2x4_bf16(u32, u32);
u32 cvt_rp_ue8m0x4_bf16(u32, u32), cvt_rz_ue8m0x4_bf16(u32, u32), cvt_e2m1x8_f16(const u32*), cvt_e2m1x8_bf16(const u32*);
void cvt_bf16x4_e4m3(u32, u32&, u32&), cvt_bf16x4_e5m2(u32, u32&, u32&), cvt_bf16x8_e2m1(u32, u32 (&)[4]);
void cvt_bf16x4_e2m3(u32, u32&, u32&), cvt_bf16x4_e3m2(u32, u32&, u32&);
void cvt_f16x4_e2m3(u32, u32&, u32&), cvt_f16x4_e3m2(u32, u32&, u32&), cvt_bf16x4_ue8m0(u32, u32&, u32&);
float min_nan(float, float), max_nan(float, float);
void mark_rare(), prefetch(const unsigned char*);

}  // namespace ptx
}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// The instructions that fast paths are made of, one function each, named as PTX names them.
//
// Inline PTX, because it means the same under every compiler flag: none of these flushes subnormal numbers. The host
// build uses a model of each instead (kernels/host/model.hpp), written from the PTX manual.
#ifndef GPUCAST_HOST
namespace gpucast {
namespace ptx {

#define GPUCAST_UNARY(NAME, INSTRUCTION, D, DC, A, AC)                 \
    GPUCAST_INLINE D NAME(A a) {                                       \
        D d;                                                           \
        asm(INSTRUCTION " %0, %1;" : "=" DC(d) : AC(a));               \
        return d;                                                      \
    }
#define GPUCAST_BINARY(NAME, INSTRUCTION, T, TC, B, BC)                \
    GPUCAST_INLINE T NAME(T a, B b) {                                  \
        T d;                                                           \
        asm(INSTRUCTION " %0, %1, %2;" : "=" TC(d) : TC(a), BC(b));    \
        return d;                                                      \
    }
// PTX takes the operand for the upper half first.
#define GPUCAST_BINARY_OF(NAME, INSTRUCTION, D, DC, A, AC)             \
    GPUCAST_INLINE D NAME(A a, A b) {                                  \
        D d;                                                           \
        asm(INSTRUCTION " %0, %2, %1;" : "=" DC(d) : AC(a), AC(b));    \
        return d;                                                      \
    }
#define GPUCAST_TERNARY(NAME, INSTRUCTION, T, TC)                              \
    GPUCAST_INLINE T NAME(T a, T b, T c) {                                     \
        T d;                                                                   \
        asm(INSTRUCTION " %0, %1, %2, %3;" : "=" TC(d) : TC(a), TC(b), TC(c)); \
        return d;                                                              \
    }

// Bits and bytes. Shifts by more than the width give 0.
GPUCAST_TERNARY(prmt, "prmt.b32", u32, "r")
GPUCAST_UNARY(brev, "brev.b32", u32, "r", u32, "r")
GPUCAST_BINARY(shl, "shl.b32", u32, "r", u32, "r")
GPUCAST_BINARY(shr, "shr.u32", u32, "r", u32, "r")
GPUCAST_BINARY(shl, "shl.b64", u64, "l", u32, "r")
GPUCAST_BINARY(shr, "shr.u64", u64, "l", u32, "r")
GPUCAST_BINARY(min, "min.u32", u32, "r", u32, "r")
GPUCAST_TERNARY(mad, "mad.lo.u32", u32, "r")
GPUCAST_UNARY(bits, "mov.b32", u32, "r", float, "f")
GPUCAST_UNARY(bits, "mov.b64", u64, "l", double, "d")
GPUCAST_UNARY(as_float, "mov.b32", float, "f", u32, "r")
GPUCAST_UNARY(as_double, "mov.b64", double, "d", u64, "l")

// Any function of three bits: bit 4 * a + 2 * b + c of the table.
template <u32 Table>
GPUCAST_INLINE u32 lop3(u32 a, u32 b, u32 c) {
    u32 d;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(b), "r"(c), "n"(Table));
    return d;
}

// Operations on float. Where one operand is NaN, min and max give the other one.
GPUCAST_UNARY(abs, "abs.f32", float, "f", float, "f")
GPUCAST_UNARY(neg, "neg.f32", float, "f", float, "f")
GPUCAST_BINARY(min, "min.f32", float, "f", float, "f")
GPUCAST_BINARY(max, "max.f32", float, "f", float, "f")
// The minimum and the maximum, or NaN where an operand is NaN; from sm_80 on.
GPUCAST_BINARY(min_nan, "min.NaN.f32", float, "f", float, "f")
GPUCAST_BINARY(max_nan, "max.NaN.f32", float, "f", float, "f")
// The reciprocal within one unit in the last place. It alone flushes subnormal numbers: `Quotient` excludes them.
GPUCAST_UNARY(rcp, "rcp.approx.ftz.f32", float, "f", float, "f")
GPUCAST_BINARY(add_rn, "add.rn.f32", float, "f", float, "f")
GPUCAST_BINARY(sub_rn, "sub.rn.f32", float, "f", float, "f")
GPUCAST_BINARY(mul_rn, "mul.rn.f32", float, "f", float, "f")
GPUCAST_BINARY(mul_rz, "mul.rz.f32", float, "f", float, "f")
GPUCAST_BINARY(div_rn, "div.rn.f32", float, "f", float, "f")
GPUCAST_UNARY(sqrt_rn, "sqrt.rn.f32", float, "f", float, "f")
GPUCAST_TERNARY(fma_rn, "fma.rn.f32", float, "f")

// Operations on double.
GPUCAST_BINARY(add_rn, "add.rn.f64", double, "d", double, "d")
GPUCAST_BINARY(sub_rn, "sub.rn.f64", double, "d", double, "d")
GPUCAST_BINARY(mul_rn, "mul.rn.f64", double, "d", double, "d")
GPUCAST_BINARY(div_rn, "div.rn.f64", double, "d", double, "d")
GPUCAST_UNARY(sqrt_rn, "sqrt.rn.f64", double, "d", double, "d")

// 1 where the two differ, 0 where they are equal or one is NaN.
GPUCAST_INLINE u32 set_ne(float a, float b) {
    u32 d;
    asm("{.reg .pred p; setp.ne.f32 p, %1, %2; selp.u32 %0, 1, 0, p;}" : "=r"(d) : "f"(a), "f"(b));
    return d;
}

// Conversions. To integers they saturate; NaN gives 0, in 64 bits the lowest integer.
GPUCAST_UNARY(cvt_rn_f32, "cvt.rn.f32.s32", float, "f", int, "r")
GPUCAST_UNARY(cvt_rn_f32, "cvt.rn.f32.u32", float, "f", u32, "r")
GPUCAST_UNARY(cvt_rn_f32, "cvt.rn.f32.s64", float, "f", i64, "l")
GPUCAST_UNARY(cvt_rn_f32, "cvt.rn.f32.u64", float, "f", u64, "l")
GPUCAST_UNARY(cvt_rn_f32, "cvt.rn.f32.f64", float, "f", double, "d")
GPUCAST_UNARY(cvt_rz_f32, "cvt.rz.f32.s32", float, "f", int, "r")
GPUCAST_UNARY(cvt_rz_f32, "cvt.rz.f32.u32", float, "f", u32, "r")
GPUCAST_UNARY(cvt_rz_f32, "cvt.rz.f32.s64", float, "f", i64, "l")
GPUCAST_UNARY(cvt_rz_f32, "cvt.rz.f32.u64", float, "f", u64, "l")
GPUCAST_UNARY(cvt_rz_f32, "cvt.rz.f32.f64", float, "f", double, "d")
GPUCAST_UNARY(cvt_rni_f32, "cvt.rni.f32.f32", float, "f", float, "f")
GPUCAST_UNARY(cvt_rni_f64, "cvt.rni.f64.f64", double, "d", double, "d")
GPUCAST_UNARY(cvt_rn_f64, "cvt.rn.f64.s32", double, "d", int, "r")
GPUCAST_UNARY(cvt_rn_f64, "cvt.rn.f64.u32", double, "d", u32, "r")
GPUCAST_UNARY(cvt_rn_f64, "cvt.rn.f64.s64", double, "d", i64, "l")
GPUCAST_UNARY(cvt_rn_f64, "cvt.rn.f64.u64", double, "d", u64, "l")
GPUCAST_UNARY(cvt_f64, "cvt.f64.f32", double, "d", float, "f")
GPUCAST_UNARY(cvt_rzi_s32, "cvt.rzi.s32.f32", int, "r", float, "f")
GPUCAST_UNARY(cvt_rzi_u32, "cvt.rzi.u32.f32", u32, "r", float, "f")
GPUCAST_UNARY(cvt_rni_s32, "cvt.rni.s32.f32", int, "r", float, "f")
GPUCAST_UNARY(cvt_rni_u32, "cvt.rni.u32.f32", u32, "r", float, "f")
GPUCAST_UNARY(cvt_rzi_s64, "cvt.rzi.s64.f32", i64, "l", float, "f")

// Operations on two float16 or bfloat16 at a time, from sm_80 on.
GPUCAST_BINARY(min_f16x2, "min.f16x2", u32, "r", u32, "r")
GPUCAST_BINARY(max_f16x2, "max.f16x2", u32, "r", u32, "r")
GPUCAST_BINARY(min_nan_f16x2, "min.NaN.f16x2", u32, "r", u32, "r")
GPUCAST_BINARY(max_nan_f16x2, "max.NaN.f16x2", u32, "r", u32, "r")
GPUCAST_UNARY(abs_f16x2, "abs.f16x2", u32, "r", u32, "r")
GPUCAST_TERNARY(fma_rn_f16x2, "fma.rn.f16x2", u32, "r")
GPUCAST_BINARY(min_bf16x2, "min.bf16x2", u32, "r", u32, "r")
GPUCAST_BINARY(max_bf16x2, "max.bf16x2", u32, "r", u32, "r")
GPUCAST_BINARY(min_nan_bf16x2, "min.NaN.bf16x2", u32, "r", u32, "r")
GPUCAST_BINARY(max_nan_bf16x2, "max.NaN.bf16x2", u32, "r", u32, "r")
GPUCAST_UNARY(abs_bf16x2, "abs.bf16x2", u32, "r", u32, "r")
GPUCAST_TERNARY(fma_rn_bf16x2, "fma.rn.bf16x2", u32, "r")
// Operations on two integers of 16 bits at a time, from sm_90 on.
GPUCAST_BINARY(min_s16x2, "min.s16x2", u32, "r", u32, "r")
GPUCAST_BINARY(max_s16x2, "max.s16x2", u32, "r", u32, "r")
GPUCAST_BINARY(min_u16x2, "min.u16x2", u32, "r", u32, "r")
GPUCAST_BINARY(max_u16x2, "max.u16x2", u32, "r", u32, "r")

// Operations on two floats at a time, with the same second factor; from sm_100 on.
GPUCAST_INLINE void mul_rn_f32x2(float a, float b, float factor, float& c, float& d) {
    asm("{.reg .b64 x, y; mov.b64 x, {%2, %3}; mov.b64 y, {%4, %4}; mul.rn.f32x2 x, x, y; mov.b64 {%0, %1}, x;}"
        : "=f"(c), "=f"(d) : "f"(a), "f"(b), "f"(factor));
}
GPUCAST_INLINE void fma_rn_f32x2(float a, float b, float factor, float more, float& c, float& d) {
    asm("{.reg .b64 x, y, z; mov.b64 x, {%2, %3}; mov.b64 y, {%4, %4}; mov.b64 z, {%5, %5};\n"
        "fma.rn.f32x2 x, x, y, z; mov.b64 {%0, %1}, x;}"
        : "=f"(c), "=f"(d) : "f"(a), "f"(b), "f"(factor), "f"(more));
}
// The same of two factors, and of one factor with two more.
GPUCAST_INLINE void fma_rn_f32x2(float a, float b, float x, float y, float more, float& c, float& d) {
    asm("{.reg .b64 x, y, z; mov.b64 x, {%2, %3}; mov.b64 y, {%4, %5}; mov.b64 z, {%6, %6};\n"
        "fma.rn.f32x2 x, x, y, z; mov.b64 {%0, %1}, x;}"
        : "=f"(c), "=f"(d) : "f"(a), "f"(b), "f"(x), "f"(y), "f"(more));
}
GPUCAST_INLINE void fma_rn_f32x2_of(float a, float b, float factor, float x, float y, float& c, float& d) {
    asm("{.reg .b64 x, y, z; mov.b64 x, {%2, %3}; mov.b64 y, {%4, %4}; mov.b64 z, {%5, %6};\n"
        "fma.rn.f32x2 x, x, y, z; mov.b64 {%0, %1}, x;}"
        : "=f"(c), "=f"(d) : "f"(a), "f"(b), "f"(factor), "f"(x), "f"(y));
}
// Adds the squares of two floats to two others.
GPUCAST_INLINE void fma_rn_f32x2_squares(float a, float b, float& x, float& y) {
    asm("{.reg .b64 x, y; mov.b64 x, {%2, %3}; mov.b64 y, {%0, %1}; fma.rn.f32x2 y, x, x, y; mov.b64 {%0, %1}, y;}"
        : "+f"(x), "+f"(y) : "f"(a), "f"(b));
}
// Of two floats and two others.
GPUCAST_INLINE void add_rn_f32x2(float a, float b, float x, float y, float& c, float& d) {
    asm("{.reg .b64 x, y; mov.b64 x, {%2, %3}; mov.b64 y, {%4, %5}; add.rn.f32x2 x, x, y; mov.b64 {%0, %1}, x;}"
        : "=f"(c), "=f"(d) : "f"(a), "f"(b), "f"(x), "f"(y));
}
GPUCAST_INLINE void sub_rn_f32x2(float a, float b, float x, float y, float& c, float& d) {
    asm("{.reg .b64 x, y; mov.b64 x, {%2, %3}; mov.b64 y, {%4, %5}; sub.rn.f32x2 x, x, y; mov.b64 {%0, %1}, x;}"
        : "=f"(c), "=f"(d) : "f"(a), "f"(b), "f"(x), "f"(y));
}

// Numbers that are not NaN to small floats, `a` in the lowest bits: to nearest, ties to even; overflow saturates, and
// zeros keep their signs. To 8 bits from sm_89 on, to 4 bits where GPUCAST_SPECIFIC is set.
#define GPUCAST_TO_FLOAT8(NAME, INSTRUCTION)                                                                       \
    GPUCAST_INLINE u32 NAME(float a, float b, float c, float d) {                                                  \
        u32 e;                                                                                                     \
        asm("{.reg .b16 x, y; " INSTRUCTION " x, %2, %1; " INSTRUCTION " y, %4, %3; mov.b32 %0, {x, y};}"          \
            : "=r"(e) : "f"(a), "f"(b), "f"(c), "f"(d));                                                           \
        return e;                                                                                                  \
    }
GPUCAST_TO_FLOAT8(cvt_e4m3x4, "cvt.rn.satfinite.e4m3x2.f32")
GPUCAST_TO_FLOAT8(cvt_e5m2x4, "cvt.rn.satfinite.e5m2x2.f32")
// To 6 bits in bytes, where GPUCAST_SPECIFIC is set.
GPUCAST_TO_FLOAT8(cvt_e2m3x4, "cvt.rn.satfinite.e2m3x2.f32")
GPUCAST_TO_FLOAT8(cvt_e3m2x4, "cvt.rn.satfinite.e3m2x2.f32")
// Numbers that are not negative to FLOAT8E8M0, up or down: NaN to NaN, infinity to the largest. Where GPUCAST_SPECIFIC is
// set.
GPUCAST_TO_FLOAT8(cvt_rp_ue8m0x4, "cvt.rp.satfinite.ue8m0x2.f32")
GPUCAST_TO_FLOAT8(cvt_rz_ue8m0x4, "cvt.rz.satfinite.ue8m0x2.f32")
GPUCAST_INLINE u32 cvt_e4m3x2(float a, float b) {
    u32 d;
    asm("{.reg .b16 x; cvt.rn.satfinite.e4m3x2.f32 x, %2, %1; cvt.u32.u16 %0, x;}" : "=r"(d) : "f"(a), "f"(b));
    return d;
}
GPUCAST_INLINE u32 cvt_e2m1x8(const float (&a)[8]) {
    u32 d;
    asm("{.reg .b8 x, y, z, w; cvt.rn.satfinite.e2m1x2.f32 x, %2, %1; cvt.rn.satfinite.e2m1x2.f32 y, %4, %3;\n"
        "cvt.rn.satfinite.e2m1x2.f32 z, %6, %5; cvt.rn.satfinite.e2m1x2.f32 w, %8, %7; mov.b32 %0, {x, y, z, w};}"
        : "=r"(d) : "f"(a[0]), "f"(a[1]), "f"(a[2]), "f"(a[3]), "f"(a[4]), "f"(a[5]), "f"(a[6]), "f"(a[7]));
    return d;
}
// Two floats to float16 and to bfloat16, `a` in the low half; from sm_80 on.
GPUCAST_BINARY_OF(cvt_rz_f16x2, "cvt.rz.f16x2.f32", u32, "r", float, "f")
GPUCAST_BINARY_OF(cvt_rn_f16x2, "cvt.rn.f16x2.f32", u32, "r", float, "f")
GPUCAST_BINARY_OF(cvt_rn_bf16x2, "cvt.rn.bf16x2.f32", u32, "r", float, "f")
// Four bytes to two words of float16, exactly; NaN to NaN. From sm_89 on.
#define GPUCAST_FROM_FLOAT8(NAME, INSTRUCTION)                                                              \
    GPUCAST_INLINE void NAME(u32 a, u32& low, u32& high) {                                                  \
        asm("{.reg .b16 x, y; mov.b32 {x, y}, %2; " INSTRUCTION " %0, x; " INSTRUCTION " %1, y;}"           \
            : "=r"(low), "=r"(high) : "r"(a));                                                              \
    }
GPUCAST_FROM_FLOAT8(cvt_f16x4_e4m3, "cvt.rn.f16x2.e4m3x2")
GPUCAST_FROM_FLOAT8(cvt_f16x4_e5m2, "cvt.rn.f16x2.e5m2x2")
GPUCAST_INLINE u32 cvt_f16x2_e4m3(u32 a) {
    u32 d;
    asm("{.reg .b16 x, y; mov.b32 {x, y}, %1; cvt.rn.f16x2.e4m3x2 %0, x;}" : "=r"(d) : "r"(a));
    return d;
}

// The same of 6 bits in bytes, and of FLOAT8E8M0 to bfloat16, where GPUCAST_SPECIFIC is set.
GPUCAST_FROM_FLOAT8(cvt_f16x4_e2m3, "cvt.rn.f16x2.e2m3x2")
GPUCAST_FROM_FLOAT8(cvt_f16x4_e3m2, "cvt.rn.f16x2.e3m2x2")
GPUCAST_FROM_FLOAT8(cvt_bf16x4_ue8m0, "cvt.rn.bf16x2.ue8m0x2")
// Two codes of 4 bits in the low byte to float16, exactly; where GPUCAST_SPECIFIC is set.
GPUCAST_INLINE u32 cvt_f16x2_e2m1(u32 a) {
    u32 d;
    asm("{.reg .b8 x, y, z, w; mov.b32 {x, y, z, w}, %1; cvt.rn.f16x2.e2m1x2 %0, x;}" : "=r"(d) : "r"(a));
    return d;
}

// Pairs of float16 or bfloat16 to small floats, as of floats above. To 8 bits from float16 from sm_89 on, all others where
// GPUCAST_PAIRS is set.
#define GPUCAST_FROM_PAIRS(NAME, INSTRUCTION)                                                        \
    GPUCAST_INLINE u32 NAME(u32 low, u32 high) {                                                     \
        u32 d;                                                                                       \
        asm("{.reg .b16 x, y; " INSTRUCTION " x, %1; " INSTRUCTION " y, %2; mov.b32 %0, {x, y};}"    \
            : "=r"(d) : "r"(low), "r"(high));                                                        \
        return d;                                                                                    \
    }
GPUCAST_FROM_PAIRS(cvt_e4m3x4_f16, "cvt.rn.satfinite.e4m3x2.f16x2")
GPUCAST_FROM_PAIRS(cvt_e5m2x4_f16, "cvt.rn.satfinite.e5m2x2.f16x2")
GPUCAST_FROM_PAIRS(cvt_e4m3x4_bf16, "cvt.rn.satfinite.e4m3x2.bf16x2")
GPUCAST_FROM_PAIRS(cvt_e5m2x4_bf16, "cvt.rn.satfinite.e5m2x2.bf16x2")
GPUCAST_FROM_PAIRS(cvt_e2m3x4_f16, "cvt.rn.satfinite.e2m3x2.f16x2")
GPUCAST_FROM_PAIRS(cvt_e3m2x4_f16, "cvt.rn.satfinite.e3m2x2.f16x2")
GPUCAST_FROM_PAIRS(cvt_e2m3x4_bf16, "cvt.rn.satfinite.e2m3x2.bf16x2")
GPUCAST_FROM_PAIRS(cvt_e3m2x4_bf16, "cvt.rn.satfinite.e3m2x2.bf16x2")
GPUCAST_FROM_PAIRS(cvt_rp_ue8m0x4_bf16, "cvt.rp.satfinite.ue8m0x2.bf16x2")
GPUCAST_FROM_PAIRS(cvt_rz_ue8m0x4_bf16, "cvt.rz.satfinite.ue8m0x2.bf16x2")
#define GPUCAST_FROM_FOUR_PAIRS(NAME, INSTRUCTION)                                                                   \
    GPUCAST_INLINE u32 NAME(const u32* a) {                                                                          \
        u32 d;                                                                                                       \
        asm("{.reg .b8 x, y, z, w; " INSTRUCTION " x, %1; " INSTRUCTION " y, %2; " INSTRUCTION " z, %3;\n" INSTRUCTION \
            " w, %4; mov.b32 %0, {x, y, z, w};}"                                                                     \
            : "=r"(d) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]));                                                 \
        return d;                                                                                                    \
    }
GPUCAST_FROM_FOUR_PAIRS(cvt_e2m1x8_f16, "cvt.rn.satfinite.e2m1x2.f16x2")
GPUCAST_FROM_FOUR_PAIRS(cvt_e2m1x8_bf16, "cvt.rn.satfinite.e2m1x2.bf16x2")
// Small floats to bfloat16, exactly; where GPUCAST_PAIRS is set.
GPUCAST_FROM_FLOAT8(cvt_bf16x4_e4m3, "cvt.rn.bf16x2.e4m3x2")
GPUCAST_FROM_FLOAT8(cvt_bf16x4_e5m2, "cvt.rn.bf16x2.e5m2x2")
GPUCAST_FROM_FLOAT8(cvt_bf16x4_e2m3, "cvt.rn.bf16x2.e2m3x2")
GPUCAST_FROM_FLOAT8(cvt_bf16x4_e3m2, "cvt.rn.bf16x2.e3m2x2")

// Stands in a rare branch, which the compiler must not make a part of the usual way. The static check of the machine
// code (bench/static) compiles it as an instruction that it finds again.
GPUCAST_INLINE void mark_rare() {
#ifdef GPUCAST_MARK_RARE
    asm volatile("pmevent 1;");
#else
    asm volatile("");
#endif
}

// The lane of a thread in its warp.
GPUCAST_INLINE u32 lane() {
    u32 d;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(d));
    return d;
}

// The largest of the integers of a warp's threads, all of which must call this.
GPUCAST_INLINE int redux_max(int a) {
#if __CUDA_ARCH__ >= 800
    int d;
    asm volatile("redux.sync.max.s32 %0, %1, 0xffffffff;" : "=r"(d) : "r"(a));
    return d;
#else
#pragma unroll
    for (u32 step = 16; step != 0; step >>= 1) {
        int other;
        asm volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(other) : "r"(a), "r"(step));
        a = other > a ? other : a;
    }
    return a;
#endif
}

// *to = max(*to, a), atomically.
GPUCAST_INLINE void red_max(int* to, int a) {
    asm volatile("red.global.max.s32 [%0], %1;" : : "l"(to), "r"(a) : "memory");
}

// The same of other numbers.
GPUCAST_INLINE void red_max(u32* to, u32 a) {
    asm volatile("red.global.max.u32 [%0], %1;" : : "l"(to), "r"(a) : "memory");
}
GPUCAST_INLINE void red_max(u64* to, u64 a) {
    asm volatile("red.global.max.u64 [%0], %1;" : : "l"(to), "l"(a) : "memory");
}
// What is at an address, which becomes 0; and a count, which becomes 0 after `last` and else one more.
GPUCAST_INLINE u32 take(u32* at) {
    u32 d;
    asm volatile("atom.global.exch.b32 %0, [%1], 0;" : "=r"(d) : "l"(at) : "memory");
    return d;
}
GPUCAST_INLINE u64 take(u64* at) {
    u64 d;
    asm volatile("atom.global.exch.b64 %0, [%1], 0;" : "=l"(d) : "l"(at) : "memory");
    return d;
}
GPUCAST_INLINE u32 count_up(u32* at, u32 last) {
    u32 d;
    asm volatile("atom.global.inc.u32 %0, [%1], %2;" : "=r"(d) : "l"(at), "r"(last) : "memory");
    return d;
}
// Between accesses to memory that threads of other blocks must see in this order.
GPUCAST_INLINE void fence() { asm volatile("fence.acq_rel.gpu;" : : : "memory"); }

// Vector accesses to global memory. Inline PTX, because the compiler would split a C++ load of which only some words
// are used.
GPUCAST_INLINE void ld(const u8* from, u32& a, u32& b) {
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(from));
}
GPUCAST_INLINE void ld(const u8* from, u32& a, u32& b, u32& c, u32& d) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(from));
}
GPUCAST_INLINE void st(u8* to, u32 a, u32 b) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" : : "l"(to), "r"(a), "r"(b) : "memory");
}
GPUCAST_INLINE void st(u8* to, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" : : "l"(to), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

// 32 bytes at a time, where GPUCAST_WIDE is set.
GPUCAST_INLINE void ld_wide(const u8* from, u32* d) {
    asm volatile("ld.global.v8.b32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]), "=r"(d[4]), "=r"(d[5]), "=r"(d[6]), "=r"(d[7]) : "l"(from));
}
GPUCAST_INLINE void st_wide(u8* to, const u32* d) {
    asm volatile("st.global.v8.b32 [%0], {%1, %2, %3, %4, %5, %6, %7, %8};"
                 : : "l"(to), "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3]), "r"(d[4]), "r"(d[5]), "r"(d[6]), "r"(d[7]) : "memory");
}

// Asks for the memory around an address, so that it is in the L2 cache when it is read.
GPUCAST_INLINE void prefetch(const u8* from) { asm volatile("prefetch.global.L2 [%0];" : : "l"(from)); }

// Copies 16 bytes of global memory to shared memory, both at multiples of 16, while the thread goes on; and waits for all
// copies that the thread began, which it alone then sees. From sm_80 on.
GPUCAST_INLINE void cp_async(u8* to, const u8* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(u32(__cvta_generic_to_shared(to))), "l"(from) : "memory");
}
GPUCAST_INLINE void cp_async_wait() { asm volatile("cp.async.wait_all;" : : : "memory"); }
// Ends a group of copies of the thread, which may be empty; waits for all groups but the last ones.
GPUCAST_INLINE void cp_async_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <u32 Last>
GPUCAST_INLINE void cp_async_wait_before() { asm volatile("cp.async.wait_group %0;" : : "n"(Last) : "memory"); }

// Four bytes, numbered from i on, of which those with the `count` numbers from `begin` on are accessed: of a load the
// others are zero, of a store the others are left alone. One piece of inline PTX each, because compilers take long over
// so many branches.
GPUCAST_INLINE u32 ld_bytes(const u8* from, u32 i, u32 begin, u32 count) {
    u32 d;
    asm volatile("{.reg .pred p; .reg .u32 i, b; sub.u32 i, %2, %3; mov.u32 %0, 0;\n"
                 "setp.lt.u32 p, i, %4; @p ld.u8 %0, [%1]; add.u32 i, i, 1; mov.u32 b, 0;\n"
                 "setp.lt.u32 p, i, %4; @p ld.u8 b, [%1+1]; add.u32 i, i, 1; bfi.b32 %0, b, %0, 8, 8; mov.u32 b, 0;\n"
                 "setp.lt.u32 p, i, %4; @p ld.u8 b, [%1+2]; add.u32 i, i, 1; bfi.b32 %0, b, %0, 16, 8; mov.u32 b, 0;\n"
                 "setp.lt.u32 p, i, %4; @p ld.u8 b, [%1+3]; bfi.b32 %0, b, %0, 24, 8;}"
                 : "=&r"(d) : "l"(from), "r"(i), "r"(begin), "r"(count) : "memory");
    return d;
}
GPUCAST_INLINE void st_bytes(u8* to, u32 bytes, u32 i, u32 begin, u32 count) {
    asm volatile("{.reg .pred p; .reg .u32 i, b; sub.u32 i, %2, %3;\n"
                 "setp.lt.u32 p, i, %4; @p st.u8 [%0], %1; add.u32 i, i, 1; shr.u32 b, %1, 8;\n"
                 "setp.lt.u32 p, i, %4; @p st.u8 [%0+1], b; add.u32 i, i, 1; shr.u32 b, %1, 16;\n"
                 "setp.lt.u32 p, i, %4; @p st.u8 [%0+2], b; add.u32 i, i, 1; shr.u32 b, %1, 24;\n"
                 "setp.lt.u32 p, i, %4; @p st.u8 [%0+3], b;}"
                 : : "l"(to), "r"(bytes), "r"(i), "r"(begin), "r"(count) : "memory");
}

// All 64 bits of the product. Inline PTX, because for C++ the compiler moves the upper half and adds zero to it.
GPUCAST_INLINE u64 mul_wide(u32 a, u32 b) {
    u64 d;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(d) : "r"(a), "r"(b));
    return d;
}

// Eight codes of 4 bits to four words of float16, exactly, where GPUCAST_SPECIFIC is set, and of bfloat16 where
// GPUCAST_PAIRS is.
#define GPUCAST_FROM_FLOAT4(NAME, INSTRUCTION)                                                                    \
    GPUCAST_INLINE void NAME(u32 a, u32 (&d)[4]) {                                                                \
        asm("{.reg .b8 x, y, z, w; mov.b32 {x, y, z, w}, %4; " INSTRUCTION " %0, x; " INSTRUCTION " %1, y;\n"     \
            INSTRUCTION " %2, z; " INSTRUCTION " %3, w;}"                                                         \
            : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a));                                           \
    }
GPUCAST_FROM_FLOAT4(cvt_f16x8_e2m1, "cvt.rn.f16x2.e2m1x2")
GPUCAST_FROM_FLOAT4(cvt_bf16x8_e2m1, "cvt.rn.bf16x2.e2m1x2")

// Two float16; exact.
GPUCAST_INLINE void cvt_f32_f16x2(u32 a, float& low, float& high) {
    asm("{.reg .b16 x, y; mov.b32 {x, y}, %2; cvt.f32.f16 %0, x; cvt.f32.f16 %1, y;}" : "=f"(low), "=f"(high) : "r"(a));
}

// A float16 in the low half; exact.
GPUCAST_INLINE float cvt_f32_f16(u32 a) {
    float d;
    asm("{.reg .b16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(d) : "r"(a));
    return d;
}

#undef GPUCAST_UNARY
#undef GPUCAST_BINARY
#undef GPUCAST_BINARY_OF
#undef GPUCAST_TO_FLOAT8
#undef GPUCAST_FROM_FLOAT8
#undef GPUCAST_FROM_FLOAT4
#undef GPUCAST_FROM_PAIRS
#undef GPUCAST_FROM_FOUR_PAIRS
#undef GPUCAST_TERNARY

}  // namespace ptx
}  // namespace gpucast
#endif

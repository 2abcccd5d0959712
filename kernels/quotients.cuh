// SPDX-License-Identifier: Apache-2.0
// Quotients of FLOATs for scales.cuh and divisor.cuh: exact ones, and codes that are told by a product beside them.
namespace gpucast {

// ---- types that instructions know ----

// FLOAT4E2M1, FLOAT8E4M3FN and FLOAT8E5M2; whether an instruction rounds numbers to the type.
template <typename Row>
GPUCAST_CONSTANT bool is_float4() {
    if constexpr (!Row::is_float) return false;
    else return Row::bits == 4 && Row::mantissa_bits == 1 && Row::bias == 1;
}
template <typename Row>
GPUCAST_CONSTANT bool is_e4m3() {
    if constexpr (!Row::is_float) return false;
    else return Row::bits == 8 && Row::mantissa_bits == 3 && Row::bias == 7 && Row::has_negative_zero;
}
template <typename Row>
GPUCAST_CONSTANT bool is_e5m2() {
    if constexpr (!Row::is_float) return false;
    else return Row::bits == 8 && Row::mantissa_bits == 2 && Row::bias == 15 && Row::has_negative_zero;
}
template <typename Row>
GPUCAST_CONSTANT bool has_conversion() {
    if constexpr (is_float4<Row>()) return GPUCAST_SPECIFIC;
    else return GPUCAST_FLOAT8 && (is_e4m3<Row>() || is_e5m2<Row>());
}

// ---- quotients ----

// Numbers divided by the product of two FLOATs, without a division.
struct Quotient {
    // The divisor is high + low; `rest` is 1 - up * (high + low).
    float high, low, up, rest;

    GPUCAST_INLINE explicit Quotient(float d) : high(d), low(0), up(ptx::rcp(d)), rest(ptx::fma_rn(ptx::neg(up), d, 1)) {}
    GPUCAST_INLINE Quotient(float a, float b) : high(ptx::mul_rn(a, b)), low(ptx::fma_rn(a, b, ptx::neg(high))), up(ptx::rcp(high)) {
        rest = ptx::fma_rn(ptx::neg(up), low, ptx::fma_rn(ptx::neg(up), high, 1));
    }
    // False where the remainder of a quotient that matters may be below all FLOATs, or the reciprocal is.
    GPUCAST_INLINE bool is_plain() const { return ptx::bits(high) - (67u << 23) <= 120u << 23; }

    // The reciprocal 1 / d, rounded to nearest but for 2^-20 of a step, and `steps` steps up.
    GPUCAST_INLINE float reciprocal(int steps) const {
        return ptx::as_float(ptx::bits(ptx::fma_rn(up, rest, up)) + u32(steps));
    }
    // Whether the divisor has 11 significant bits at most.
    GPUCAST_INLINE bool is_short() const { return ((ptx::bits(high) & 0x1fff) | (ptx::bits(low) << 1)) == 0; }

    // The quotient of a magnitude up to 2^16 times the divisor, exact or rounded to odd (float32.cuh).
    template <bool whole>
    GPUCAST_INLINE u32 odd(float x) const {
        // The nearest FLOAT, or one that is less than one step away: up + rest * up is as exact as two FLOATs can be.
        const float near = ptx::fma_rn(x, up, ptx::mul_rn(x, ptx::mul_rn(rest, up)));
        float left = ptx::fma_rn(ptx::neg(near), high, x);
        if constexpr (!whole) left = ptx::fma_rn(ptx::neg(near), low, left);
        // Below an even number, one step down and odd; above it, one up; an odd one stays.
        const u32 found = ptx::bits(near) + u32(int(ptx::bits(left)) >> 31);
        // The remainder is zero without a sign, or at least this.
        return found | ptx::min(ptx::bits(left), 1u);
    }
};

// ---- codes of quotients ----

template <u32 N>
struct Numbers {
    float of[N];
};

// Codes of x * r, for r beside the reciprocal of a divisor d.
//
// Let r0 be 1 / d rounded to nearest. One step of a FLOAT is between 2^-24 and 2^-23 of its number, so 2 steps below r0
// is below (1 - 1.5 * 2^-24) / d, and x * r, itself rounded to nearest, is below x / d in magnitude; 2 steps above
// r0 it is above x / d. Codes grow with their numbers: where both have the same code, x / d has it too.
//
// Where the codes differ x / d is within 2^-20 of the midpoint m of two of them, or is m. A number x of p bits, a
// divisor of B and midpoints of M bits are never so near without x = m * d if p and B + M are at most 20: x - m * d is
// a multiple of the last bit of either. The code is then the even one of both.
template <typename Row>
struct Beside {
    enum : bool {
        by_cvt = has_conversion<Row>(),
        by_float16 = is_float4<Row>() && GPUCAST_ARCH >= 800 && !by_cvt,
        known = by_cvt || by_float16 || (Row::is_int && Row::bits <= 8)
    };
    // Elements of a word, and of a byte.
    enum : u32 { elements = 32 / Row::bits, of_byte = 8 / Row::bits };
    // The last bit of each, and of those in a byte.
    enum : u32 { ones_of_byte = 0xff / ((1u << Row::bits) - 1), ones = ones_of_byte * 0x01010101 };
    // By way of FLOAT16 the smallest normal element becomes the smallest normal number there.
    enum : u32 { lowered = by_float16 ? 14u << 23 : 0 };

    // The codes of a word. `low` and `high` limit x, and `zero_points` are added, of integers. Of what is beyond the limits
    // of floats `beyond` tells.
    template <bool limited>
    static GPUCAST_INLINE u32 codes(
        const Numbers<elements>& given, float r, float low, float high, u32 zero_points, u32& beyond) {
        float x[elements];
#pragma unroll
        for (u32 i = 0; i < elements; ++i) x[i] = limited && Row::is_int ? ptx::min(ptx::max(given.of[i], low), high) : given.of[i];
        if constexpr (Row::is_int) {
            // The sum with 1.5 * 2^23 has the nearest integer in its low bits; below 8 bits moved up to 0 and more.
            const u32 moved = Row::bits < 8 ? u32(Row::sign_code) : 0;
            const float magic = ptx::as_float(0x4b400000 + moved);
            fma(x, r, magic);
            u32 byte[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                byte[i] = ptx::bits(x[i * of_byte]);
#pragma unroll
                for (u32 j = 1; j < of_byte; ++j) byte[i] += ptx::bits(x[i * of_byte + j]) << (u32(Row::bits) * j);
                byte[i] += zero_points;
            }
            return low_lanes<8>(byte) ^ moved * u32(ones);
        } else {
            fma(x, r, 0);
            if constexpr (by_cvt && Row::bits == 8) {
                return is_e4m3<Row>() ? ptx::cvt_e4m3x4(x[0], x[1], x[2], x[3]) : ptx::cvt_e5m2x4(x[0], x[1], x[2], x[3]);
            } else if constexpr (by_cvt) {
                return ptx::cvt_e2m1x8(x);
            } else {
                // In the high byte of each half: the sign, three zeros unless the number is beyond, the code, half a code.
                const u32 even = ptx::prmt(ptx::cvt_rz_f16x2(x[0], x[2]), ptx::cvt_rz_f16x2(x[4], x[6]), 0x7531) + repeated<8>(1);
                const u32 odd = ptx::prmt(ptx::cvt_rz_f16x2(x[1], x[3]), ptx::cvt_rz_f16x2(x[5], x[7]), 0x7531) + repeated<8>(1);
                beyond |= even | odd;
                const u32 low_half = choose(even >> 4, even >> 1, repeated<8>(0x08));
                const u32 high_half = choose(odd, odd << 3, repeated<8>(0x80));
                return choose(low_half, high_half, repeated<8>(0x0f));
            }
        }
    }

private:
    static GPUCAST_INLINE u32 choose(u32 a, u32 b, u32 of_a) { return (a & of_a) | (b & ~of_a); }

    // x * r, or x * r + more rounded once.
    static GPUCAST_INLINE void fma(float (&x)[elements], float r, float more) {
#pragma unroll
        for (u32 i = 0; i < elements; i += 2) {
            if constexpr (GPUCAST_ARCH >= 1000) {
                if constexpr (Row::is_int) ptx::fma_rn_f32x2(x[i], x[i + 1], r, more, x[i], x[i + 1]);
                else ptx::mul_rn_f32x2(x[i], x[i + 1], r, x[i], x[i + 1]);
            } else {
                x[i] = Row::is_int ? ptx::fma_rn(x[i], r, more) : ptx::mul_rn(x[i], r);
                x[i + 1] = Row::is_int ? ptx::fma_rn(x[i + 1], r, more) : ptx::mul_rn(x[i + 1], r);
            }
        }
    }
};

}  // namespace gpucast

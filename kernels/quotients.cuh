// SPDX-License-Identifier: Apache-2.0
// Quotients of FLOATs for scales.cuh and divisor.cuh: exact ones, and their codes by multiplication with a reciprocal.
namespace gpucast {

// Numbers divided by a FLOAT, or by the product of two, without a division instruction.
struct Quotient {
    // The divisor is high + low, `up` its approximate reciprocal, and `rest` is 1 - up * (high + low).
    float high, low, up, rest;

    GPUCAST_INLINE explicit Quotient(float d) : high(d), low(0), up(ptx::rcp(d)), rest(ptx::fma_rn(ptx::neg(up), d, 1)) {}
    GPUCAST_INLINE Quotient(float a, float b) : high(ptx::mul_rn(a, b)), low(ptx::fma_rn(a, b, ptx::neg(high))), up(ptx::rcp(high)) {
        rest = ptx::fma_rn(ptx::neg(up), low, ptx::fma_rn(ptx::neg(up), high, 1));
    }
    // False where the remainder of a quotient, or the reciprocal, may be below all FLOATs; also for NaN.
    GPUCAST_INLINE bool in_range() const { return ptx::bits(high) - (67u << 23) <= 120u << 23; }

    // The reciprocal 1 / d, rounded to nearest with an error of up to 0.5 + 2^-20 ULP, plus some ULPs.
    GPUCAST_INLINE float reciprocal(int ulps) const {
        return ptx::as_float(ptx::bits(ptx::fma_rn(up, rest, up)) + u32(ulps));
    }
    // Whether the divisor has at most 11 significant bits.
    GPUCAST_INLINE bool is_short() const { return ((ptx::bits(high) & 0x1fff) | (ptx::bits(low) << 1)) == 0; }

    // The quotient of a magnitude up to 2^16 times the divisor, exact or rounded to odd (float32.cuh).
    // `one_float`: the divisor is a single FLOAT, so that `low` is zero.
    template <bool one_float>
    GPUCAST_INLINE u32 rounded_to_odd(float x) const {
        // Within one ULP of the quotient: up + rest * up is the reciprocal as exactly as two FLOATs can give it.
        const float near = ptx::fma_rn(x, up, ptx::mul_rn(x, ptx::mul_rn(rest, up)));
        float left = ptx::fma_rn(ptx::neg(near), high, x);
        if constexpr (!one_float) left = ptx::fma_rn(ptx::neg(near), low, left);
        // To odd: where the quotient is below `near`, one ULP down; then the last bit is set unless the remainder is
        // zero.
        const u32 result = ptx::bits(near) + u32(int(ptx::bits(left)) >> 31);
        // The bits of the remainder are 0 only for +0; a difference of equal numbers is never -0.
        return result | ptx::min(ptx::bits(left), 1u);
    }
};

// ---- codes of quotients ----

template <u32 N>
struct Numbers {
    float of[N];
};

// Two FLOATs rounded to a type of 16 bits. From sm_80 on.
template <typename Narrow>
GPUCAST_INLINE void round_both(float& p, float& q) {
    if constexpr (is_upper_half<Narrow>()) {
        const u32 both = ptx::cvt_rn_bf16x2(p, q);
        p = ptx::as_float(both << 16);
        q = ptx::as_float(both & 0xffff0000);
    } else {
        ptx::cvt_f32_f16x2(ptx::cvt_rn_f16x2(p, q), p, q);
    }
}

// Codes of x * r, for an r near the reciprocal of a divisor d. Two of them bracket the code of the quotient x / d.
//
// Let r0 be 1 / d with an error of up to 0.5 + 2^-20 ULP. One ULP of a FLOAT is between 2^-24 and 2^-23 of its number,
// so that r0 less 2 ULPs is below (1 - 1.4 * 2^-24) / d, and x * r, itself rounded to nearest, is below x / d in
// magnitude; with r0 plus 2 ULPs it is above x / d. Codes grow with their numbers: where both products have the same
// code, x / d has it too.
//
// Where the codes differ, x / d is within 2^-20 of the midpoint m of two codes, or is m. For a number x of p bits, a
// divisor of B bits and midpoints of M bits it must be m if p and B + M are at most 20, because x - m * d is a multiple
// of the last bit of x or of m * d. The code is then the even one of the two.
//
// For sources of P bits, at most 11, the divisor alone can tell that no x / d is so near a midpoint m of FLOAT4E2M1: then
// the product with r0 itself, whose error is below 1.01 * 2^-23 of it, has the code of x / d. Let t be m * d as a FLOAT,
// with an error below 1.01 * 2^-23 of m * d. An x within that of m * d is within 2.02 * 2^-23 of t, less than 5 ULPs, and
// all but the first P bits of x are zero: so those of t, or of t plus or minus 5 ULPs, carry at most. The significands of
// all seven m are 1, 1.25, 1.5 and 1.75.
//
// The product below x / d, by r0 less 2 ULPs, can mostly tell alone that no midpoint m of FLOAT4E2M1 is above it and not above
// x / d. It is more than (1 - 3.1 * 2^-23) x / d, so that such an m, a whole number of its ULPs above it, is at most 6 of
// them above it; of m as a FLOAT all but the first two bits of the mantissa are zero. So the low half of a product below m
// is 0xfffa or more.
//
// The same for numbers that are y * f rounded, with a FLOAT f below 1, by the product of y and r, which is f times r0 less 5
// ULPs, rounded. Then r is below (1 - 3.4 * 2^-24) f / d and above (1 - 6.1 * 2^-23) f / d; with the rounding of the product
// and that of y * f the product is below the quotient, and more than (1 - 7.1 * 2^-23) of it: m is at most 15 ULPs above. With
// r0 plus 5 ULPs the product is above. A subnormal y * f has quotients too small for other codes than 0.
//
// Steps round x / d to a FLOAT. That keeps the order of numbers, so that products with the same code bracket it, too.
//
// Some steps round that to the type of x, of at most 11 bits. If d has no more, x / d is no midpoint m of that type,
// because m * d has more bits than x, and x / d is more than 2^-23 of m away from m. The product of x and r0 is off by
// little more than 2^-24, so that it is on the same side of m, which is a FLOAT: rounded to a FLOAT, it is not beyond m,
// nor m itself, because half an ULP of m is below (1 - 2^-12) * 2^-24 of m. Midpoints of subnormal FLOAT16s have fewer
// bits, but the codes of such quotients are 0. `F` is the format.
template <typename DType, typename F>
struct ReciprocalCodes {
    enum : bool {
        by_cvt = has_conversion<DType>(),
        by_float16 = is_float4<DType>() && GPUCAST_ARCH >= 800 && !by_cvt,
        known = by_cvt || by_float16 || (DType::is_int && DType::bits <= 8),
        // Whether products are rounded before they become integers, and only then clamped.
        in_turn = F::by_steps && (!F::divides || F::rounds),
        // Whether `codes_and_ends` serves. By a conversion a product that is a midpoint would have the even code.
        by_ends = by_float16 && !in_turn && GPUCAST_ARCH >= 900
    };
    // How many elements a word has, and a byte.
    enum : u32 { elements = 32 / DType::bits, of_byte = 8 / DType::bits };
    // The lowest bits of all elements of a byte, and of a word.
    enum : u32 { ones_of_byte = 0xff / ((1u << DType::bits) - 1), ones = ones_of_byte * 0x01010101 };
    // With FLOAT16 as the compute type the exponents are lowered by 14, so that the smallest normal element becomes the
    // smallest normal FLOAT16.
    enum : u32 { lowered = by_float16 ? 14u << 23 : 0 };

    // The codes of a word. For integers, x (its product if `in_turn`) is clamped to `low` and `high` where `limited`,
    // and `zero_points`, one in each byte, are added. By FLOAT16, bits 4 to 6 of a byte of `overflow` are set where a
    // number is beyond the largest element; the caller must find such codes otherwise.
    template <bool limited>
    static GPUCAST_INLINE u32 codes(
        const Numbers<elements>& given, float r, float low, float high, u32 zero_points, u32& overflow) {
        float x[elements];
#pragma unroll
        for (u32 i = 0; i < elements; ++i) x[i] = limited && !in_turn ? clamped(given.of[i], low, high) : given.of[i];
        if constexpr (in_turn) {
            fma(x, r, 0);
            if constexpr (F::rounds) {
#pragma unroll
                for (u32 i = 0; i < elements; i += 2) round_both<typename F::source>(x[i], x[i + 1]);
            }
            r = 1;
        }
        if constexpr (DType::is_int) {
            if constexpr (limited && in_turn) {
#pragma unroll
                for (u32 i = 0; i < elements; ++i) x[i] = clamped(x[i], low, high);
            }
            // The sum with 1.5 * 2^23 has the nearest integer in its low bits. Integers of less than 8 bits get an
            // offset that makes them positive, so that those in a byte can be added up.
            const u32 offset = DType::bits < 8 ? u32(DType::sign_code) : 0;
            const float magic = ptx::as_float(0x4b400000 + offset);
            fma(x, r, magic);
            u32 byte[4];
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                byte[i] = ptx::bits(x[i * of_byte]);
#pragma unroll
                for (u32 j = 1; j < of_byte; ++j) byte[i] += ptx::bits(x[i * of_byte + j]) << (u32(DType::bits) * j);
                byte[i] += zero_points;
            }
            return low_lanes<8>(byte) ^ offset * u32(ones);
        } else {
            if constexpr (!in_turn) fma(x, r, 0);
            return rounded(x, overflow);
        }
    }

    // By FLOAT16 the codes by r, where no number is beyond the largest element.
    static GPUCAST_INLINE u32 codes_within(const Numbers<elements>& given, float r) {
        Numbers<elements> x = given;
        u32 even, odd;
        fma(x.of, r, 0);
        high_bytes(x.of, even, odd);
        // A product and its sum do not wait for the units of integers and logic, as a sum and a shift do.
        return nibbles(even + repeated<8>(1), odd, ptx::mad(odd, 8, repeated<8>(8)));
    }

    // The codes by r, as by `codes`, and the largest low half of a product, which is in the low half of `ends`.
    static GPUCAST_INLINE u32 codes_and_ends(const Numbers<elements>& given, float r, u32& overflow, u32& ends) {
        Numbers<elements> x = given;
        fma(x.of, r, 0);
#pragma unroll
        for (u32 i = 0; i < elements; ++i) ends = ptx::max_u16x2(ends, ptx::bits(x.of[i]));
        return rounded(x.of, overflow);
    }

    // The codes by r, and whether those by another number, which is above r, differ: then `differ` is not zero. `overflow` as
    // above.
    template <bool limited>
    static GPUCAST_INLINE u32 both(
        const Numbers<elements>& given, float r, float above, float low, float high, u32 zero_points, u32& overflow, u32& differ) {
        if constexpr (by_float16 && !in_turn) {
            Numbers<elements> one = given, other = given;
            u32 even[2], odd[2];
            fma(one.of, r, 0);
            fma(other.of, above, 0);
            halves(one.of, even[0], odd[0]);
            halves(other.of, even[1], odd[1]);
            // The larger ones overflow first.
            overflow |= even[1] | odd[1];
            differ |= ((even[0] ^ even[1]) | (odd[0] ^ odd[1])) & repeated<8>(0x8e);
            return nibbles(even[0], odd[0]);
        } else {
            const u32 found = codes<limited>(given, r, low, high, zero_points, overflow);
            differ |= found ^ codes<limited>(given, above, low, high, zero_points, overflow);
            return found;
        }
    }

    // Eight codes from those of even and of odd numbers, each with its sign in bit 7 of a byte and the rest in bits 1 to 3.
    static GPUCAST_INLINE u32 nibbles(u32 even, u32 odd) { return nibbles(even, odd, odd << 3); }
    // `signs`: with the signs of odd numbers, whose codes are in bits 4 to 6 of `odd`.
    static GPUCAST_INLINE u32 nibbles(u32 even, u32 signs, u32 odd) {
        const u32 low_half = chosen<repeated<8>(0x08)>(even >> 1, even >> 4);
        const u32 high_half = chosen<repeated<8>(0x80)>(odd, signs);
        return chosen<repeated<8>(0xf0)>(low_half, high_half);
    }

private:
    // The codes of products.
    static GPUCAST_INLINE u32 rounded(const float (&x)[elements], u32& overflow) {
        if constexpr (by_cvt && DType::bits == 8) {
            return is_e4m3<DType>() ? ptx::cvt_e4m3x4(x[0], x[1], x[2], x[3]) : ptx::cvt_e5m2x4(x[0], x[1], x[2], x[3]);
        } else if constexpr (by_cvt) {
            return ptx::cvt_e2m1x8(x);
        } else {
            u32 even, odd;
            halves(x, even, odd);
            overflow |= even | odd;
            return nibbles(even, odd);
        }
    }

    // Products as FLOAT16s. The high byte of each has the sign, three bits that are zero unless the number overflows, three
    // bits of the code, and one bit to round by, which 1 is added to.
    static GPUCAST_INLINE void halves(const float (&x)[elements], u32& even, u32& odd) {
        high_bytes(x, even, odd);
        even += repeated<8>(1), odd += repeated<8>(1);
    }
    // The same before 1 is added.
    static GPUCAST_INLINE void high_bytes(const float (&x)[elements], u32& even, u32& odd) {
        even = ptx::prmt(ptx::cvt_rz_f16x2(x[0], x[2]), ptx::cvt_rz_f16x2(x[4], x[6]), 0x7531);
        odd = ptx::prmt(ptx::cvt_rz_f16x2(x[1], x[3]), ptx::cvt_rz_f16x2(x[5], x[7]), 0x7531);
    }
    static GPUCAST_INLINE float clamped(float x, float low, float high) {
        return DType::is_int ? ptx::min(ptx::max(x, low), high) : x;
    }

    // x * r, or for integers x * r + more, rounded once.
    static GPUCAST_INLINE void fma(float (&x)[elements], float r, float more) {
#pragma unroll
        for (u32 i = 0; i < elements; i += 2) {
            if constexpr (GPUCAST_ARCH >= 1000) {
                if constexpr (DType::is_int) ptx::fma_rn_f32x2(x[i], x[i + 1], r, more, x[i], x[i + 1]);
                else ptx::mul_rn_f32x2(x[i], x[i + 1], r, x[i], x[i + 1]);
            } else {
                x[i] = DType::is_int ? ptx::fma_rn(x[i], r, more) : ptx::mul_rn(x[i], r);
                x[i + 1] = DType::is_int ? ptx::fma_rn(x[i + 1], r, more) : ptx::mul_rn(x[i + 1], r);
            }
        }
    }
};

}  // namespace gpucast

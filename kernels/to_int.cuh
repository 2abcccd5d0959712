// SPDX-License-Identifier: Apache-2.0
// Any number to an integer of any width: round, then keep the low bits or clamp. NaN gives 0.
namespace gpucast {

template <typename DType, typename Word, typename Rule>
GPUCAST_CONSTANT Word encode(const Number<Word>& x, Rule, IntFamily) {
    const int bits = Width<Word>::bits;
    // Bits of the significand behind the point; negative: zeros to append.
    const int drop = bits - 1 - x.exponent;
    Word magnitude = 0;
    if (drop <= 0) {
        magnitude = drop > -bits ? x.significand << -drop : 0;
    } else if constexpr (Rule::rounding() == Rounding::toward_zero) {
        magnitude = drop < bits ? x.significand >> drop : 0;
    } else {
        magnitude = rounded<Rule::rounding()>(x.significand, drop, x.negative);
    }
    // Two's complement, cut to the bits of the destination.
    Word code = (x.negative ? 0 - magnitude : magnitude) & Word(DType::mask);
    if constexpr (Rule::overflow() == Overflow::saturate) {
        // sign_code is the lowest integer's code and its magnitude; 0 for unsigned types.
        const Word limit = x.negative ? Word(DType::sign_code) : Word(DType::max_code);
        if (x.kind == Kind::infinite || drop < 0 || magnitude > limit) code = limit;
        return x.kind == Kind::nan ? 0 : code;
    }
    return x.kind == Kind::finite ? code : 0;
}

// ---- fast paths ----

// Integer to integer with wrap-around: the low bits of the sign-extended code.
template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE Word convert(Word code, Rule rule, IntFamily source, IntFamily destination) {
    if constexpr (Rule::overflow() == Overflow::wrap) {
        const Word own = code & Word(Src::mask);
        return u32(Dst::bits) <= u32(Src::bits) || Src::sign_code == 0 ? own : (own ^ Word(Src::sign_code)) - Word(Src::sign_code);
    } else {
        return encode<Dst>(decode<Src>(code, source), rule, destination);
    }
}

// Eight integers of 4 bits to the bytes of two words.
template <typename Src>
GPUCAST_INLINE void bytes_of_nibbles(u32 nibbles, u32& low, u32& high) {
    u32 even = nibbles & repeated<8>(15), odd = nibbles >> 4 & repeated<8>(15);
    if constexpr (Src::sign_code != 0) {
        // Four copies of the sign bit in the upper bits.
        even |= (even & repeated<8>(8)) * 30;
        odd |= (odd & repeated<8>(8)) * 30;
    }
    low = ptx::prmt(even, odd, 0x5140);
    high = ptx::prmt(even, odd, 0x7362);
}

template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE Word convert(Word code, Rule, BoolFamily, IntFamily) {
    return (code & Word(Src::mask)) != 0;
}

// The low bits of the integer part of a magnitude: the significand, shifted so that its bit 0 is worth 1. Shifts by
// more than the width give 0, which is right for numbers below 1 and for those that are multiples of 2^64; infinities
// and NaN, whose exponents are the highest, give 0 too.
GPUCAST_INLINE u64 truncated(float x) {
    const u32 bits = ptx::bits(x), field = bits >> 23 & 0xff;
    const u32 significand = (bits & 0x7fffff) | 0x800000;
    return ptx::shr(significand, 150 - field) | ptx::shl(u64(significand), field - 150);
}
GPUCAST_INLINE u64 truncated(double x) {
    const u64 bits = ptx::bits(x), hidden = u64(1) << 52;
    const u32 field = u32(bits >> 52) & 0x7ff;
    const u64 significand = (bits & (hidden - 1)) | hidden;
    return ptx::shr(significand, 1075 - field) | ptx::shl(significand, field - 1075);
}

// A number whose integer part is what the rule rounds to. For ties away from zero that is a bit less than a half further
// from zero: the sum rounds up from a tie on, and never from below it.
template <typename Rule>
GPUCAST_INLINE float without_ties(float x) {
    if constexpr (Rule::rounding() == Rounding::toward_zero) {
        return x;
    } else if constexpr (Rule::rounding() == Rounding::ties_to_even) {
        return ptx::cvt_rni_f32(x);
    } else {
        static_assert(Rule::rounding() == Rounding::ties_to_away, "a mode without a rule");
        return ptx::add_rn(x, ptx::as_float((ptx::bits(x) & 0x80000000) | 0x3effffff));
    }
}
template <typename Rule>
GPUCAST_INLINE double without_ties(double x) {
    if constexpr (Rule::rounding() == Rounding::toward_zero) {
        return x;
    } else if constexpr (Rule::rounding() == Rounding::ties_to_even) {
        return ptx::cvt_rni_f64(x);
    } else {
        static_assert(Rule::rounding() == Rounding::ties_to_away, "a mode without a rule");
        return ptx::add_rn(x, ptx::as_double((ptx::bits(x) & (u64(1) << 63)) | 0x3fdfffffffffffff));
    }
}

template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE Word wrapped(Word code, Rule) {
    static_assert(Rule::overflow() == Overflow::wrap, "the low bits");
    if constexpr (Src::bits == 64) {
        const double value = ptx::as_double(code);
        const u64 magnitude = truncated(without_ties<Rule>(value));
        return i64(code) < 0 ? 0 - magnitude : magnitude;
    } else {
        const float value = as_float32<Src>(code);
        const float x = without_ties<Rule>(value);
        const bool negative = int(ptx::bits(x)) < 0;
        if constexpr (GPUCAST_ARCH >= 1000 && Src::bits == 16 && Src::mantissa_bits == 10 && Dst::bits <= 16) {
            // Below 2^16. The low bits of that, of NaN in its place, and of -2^31 are 0.
            return u32(ptx::cvt_rzi_s32(ptx::min(x, ptx::as_float(0x47800000))));
        } else if constexpr (Dst::bits == 64) {
            const u64 magnitude = truncated(x);
            return negative ? 0 - magnitude : magnitude;
        } else if constexpr (Dst::bits + Src::mantissa_bits <= 31) {
            // The conversion saturates at -2^31, the low bits of which are 0 as those of all larger numbers; NaN gives
            // 0.
            const u32 below = u32(ptx::cvt_rzi_s32(ptx::neg(ptx::abs(x))));
            return negative ? below : 0 - below;
        } else {
            // The same at -2^63, which NaN gives too.
            const u32 below = u32(ptx::cvt_rzi_s64(ptx::neg(ptx::abs(x))));
            return negative ? below : 0 - below;
        }
    }
}

// ---- four codes of 8 bits to integers of fewer ----

// Whether a float's numbers are those of FLOAT8E4M3FN or FLOAT8E5M2 times a power of two, but for NaN and infinities.
template <typename DType>
GPUCAST_CONSTANT bool is_float8_like() {
    if constexpr (!DType::is_float || DType::bits != 8) return false;
    else return (DType::mantissa_bits == 3 && (DType::bias == 7 || DType::bias == 8)) || (DType::mantissa_bits == 2 && (DType::bias == 15 || DType::bias == 16));
}

// What those are multiplied with, as a FLOAT16.
template <typename DType>
GPUCAST_CONSTANT u32 float8_unit() {
    return DType::bits == 6 ? 0x3c00 : (15 + (DType::mantissa_bits == 3 ? 7 : 15) - DType::bias) << 10;
}

// Four codes to FLOAT16, without that factor. What is NaN in FLOAT8E4M3FN is NaN; FLOAT8E5M2 is the upper half.
template <typename Src>
GPUCAST_INLINE void halves_of_float8(u32 codes, u32 (&halves)[2]) {
    if constexpr (has_float6_conversion<Src>()) {
        if constexpr (Src::mantissa_bits == 3) ptx::cvt_f16x4_e2m3(codes, halves[0], halves[1]);
        else ptx::cvt_f16x4_e3m2(codes, halves[0], halves[1]);
    } else if constexpr (Src::mantissa_bits == 3) {
        ptx::cvt_f16x4_e4m3(codes, halves[0], halves[1]);
    } else {
        halves[0] = ptx::prmt(codes, 0, 0x1404);
        halves[1] = ptx::prmt(codes, 0, 0x3424);
    }
}

template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool has_integer_lanes(Rule) {
    if constexpr (!Dst::is_int || Dst::bits > 4 || Src::bits != 8) return false;
    else return GPUCAST_ARCH >= 1000 && (Src::is_e8m0 || is_float8_like<Src>()) && Rule::overflow() == Overflow::wrap && Rule::rounding() == Rounding::toward_zero;
}

// Four codes to integers in the low bits of halves. Numbers from 128 on are multiples of 16, and so is NaN: they are 128.
// A bit more than a magnitude, less a half, is rounded to the integer part; the sum has its low bits last.
template <typename Src>
GPUCAST_INLINE void integer_halves(u32 codes, u32 (&halves)[2]) {
    constexpr u32 unit = float8_unit<Src>(), most = 0x5800 + 0x3c00 - unit;
    halves_of_float8<Src>(codes, halves);
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 magnitude = ptx::min_f16x2(ptx::abs_f16x2(halves[i]), repeated<16>(most));
        const u32 below = ptx::fma_rn_f16x2(magnitude, repeated<16>(unit + 1), repeated<16>(0xb800));
        halves[i] = ptx::fma_rn_f16x2(below ^ (halves[i] & repeated<16>(0x8000)), repeated<16>(0x3c00), repeated<16>(0x6600));
    }
}

// Two powers of two in the low bits of halves, of which `codes` has the exponents as those of BFLOAT16. A half is rounded to
// even: down.
GPUCAST_INLINE u32 integer_powers(u32 codes) {
    return ptx::fma_rn_bf16x2(ptx::min_bf16x2(codes, repeated<16>(0x4300)), repeated<16>(0x3f80), repeated<16>(0x4300));
}

// The same to bytes.
template <typename Src, typename Dst>
GPUCAST_INLINE u32 integer_lanes(u32 codes) {
    u32 lanes;
    if constexpr (Src::is_e8m0) {
        const u32 even = integer_powers((codes & repeated<16>(0xff)) << 7), odd = integer_powers(codes >> 1 & repeated<16>(0x7f80));
        lanes = ptx::prmt(even, odd, 0x6240);
    } else {
        u32 halves[2];
        integer_halves<Src>(codes, halves);
        lanes = ptx::prmt(halves[0], halves[1], 0x6420);
    }
    return lanes & repeated<8>(u32(Dst::mask));
}

// Eight codes to integers of two bits, in the upper half.
template <typename Src>
GPUCAST_INLINE u32 two_bit_integers(u32 first, u32 second) {
    u32 low[2], high[2];
    integer_halves<Src>(first, low);
    integer_halves<Src>(second, high);
    const u32 nibble = repeated<16>(0xf), byte = repeated<16>(0xff);
    const u32 a = (low[0] & nibble) | (low[1] << 4 & ~nibble), b = (high[0] & nibble) | (high[1] << 4 & ~nibble);
    // Those of the lower half go to every second place, and between them the others.
    return (((a & byte) | (b << 8 & ~byte)) & 0x33333333) * 0x10004;
}

// The low bits of the integer part of a power of two.
template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE Word convert(Word code, Rule rule, E8M0Family source, IntFamily destination) {
    if constexpr (GPUCAST_ARCH >= 1000 && Dst::bits == 64 && Rule::overflow() == Overflow::wrap && Rule::rounding() == Rounding::toward_zero) {
        const u32 place = u32(code & Word(Src::mask)) - Src::bias;
        return u64(ptx::shl(1u, place - 32)) << 32 | ptx::shl(1u, place);
    } else {
        return encode<Dst>(decode<Src>(code, source), rule, destination);
    }
}

// A float's, of a type whose finite numbers are below 2^31, to 64 bits; others give 0.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool is_short(Rule) {
    if constexpr (!Src::is_float || !Dst::is_int || Dst::bits != 64) return false;
    else return GPUCAST_ARCH >= 1000 && Rule::overflow() == Overflow::wrap && Rule::rounding() == Rounding::toward_zero
        && int(Src::max_code >> Src::mantissa_bits) - int(Src::bias) < 31;
}
template <typename Src>
GPUCAST_INLINE u64 short_integer(float x) {
    const int value = ptx::cvt_rzi_s32(x);
    if constexpr (Src::has_inf) return u64(i64((ptx::bits(x) & 0x7fffffff) < 0x7f800000 ? value : 0));
    return u64(i64(value));
}

template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE u32 clamped(Word code, Rule) {
    static_assert(Rule::overflow() == Overflow::saturate, "the nearest integer of the range");
    const bool nearest = Rule::rounding() == Rounding::ties_to_even;
    float x = as_float32<Src>(code);
    if constexpr (!nearest) x = without_ties<Rule>(x);
    if constexpr (Dst::sign_code == 0) {
        const u32 value = nearest ? ptx::cvt_rni_u32(x) : ptx::cvt_rzi_u32(x);
        return value < u32(Dst::max_code) ? value : u32(Dst::max_code);
    } else {
        const int value = nearest ? ptx::cvt_rni_s32(x) : ptx::cvt_rzi_s32(x), max = int(Dst::max_code);
        return u32(value > max ? max : value < -max - 1 ? -max - 1 : value);
    }
}

template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE Word convert(Word code, Rule rule, FloatFamily source, IntFamily destination) {
    if constexpr (rounds_by_rule<Dst, Rule>()) {
        return encode<Dst>(decode<Src>(code, source), rule, destination);
    } else if constexpr (has_float32<Src>() && Rule::overflow() == Overflow::wrap) {
        return wrapped<Src, Dst>(code, rule);
    } else if constexpr (has_float32<Src>() && Src::bits <= 32 && Dst::bits <= 32) {
        return clamped<Src, Dst>(code, rule);
    } else {
        return encode<Dst>(decode<Src>(code, source), rule, destination);
    }
}

}  // namespace gpucast

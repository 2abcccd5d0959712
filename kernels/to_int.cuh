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
    } else if constexpr (Rule::rounding() == Rounding::nearest_even) {
        magnitude = round_nearest_even(x.significand, drop);
    } else {
        magnitude = drop < bits ? x.significand >> drop : 0;
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

template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE Word wrapped(Word code, Rule) {
    static_assert(Rule::overflow() == Overflow::wrap, "the low bits");
    if constexpr (Src::bits == 64) {
        const double value = ptx::as_double(code);
        const u64 magnitude = truncated(Rule::rounding() == Rounding::nearest_even ? ptx::cvt_rni_f64(value) : value);
        return i64(code) < 0 ? 0 - magnitude : magnitude;
    } else {
        const float value = as_float32<Src>(code);
        const float x = Rule::rounding() == Rounding::nearest_even ? ptx::cvt_rni_f32(value) : value;
        const bool negative = int(ptx::bits(x)) < 0;
        if constexpr (Dst::bits == 64) {
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

template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE u32 clamped(Word code, Rule) {
    static_assert(Rule::overflow() == Overflow::saturate, "the nearest integer of the range");
    const float x = as_float32<Src>(code);
    const bool nearest = Rule::rounding() == Rounding::nearest_even;
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
    if constexpr (has_float32<Src>() && Rule::overflow() == Overflow::wrap) {
        return wrapped<Src, Dst>(code, rule);
    } else if constexpr (has_float32<Src>() && Src::bits <= 32 && Dst::bits <= 32) {
        return clamped<Src, Dst>(code, rule);
    } else {
        return encode<Dst>(decode<Src>(code, source), rule, destination);
    }
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// Any number to an integer of any width: round, then keep the low bits or clamp. NaN gives 0.
namespace gpucast {

template <typename Row, typename Word, Overflow overflow, bool infinity_is_nan, Rounding rounding, RoundMode round_mode>
GPUCAST_INLINE Word encode(const Number<Word>& x, Rule<overflow, infinity_is_nan, rounding, round_mode>, IntFamily) {
    const int bits = Width<Word>::bits;
    // Bits of the significand behind the point; negative: zeros to append.
    const int drop = bits - 1 - x.exponent;
    Word magnitude;
    if (drop <= 0) {
        magnitude = drop > -bits ? x.significand << -drop : 0;
    } else if constexpr (rounding == Rounding::nearest_even) {
        magnitude = round_nearest_even(x.significand, drop);
    } else {
        magnitude = drop < bits ? x.significand >> drop : 0;
    }
    // Two's complement; the bits above the destination's own fall away.
    Word code = (x.negative ? 0 - magnitude : magnitude) & Word(Row::mask);
    if constexpr (overflow == Overflow::saturate) {
        // sign_code is the lowest integer's code and its magnitude; 0 for unsigned types.
        const Word limit = x.negative ? Word(Row::sign_code) : Word(Row::max_code);
        if (x.kind == Kind::infinite || drop < 0 || magnitude > limit) code = limit;
        return x.kind == Kind::nan ? 0 : code;
    }
    return x.kind == Kind::finite ? code : 0;
}

// Shortcut, integer to integer with wrap-around: the low bits of the sign-extended code.
template <typename Src, typename Dst, typename Word, bool infinity_is_nan, Rounding rounding, RoundMode round_mode>
GPUCAST_INLINE Word convert(
    Word code, Rule<Overflow::wrap, infinity_is_nan, rounding, round_mode>, IntFamily, IntFamily) {
    const Word own = code & Word(Src::mask);
    return ((own ^ Word(Src::sign_code)) - Word(Src::sign_code)) & Word(Dst::mask);
}

}  // namespace gpucast

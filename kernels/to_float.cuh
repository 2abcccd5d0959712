// SPDX-License-Identifier: Apache-2.0
// Any number to a floating type of any layout: one rounding, to nearest, ties to even.
namespace gpucast {

template <typename Row, typename Word>
GPUCAST_INLINE Word nan_of_sign(Word sign) {
    return Word(Row::nan_code) | (Row::nan_is_signed ? sign : 0);
}

template <typename Row, typename Word, Overflow overflow, bool infinity_is_nan, Rounding rounding, RoundMode round_mode>
GPUCAST_INLINE Word encode(const Number<Word>& x, Rule<overflow, infinity_is_nan, rounding, round_mode>, FloatFamily) {
    const Word sign = x.negative ? Word(Row::sign_code) : 0;
    // A code counts steps: those of field 1 begin below the first normal number, and each later field doubles them.
    // So field and rounded significand add up to the code, and a carry lands in the exponent by itself.
    const int field = x.exponent + Row::bias;
    const int above = field > 1 ? field - 1 : 0;
    const int below = field < 1 ? 1 - field : 0;
    const int drop = Width<Word>::bits - 1 - int(Row::mantissa_bits) + below;
    Word code = (Word(above) << Row::mantissa_bits) + round_nearest_even(x.significand, drop);

    if (code > Word(Row::max_code) || x.kind == Kind::infinite) {
        if constexpr (overflow == Overflow::infinity) {
            code = Word(Row::inf_code) | sign;
        } else if constexpr (overflow == Overflow::nan) {
            code = nan_of_sign<Row>(sign);
        } else {
            code = Word(Row::max_code) | sign;
        }
    } else if (Row::has_negative_zero || code != 0) {
        code |= sign;
    }
    if constexpr (infinity_is_nan) {
        if (x.kind == Kind::infinite) code = nan_of_sign<Row>(sign);
    }
    if (x.kind == Kind::nan) {
        if constexpr (Row::has_nan) {
            code = nan_of_sign<Row>(sign);
        } else {
            // Nothing stands for NaN: it becomes the zero of the other sign.
            code = sign ^ Word(Row::sign_code);
        }
    }
    return code;
}

}  // namespace gpucast

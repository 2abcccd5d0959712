// SPDX-License-Identifier: Apache-2.0
// Any number to FLOAT8E8M0, which has positive powers of two and NaN only.
namespace gpucast {

template <typename Row, typename Word, Overflow overflow, bool infinity_is_nan, Rounding rounding, RoundMode round_mode>
GPUCAST_INLINE Word encode(const Number<Word>& x, Rule<overflow, infinity_is_nan, rounding, round_mode>, E8M0Family) {
    const bool saturate = overflow == Overflow::saturate;
    const Word fraction = x.significand << 1;
    bool next = false;
    if constexpr (round_mode == RoundMode::up) next = fraction != 0;
    // From 1.5 * 2^k on.
    if constexpr (round_mode == RoundMode::nearest) next = fraction >> (Width<Word>::bits - 1) != 0;
    const int field = x.exponent + Row::bias;
    Word code = Word(field + int(next));
    // The limits hold for the number, not for what it rounds to.
    const int last = int(Row::max_code);
    if (field > last || (field == last && fraction != 0) || x.kind == Kind::infinite) {
        code = saturate ? Word(Row::max_code) : Word(Row::nan_code);
    }
    if (field < 0 || x.negative) code = saturate ? 0 : Word(Row::nan_code);
    return x.kind == Kind::nan ? Word(Row::nan_code) : code;
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// Any number to FLOAT8E8M0, which has positive powers of two and NaN only.
namespace gpucast {

template <typename DType, typename Word, typename Rule>
GPUCAST_CONSTANT Word encode(const Number<Word>& x, Rule, E8M0Family) {
    const bool saturate = Rule::overflow() == Overflow::saturate;
    const Word fraction = x.significand << 1;
    bool next = false;
    if constexpr (Rule::round_mode() == RoundMode::up) next = fraction != 0;
    // From 1.5 * 2^k on.
    if constexpr (Rule::round_mode() == RoundMode::nearest) next = fraction >> (Width<Word>::bits - 1) != 0;
    const int field = x.exponent + DType::bias;
    Word code = Word(field + int(next));
    // Whether a number is in range is decided before it is rounded.
    const int last = int(DType::max_code);
    if (field > last || (field == last && fraction != 0) || x.kind == Kind::infinite) {
        code = saturate ? Word(DType::max_code) : Word(DType::nan_code);
    }
    if (field < 0 || x.negative) code = saturate ? 0 : Word(DType::nan_code);
    return x.kind == Kind::nan ? Word(DType::nan_code) : code;
}

// Whether an instruction rounds as the rule says.
template <typename Dst, typename Rule>
GPUCAST_CONSTANT bool has_power_conversion(Rule) {
    return GPUCAST_SPECIFIC && Dst::is_e8m0 && Rule::overflow() == Overflow::saturate && Rule::round_mode() != RoundMode::nearest;
}

// Codes in the bytes of a word, by that instruction.
template <typename Src, u32 N, typename Word, typename Rule>
GPUCAST_INLINE u32 power_lanes(const Word (&codes)[N], Rule) {
    float x[4] = {};
#pragma unroll
    for (u32 i = 0; i < N; ++i) x[i] = ptx::max_nan(as_float32<Src>(codes[i]), 0);
    if constexpr (Rule::round_mode() == RoundMode::up) return ptx::cvt_rp_ue8m0x4(x[0], x[1], x[2], x[3]);
    return ptx::cvt_rz_ue8m0x4(x[0], x[1], x[2], x[3]);
}

// Whether an integer's leading zeros give its code.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool has_integer_power(Rule) {
    if constexpr (!Src::is_int || !Dst::is_e8m0 || Src::bits < 32) return false;
    else return GPUCAST_ARCH >= 1000 && Rule::overflow() == Overflow::saturate && Rule::round_mode() != RoundMode::nearest;
}
template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE u32 integer_power(Word code, Rule) {
    constexpr int up = Rule::round_mode() == RoundMode::up, last = Dst::bias + int(Src::bits) - 1;
    const auto value = integer<Src>(code);
    // A power of two is its own, and is at least 2^x where one less has a bit less.
    return value > 0 ? u32(last + up - leading_zeros(Word(value) - Word(up))) : 0;
}

// Fast path with float as the compute type (float32.cuh). Doubled, the smallest power of two of the destination is a
// normal float and the largest one is infinity, so that the exponent field is the code plus one.
template <typename Src, typename Dst, typename Word, typename Rule, typename Family>
GPUCAST_INLINE Word convert(Word code, Rule rule, Family family, E8M0Family destination) {
    if constexpr (has_integer_power<Src, Dst>(rule)) {
        return integer_power<Src, Dst>(code, rule);
    } else if constexpr (has_float32<Src>()) {
        const float x = as_float32<Src>(code);
        const RoundMode mode = Rule::round_mode();
        const u32 next = mode == RoundMode::up ? 0x7fffff : mode == RoundMode::nearest ? 0x400000 : 0;
        const int doubled = int(ptx::bits(ptx::add_rn(x, x)));
        const u32 power = (u32(doubled > 0x800000 ? doubled : 0x800000) + next - 0x800000) >> 23;
        if (Rule::overflow() == Overflow::saturate) return Src::has_nan && x != x ? u32(Dst::nan_code) : power;
        // From 2^-127 to 2^127; neither zero nor negative, infinite or NaN.
        const bool inside = ptx::bits(x) - 0x400000 <= 0x7f000000 - 0x400000;
        return inside ? power : u32(Dst::nan_code);
    } else {
        return encode<Dst>(decode<Src>(code, family), rule, destination);
    }
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// Any number to a floating type of 16 bits or fewer, rounded up or down at random.
//
// A magnitude is a fixed-point number of ULPs of the destination. `random` is added to the first 32 bits behind the
// point; the integer part of the sum is the code. So the magnitude is rounded up in as many of the 2^32 cases as those
// 32 bits say, and never where it is an integer number of ULPs. Range, signs and NaN are as in to_float.cuh.
//
// cvt.rs, which some architectures have, is not used: it shares 32 random bits between two or four numbers, so its
// results differ.
namespace gpucast {

template <typename DType, typename Word, typename Rule>
GPUCAST_INLINE Word encode_stochastic(const Number<Word>& x, u32 random, Rule rule) {
    const int field = x.exponent + DType::bias;
    const int above = field > 1 ? field - 1 : 0;
    const int below = field < 1 ? 1 - field : 0;
    const int drop = 31 - int(DType::mantissa_bits) + below;
    // ULPs, with 32 bits behind the point.
    const u64 ulps = drop < 64 ? u64(x.significand) << (64 - Width<Word>::bits) >> drop : 0;
    return finish_float<DType>((Word(above) << DType::mantissa_bits) + Word((ulps + random) >> 32), x, rule);
}

// ---- fast paths ----
// The compute type is the float or double that is the number itself: one that is rounded would lack the 32 bits behind
// the point. A subnormal one is given the top bit of a normal number as well: that bit is too small to be among the 32,
// except from FLOAT to BFLOAT16, where `stochastic_upper_half` adds to the code itself.

GPUCAST_INLINE bool is_nan(float x) { return x != x; }
// With integers, because most GPUs are slow with doubles.
GPUCAST_INLINE bool is_nan(double x) { return ptx::bits(x) << 1 > u64(0x7ff) << 53; }

// A magnitude's code, which may be above that of the largest number, from the significand, its top bit set, and the
// number of binades that it is above the destination's smallest normal numbers.
template <typename DType>
GPUCAST_INLINE u32 stochastic_code(u64 significand, int binades, u32 random) {
    const int above = binades > 0 ? binades : 0, below = above - binades;
    const u64 ulps = ptx::shr(significand, u32(31 - int(DType::mantissa_bits) + below));
    return (u32(above) << DType::mantissa_bits) + u32((ulps + random) >> 32);
}

// The code of a magnitude of a small float, with overflow and NaN.
template <typename DType, bool maybe_nan, typename Rule>
GPUCAST_INLINE u32 stochastic_magnitude(float x, u32 random, Rule) {
    const float last = ptx::as_float(float32_bits<DType>(last_code<DType, Rule>()));
    const u32 a = ptx::bits(ptx::min(ptx::abs(x), last));
    const u32 code = stochastic_code<DType>(u64(a << 8 | 0x80000000) << 32, int(a >> 23) + int(DType::bias) - 128, random);
    if constexpr (maybe_nan && DType::has_nan) {
        return (Rule::infinity_is_nan() ? (ptx::bits(x) & 0x7fffffff) >= 0x7f800000 : is_nan(x)) ? u32(DType::nan_code) : code;
    }
    return code;
}

// From double, also to BFLOAT16.
template <typename DType, bool, typename Rule>
GPUCAST_INLINE u32 stochastic_magnitude(double x, u32 random, Rule) {
    const u64 bits = ptx::bits(x);
    const int field = int(bits >> 52) & 0x7ff;
    const u32 last = last_code<DType, Rule>();
    const u32 code = stochastic_code<DType>(bits << 11 | u64(1) << 63, field + int(DType::bias) - 1024, random);
    if constexpr (DType::has_nan) {
        if (Rule::infinity_is_nan() ? field == 0x7ff : is_nan(x)) return u32(DType::nan_code);
    }
    return code < last ? code : last;
}

// A code of BFLOAT16, in the high half: the bits behind the point are the lower half of the FLOAT.
template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE u32 stochastic_upper_half(Word code, u32 random, Rule) {
    const float x = as_float32<Src>(code), max = ptx::as_float(u32(Dst::max_code) << 16);
    const u32 bits = ptx::bits(Rule::overflow() == Overflow::saturate ? ptx::max(ptx::min(x, max), ptx::neg(max)) : x);
    if (Src::has_nan && is_nan(x)) return sign_of<Src>(code) | u32(Dst::nan_code) << 16;
    return bits + (random >> 16);
}

// Whether `as_float32` gives the number itself.
template <typename Src>
GPUCAST_CONSTANT bool is_exact_float32() {
    return has_float32<Src>() && (u32(Src::bits) <= 16 || (Src::is_float && u32(Src::bits) == 32));
}

// The number as a float, or as a double where a float is not exact.
template <typename Src, typename Word>
GPUCAST_INLINE auto exact_value(Word code) {
    if constexpr (is_exact_float32<Src>()) return as_float32<Src>(code);
    else return ptx::as_double(code);
}

// Codes of Dst in the lanes of a word, which are bytes (types of 8 bits or fewer) or halves (of 16), from as many codes
// of Src and a random word for each.
template <typename Src, typename Dst, u32 N, typename Word, typename Rule>
GPUCAST_INLINE u32 stochastic_lanes(const Word (&codes)[N], const u32 (&random)[N], Rule rule) {
    static_assert(Dst::is_float && u32(Dst::bits) <= 16, "no wider type is rounded at random");
    constexpr bool by_double = Src::is_float && u32(Src::bits) == 64, by_float = is_exact_float32<Src>();
    u32 part[N], sign[N];
    if constexpr (by_float && is_upper_half<Dst>()) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) part[i] = stochastic_upper_half<Src, Dst>(codes[i], random[i], rule);
        return high_lanes<16>(part);
    } else if constexpr (by_double || by_float) {
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            auto x = exact_value<Src>(codes[i]);
            sign[i] = Src::is_float && Src::bits != 32 ? sign_of<Src>(codes[i]) : u32(ptx::bits(x));
            if (Src::has_nan && !Dst::has_nan && is_nan(x)) {
                // Nothing stands for NaN: it becomes the zero of the other sign.
                x = 0;
                sign[i] = ~sign[i];
            }
            part[i] = stochastic_magnitude<Dst, Src::has_nan>(x, random[i], rule);
        }
        return signed_lanes<Src, Dst>(part, sign);
    } else {
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            const auto x = decode<Src>(codes[i], typename Src::family());
            part[i] = u32(encode_stochastic<Dst>(x, random[i], rule)) & u32(Dst::mask);
        }
        return low_lanes<(Dst::bits <= 8 ? 8 : 16)>(part);
    }
}

// One code.
template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE u32 convert_stochastic(Word code, u32 random, Rule rule) {
    return stochastic_lanes<Src, Dst>({code}, {random}, rule);
}

}  // namespace gpucast

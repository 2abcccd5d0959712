// SPDX-License-Identifier: Apache-2.0
// Several numbers at a time, in the lanes of a word: shortcuts to floats of 8 bits or fewer, under the rules of to_float.cuh,
// and `cast_lanes`, which takes any pair.
namespace gpucast {

// ---- two halves of a word at a time, from FLOAT16 or BFLOAT16 to a float of 8 bits or fewer ----

// Whether there is a fast path for two halves. Sums of FLOAT16 must stay within its exponents.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool has_halves() {
    if constexpr (GPUCAST_ARCH < 800 || !is_small<Dst>() || Dst::bits > 8) return false;
    else if constexpr (is_upper_half<Src>()) return true;
    else if constexpr (!is_float16<Src>()) return false;
    else return cuts_halves<Src, Dst>() || int(Dst::max_code >> Dst::mantissa_bits) - int(Dst::bias) <= 5 + int(Dst::mantissa_bits);
}

// Whether an instruction rounds pairs of the source's halves to the destination, all but NaN as the rule says.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool has_pair_conversion(Rule rule) {
    if constexpr (!is_float16<Src>() && !is_upper_half<Src>()) return false;
    else if constexpr (!has_instruction<Dst>(rule) || Dst::bits > 8) return false;
    else return GPUCAST_PAIRS || (is_float16<Src>() && Dst::bits == 8);
}

// Four halves in two words to the bytes of one.
template <typename Src, typename Dst>
GPUCAST_INLINE u32 converted_pairs(u32 low, u32 high) {
    if constexpr (is_float16<Src>()) {
        if constexpr (Dst::bits == 8) return is_e4m3<Dst>() ? ptx::cvt_e4m3x4_f16(low, high) : ptx::cvt_e5m2x4_f16(low, high);
        else return Dst::mantissa_bits == 3 ? ptx::cvt_e2m3x4_f16(low, high) : ptx::cvt_e3m2x4_f16(low, high);
    } else {
        if constexpr (Dst::bits == 8) return is_e4m3<Dst>() ? ptx::cvt_e4m3x4_bf16(low, high) : ptx::cvt_e5m2x4_bf16(low, high);
        else return Dst::mantissa_bits == 3 ? ptx::cvt_e2m3x4_bf16(low, high) : ptx::cvt_e3m2x4_bf16(low, high);
    }
}

// For a type without NaN: halves that are NaN become the zero of the other sign.
template <typename Src>
GPUCAST_INLINE u32 pair_without_nan(u32 pair) {
    const u32 top = repeated<16>(0x8000), nan = ptx::prmt((pair & ~top) + repeated<16>(0x7fff - u32(Src::inf_code)), 0, 0xbb99);
    return (pair & ~nan) | (~pair & nan & top);
}

// FLOAT16 as the compute type of 16-bit integers.
struct ComputeHalf {
    enum : u32 { bits = 16, mantissa_bits = 10 };
    enum : int { bias = 15 };
    enum : bool { is_float = 1 };
    enum : u64 { inf_code = 0x7c00 };
};

// Whether the compute type of 16-bit integers is FLOAT16: where all beyond 511 overflow in the destination.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool has_integer_halves() {
    if constexpr (GPUCAST_ARCH < 900 || !is_small<Dst>() || Src::is_float || Src::bits != 16) return false;
    else return has_halves<ComputeHalf, Dst>() && int(Dst::max_code >> Dst::mantissa_bits) - int(Dst::bias) <= 8;
}

template <typename Src>
GPUCAST_INLINE u32 halves_min(u32 a, u32 b) {
    return is_float16<Src>() ? ptx::min_f16x2(a, b) : ptx::min_bf16x2(a, b);
}
template <typename Src>
GPUCAST_INLINE u32 halves_max(u32 a, u32 b) {
    return is_float16<Src>() ? ptx::max_f16x2(a, b) : ptx::max_bf16x2(a, b);
}
template <typename Src>
GPUCAST_INLINE u32 halves_fma(u32 a, u32 b, u32 c) {
    return is_float16<Src>() ? ptx::fma_rn_f16x2(a, b, c) : ptx::fma_rn_bf16x2(a, b, c);
}

// The source's code for the value of a destination's code, in both halves.
template <typename Src, typename Dst>
GPUCAST_CONSTANT u32 both_halves(u32 code) {
    const u32 field = code >> Dst::mantissa_bits, fraction = code & ((1u << Dst::mantissa_bits) - 1);
    const u32 same = (field + Src::bias - Dst::bias) << Src::mantissa_bits;
    return repeated<16>(same | fraction << (Src::mantissa_bits - Dst::mantissa_bits));
}

// As small_magnitude, for two magnitudes; the codes are in the low bytes of the halves. NaN gives the last code.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE u32 halves_magnitude(u32 a, Rule) {
    const u32 shift = Src::mantissa_bits - Dst::mantissa_bits;
    const u32 last = last_code<Dst, Rule>();
    if constexpr (cuts_halves<Src, Dst>()) {
        // Without saturation finite numbers round to the last code at most, so that `min` changes only NaN, to
        // infinity.
        if constexpr (Rule::overflow() == Overflow::saturate) a = halves_min<Src>(a, both_halves<Src, Dst>(last));
        else a = halves_min<Src>(a, repeated<16>(u32(Src::inf_code)));
        // The destination's bias is one larger: normal numbers get one more exponent, subnormal ones twice the
        // fraction.
        if constexpr (int(Dst::bias) != int(Src::bias)) a += halves_min<Src>(a, repeated<16>(1u << Src::mantissa_bits));
        const u32 rounded = a + repeated<16>((1u << (shift - 1)) - 1) + (a >> shift & repeated<16>(1));
        return rounded >> shift;
    } else {
        a = halves_min<Src>(a, both_halves<Src, Dst>(last));
        const u32 least = both_halves<Src, Dst>(1u << Dst::mantissa_bits);
        const u32 power = halves_max<Src>(a, least) & repeated<16>(u32(Src::inf_code));
        const u32 sum = halves_fma<Src>(power, repeated<16>((Src::bias + shift) << Src::mantissa_bits), a);
        const u32 rebias = (Src::bias + 1 - Dst::bias) << Dst::mantissa_bits;
        return sum + (power >> shift) - power - repeated<16>((shift << Src::mantissa_bits) + rebias);
    }
}

// Four codes in two words to the bytes of one. Without `maybe_nan` none is NaN.
template <typename Src, typename Dst, bool maybe_nan = true, typename Rule>
GPUCAST_INLINE u32 halves_lanes(u32 low, u32 high, Rule rule) {
    const u32 magnitudes = repeated<16>(0x7fff), top = repeated<8>(0x80);
    const u32 a = low & magnitudes, b = high & magnitudes;
    // A half's top bit is set in the sum where it is NaN; `prmt` copies it to all bits of the lane.
    const u32 to_top_bit = repeated<16>(0x8000 - u32(Src::inf_code) - (Rule::infinity_is_nan() ? 0 : 1));
    const u32 nan = Src::has_nan && maybe_nan ? ptx::prmt(a + to_top_bit, b + to_top_bit, 0xfdb9) : 0;
    const u32 code = ptx::prmt(halves_magnitude<Src, Dst>(a, rule), halves_magnitude<Src, Dst>(b, rule), 0x6420);
    u32 signs = ptx::prmt(low, high, 0x7531);
    if constexpr (Dst::has_nan) {
        const u32 found = (code & ~nan) | (nan & repeated<8>(u32(Dst::nan_code)));
        if constexpr (Dst::sign_code == 0) return found;
        if constexpr (Dst::has_negative_zero) return found | (signs & top);
        return found | (signs & (found + repeated<8>(0x7f)) & top);
    } else {
        // Nothing stands for NaN: it becomes the zero of the other sign.
        signs = (signs ^ nan) & top;
        return (code & ~nan & repeated<8>(u32(Dst::max_code))) | signs >> (8 - Dst::bits);
    }
}

// Two integers as FLOAT16, clamped to -512 to 511. As the fraction of 1024 or 1536 they are floats already, from which
// that number is subtracted.
template <typename Src>
GPUCAST_INLINE u32 halves_of_integers(u32 integers) {
    const u32 one = repeated<16>(0x3c00);
    if constexpr (Src::sign_code == 0) {
        return ptx::fma_rn_f16x2(ptx::min_u16x2(integers, repeated<16>(511)) | repeated<16>(0x6400), one, repeated<16>(0xe400));
    } else {
        const u32 cut = ptx::max_s16x2(ptx::min_s16x2(integers, repeated<16>(511)), repeated<16>(0xfe00));
        return ptx::fma_rn_f16x2((cut & repeated<16>(0x3ff)) ^ repeated<16>(0x6600), one, repeated<16>(0xe600));
    }
}

template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE u32 integer_halves_lanes(u32 low, u32 high, Rule rule) {
    const u32 a = halves_of_integers<Src>(low), b = halves_of_integers<Src>(high);
    const u32 code = ptx::prmt(halves_magnitude<ComputeHalf, Dst>(ptx::abs_f16x2(a), rule),
                               halves_magnitude<ComputeHalf, Dst>(ptx::abs_f16x2(b), rule), 0x6420);
    const u32 own = Dst::bits == 8 ? code : code & repeated<8>(u32(Dst::max_code));
    if constexpr (Src::sign_code == 0) return own;
    // Only the integer 0 becomes zero, and its FLOAT16 has no sign.
    return own | (ptx::prmt(a, b, 0x7531) & repeated<8>(0x80)) >> (8 - Dst::bits);
}

// ---- floats of 6 and 8 bits to FLOAT4E2M1 ----

template <typename Src, typename Dst>
GPUCAST_CONSTANT bool has_float8_halves() {
    return (is_float8_like<Src>() || has_float6_conversion<Src>()) && is_float4<Dst>() && has_conversion<Dst>();
}

// FLOAT16 in place of those that are no numbers in it: zero of the other sign, or a number beyond the largest where the
// source has one there. `codes` are the bytes that the halves come from.
template <typename Src>
GPUCAST_INLINE void finish_float8_halves(u32 codes, u32 (&halves)[2]) {
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 signs = ptx::prmt(codes, 0, i == 0 ? 0x1404 : 0x3424), magnitude = halves[i] & repeated<16>(0x7fff);
        const u32 nan = ptx::prmt(magnitude + repeated<16>(0x8000 - 0x7c01), 0, 0xbb99);
        const u32 own = Src::has_negative_zero ? ~signs & repeated<16>(0x8000) : (signs & repeated<16>(0x8000)) | repeated<16>(0x4c00);
        halves[i] = (halves[i] & ~nan) | (own & nan);
    }
}

// Eight codes, in bytes, to those of a word.
template <typename Src>
GPUCAST_INLINE u32 float4_of_float8(u32 first, u32 second) {
    u32 halves[2][2], nan = 0;
    halves_of_float8<Src>(first, halves[0]);
    halves_of_float8<Src>(second, halves[1]);
    if constexpr (Src::bits == 8) {
        // Halves are NaN where a magnitude's code is 127, or from 125 on with two bits of mantissa. FNUZ's own NaN, 0x80, is
        // a half of negative zero.
        constexpr u32 to_top_bit = Src::mantissa_bits == 3 ? 1 : 3;
        nan = (((first & repeated<8>(0x7f)) + repeated<8>(to_top_bit)) | ((second & repeated<8>(0x7f)) + repeated<8>(to_top_bit))) & repeated<8>(0x80);
    }
    if (nan != 0) {
        ptx::mark_rare();
        finish_float8_halves<Src>(first, halves[0]);
        finish_float8_halves<Src>(second, halves[1]);
    }
    float x[8];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        u32 two = halves[i / 2][i % 2];
        if constexpr (float8_unit<Src>() != 0x3c00) two = ptx::fma_rn_f16x2(two, repeated<16>(float8_unit<Src>()), repeated<16>(0x8000));
        ptx::cvt_f32_f16x2(two, x[2 * i], x[2 * i + 1]);
    }
    return ptx::cvt_e2m1x8(x);
}

// The same of FLOAT8E8M0, whose codes are a float's exponent field. The smallest counts as zero.
GPUCAST_INLINE u32 float4_of_powers(u32 first, u32 second) {
    float x[8], nan = 0;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const u32 codes = i < 4 ? first : second;
        x[i] = ptx::as_float((i % 4 == 3 ? codes >> 1 : codes << (23 - i % 4 * 8)) & 0x7f800000);
        nan = ptx::fma_rn(x[i], 0, nan);
    }
    if (nan != nan) {
        // The code of NaN is that of infinity; it becomes the zero of the other sign.
        ptx::mark_rare();
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            if (ptx::bits(x[i]) == 0x7f800000) x[i] = ptx::as_float(0x80000000);
        }
    }
    return ptx::cvt_e2m1x8(x);
}

// ---- integers to FLOAT8E4M3FNUZ and FLOAT8E5M2FNUZ, by the instructions for the types with the next smaller bias ----

template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool has_next_bias(Rule) {
    if constexpr (!Src::is_int || Src::bits < 16 || !is_float8_like<Dst>()) return false;
    else return GPUCAST_ARCH >= 1000 && !Dst::has_negative_zero && Rule::overflow() == Overflow::saturate && !rounds_by_rule<Dst, Rule>();
}

// Integers to the bytes of a word. An integer that is not zero is at least 1, a normal number of both types, and so the next
// exponent gives its code. Both types end at the same number but for FLOAT8E4M3FN, whose codes go on.
template <typename Src, typename Dst, u32 N, typename Word>
GPUCAST_INLINE u32 next_bias_lanes(const Word (&codes)[N]) {
    constexpr int most = Dst::mantissa_bits == 3 ? 240 : 57344;
    float x[4] = {};
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
        if constexpr (Src::bits == 16) {
            // Two at a time.
            const u32 pair = codes[i / 2 * 2] | codes[(i / 2 * 2 + 1) % N] << 16, limit = repeated<16>(u32(most));
            u32 cut = pair;
            if constexpr (most == 240 && Src::sign_code == 0) cut = ptx::min_u16x2(pair, limit);
            else if constexpr (most == 240) cut = ptx::max_s16x2(ptx::min_s16x2(pair, limit), repeated<16>(0x10000 - most));
            x[i] = ptx::cvt_rn_f32(integer<Src>(cut >> (i % 2 * 16)));
        } else {
            const auto value = integer<Src>(codes[i]);
            if constexpr (Src::sign_code == 0) x[i] = ptx::cvt_rn_f32(value < u32(most) ? u32(value) : u32(most));
            else x[i] = ptx::cvt_rn_f32(value > most ? most : value < -most ? -most : int(value));
        }
    }
    const u32 found = Dst::mantissa_bits == 3 ? ptx::cvt_e4m3x4(x[0], x[1], x[2], x[3]) : ptx::cvt_e5m2x4(x[0], x[1], x[2], x[3]);
    // Codes from that of 1 on have one of these two bits.
    const u32 nonzero = (found | found << 1) & repeated<8>(0x40);
    return found + (nonzero >> (6 - Dst::mantissa_bits));
}

// BFLOAT16 as the compute type of wider numbers: their floats, rounded to odd once more.
template <typename Src>
struct ComputeUpperHalf {
    enum : u32 { bits = 16, mantissa_bits = 7 };
    enum : int { bias = 127 };
    enum : bool { is_float = 1, has_nan = Src::has_nan };
    enum : u64 { inf_code = 0x7f80 };
};

// Whether it is that of a source. A DOUBLE's NaN loses its sign on the way.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool has_upper_halves() {
    if constexpr (GPUCAST_ARCH < 900 || !is_small<Dst>() || Dst::bits > 8 || Src::bits < 16) return false;
    else return has_float32<Src>() && Src::bits <= 32 && Src::sign_code != 0;
}

// The low half of a float is a fraction's end: where it is not zero, the last bit that is kept becomes one.
GPUCAST_INLINE u32 odd_upper_halves(float a, float b) {
    const u32 kept = ptx::prmt(ptx::bits(a), ptx::bits(b), 0x7632), rest = ptx::prmt(ptx::bits(a), ptx::bits(b), 0x5410);
    return kept | ptx::min_u16x2(rest, repeated<16>(1));
}

// Four numbers to the bytes of a word.
template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE u32 upper_halves_lanes(const Word (&codes)[4], Rule rule) {
    float x[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) x[i] = float32_for_small<Src>(codes[i]);
    return halves_lanes<ComputeUpperHalf<Src>, Dst>(odd_upper_halves(x[0], x[1]), odd_upper_halves(x[2], x[3]), rule);
}

// ---- any pair ----

// Codes in the lanes of a word, which are bytes (types of 8 bits or fewer) or halves (of 16).
template <typename Src, typename Dst, u32 N, typename Word, typename Rule>
GPUCAST_INLINE u32 cast_lanes(const Word (&codes)[N], Rule rule) {
    constexpr u32 lane = Dst::bits <= 8 ? 8 : 16;
    constexpr bool by_float = has_float32<Src>() && !is_same<Src, Dst>;
    if constexpr (has_next_bias<Src, Dst>(rule)) {
        return next_bias_lanes<Src, Dst>(codes);
    } else if constexpr (N == 4 && has_upper_halves<Src, Dst>() && !has_instruction<Dst>(rule)) {
        return upper_halves_lanes<Src, Dst>(codes, rule);
    } else if constexpr (by_float && has_power_conversion<Dst>(rule) && !has_integer_power<Src, Dst>(rule)) {
        return power_lanes<Src>(codes, rule);
    } else if constexpr (by_float && (is_small<Dst>() || (is_upper_half<Dst>() && has_packing<Dst>(rule)))) {
        return small_lanes<Src, Dst>(codes, rule);
    } else {
        u32 part[N];
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            if constexpr (is_upper_half<Dst>() && by_float) {
                part[i] = upper_half<Src, Dst>(codes[i], rule);
            } else {
                part[i] = u32(Cast<Src, Dst>::low_bits(codes[i], rule));
            }
        }
        if constexpr (is_upper_half<Dst>() && by_float) return high_lanes<16>(part);
        const u32 lanes = low_lanes<lane>(part);
        return Dst::bits < lane ? lanes & repeated<lane>(u32(Dst::mask)) : lanes;
    }
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// Any number to a floating type of any layout: one rounding, to nearest, ties to even.
namespace gpucast {

template <typename Row, typename Word>
GPUCAST_CONSTANT Word nan_of_sign(Word sign) {
    return Word(Row::nan_code) | (Row::nan_is_signed ? sign : 0);
}

// The last code of a magnitude that is cut off at the rule's overflow: that of the largest number, or of what stands for
// numbers beyond it, which comes next.
template <typename Row, typename Rule>
GPUCAST_CONSTANT u32 last_code() {
    if constexpr (Rule::overflow() == Overflow::infinity) return u32(Row::inf_code);
    else if constexpr (Rule::overflow() == Overflow::nan) return u32(Row::nan_code);
    else return u32(Row::max_code);
}

// From a rounded magnitude, a code that runs on past the largest one, to the code of x.
template <typename Row, typename Word, typename Rule>
GPUCAST_CONSTANT Word finish_float(Word code, const Number<Word>& x, Rule) {
    const Word sign = x.negative ? Word(Row::sign_code) : 0;
    if (code > Word(Row::max_code) || x.kind == Kind::infinite) {
        if constexpr (Rule::overflow() == Overflow::infinity) {
            code = Word(Row::inf_code) | sign;
        } else if constexpr (Rule::overflow() == Overflow::nan) {
            code = nan_of_sign<Row>(sign);
        } else {
            code = Word(Row::max_code) | sign;
        }
    } else if (Row::has_negative_zero || code != 0) {
        code |= sign;
    }
    if constexpr (Rule::infinity_is_nan()) {
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

template <typename Row, typename Word, typename Rule>
GPUCAST_CONSTANT Word encode(const Number<Word>& x, Rule rule, FloatFamily) {
    // A code counts steps: those of field 1 begin below the first normal number, and each later field doubles them.
    // So field and rounded significand add up to the code, and a carry lands in the exponent by itself.
    const int field = x.exponent + Row::bias;
    const int above = field > 1 ? field - 1 : 0;
    const int below = field < 1 ? 1 - field : 0;
    const int drop = Width<Word>::bits - 1 - int(Row::mantissa_bits) + below;
    return finish_float<Row>((Word(above) << Row::mantissa_bits) + round_nearest_even(x.significand, drop), x, rule);
}

// ---- shortcuts ----
// By way of a float that is the number itself or the number rounded to odd (float32.cuh).

// A float of 16 bits or fewer, with fewer exponents than FLOAT has.
template <typename Row>
GPUCAST_CONSTANT bool is_small() {
    if constexpr (!Row::is_float) return false;
    else return Row::bits <= 16 && int(Row::max_code >> Row::mantissa_bits) - int(Row::bias) <= 100;
}

// The upper half of a FLOAT.
template <typename Row>
GPUCAST_CONSTANT bool is_upper_half() {
    if constexpr (!Row::is_float) return false;
    else return Row::bits == 16 && Row::mantissa_bits == 7;
}

// The code of a magnitude that is not above a small float's largest, in the low bits.
//
// A power of two is added whose last bit is worth the destination's last one at this size: the sum's fraction is the
// rounded number in steps of the destination, and its exponent tells how many steps lie below.
template <typename Row>
GPUCAST_INLINE u32 small_steps(float a) {
    const int shift = 23 - int(Row::mantissa_bits);
    const float power = ptx::as_float(ptx::bits(ptx::max(a, ptx::as_float(u32(128 - Row::bias) << 23))) & 0x7f800000);
    const u32 sum = ptx::bits(ptx::fma_rn(power, ptx::as_float(u32(127 + shift) << 23), a));
    return sum + (sum >> shift) - (u32(128 + shift - Row::bias) << Row::mantissa_bits);
}

// The magnitude's code of a small float, in the low bits.
template <typename Row, bool maybe_nan, typename Rule>
GPUCAST_INLINE u32 small_magnitude(float x, Rule) {
    float a = ptx::min(ptx::abs(x), ptx::as_float(float32_bits<Row>(last_code<Row, Rule>())));
    if constexpr (maybe_nan && Row::has_nan) {
        // The NaN's code, too, is what some number would have.
        const bool nan = Rule::infinity_is_nan() ? (ptx::bits(x) & 0x7fffffff) >= 0x7f800000 : x != x;
        a = nan ? ptx::as_float(float32_bits<Row>(u32(Row::nan_code))) : a;
    }
    return small_steps<Row>(a);
}

// The number as a float, for a small destination: integers far beyond its largest one need not be exact.
template <typename Src, typename Word>
GPUCAST_INLINE float float32_for_small(Word code) {
    if constexpr (!Src::is_float && Src::bits >= 32) {
        const auto value = integer<Src>(code);
        const int most = 1 << 17;
        if constexpr (Src::sign_code == 0) {
            return ptx::cvt_rn_f32(value < u32(most) ? u32(value) : u32(most));
        } else {
            return ptx::cvt_rn_f32(value > most ? most : value < -most ? -most : int(value));
        }
    } else {
        return as_float32<Src>(code);
    }
}

// Magnitudes side by side, each with its number's sign: the top bit of `sign`.
template <typename Src, typename Dst, u32 N>
GPUCAST_INLINE u32 signed_lanes(const u32 (&magnitude)[N], const u32 (&sign)[N]) {
    constexpr u32 lane = Dst::bits <= 8 ? 8 : 16;
    const u32 code = low_lanes<lane>(magnitude);
    if constexpr (Src::sign_code == 0) {
        return code;
    } else {
        const u32 signs = high_lanes<lane>(sign) >> (lane - Dst::bits) & repeated<lane>(u32(Dst::sign_code));
        if constexpr (Dst::has_negative_zero) return code | signs;
        // A lane's top bit is set in the sum unless the lane is zero. Only types of 8 bits are so.
        return code | (signs & (code + 0x7f7f7f7f));
    }
}

template <typename Src, typename Dst, u32 N, typename Word, typename Rule>
GPUCAST_INLINE u32 small_lanes(const Word (&codes)[N], Rule rule) {
    u32 sign[N], magnitude[N];
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
        float x = float32_for_small<Src>(codes[i]);
        // A conversion may have changed the sign of NaN.
        sign[i] = Src::is_float && Src::bits != 32 ? sign_of<Src>(codes[i]) : ptx::bits(x);
        if (Src::has_nan && !Dst::has_nan && x != x) {
            // Nothing stands for NaN: it becomes the zero of the other sign.
            x = 0;
            sign[i] = ~sign[i];
        }
        magnitude[i] = small_magnitude<Dst, Src::has_nan>(x, rule);
    }
    return signed_lanes<Src, Dst>(magnitude, sign);
}

// ---- two halves of a word at a time, from FLOAT16 or BFLOAT16 to a float of 8 bits or fewer ----

template <typename Row>
GPUCAST_CONSTANT bool is_float16() {
    if constexpr (!Row::is_float) return false;
    else return Row::bits == 16 && Row::mantissa_bits == 10;
}

// FLOAT16 to a type with as many exponents, one more or none: its code is rounded off as it stands.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool cuts_halves() {
    if constexpr (!is_small<Dst>()) return false;
    else return is_float16<Src>() && Dst::bits == 8 && Dst::mantissa_bits == 2 && int(Dst::bias) - int(Src::bias) <= 1;
}

// Where a shortcut by two halves is known. Sums of FLOAT16 must stay within its exponents.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool has_halves() {
    if constexpr (GPUCAST_ARCH < 800 || !is_small<Dst>() || Dst::bits > 8) return false;
    else if constexpr (is_upper_half<Src>()) return true;
    else if constexpr (!is_float16<Src>()) return false;
    else return cuts_halves<Src, Dst>() || int(Dst::max_code >> Dst::mantissa_bits) - int(Dst::bias) <= 5 + int(Dst::mantissa_bits);
}

// FLOAT16 as the carrier of 16-bit integers.
struct CarrierHalf {
    enum : u32 { bits = 16, mantissa_bits = 10 };
    enum : int { bias = 15 };
    enum : bool { is_float = 1 };
    enum : u64 { inf_code = 0x7c00 };
};

// Whether 16-bit integers, of which those beyond 511 all overflow, go by way of FLOAT16.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool has_integer_halves() {
    if constexpr (GPUCAST_ARCH < 900 || !is_small<Dst>() || Src::is_float || Src::bits != 16) return false;
    else return has_halves<CarrierHalf, Dst>() && int(Dst::max_code >> Dst::mantissa_bits) - int(Dst::bias) <= 8;
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

// The value that a destination's code has, as a source's code, in both halves.
template <typename Src, typename Dst>
GPUCAST_CONSTANT u32 both_halves(u32 code) {
    const u32 field = code >> Dst::mantissa_bits, fraction = code & ((1u << Dst::mantissa_bits) - 1);
    const u32 same = (field + Src::bias - Dst::bias) << Src::mantissa_bits;
    return repeated<16>(same | fraction << (Src::mantissa_bits - Dst::mantissa_bits));
}

// As small_magnitude, of two magnitudes; the codes are in the low bytes of the halves. NaN gives the last code.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE u32 halves_magnitude(u32 a, Rule) {
    const u32 shift = Src::mantissa_bits - Dst::mantissa_bits;
    const u32 last = last_code<Dst, Rule>();
    if constexpr (cuts_halves<Src, Dst>()) {
        // Of what overflows only the infinity itself is beyond the last code.
        if constexpr (Rule::overflow() == Overflow::saturate) a = halves_min<Src>(a, both_halves<Src, Dst>(last));
        else a = halves_min<Src>(a, repeated<16>(u32(Src::inf_code)));
        // One exponent more: normal numbers have it, subnormal ones double their fraction.
        if constexpr (int(Dst::bias) != int(Src::bias)) a += halves_min<Src>(a, repeated<16>(1u << Src::mantissa_bits));
        const u32 rounded = a + repeated<16>((1u << (shift - 1)) - 1) + (a >> shift & repeated<16>(1));
        return rounded >> shift;
    } else {
        a = halves_min<Src>(a, both_halves<Src, Dst>(last));
        const u32 least = both_halves<Src, Dst>(1u << Dst::mantissa_bits);
        const u32 power = halves_max<Src>(a, least) & repeated<16>(u32(Src::inf_code));
        const u32 sum = halves_fma<Src>(power, repeated<16>((Src::bias + shift) << Src::mantissa_bits), a);
        const u32 steps = (Src::bias + 1 - Dst::bias) << Dst::mantissa_bits;
        return sum + (power >> shift) - power - repeated<16>((shift << Src::mantissa_bits) + steps);
    }
}

// Four codes in two words to the bytes of one.
template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE u32 halves_lanes(u32 low, u32 high, Rule rule) {
    const u32 magnitudes = repeated<16>(0x7fff), top = repeated<8>(0x80);
    const u32 a = low & magnitudes, b = high & magnitudes;
    // A half's top bit is set in the sum where it is NaN; it is copied over the whole byte.
    const u32 beyond = repeated<16>(0x8000 - u32(Src::inf_code) - (Rule::infinity_is_nan() ? 0 : 1));
    const u32 nan = Src::has_nan ? ptx::prmt(a + beyond, b + beyond, 0xfdb9) : 0;
    const u32 code = ptx::prmt(halves_magnitude<Src, Dst>(a, rule), halves_magnitude<Src, Dst>(b, rule), 0x6420);
    u32 signs = ptx::prmt(low, high, 0x7531);
    if constexpr (Dst::has_nan) {
        const u32 found = (code & ~nan) | (nan & repeated<8>(u32(Dst::nan_code)));
        if constexpr (Dst::has_negative_zero) return found | (signs & top);
        return found | (signs & (found + repeated<8>(0x7f)) & top);
    } else {
        // Nothing stands for NaN: it becomes the zero of the other sign.
        signs = (signs ^ nan) & top;
        return (code & ~nan & repeated<8>(u32(Dst::max_code))) | signs >> (8 - Dst::bits);
    }
}

// Two integers as FLOAT16, cut to -512 to 511. Added to the fraction of 1024 or 1536 they are at once floats.
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
    const u32 a = halves_of_integers<Src>(low), b = halves_of_integers<Src>(high), magnitudes = repeated<16>(0x7fff);
    const u32 code = ptx::prmt(halves_magnitude<CarrierHalf, Dst>(a & magnitudes, rule),
                               halves_magnitude<CarrierHalf, Dst>(b & magnitudes, rule), 0x6420);
    const u32 own = Dst::bits == 8 ? code : code & repeated<8>(u32(Dst::max_code));
    if constexpr (Src::sign_code == 0) return own;
    // No integer but 0 becomes zero, and 0 has no sign here.
    return own | (ptx::prmt(a, b, 0x7531) & repeated<8>(0x80)) >> (8 - Dst::bits);
}

// The code of an upper half, in the high half.
template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE u32 upper_half(Word code, Rule) {
    const float x = as_float32<Src>(code), max = ptx::as_float(u32(Dst::max_code) << 16);
    const u32 bits = ptx::bits(Rule::overflow() == Overflow::saturate ? ptx::max(ptx::min(x, max), ptx::neg(max)) : x);
    const u32 rounded = bits + 0x7fff + (bits >> 16 & 1);
    if (Src::has_nan && x != x) return sign_of<Src>(code) | u32(Dst::nan_code) << 16;
    return rounded;
}

template <typename Src, typename Dst, typename Word, typename Rule>
GPUCAST_INLINE u32 to_float(Word code, Rule) {
    float x;
    if constexpr (Src::bits == 64 && Src::is_float) {
        x = ptx::cvt_rn_f32(ptx::as_double(code));
    } else if constexpr (Src::bits >= 32 && !Src::is_float) {
        x = ptx::cvt_rn_f32(integer<Src>(code));
    } else {
        x = as_float32<Src>(code);
    }
    const float max = ptx::as_float(u32(Dst::max_code));
    const u32 bits = ptx::bits(Rule::overflow() == Overflow::saturate ? ptx::max(ptx::min(x, max), ptx::neg(max)) : x);
    if (Src::has_nan && x != x) return nan_of_sign<Dst>(sign_of<Src>(code));
    return bits;
}

template <typename Src, typename Dst, typename Word>
GPUCAST_INLINE u64 to_double(Word code) {
    if constexpr (Src::is_float) {
        const float x = as_float32<Src>(code);
        return x != x ? nan_of_sign<Dst>(u64(sign_of<Src>(code)) << 32) : ptx::bits(ptx::cvt_f64(x));
    } else {
        return ptx::bits(ptx::cvt_rn_f64(integer<Src>(code)));
    }
}

template <typename Src, typename Dst, typename Word, typename Rule, typename Family>
GPUCAST_INLINE Word convert(Word code, Rule rule, Family family, FloatFamily destination) {
    if constexpr (has_float32<Src>() && is_small<Dst>()) {
        return small_lanes<Src, Dst>({code}, rule);
    } else if constexpr (has_float32<Src>() && is_upper_half<Dst>()) {
        return upper_half<Src, Dst>(code, rule) >> 16;
    } else if constexpr (has_float32<Src>() && Dst::bits == 32) {
        return to_float<Src, Dst>(code, rule);
    } else if constexpr (has_float32<Src>() && Dst::bits == 64 && Rule::overflow() != Overflow::saturate) {
        return to_double<Src, Dst>(code);
    } else {
        return encode<Dst>(decode<Src>(code, family), rule, destination);
    }
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// Any number to a floating type of any layout: one rounding.
namespace gpucast {

template <typename DType, typename Word>
GPUCAST_CONSTANT Word nan_of_sign(Word sign) {
    return Word(DType::nan_code) | (DType::nan_is_signed ? sign : 0);
}

// The last code of a magnitude that is cut off at the rule's overflow: that of the largest number, or of what stands
// for numbers beyond it, which comes next.
template <typename DType, typename Rule>
GPUCAST_CONSTANT u32 last_code() {
    if constexpr (Rule::overflow() == Overflow::infinity) return u32(DType::inf_code);
    else if constexpr (Rule::overflow() == Overflow::nan) return u32(DType::nan_code);
    else return u32(DType::max_code);
}

// The code of x, given its rounded magnitude as a code that may be above that of the largest number: sign, overflow,
// infinities and NaN.
template <typename DType, typename Word, typename Rule>
GPUCAST_CONSTANT Word finish_float(Word code, const Number<Word>& x, Rule) {
    const Word sign = x.negative ? Word(DType::sign_code) : 0;
    if (code > Word(DType::max_code) || x.kind == Kind::infinite) {
        if constexpr (Rule::overflow() == Overflow::infinity) {
            code = Word(DType::inf_code) | sign;
        } else if constexpr (Rule::overflow() == Overflow::nan) {
            code = nan_of_sign<DType>(sign);
        } else {
            code = Word(DType::max_code) | sign;
        }
    } else if (DType::has_negative_zero || code != 0) {
        code |= sign;
    }
    if constexpr (Rule::infinity_is_nan()) {
        if (x.kind == Kind::infinite) code = nan_of_sign<DType>(sign);
    }
    if (x.kind == Kind::nan) {
        if constexpr (DType::has_nan) {
            code = nan_of_sign<DType>(sign);
        } else {
            // Nothing stands for NaN: it becomes the zero of the other sign.
            code = sign ^ Word(DType::sign_code);
        }
    }
    return code;
}

template <typename DType, typename Word, typename Rule>
GPUCAST_CONSTANT Word encode(const Number<Word>& x, Rule rule, FloatFamily) {
    // A code counts ULPs from zero on: each exponent field has as many, and each field after the first doubles their
    // size. So the exponent field and the rounded significand add up to the code, and a carry goes into the exponent by
    // itself.
    const int field = x.exponent + DType::bias;
    const int above = field > 1 ? field - 1 : 0;
    const int below = field < 1 ? 1 - field : 0;
    const int drop = Width<Word>::bits - 1 - int(DType::mantissa_bits) + below;
    Word code = Word(above) << DType::mantissa_bits;
    constexpr Rounding mode = Rule::rounding();
    // A type without a sign rounds magnitudes.
    const bool negative = DType::sign_code != 0 && x.negative;
    code += rounded<mode>(x.significand, drop, negative);
    if constexpr (is_directed(mode)) {
        const bool away = mode == (negative ? Rounding::toward_negative : Rounding::toward_positive);
        if (!away && code > Word(DType::max_code)) code = Word(DType::max_code);
    }
    return finish_float<DType>(code, x, rule);
}

// ---- fast paths ----
// The compute type is float: the number itself or the number rounded to odd (float32.cuh).

// Whether the type is a float of 16 bits or fewer whose numbers are below 2^17: `float32_for_small` clamps there.
template <typename DType>
GPUCAST_CONSTANT bool is_small() {
    if constexpr (!DType::is_float) return false;
    else return DType::bits <= 16 && int(DType::max_code >> DType::mantissa_bits) - int(DType::bias) <= 16;
}

// Whether the type is the upper half of a FLOAT: BFLOAT16.
template <typename DType>
GPUCAST_CONSTANT bool is_upper_half() {
    if constexpr (!DType::is_float) return false;
    else return DType::bits == 16 && DType::mantissa_bits == 7;
}

// The code, in the low bits, of a magnitude that is not above the largest of a small float.
//
// Adding a power of two whose ULP is that of the destination for this number rounds it: the sum's fraction is the
// rounded number in ULPs of the destination, and its exponent says how many ULPs lie below.
template <typename DType>
GPUCAST_INLINE u32 small_code(float a) {
    const int shift = 23 - int(DType::mantissa_bits);
    const float power = ptx::as_float(ptx::bits(ptx::max(a, ptx::as_float(u32(128 - DType::bias) << 23))) & 0x7f800000);
    const u32 sum = ptx::bits(ptx::fma_rn(power, ptx::as_float(u32(127 + shift) << 23), a));
    return sum + (sum >> shift) - (u32(128 + shift - DType::bias) << DType::mantissa_bits);
}

// The code of a magnitude of a small float, in the low bits, with overflow and NaN.
template <typename DType, bool maybe_nan, typename Rule>
GPUCAST_INLINE u32 small_magnitude(float x, Rule) {
    float a = ptx::min(ptx::abs(x), ptx::as_float(float32_bits<DType>(last_code<DType, Rule>())));
    if constexpr (maybe_nan && DType::has_nan) {
        // NaN's code is that of some float, too, if the finite numbers went on.
        const bool nan = Rule::infinity_is_nan() ? (ptx::bits(x) & 0x7fffffff) >= 0x7f800000 : x != x;
        a = nan ? ptx::as_float(float32_bits<DType>(u32(DType::nan_code))) : a;
    }
    return small_code<DType>(a);
}

// The number as a float, for a small destination. Integers far beyond its largest number are clamped first, because a
// conversion of 32 bits is faster.
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

// Codes in the lanes of a word, from magnitudes and their signs: the top bits of `sign`.
template <typename Src, typename Dst, u32 N>
GPUCAST_INLINE u32 signed_lanes(const u32 (&magnitude)[N], const u32 (&sign)[N]) {
    constexpr u32 lane = Dst::bits <= 8 ? 8 : 16;
    const u32 code = low_lanes<lane>(magnitude);
    if constexpr (Src::sign_code == 0 && !Src::has_nan) {
        return code;
    } else {
        const u32 signs = high_lanes<lane>(sign) >> (lane - Dst::bits) & repeated<lane>(u32(Dst::sign_code));
        if constexpr (Dst::has_negative_zero || Dst::sign_code == 0) return code | signs;
        // Zero has no sign. A lane's top bit is set in the sum unless the lane is zero; only types of 8 bits have no
        // -0.
        return code | (signs & (code + 0x7f7f7f7f));
    }
}

template <typename DType>
GPUCAST_CONSTANT bool is_float16() {
    if constexpr (!DType::is_float) return false;
    else return DType::bits == 16 && DType::mantissa_bits == 10;
}

// ---- several numbers at a time, by an instruction; its NaN has no sign, and is replaced ----

// Whether an instruction rounds a float to the destination, all but NaN as the rule says.
template <typename Dst, typename Rule>
GPUCAST_CONSTANT bool has_packing(Rule) {
    if constexpr (!Dst::is_float) return false;
    else if constexpr (Dst::bits == 16) return GPUCAST_ARCH >= 800 && (is_float16<Dst>() || is_upper_half<Dst>()) && Rule::overflow() == Overflow::infinity;
    else return Dst::bits == 8 && has_conversion<Dst>() && Rule::overflow() == Overflow::saturate && !Rule::infinity_is_nan();
}

// As many numbers as fill a word, to its lanes.
template <typename Dst, u32 N>
GPUCAST_INLINE u32 packed(const float (&x)[N]) {
    if constexpr (Dst::bits == 16) return is_float16<Dst>() ? ptx::cvt_rn_f16x2(x[0], x[N - 1]) : ptx::cvt_rn_bf16x2(x[0], x[N - 1]);
    const float b = N > 1 ? x[1 % N] : 0, c = N > 2 ? x[2 % N] : 0, d = N > 2 ? x[N - 1] : 0;
    return is_e4m3<Dst>() ? ptx::cvt_e4m3x4(x[0], b, c, d) : ptx::cvt_e5m2x4(x[0], b, c, d);
}

// The top bits of the lanes that are NaN; other bits are arbitrary. Of 8 bits the instruction's NaN has all bits set but
// its sign.
template <typename Dst>
GPUCAST_INLINE u32 nan_bits(u32 lanes) {
    if constexpr (Dst::bits == 16) return (lanes & repeated<16>(0x7fff)) + repeated<16>(0x7fff - u32(Dst::inf_code));
    else return (lanes & repeated<8>(0x7f)) + repeated<8>(1);
}

// NaN with its sign, the top bit of a number's `sign`, in place of the instruction's.
template <typename Dst, u32 N>
GPUCAST_INLINE u32 with_signed_nan(u32 lanes, const u32 (&sign)[N]) {
    constexpr u32 lane = Dst::bits;
    const u32 nan = ptx::prmt(nan_bits<Dst>(lanes), 0, lane == 16 ? 0xbb99 : 0xba98);
    const u32 own = (high_lanes<lane>(sign) & repeated<lane>(u32(Dst::sign_code))) | repeated<lane>(u32(Dst::nan_code));
    return (lanes & ~nan) | (own & nan);
}

template <typename Src, typename Dst, u32 N, typename Word>
GPUCAST_INLINE u32 packed_lanes(const Word (&codes)[N]) {
    float x[N];
#pragma unroll
    for (u32 i = 0; i < N; ++i) x[i] = is_upper_half<Dst>() ? as_float32<Src>(codes[i]) : float32_for_small<Src>(codes[i]);
    return packed<Dst>(x);
}

// The same with the right NaN.
template <typename Src, typename Dst, u32 N, typename Word>
GPUCAST_INLINE u32 finished_lanes(u32 lanes, const Word (&codes)[N]) {
    u32 sign[N];
#pragma unroll
    for (u32 i = 0; i < N; ++i) sign[i] = sign_of<Src>(codes[i]);
    return with_signed_nan<Dst>(lanes, sign);
}

// The same with the types that have no NaN.
template <typename Dst, typename Rule>
GPUCAST_CONSTANT bool has_instruction(Rule rule) {
    return has_packing<Dst>(rule) || has_float6_conversion<Dst>() || (is_float4<Dst>() && has_conversion<Dst>());
}

// Floats for a type without NaN, where it becomes the zero of the other sign.
template <typename Src, u32 N, typename Word>
GPUCAST_INLINE void floats_without_nan(const Word (&codes)[N], float (&x)[N]) {
    float any = 0;
#pragma unroll
    for (u32 i = 0; i < N; ++i) {
        x[i] = float32_for_small<Src>(codes[i]);
        any = Src::has_nan ? ptx::max_nan(any, x[i]) : any;
    }
    if (any != any) {
        ptx::mark_rare();
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            if (x[i] != x[i]) x[i] = ptx::as_float(~sign_of<Src>(codes[i]) & 0x80000000);
        }
    }
}

// Whether FLOAT16 has the values of the source, by an instruction or for want of NaN by a product, and so FLOAT and
// BFLOAT16, all but NaN as the rule says.
template <typename Src, typename Dst, typename Rule>
GPUCAST_CONSTANT bool has_unpacking(Rule) {
    if constexpr (!Src::is_float || !Dst::is_float) return false;
    else return (has_conversion<Src>() || Src::bits <= 6) && (is_float16<Dst>() || is_upper_half<Dst>() || Dst::bits == 32)
        && !(Src::has_inf && Rule::overflow() == Overflow::saturate);
}

// The top bits of the bytes that are NaN; other bits are arbitrary.
template <typename Src>
GPUCAST_INLINE u32 float8_nan_bits(u32 codes) {
    u32 last = Src::max_code;
    if constexpr (Src::has_inf) last = Src::inf_code;
    return (codes & repeated<8>(0x7f)) + repeated<8>(0x7f - last);
}

// Four codes of a type without NaN, in bytes, to FLOAT16. The bits are taken for those of a FLOAT16 and multiplied by the
// power of two between the two biases, which makes subnormal numbers normal.
template <typename Src>
GPUCAST_INLINE void halves_of_small(u32 codes, u32 (&halves)[2]) {
    constexpr u32 sign = Src::sign_code, power = (30 - Src::bias) << 10;
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
        const u32 upper = ptx::prmt(codes, 0, i == 0 ? 0x1404 : 0x3424), magnitude = upper & repeated<16>((sign - 1) << 8);
        const u32 aligned = magnitude >> (Src::mantissa_bits == 3) << (Src::mantissa_bits == 1);
        const u32 found = ptx::fma_rn_f16x2(aligned, repeated<16>(power), 0);
        halves[i] = found | (upper & repeated<16>(sign << 8)) << (8 - Src::bits);
    }
}

// Whether an instruction converts a small float to pairs of BFLOAT16.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool unpacks_to_pairs() {
    return GPUCAST_PAIRS && is_upper_half<Dst>() && (has_conversion<Src>() || has_float6_conversion<Src>());
}

// Four codes, in bytes, to the words that hold their results.
template <typename Src, typename Dst>
GPUCAST_INLINE void unpack(u32 codes, u32 (&out)[Dst::bits / 8]) {
    if constexpr (unpacks_to_pairs<Src, Dst>()) {
        if constexpr (Src::bits == 6 && Src::mantissa_bits == 3) ptx::cvt_bf16x4_e2m3(codes, out[0], out[1]);
        else if constexpr (Src::bits == 6) ptx::cvt_bf16x4_e3m2(codes, out[0], out[1]);
        else if constexpr (is_e4m3<Src>()) ptx::cvt_bf16x4_e4m3(codes, out[0], out[1]);
        else ptx::cvt_bf16x4_e5m2(codes, out[0], out[1]);
    } else {
        u32 halves[2];
        if constexpr (Src::bits <= 6 && !has_float6_conversion<Src>()) halves_of_small<Src>(codes, halves);
        else if constexpr (Src::bits == 6 && Src::mantissa_bits == 3) ptx::cvt_f16x4_e2m3(codes, halves[0], halves[1]);
        else if constexpr (Src::bits == 6) ptx::cvt_f16x4_e3m2(codes, halves[0], halves[1]);
        else if constexpr (is_e4m3<Src>()) ptx::cvt_f16x4_e4m3(codes, halves[0], halves[1]);
        else ptx::cvt_f16x4_e5m2(codes, halves[0], halves[1]);
#pragma unroll
        for (u32 i = 0; i < 2; ++i) {
            float low, high;
            ptx::cvt_f32_f16x2(halves[i], low, high);
            if constexpr (is_float16<Dst>()) {
                out[i] = halves[i];
            } else if constexpr (Dst::bits == 16) {
                out[i] = ptx::prmt(ptx::bits(low), ptx::bits(high), 0x7632);
            } else {
                out[2 * i] = ptx::bits(low);
                out[2 * i + 1] = ptx::bits(high);
            }
        }
    }
}

// NaN with its sign in what `unpack` gave.
template <typename Src, typename Dst>
GPUCAST_INLINE void finish_unpacked(u32 codes, u32 (&out)[Dst::bits / 8]) {
    const u32 nan = ptx::prmt(float8_nan_bits<Src>(codes), 0, 0xba98);
#pragma unroll
    for (u32 i = 0; i < Dst::bits / 8; ++i) {
        // The bytes of this word's elements, each of which covers its element.
        const u32 elements = Dst::bits == 16 ? (i == 0 ? 0x1100 : 0x3322) : 0x1111 * i;
        const u32 mask = ptx::prmt(nan, 0, elements);
        const u32 top = Dst::bits == 16 ? 0x80008000 : 0x80000000, quiet = u32(Dst::nan_code) * (Dst::bits == 16 ? 0x00010001 : 1);
        out[i] = (out[i] & ~mask) | (mask & ((ptx::prmt(codes, 0, elements) & top) | quiet));
    }
}

// ---- one number or more ----

template <typename Src, typename Dst, u32 N, typename Word, typename Rule>
GPUCAST_INLINE u32 small_lanes(const Word (&codes)[N], Rule rule) {
    if constexpr (has_packing<Dst>(rule)) {
        const u32 lanes = packed_lanes<Src, Dst>(codes);
        if constexpr (!Src::has_nan) {
            return lanes;
        } else if constexpr (Dst::bits == 16) {
            return finished_lanes<Src, Dst>(lanes, codes);
        } else {
            if ((nan_bits<Dst>(lanes) & repeated<8>(0x80)) == 0) return lanes;
            ptx::mark_rare();
            return finished_lanes<Src, Dst>(lanes, codes);
        }
    } else if constexpr (has_float6_conversion<Dst>() && N == 4) {
        float x[N];
        floats_without_nan<Src>(codes, x);
        return Dst::mantissa_bits == 3 ? ptx::cvt_e2m3x4(x[0], x[1], x[2], x[3]) : ptx::cvt_e3m2x4(x[0], x[1], x[2], x[3]);
    } else {
        u32 sign[N], magnitude[N];
#pragma unroll
        for (u32 i = 0; i < N; ++i) {
            float x = float32_for_small<Src>(codes[i]);
            // From the code, because a conversion may have changed the sign of NaN.
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
}

// Four integers of 8 bits to two words of FLOAT16. As the fraction of 1024 an integer is a float already, from which that
// number is subtracted; signed integers get an offset that makes them positive.
template <typename Src>
GPUCAST_INLINE void halves_of_bytes(u32 bytes, u32& low, u32& high) {
    constexpr bool is_signed = Src::sign_code != 0;
    const u32 positive = is_signed ? bytes ^ repeated<8>(0x80) : bytes, one = repeated<16>(0x3c00);
    const u32 less = repeated<16>(is_signed ? 0xe480 : 0xe400);
    low = ptx::fma_rn_f16x2(ptx::prmt(positive, 0x64, 0x4140), one, less);
    high = ptx::fma_rn_f16x2(ptx::prmt(positive, 0x64, 0x4342), one, less);
}

// Whether `halves_of_nibbles` has the instructions for a type.
template <typename Dst>
GPUCAST_CONSTANT bool has_nibble_halves() {
    return is_float16<Dst>() || (is_upper_half<Dst>() && GPUCAST_ARCH >= 800);
}

// Eight integers of 4 bits to four words of FLOAT16 or BFLOAT16. As the fraction of 1024, or 128, an integer is a float
// already, from which that number is subtracted; signed integers get an offset that makes them positive.
template <typename Src, typename Dst>
GPUCAST_INLINE void halves_of_nibbles(u32 nibbles, u32* halves) {
    constexpr bool is_signed = Src::sign_code != 0, wide = is_float16<Dst>();
    constexpr u32 exponent = repeated<16>(wide ? 0x6400 : 0x4300), one = repeated<16>(wide ? 0x3c00 : 0x3f80);
    constexpr u32 less = repeated<16>((wide ? 0xe400 : 0xc300) + (is_signed ? 8 : 0));
    const u32 even = is_signed ? nibbles ^ repeated<8>(0x88) : nibbles, odd = even >> 4;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        // The byte of a pair, in both halves; of the upper one the higher nibble counts.
        const u32 both = ptx::prmt(even, odd, 0x4400 + 0x1111 * i);
        const u32 floats = (both & repeated<16>(15)) | exponent;
        halves[i] = wide ? ptx::fma_rn_f16x2(floats, one, less) : ptx::fma_rn_bf16x2(floats, one, less);
    }
}

// Whether a FLOAT16's own code is rounded to the destination's: where both have as many exponent bits, and biases that
// differ by one at most.
template <typename Src, typename Dst>
GPUCAST_CONSTANT bool cuts_halves() {
    if constexpr (!is_small<Dst>()) return false;
    else return is_float16<Src>() && Dst::bits == 8 && Dst::mantissa_bits == 2 && int(Dst::bias) - int(Src::bias) <= 1;
}

// A code of BFLOAT16, in the high half.
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
    if constexpr (Src::is_float || Src::is_e8m0) {
        const float x = as_float32<Src>(code);
        return x != x ? nan_of_sign<Dst>(u64(sign_of<Src>(code)) << 32) : ptx::bits(ptx::cvt_f64(x));
    } else {
        return ptx::bits(ptx::cvt_rn_f64(integer<Src>(code)));
    }
}

template <typename Src, typename Dst, typename Word, typename Rule, typename Family>
GPUCAST_INLINE Word convert(Word code, Rule rule, Family family, FloatFamily destination) {
    if constexpr (rounds_by_rule<Dst, Rule>()) {
        return encode<Dst>(decode<Src>(code, family), rule, destination);
    } else if constexpr (has_float32<Src>() && is_small<Dst>()) {
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

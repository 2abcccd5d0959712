// SPDX-License-Identifier: Apache-2.0
// Numbers divided by their block's scale and rounded to codes, for quantize.cu and quantize_tiles.cu. `F` is the
// format.
namespace gpucast {

// Whether the reciprocal of a divisor can be kept for the elements of its block (`Divisor::prepared`).
template <typename F, typename V>
GPUCAST_CONSTANT bool is_prepared() {
    return !V::wide && !F::scale::is_e8m0 && !F::by_steps && !F::stochastic && F::element::is_float && ReciprocalCodes<typename F::element, F>::known;
}

// The codes of a block's elements by its scale. Where all elements are finite FLOATs and the scale is neither tiny nor
// huge there is a fast path in FLOAT; else the compute type is DOUBLE.
template <typename F, typename Src, typename Float, typename Double>
struct Divisor {
    typedef Value<Src, Float, Double> V;
    typedef typename V::Word Word;
    typedef typename F::element DType;
    enum : bool {
        by_power = !V::wide && (F::scale::is_e8m0 || F::by_steps) && !F::stochastic,
        by_float = !V::wide && !F::scale::is_e8m0 && !F::by_steps && !F::stochastic,
        by_float16 = ReciprocalCodes<DType, F>::by_float16,
        has_codes = (has_conversion<DType>() || (F::by_steps && DType::is_int)) && (!F::rounds || GPUCAST_ARCH >= 800),
        // Whether a product is rounded as the formula has it. FLOAT16 is too coarse for the smallest codes of FLOAT8E5M2.
        by_product = by_power && has_codes && (!F::divides || (F::rounds && (u32(DType::bits) < 8 || DType::is_int || is_e4m3<DType>()))),
        // Whether quotients or products of steps are bracketed. With scales that are powers of two products are often
        // ties, which a bracket leaves open.
        by_bracket = by_power && F::by_steps && !F::rounds && (F::divides || (by_float16 && !F::scale::is_e8m0)),
        // Whether the divisor can tell that one product is enough: it has many bits, and the source few (quotients.cuh).
        by_one = by_float && is_float4<DType>() && ReciprocalCodes<DType, F>::known && Src::bits == 16 && (F::global_scale || u32(F::scale::bits) == 32),
        // Whether one product tells whether it is enough.
        by_ends = by_float && ReciprocalCodes<DType, F>::by_ends && Src::bits == 32,
        // Whether numbers may be divided that lack a factor (`of_products`).
        takes_factor = by_float && ReciprocalCodes<DType, F>::known && DType::is_float && Src::bits == 32,
        // Whether elements are multiplied by a power of two.
        exact = by_power && !F::divides && !F::rounds && F::over_power && u32(F::factor_mantissa) == 0
    };
    Scale scale;
    float global, factor;
    Quotient by;
    // Whether the scale allows the fast path.
    bool fast;

    GPUCAST_INLINE Divisor(const Scale& of, float global_scale)
        : scale(of), global(global_scale), factor(1), by(divisor(of.code, global_scale)), fast(!of.is_nan) {
        if constexpr (F::over_power && (by_power || F::by_steps)) {
            // Finite and not 0. That of the largest scale, 2^127, is subnormal.
            factor = ptx::as_float(of.code >= 254 ? u32(F::last_factor) : (254 - of.code) << 23 | u32(F::factor_mantissa));
            if constexpr (F::least_code != 0) {
                factor = ptx::min(factor, ptx::as_float((254 - u32(F::least_code)) << 23 | u32(F::factor_mantissa)));
            }
            if constexpr (!by_power) fast = false;
        } else if constexpr (F::by_steps) {
            const float s = narrow_scale<F, Float>(of.code);
            factor = F::step_factor(s, s, global_scale);
            if constexpr (by_bracket || F::divides) by = Quotient(factor);
            // A product or quotient that may be NaN is computed one by one.
            const bool is_safe = factor != 0 && ptx::abs(factor) < ptx::as_float(u32(V::infinity));
            if constexpr (by_bracket) fast &= by.in_range();
            else fast &= by_power && is_safe && (!(by_product && F::divides) || (by.in_range() && by.is_short()));
        } else if constexpr (by_float) fast = by.in_range();
        else fast = false;
    }

    // The codes of a tile, into a tile that is zero before. `fits` where the scale was computed from these elements.
    template <u32 Elements, bool fits, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE void tile(const Tile<SrcBytes>& in, Tile<DstBytes>& out, i64 begin, bool finite, const Random& random) const {
        if (fast && finite) {
            quick_tile<Elements, fits>(in, out);
            return;
        }
        if constexpr (by_power || by_float) ptx::mark_rare();
        if (scale.is_nan) return;
        if constexpr (F::stochastic) {
            u32 words[Elements];
            random.template words<Elements>(begin, words);
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) put<DType::bits>(out, i, at_random(V::of(get<Src::bits, Word>(in, i)), words[i]));
        } else {
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) put<DType::bits>(out, i, in_double(V::of(get<Src::bits, Word>(in, i))));
        }
    }

    // The same of finite elements, where `fast`.
    template <u32 Elements, bool fits, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE void quick_tile(const Tile<SrcBytes>& in, Tile<DstBytes>& out) const {
        if constexpr (by_power || by_float) fast_tile<Elements, fits>(in, out);
    }

    // Whether codes of the products with `factor_of` are those of the quotients: of one, or where two have the same codes.
    GPUCAST_INLINE bool serves() const {
        if constexpr (by_one) return fast && is_clear();
        else return fast && !by.is_short();
    }
    GPUCAST_INLINE float factor_of() const {
        return ptx::as_float(ptx::bits(by.reciprocal(by_one ? 0 : -2)) - u32(ReciprocalCodes<DType, F>::lowered));
    }
    // The factor, or NaN where it does not serve.
    GPUCAST_INLINE float prepared() const { return serves() ? factor_of() : ptx::as_float(0x7fffffff); }
    // The factor as prepared for a scale, or NaN where quotients of a magnitude may be beyond the largest element.
    static GPUCAST_INLINE float limited(float r, float amax) {
        if constexpr (!by_float16) return r;
        const float most = ptx::as_float(0x40e00000 - u32(ReciprocalCodes<DType, F>::lowered));
        return ptx::mul_rn(amax, r) < most ? r : ptx::as_float(0x7fffffff);
    }

    // Codes by a factor that serves. `element(i)` gives the code of an element. With `within` all quotients are; else bits 4
    // to 6 of a byte of `left` are set where one may not be. `differ` is not zero where two products do not decide.
    template <bool within, typename Element, u32 DstBytes>
    GPUCAST_INLINE static void by_factor(const Element& element, float r, Tile<DstBytes>& out, u32& left, u32& differ) {
        typedef ReciprocalCodes<DType, F> Codes;
#pragma unroll
        for (u32 i = 0; i < Tile<DstBytes>::words; ++i) {
            Numbers<Codes::elements> x;
#pragma unroll
            for (u32 j = 0; j < u32(Codes::elements); ++j) x.of[j] = ptx::as_float(u32(V::of_finite(element(i * Codes::elements + j))));
            if constexpr (by_float16 && by_one && within) out.word[i] = Codes::codes_within(x, r);
            else if constexpr (by_one) out.word[i] = Codes::template codes<false>(x, r, 0, 0, 0, left);
            else out.word[i] = Codes::template both<false>(x, r, ptx::as_float(ptx::bits(r) + 4), 0, 0, 0, left, differ);
        }
    }

    // The codes of numbers times a FLOAT below 1, each product rounded; `is_power`: whether that is a power of two. False,
    // with any codes, where one product of each does not decide.
    template <bool is_power, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE bool of_products(const Tile<SrcBytes>& in, float by_all, Tile<DstBytes>& out) const {
        typedef ReciprocalCodes<DType, F> B;
        const int ulps = is_power ? 2 : 5;
        const float below = ptx::mul_rn(ptx::as_float(ptx::bits(near(-ulps)) - u32(B::lowered)), by_all);
        if (!fast) return false;
        if constexpr (by_ends) {
            return by_ends_of(in, out, below, is_power ? 6 : 15);
        } else {
            const float above = ptx::mul_rn(ptx::as_float(ptx::bits(near(ulps)) - u32(B::lowered)), by_all);
            u32 differ = 0, overflow = 0;
#pragma unroll
            for (u32 i = 0; i < Tile<DstBytes>::words; ++i) {
                out.word[i] = B::template both<false>(numbers<B::elements>(in, i), below, above, 0, 0, 0, overflow, differ);
            }
            return differ == 0 && (overflow & repeated<8>(0x70)) == 0;
        }
    }

    // One code.
    GPUCAST_INLINE u32 one(Word bits) const {
        if constexpr (by_power || by_float) {
            if (fast && (bits & ~Word(V::sign)) < Word(V::infinity)) {
                const u32 x[4] = {bits, 0, 0, 0}, odd[4] = {quotient(bits, ptx::mul_rn(by.high, F::last())), 0, 0, 0};
                return lanes<false>(x, odd) & u32(DType::mask);
            }
        }
        return in_double(bits);
    }

    // One code with DOUBLE as the compute type.
    GPUCAST_INLINE u32 in_double(Word bits) const {
        if (scale.is_nan) return 0;
        const double x = V::number(bits), q = quotient_in_double(x);
        if constexpr (DType::is_int) {
            return u32(clamped(to_integer(ptx::bits(as_float32<Double>(ptx::bits(q)))) + scale.zero_point)) & u32(DType::mask);
        } else {
            u32 odd = ptx::bits(as_float32<Double>(ptx::bits(q)));
            if (x != x) odd = u32(bits >> (Width<Word>::bits - 32)) | 0x7fc00000;
            return cast_code<Float, DType>(odd, typename F::element_rule());
        }
    }

    GPUCAST_INLINE u32 at_random(Word bits, u32 random) const {
        if (scale.is_nan) return 0;
        const double x = V::number(bits), q = quotient_in_double(x);
        const u64 same = cast_code<typename V::DType, Double>(u64(bits), ToWide());
        return convert_stochastic<Double, DType>(x != x ? same : ptx::bits(q), random, typename F::element_rule());
    }

private:
    GPUCAST_INLINE double quotient_in_double(double x) const {
        if constexpr (F::by_steps) return ptx::cvt_f64(F::step(ptx::cvt_rn_f32(x), factor));
        else return x / (scale_value<F, Float, Double>(scale.code) * ptx::cvt_f64(global));
    }
    static GPUCAST_INLINE Quotient divisor(u32 code, float global_scale) {
        if constexpr (!by_float) return Quotient(1);
        else if constexpr (F::global_scale) return Quotient(narrow_scale<F, Float>(code), global_scale);
        else return Quotient(narrow_scale<F, Float>(code));
    }
    GPUCAST_INLINE static int clamped(int sum) {
        return sum < int(F::lowest) ? int(F::lowest) : sum > int(F::largest) ? int(F::largest) : sum;
    }

    template <u32 Elements, bool fits, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE void fast_tile(const Tile<SrcBytes>& in, Tile<DstBytes>& out) const {
        typedef ReciprocalCodes<DType, F> Codes;
        const bool whole_words = Elements * u32(DType::bits) % 32 == 0;
        if constexpr (exact && is_upper_half<Src>() && has_halves<Src, DType>() && !has_conversion<DType>()) {
            // The products in BFLOAT16 are exact, or so small that they become zero.
            const u32 both = (ptx::bits(factor) >> 16) * 0x00010001;
#pragma unroll
            for (u32 i = 0; i < Elements; i += 4) {
                const u32 low = ptx::fma_rn_bf16x2(in.word[i / 2], both, repeated<16>(0x8000));
                const u32 high = ptx::fma_rn_bf16x2(in.word[i / 2 + 1], both, repeated<16>(0x8000));
                put_lanes<DType::bits, 4>(out, i, halves_lanes<Finite<Src>, DType>(low, high, typename F::element_rule()));
            }
        } else if constexpr (by_product && whole_words) {
            // The products are those of the formula, or exact as above. The instruction saturates.
            const float low = ptx::cvt_rn_f32(int(F::lowest)), high = ptx::cvt_rn_f32(int(F::largest));
            const float r = F::divides ? by.reciprocal(0) : factor;
            u32 overflow = 0;
#pragma unroll
            for (u32 i = 0; i < Tile<DstBytes>::words; ++i) {
                out.word[i] = Codes::template codes<true>(numbers<Codes::elements>(in, i), r, low, high, 0, overflow);
            }
        } else {
            if constexpr ((by_float || by_bracket) && Codes::known && whole_words) {
                if (by_reciprocals<Elements, fits>(in, out)) return;
                ptx::mark_rare();
#pragma unroll
                for (u32 i = 0; i < Tile<DstBytes>::words; ++i) out.word[i] = 0;
            }
            const float last = ptx::mul_rn(by.high, F::last());
#pragma unroll
            for (u32 i = 0; i < Elements; i += 4) {
                u32 x[4], odd[4];
#pragma unroll
                for (u32 j = 0; j < 4; ++j) {
                    x[j] = u32(V::of_finite(get<Src::bits, Word>(in, i + j)));
                    odd[j] = quotient(x[j], last);
                }
                put_lanes<DType::bits, 4>(out, i, lanes<fits>(x, odd));
            }
        }
    }

    // The numbers of a tile whose codes are word i of the result.
    template <u32 N, u32 SrcBytes>
    static GPUCAST_INLINE Numbers<N> numbers(const Tile<SrcBytes>& in, u32 i) {
        Numbers<N> x;
#pragma unroll
        for (u32 j = 0; j < N; ++j) x.of[j] = ptx::as_float(u32(V::of_finite(get<Src::bits, Word>(in, i * N + j))));
        return x;
    }

    // Whether no quotient of the source's numbers is near a midpoint of two codes (quotients.cuh).
    GPUCAST_INLINE bool is_clear() const {
        // The first of the bits that are zero in the source.
        const u32 shift = 9 + Src::mantissa_bits;
        bool clear = true;
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const float m = ptx::as_float(0x3f800000 + (i << 21)), t = i == 0 ? by.high : ptx::mul_rn(by.high, m);
            clear &= (ptx::bits(t) << shift) + (5u << shift) > 10u << shift;
        }
        return clear;
    }

    // Whether elements are divided by a number of few bits.
    GPUCAST_INLINE bool is_short() const { return !(F::by_steps && !F::divides) && by.is_short(); }

    // What elements are multiplied by, plus some ULPs.
    GPUCAST_INLINE float near(int ulps) const {
        if constexpr (F::by_steps && !F::divides) return ptx::as_float(ptx::bits(factor) + u32(ulps));
        else return by.reciprocal(ulps);
    }

    // The codes by two products with reciprocals (quotients.cuh). False where a quotient may be beyond the largest
    // element, or is too near the midpoint of two codes to decide.
    template <u32 Elements, bool fits, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE bool by_reciprocals(const Tile<SrcBytes>& in, Tile<DstBytes>& out) const {
        typedef ReciprocalCodes<DType, F> B;
        const bool limited = !fits || F::clamps;
        if constexpr (by_one) {
            u32 beyond = 0, same = 0;
            by_factor<false>([&](u32 i) { return get<Src::bits, Word>(in, i); }, factor_of(), out, beyond, same);
            if (is_clear() && (beyond & repeated<8>(0x70)) == 0) return true;
            ptx::mark_rare();
        }
        float low = 0, high = 0;
        if constexpr (limited && DType::is_int) {
            low = ptx::mul_rn(by.high, ptx::cvt_rn_f32(int(F::lowest) - scale.zero_point));
            high = ptx::mul_rn(by.high, ptx::cvt_rn_f32(int(F::largest) - scale.zero_point));
        }
        const u32 lowered = B::lowered, zero_points = u32(scale.zero_point) * u32(B::ones_of_byte);
        const float below = ptx::as_float(ptx::bits(near(-2)) - lowered);
        if constexpr (by_ends) {
            if (by_ends_of(in, out, below, 6)) return true;
            ptx::mark_rare();
        }
        const float above = ptx::as_float(ptx::bits(near(2)) - lowered);
        u32 differ = 0, overflow = 0;
#pragma unroll
        for (u32 i = 0; i < Tile<DstBytes>::words; ++i) {
            out.word[i] = B::template both<limited>(
                numbers<B::elements>(in, i), below, above, low, high, zero_points, overflow, differ);
        }
        const bool within = (overflow & repeated<8>(0x70)) == 0;
        if (differ == 0 && within) return true;
        ptx::mark_rare();
        u32 bits = 0;
        if constexpr (Src::bits == 32) {
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) bits |= in.word[i];
        }
        if (!within || !is_short() || (bits & 0x1fff) != 0) return false;
#pragma unroll
        for (u32 i = 0; i < Tile<DstBytes>::words; ++i) {
            const u32 other = B::template codes<limited>(numbers<B::elements>(in, i), above, low, high, zero_points, overflow);
            // All bits of the elements whose code, or integer before the zero point is added, is odd: these take the
            // other code, which is even.
            const u32 odd = ((out.word[i] ^ (u32(scale.zero_point) & 1) * u32(B::ones)) & u32(B::ones)) * u32(DType::mask);
            out.word[i] = (other & odd) | (out.word[i] & ~odd);
        }
        return true;
    }

    // The codes by one product, which is below the quotient; false where the midpoint of two codes may be between the two, at
    // most so many ULPs above the product, or where a quotient may be beyond the largest element.
    template <u32 SrcBytes, u32 DstBytes>
    static GPUCAST_INLINE bool by_ends_of(const Tile<SrcBytes>& in, Tile<DstBytes>& out, float below, u32 ulps) {
        typedef ReciprocalCodes<DType, F> B;
        u32 ends = 0, overflow = 0;
#pragma unroll
        for (u32 i = 0; i < Tile<DstBytes>::words; ++i) out.word[i] = B::codes_and_ends(numbers<B::elements>(in, i), below, overflow, ends);
        return (ends & 0xffff) < 0x10000 - ulps && (overflow & repeated<8>(0x70)) == 0;
    }

    // The bits of the quotient of a finite number, for `lanes`. Magnitudes are limited to `last`, beyond the elements'
    // range, because `Quotient` takes no larger ones.
    GPUCAST_INLINE u32 quotient(u32 bits, float last) const {
        const float x = ptx::as_float(bits);
        if constexpr (F::by_steps) return ptx::bits(F::step(x, factor));
        else if constexpr (by_power) return ptx::bits(ptx::mul_rn(x, factor));
        else return by.rounded_to_odd<!F::global_scale>(ptx::min(ptx::abs(x), last));
    }

    // Four codes, a byte each, from quotients. Where the scale is a FLOAT these are magnitudes within the elements'
    // range, and x has the signs.
    template <bool fits>
    GPUCAST_INLINE u32 lanes(const u32 (&x)[4], const u32 (&odd)[4]) const {
        u32 part[4];
        if constexpr (DType::is_int) {
            const float least = ptx::cvt_rn_f32(int(F::lowest) - scale.zero_point), most = ptx::cvt_rn_f32(int(F::largest) - scale.zero_point);
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                float q = ptx::as_float(by_float ? odd[j] | (x[j] & 0x80000000) : odd[j]);
                if constexpr (!fits || F::clamps) q = ptx::min(ptx::max(q, least), most);
                // The sum with 1.5 * 2^23 has the nearest integer in its low bits.
                part[j] = ptx::bits(ptx::add_rn(q, ptx::as_float(0x4b400000))) + u32(scale.zero_point);
            }
            return low_lanes<8>(part) & repeated<8>(u32(DType::mask));
        } else if constexpr (by_power) {
            return cast_lanes<Finite<Float>, DType>(odd, typename F::element_rule());
        } else {
#pragma unroll
            for (u32 j = 0; j < 4; ++j) part[j] = small_code<DType>(ptx::as_float(odd[j]));
            return signed_lanes<Float, DType>(part, x);
        }
    }
};

}  // namespace gpucast

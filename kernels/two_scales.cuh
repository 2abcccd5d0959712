// SPDX-License-Identifier: Apache-2.0
// The rule "4over6" for hadamard.cu: a block has the scale by which its largest magnitude becomes 6, or the one by which
// it becomes 4, whichever has the smaller sum of squared errors. Every result is that of
// gpucast/quantization/exact_quantize.py.
namespace gpucast {

// An element as FLOAT; only DOUBLE is rounded.
template <typename V>
GPUCAST_INLINE u32 narrow_bits(typename V::Word bits) {
    if constexpr (V::wide) return ptx::bits(ptx::cvt_rn_f32(ptx::as_double(bits)));
    else return bits;
}

// 1 / x, rounded once, as div_rn does it where no number is subnormal.
GPUCAST_INLINE float reciprocal_of(float x) {
    if ((ptx::bits(x) & 0x7fffffff) - (2u << 23) < (250u << 23)) {
        const float near = ptx::rcp(x), better = ptx::fma_rn(near, ptx::fma_rn(ptx::neg(x), near, 1), near);
        return ptx::fma_rn(better, ptx::fma_rn(ptx::neg(x), better, 1), better);
    }
    ptx::mark_rare();
    return ptx::div_rn(1, x);
}

// A tile without its first element.
template <u32 Bits, u32 Bytes>
GPUCAST_INLINE void drop_first(Tile<Bytes>& tile) {
    const u32 words = Tile<Bytes>::words, step = Bits == 64 ? 2 : 1;
#pragma unroll
    for (u32 i = 0; i < words; ++i) {
        const u32 next = i + step < words ? tile.word[i + step] : 0;
        tile.word[i] = Bits == 16 ? tile.word[i] >> 16 | next << 16 : next;
    }
}

// The codes of a block of 16 by a scale, and the sum of the squares by which these differ from the numbers times `factor`.
// One by one, which takes few registers.
template <typename F, typename Held, typename Float, typename Double, u32 Bytes>
GPUCAST_INLINE float squared_error(Tile<Bytes> in, const Scale& scale, float global, float factor, u64& codes) {
    typedef Value<Held, Float, Double> V;
    typedef typename V::Word Word;
    const Divisor<F, Held, Float, Double> divisor(scale, global);
    const float s = ptx::neg(narrow_scale<F, Float>(scale.code));
    float error = 0;
#pragma unroll 1
    for (u32 i = 0; i < 16; ++i) {
        const Word bits = V::of(get<Held::bits, Word>(in, 0));
        const u32 code = divisor.one(bits);
        const float y = ptx::mul_rn(ptx::as_float(narrow_bits<V>(bits)), factor);
        // Codes times the scale are exact, so that this rounds as their difference.
        const float rest = ptx::fma_rn(ptx::as_float(float_code<typename F::element, Float>(code)), s, y);
        error = ptx::add_rn(error, ptx::mul_rn(rest, rest));
        codes = codes >> 4 | u64(code) << 60;
        drop_first<Held::bits>(in);
    }
    return error;
}

// Eight quotients rounded to FLOAT4E2M1, by a product of `ReciprocalCodes`.
template <typename F>
struct Rounded {
    typedef ReciprocalCodes<typename F::element, F> Codes;
    enum : u32 { words = Codes::by_cvt ? 1 : 4 };
    // By a conversion eight codes. Else pairs of FLOAT16s, of which bits 9 to 11 are a code and bit 15 is its sign: in
    // value 2^-14 times the element's. Elements 0 and 2, 4 and 6, 1 and 3, 5 and 7 are pairs.
    u32 held[words];

    // `ends` as `Codes::codes_and_ends` has it.
    GPUCAST_INLINE void round(const float (&x)[8], float r, u32& ends) {
        if constexpr (Codes::by_cvt) {
            float product[8];
#pragma unroll
            for (u32 i = 0; i < 8; i += 2) ptx::mul_rn_f32x2(x[i], x[i + 1], r, product[i], product[i + 1]);
            held[0] = ptx::cvt_e2m1x8(product);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const float p = ptx::mul_rn(x[place(2 * i)], r), q = ptx::mul_rn(x[place(2 * i + 1)], r);
                if constexpr (Codes::by_ends) ends = ptx::max_u16x2(ptx::max_u16x2(ends, ptx::bits(p)), ptx::bits(q));
                held[i] = ptx::cvt_rz_f16x2(p, q) + repeated<16>(0x100);
            }
        }
    }
    // The elements, times 2^-14 where there is no conversion.
    GPUCAST_INLINE void values(float (&value)[8]) const {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 pair = Codes::by_cvt ? ptx::cvt_f16x2_e2m1(held[0] >> 8 * i) : held[i % words] & repeated<16>(0x8e00);
            ptx::cvt_f32_f16x2(pair, value[place(2 * i)], value[place(2 * i + 1)]);
        }
    }
    static GPUCAST_CONSTANT float lift() { return Codes::by_cvt ? 1.0f : 16384.0f; }
    GPUCAST_INLINE u32 codes() const {
        if constexpr (Codes::by_cvt) return held[0];
        else return Codes::nibbles(ptx::prmt(held[0], held[1 % words], 0x7531), ptx::prmt(held[2 % words], held[3 % words], 0x7531));
    }
    // The bits by which codes differ.
    static GPUCAST_CONSTANT u32 mask() { return Codes::by_cvt ? ~0u : repeated<16>(0x7e00); }

private:
    // The number of the element that is number i of the pairs.
    static GPUCAST_CONSTANT u32 place(u32 i) { return Codes::by_cvt ? i : i / 2 % 2 * 4 + i / 4 + i % 2 * 2; }
};

// A scale to try: the numbers that bracket its reciprocal, and its own value, negative.
template <typename F, typename Float>
struct Tried {
    float below, above, minus;
    bool in_range;

    GPUCAST_INLINE Tried(u32 code, float global) {
        const float s = narrow_scale<F, Float>(code);
        const Quotient by(s, global);
        const u32 lowered = Rounded<F>::Codes::lowered;
        below = ptx::as_float(ptx::bits(by.reciprocal(-2)) - lowered);
        above = ptx::as_float(ptx::bits(by.reciprocal(2)) - lowered);
        minus = ptx::neg(ptx::mul_rn(s, Rounded<F>::lift()));
        in_range = by.in_range();
    }
};

// The choice for a block of 16 finite numbers by FLOATs, in one look at each; false where that does not decide.
//
// One product with each reciprocal gives a code, which is another one than the quotient's only where that is within 2^-20
// of the midpoint m of two codes. The error of such an element is half the distance d of the two codes by either of them,
// within 2^-20 * m, and 2 * m is at most 7 * d: its square is off by less than 2^-15 of itself, and so is the sum of the
// squares, for whose own roundings 2^-19 suffices. Where the sums of the two scales are farther apart than 2^-14 of the
// larger one, the right codes make the same choice. Only codes by the scale that is chosen have to be right.
template <typename F, typename V, typename Held, typename Float, u32 Bytes, u32 CodeBytes>
GPUCAST_INLINE bool choose_quickly(
    const Tile<Bytes>& in, float amax, Scale& six, const Scale& four, float global, float factor, Tile<CodeBytes>& codes) {
    typedef Rounded<F> Half;
    const Tried<F, Float> by_six(six.code, global), by_four(four.code, global);
    Half of_six[2], of_four[2];
    float x[16], error = 0, other_error = 0;
    u32 six_ends = 0, four_ends = 0;
#pragma unroll
    for (u32 i = 0; i < 16; ++i) x[i] = ptx::as_float(narrow_bits<V>(V::of(get<Held::bits, typename V::Word>(in, i))));
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        float some[8], y[8], value[8], other[8];
#pragma unroll
        for (u32 i = 0; i < 8; ++i) some[i] = x[8 * half + i];
        of_six[half].round(some, by_six.below, six_ends);
        of_four[half].round(some, by_four.below, four_ends);
        of_six[half].values(value);
        of_four[half].values(other);
#pragma unroll
        for (u32 i = 0; i < 8; i += 2) {
            if constexpr (GPUCAST_ARCH >= 1000) ptx::mul_rn_f32x2(some[i], some[i + 1], factor, y[i], y[i + 1]);
            else y[i] = ptx::mul_rn(some[i], factor), y[i + 1] = ptx::mul_rn(some[i + 1], factor);
        }
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            // Not rounded as often as the error's definition has it.
            float rest, other_rest;
            if constexpr (GPUCAST_ARCH >= 1000) {
                ptx::fma_rn_f32x2(value[i], other[i], by_six.minus, by_four.minus, y[i], rest, other_rest);
                ptx::fma_rn_f32x2_squares(rest, other_rest, error, other_error);
            } else {
                rest = ptx::fma_rn(value[i], by_six.minus, y[i]), other_rest = ptx::fma_rn(other[i], by_four.minus, y[i]);
                error = ptx::fma_rn(rest, rest, error), other_error = ptx::fma_rn(other_rest, other_rest, other_error);
            }
        }
    }
    const bool is_four = other_error < error;
    const float larger = ptx::max(error, other_error), apart = ptx::abs(ptx::sub_rn(error, other_error));
    const Tried<F, Float>& chosen = is_four ? by_four : by_six;
    const float above = chosen.above;
    Half best[2];
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
#pragma unroll
        for (u32 i = 0; i < u32(Half::words); ++i) best[half].held[i] = is_four ? of_four[half].held[i] : of_six[half].held[i];
        codes.word[half] = best[half].codes();
    }
    u32 differ = 0;
    // Mostly the products tell alone that the codes are right.
    if (!Half::Codes::by_ends || ((is_four ? four_ends : six_ends) & 0xffff) >= 0xfffa) {
        if constexpr (Half::Codes::by_ends) ptx::mark_rare();
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            Half other;
            float some[8];
            u32 ends = 0;
#pragma unroll
            for (u32 i = 0; i < 8; ++i) some[i] = x[8 * half + i];
            other.round(some, above, ends);
#pragma unroll
            for (u32 i = 0; i < u32(Half::words); ++i) differ |= best[half].held[i] ^ other.held[i];
        }
    }
    // Zeros have no error. FLOAT16s have room for quotients below 7, which are at most 6 rounded; none is NaN.
    const float most = ptx::mul_rn(amax, ptx::max(by_six.above, by_four.above));
    const bool is_clear = ptx::mul_rn(larger, ptx::as_float(113u << 23)) < apart || larger == 0;
    const bool fits = most < ptx::as_float(0x40e00000 - u32(Half::Codes::lowered));
    if (!is_clear || !fits || !by_six.in_range || !by_four.in_range || (differ & Half::mask()) != 0) return false;
    if (is_four) six = four;
    return true;
}

// A block has one scale to try, or with `TwoScales` those by which its largest magnitude becomes 6 or 4: formats that
// round to nearest.
struct OneScale {
    enum : bool { chooses = 0 };
};
template <typename Six_, typename Four_>
struct TwoScales {
    typedef Six_ Six;
    typedef Four_ Four;
    enum : bool { chooses = 1 };
};

// What all blocks of a result have in common: the global scale, for each scale that is tried, and its reciprocal.
template <typename F, typename Scales>
struct Common {
    Global<F> global;
    GPUCAST_INLINE explicit Common(float value) : global(value) {}
};
template <typename F, typename Six, typename Four>
struct Common<F, TwoScales<Six, Four>> {
    Global<F> global;
    Global<Four> by_four;
    float factor;
    GPUCAST_INLINE explicit Common(float value) : global(value), by_four(value), factor(reciprocal_of(value)) {}
};

// The scale of a block and its codes: `scale` is the one by 6.
template <typename F, typename Scales, typename Held, typename Float, typename Double, typename Stats, u32 Bytes, u32 CodeBytes>
GPUCAST_INLINE void choose(const Tile<Bytes>& block, const Stats& stats, bool finite, const Common<F, Scales>& common,
                           Scale& scale, Tile<CodeBytes>& codes) {
    typedef Value<Held, Float, Double> V;
    typedef typename Scales::Six Six;
    typedef typename Scales::Four Four;
    static_assert(Bytes * 8 / Held::bits == 16 && F::element::bits == 4, "blocks of NVFP4");
    const float global = common.global.scale;
    const Scale four = scale_of<Four, Float, Double>(stats, common.by_four);
    if constexpr (!V::wide && GPUCAST_ARCH >= 800) {
        const float amax = ptx::as_float(stats.high);
        if (finite && choose_quickly<Six, V, Held, Float>(block, amax, scale, four, global, common.factor, codes)) return;
        ptx::mark_rare();
    }
    u64 by_six = 0, by_four = 0;
    float errors[2] = {0, 0};
#pragma unroll 1
    for (u32 k = 0; k < 2; ++k) {
        u64 found = 0;
        const float error = squared_error<Six, Held, Float, Double>(block, k == 0 ? scale : four, global, common.factor, found);
        (k == 0 ? by_six : by_four) = found;
        (k == 0 ? errors[0] : errors[1]) = error;
    }
    const u64 best = errors[1] < errors[0] ? by_four : by_six;
    if (errors[1] < errors[0]) scale = four;
    codes.word[0] = u32(best), codes.word[1] = u32(best >> 32);
}

}  // namespace gpucast

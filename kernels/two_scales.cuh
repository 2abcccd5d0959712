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

// The codes of a block by a scale, and the sum of the squares by which these differ from `wanted`.
template <typename F, typename Held, typename Float, typename Double, u32 Count, u32 Bytes, u32 CodeBytes>
GPUCAST_INLINE float squared_error(const Tile<Bytes>& in, const Scale& scale, float global, const float (&wanted)[Count],
                                   const Random& random, Tile<CodeBytes>& codes) {
    codes = {};
    Divisor<F, Held, Float, Double>(scale, global).template tile<Count, true>(in, codes, 0, true, random);
    float value[Count], error = 0;
    const Multiplier<F, Float, Float, Double> back(scale, 1);
    back.template values<Count>(codes, value);
    const float s = ptx::neg(ptx::mul_rn(narrow_scale<F, Float>(scale.code), back.lift()));
#pragma unroll
    for (u32 i = 0; i < Count; ++i) {
        // Codes times the scale are exact, so that this rounds as their difference.
        const float rest = ptx::fma_rn(value[i], s, wanted[i]);
        error = ptx::add_rn(error, ptx::mul_rn(rest, rest));
    }
    return error;
}

// The elements of FLOAT4E2M1 nearest to eight quotients, by the two products of `ReciprocalCodes`.
template <typename F>
struct Rounded {
    typedef ReciprocalCodes<typename F::element, F> Codes;
    // By a conversion eight codes. Else pairs of FLOAT16s, of which bits 9 to 11 are a code and bit 15 is its sign: in
    // value 2^-14 times the element's. Elements 0 and 2, 4 and 6, 1 and 3, 5 and 7 are pairs.
    u32 held[Codes::by_cvt ? 1 : 4];

    // Adds bits to `open` where a quotient is too near the midpoint of two codes, or beyond the largest one.
    GPUCAST_INLINE void round(const float (&x)[8], float below, float above, u32& open) {
        if constexpr (Codes::by_cvt) {
            held[0] = converted(x, below);
            open |= held[0] ^ converted(x, above);
        } else {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 first = i % 2 * 4 + i / 2;
                const float p = x[first], q = x[first + 2];
                const u32 low = ptx::cvt_rz_f16x2(ptx::mul_rn(p, below), ptx::mul_rn(q, below)) + repeated<16>(0x100);
                const u32 high = ptx::cvt_rz_f16x2(ptx::mul_rn(p, above), ptx::mul_rn(q, above)) + repeated<16>(0x100);
                held[i] = low;
                open |= ((low ^ high) | (low & repeated<16>(0x7000))) & repeated<16>(0x7e00);
            }
        }
    }
    // The elements, in the order of the pairs, times 2^-14 where there is no conversion.
    GPUCAST_INLINE void values(float (&value)[8]) const {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            const u32 pair = Codes::by_cvt ? ptx::cvt_f16x2_e2m1(held[0] >> 8 * i) : held[i % (Codes::by_cvt ? 1 : 4)] & repeated<16>(0x8e00);
            ptx::cvt_f32_f16x2(pair, value[place(2 * i)], value[place(2 * i + 1)]);
        }
    }
    static GPUCAST_CONSTANT float lift() { return Codes::by_cvt ? 1.0f : 16384.0f; }
    GPUCAST_INLINE u32 codes() const {
        if constexpr (Codes::by_cvt) {
            return held[0];
        } else {
            const u32 even = ptx::prmt(held[0], held[1], 0x7531), odd = ptx::prmt(held[2], held[3], 0x7531);
            return Codes::nibbles(even, odd);
        }
    }

private:
    // The number of the element that is number i of the pairs.
    static GPUCAST_CONSTANT u32 place(u32 i) { return Codes::by_cvt ? i : i / 2 % 2 * 4 + i / 4 + i % 2 * 2; }
    static GPUCAST_INLINE u32 converted(const float (&x)[8], float r) {
        float product[8];
#pragma unroll
        for (u32 i = 0; i < 8; i += 2) ptx::mul_rn_f32x2(x[i], x[i + 1], r, product[i], product[i + 1]);
        return ptx::cvt_e2m1x8(product);
    }
};

// The choice for a block of 16 finite numbers by FLOATs and one look at each; false where a quotient is not decided that
// way. `F` is the format with the scale `six`.
template <typename F, typename V, typename Held, typename Float, u32 Bytes, u32 CodeBytes>
GPUCAST_INLINE bool choose_quickly(const Tile<Bytes>& in, Scale& six, const Scale& four, float global, float factor, Tile<CodeBytes>& codes) {
    typedef Rounded<F> Half;
    const float s = narrow_scale<F, Float>(six.code), t = narrow_scale<F, Float>(four.code);
    const Quotient by_six(s, global), by_four(t, global);
    const u32 lowered = Half::Codes::lowered;
    const float six_below = ptx::as_float(ptx::bits(by_six.reciprocal(-2)) - lowered);
    const float six_above = ptx::as_float(ptx::bits(by_six.reciprocal(2)) - lowered);
    const float four_below = ptx::as_float(ptx::bits(by_four.reciprocal(-2)) - lowered);
    const float four_above = ptx::as_float(ptx::bits(by_four.reciprocal(2)) - lowered);
    const float minus_s = ptx::neg(ptx::mul_rn(s, Half::lift())), minus_t = ptx::neg(ptx::mul_rn(t, Half::lift()));
    Half of_six[2], of_four[2];
    u32 open = 0;
    float error = 0, other_error = 0;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        float x[8], value[8], other[8];
#pragma unroll
        for (u32 i = 0; i < 8; ++i) x[i] = ptx::as_float(narrow_bits<V>(V::of(get<Held::bits, typename V::Word>(in, 8 * half + i))));
        of_six[half].round(x, six_below, six_above, open);
        of_four[half].round(x, four_below, four_above, open);
        of_six[half].values(value);
        of_four[half].values(other);
#pragma unroll
        for (u32 i = 0; i < 8; ++i) {
            const float y = ptx::mul_rn(x[i], factor);
            float rest, other_rest, square, other_square;
            if constexpr (GPUCAST_ARCH >= 1000) {
                ptx::fma_rn_f32x2(value[i], other[i], minus_s, minus_t, y, rest, other_rest);
                ptx::mul_rn_f32x2(rest, other_rest, rest, other_rest, square, other_square);
                ptx::add_rn_f32x2(error, other_error, square, other_square, error, other_error);
            } else {
                rest = ptx::fma_rn(value[i], minus_s, y), other_rest = ptx::fma_rn(other[i], minus_t, y);
                error = ptx::add_rn(error, ptx::mul_rn(rest, rest));
                other_error = ptx::add_rn(other_error, ptx::mul_rn(other_rest, other_rest));
            }
        }
    }
    if (!by_six.in_range() || !by_four.in_range() || open != 0) return false;
    const bool is_four = other_error < error;
#pragma unroll
    for (u32 half = 0; half < 2; ++half) codes.word[half] = is_four ? of_four[half].codes() : of_six[half].codes();
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

// The scale of a block and its codes: `scale` is the one by 6.
template <typename F, typename Scales, typename Held, typename Float, typename Double, typename Stats, u32 Bytes, u32 CodeBytes>
GPUCAST_INLINE void choose(const Tile<Bytes>& block, const Stats& stats, bool finite, float global, float factor,
                           const Random& random, Scale& scale, Tile<CodeBytes>& codes) {
    typedef Value<Held, Float, Double> V;
    typedef typename Scales::Six Six;
    typedef typename Scales::Four Four;
    const u32 count = Bytes * 8 / Held::bits;
    const Scale four = scale_of<Four, Float, Double>(stats, global);
    if constexpr (!V::wide && GPUCAST_ARCH >= 800) {
        static_assert(count == 16 && F::element::bits == 4, "blocks of NVFP4");
        if (finite && choose_quickly<Six, V, Held, Float>(block, scale, four, global, factor, codes)) return;
        ptx::mark_rare();
    }
    float y[count];
#pragma unroll
    for (u32 i = 0; i < count; ++i) {
        const u32 x = narrow_bits<V>(V::of(get<Held::bits, typename V::Word>(block, i)));
        y[i] = ptx::mul_rn(ptx::as_float(x), factor);
    }
    Tile<CodeBytes> other;
    const float of_six = squared_error<Six, Held, Float, Double>(block, scale, global, y, random, codes);
    const float of_four = squared_error<Four, Held, Float, Double>(block, four, global, y, random, other);
    if (of_four < of_six) scale = four, codes = other;
}

}  // namespace gpucast

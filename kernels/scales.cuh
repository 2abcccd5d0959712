// SPDX-License-Identifier: Apache-2.0
// The numbers of quantize.cu: extremes, scales, and codes by a scale. `F` is the format.
namespace gpucast {

// ---- values: FLOAT, or DOUBLE where the source is ----

template <bool wide, typename Float, typename Double>
struct FloatOrDouble {
    typedef Float type;
};
template <typename Float, typename Double>
struct FloatOrDouble<true, Float, Double> {
    typedef Double type;
};

template <typename Src, typename Float, typename Double>
struct Value {
    enum : bool { wide = Src::bits == 64 };
    typedef typename FloatOrDouble<wide, Float, Double>::type Row;
    typedef typename WordOf<wide>::type Word;
    enum : Word { sign = Word(1) << (Width<Word>::bits - 1), infinity = wide ? Word(0x7ffull << 52) : Word(0x7f800000) };

    // The bits of the FLOAT or DOUBLE that an element is.
    static GPUCAST_INLINE Word of(Word code) {
        if constexpr (wide || Src::bits == 32) return code;
        else if constexpr (is_upper_half<Src>()) return code << 16;
        else return float_code<Src, Float>(code);
    }
    static GPUCAST_INLINE double number(Word bits) {
        if constexpr (wide) return ptx::as_double(bits);
        else return ptx::cvt_f64(ptx::as_float(bits));
    }
};

// The same row without NaN, for numbers that are known to be finite.
template <typename Row>
struct Finite : Row {
    enum : bool { has_nan = 0 };
};

// The largest magnitudes of a block, as bits; of its negative numbers alone (`low`) where there are zero points. With
// `finite_only` NaN and infinities are not seen; else they stand above all numbers.
template <typename V, bool zero_points, bool finite_only>
struct Found {
    typedef typename V::Word Word;
    Word low, high;

    GPUCAST_INLINE void see(Word bits) {
        Word magnitude = bits & ~Word(V::sign);
        if constexpr (finite_only) magnitude = magnitude < Word(V::infinity) ? magnitude : 0;
        if constexpr (zero_points) {
            if ((bits & Word(V::sign)) != 0) {
                low = magnitude > low ? magnitude : low;
                return;
            }
        }
        high = magnitude > high ? magnitude : high;
    }
    // All elements of a tile of a thread. True where all are finite.
    template <typename Src, u32 Elements, u32 Bytes>
    GPUCAST_INLINE bool see_tile(const Tile<Bytes>& in) {
        Word largest = 0;
        if constexpr (!zero_points && Src::bits == 16 && GPUCAST_ARCH >= 900) {
            // Codes with a sign are the largest where there is one; as signed numbers all others are above them.
            u32 any = in.word[0], positive = any;
#pragma unroll
            for (u32 i = 1; i < Tile<Bytes>::words; ++i) {
                any = ptx::max_u16x2(any, in.word[i]);
                positive = ptx::max_s16x2(positive, in.word[i]);
            }
            const u32 pair = ptx::max_s16x2(positive, any & repeated<16>(0x7fff));
            const u32 low = pair << 16, high = pair & 0xffff0000;
            largest = V::of((low > high ? low : high) >> 16);
        } else if constexpr (!zero_points && Src::bits == 32 && GPUCAST_ARCH >= 800) {
            float most = 0;
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) most = ptx::max_nan(most, ptx::abs(ptx::as_float(in.word[i])));
            largest = ptx::bits(most) & 0x7fffffff;
        } else {
            Found<V, zero_points, false> all = {0, 0};
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) all.see(V::of(get<Src::bits, Word>(in, i)));
            if constexpr (zero_points) low = all.low > low ? all.low : low;
            largest = all.high;
            if (all.lost()) largest = Word(V::infinity);
        }
        const bool finite = largest < Word(V::infinity);
        if (!finite_only || finite) {
            high = largest > high ? largest : high;
        } else {
            ptx::mark_rare();
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) see(V::of(get<Src::bits, Word>(in, i)));
        }
        return finite;
    }
    GPUCAST_INLINE void merge(const Found& other) {
        if constexpr (zero_points) low = other.low > low ? other.low : low;
        high = other.high > high ? other.high : high;
    }
#ifndef GPUCAST_HOST
    GPUCAST_INLINE Found other(u32 step) const {
        return {zero_points ? __shfl_xor_sync(~0u, low, step) : 0, __shfl_xor_sync(~0u, high, step)};
    }
#endif
    GPUCAST_INLINE bool lost() const { return (low > high ? low : high) >= Word(V::infinity); }
};

// ---- scales ----

struct Scale {
    u32 code;
    int zero_point;
    // Nothing of the block can be told: its scale is NaN, its codes are 0.
    bool lost;
};

// A scale's value; NaN for the code of NaN.
template <typename F, typename Float, typename Double>
GPUCAST_INLINE double scale_value(u32 code) {
    typedef typename F::scale Row;
    return ptx::as_double(cast_code<Row, Double>(u64(code), ToWide()));
}
// Infinite for the code of NaN of powers of two.
template <typename F, typename Float>
GPUCAST_INLINE float narrow_scale(u32 code) {
    if constexpr (F::scale::is_e8m0) return ptx::as_float(code == 0 ? 1u << 22 : code << 23);
    else if constexpr (is_e4m3<typename F::scale>() && has_conversion<typename F::scale>()) return ptx::cvt_f32_f16(ptx::cvt_f16x2_e4m3(code));
    else return ptx::as_float(float_code<typename F::scale, Float>(code));
}

template <typename F>
GPUCAST_INLINE float global_value(const float* global_scale) {
    if constexpr (F::global_scale) return *global_scale;
    else return 1;
}

// To the nearest integer, ties to even; far beyond the elements' range it only has to stay there.
GPUCAST_INLINE int to_integer(u32 odd) {
    const int most = 1 << 15, found = ptx::cvt_rni_s32(ptx::as_float(odd));
    return found > most ? most : found < -most ? -most : found;
}

// As the reference has it, in DOUBLE.
template <typename F, typename Float, typename Double, typename V>
GPUCAST_INLINE void wide_scale(Scale& scale, typename V::Word low_bits, typename V::Word high_bits, float global) {
    typedef typename F::scale Row;
    const double high = V::number(high_bits), low = F::zero_points ? V::number(low_bits) : 0;
    const double spread = F::zero_points ? high + low : high;
    const u64 ratio = ptx::bits(spread / (F::divisor() * ptx::cvt_f64(global)));
    scale.code = u32(cast_code<Double, Row>(ratio, typename F::scale_rule()));
    if constexpr (F::zero_points) {
        const u32 least = u32(F::smallest_scale);
        const u64 places = ptx::bits(low / scale_value<F, Float, Double>(scale.code > least ? scale.code : least));
        const int zero = int(F::lowest) + to_integer(ptx::bits(as_float32<Double>(places)));
        scale.zero_point = zero > int(F::largest) ? int(F::largest) : zero;
    }
}

template <typename F>
GPUCAST_INLINE Scale finished(Scale scale) {
    if constexpr (F::smallest_scale != 0) {
        if (scale.code < u32(F::smallest_scale)) scale.code = u32(F::smallest_scale);
    }
    if constexpr (F::nan_in_scale) {
        if (scale.lost) scale.code = u32(F::scale::nan_code);
    }
    return scale;
}

template <typename F, typename Float, typename Double, typename V, bool finite_only>
GPUCAST_INLINE Scale scale_of(const Found<V, F::zero_points, finite_only>& found, float global) {
    typedef typename F::scale Row;
    Scale scale = {0, 0, F::nan_in_scale && found.lost()};
    // A divisor of 1 would take subnormal numbers beside.
    if constexpr (V::wide || F::zero_points || (Row::is_e8m0 && F::exponent == 0)) {
        if (!scale.lost) wide_scale<F, Float, Double, V>(scale, found.low, found.high, global);
    } else if constexpr (Row::is_e8m0) {
        // amax = f * 2^a, the divisor d * 2^e, f and d at least 1 and below 2: 2^(a - e), and upwards one more if f > d.
        const int power = int((found.high + u32(F::carry)) >> 23) - int(F::exponent);
        scale.code = u32(power > 0 ? power : 0);
    } else if constexpr (u32(Row::bits) == 32) {
        // One step of Newton's method rounds correctly: the divisor has few bits, and its reciprocal is rounded so.
        const float amax = ptx::as_float(found.high), near = ptx::mul_rn(amax, F::reciprocal());
        const float rest = ptx::fma_rn(ptx::neg(near), float(F::divisor()), amax);
        scale.code = ptx::bits(ptx::fma_rn(rest, F::reciprocal(), near));
    } else {
        if constexpr (is_e4m3<Row>() && has_conversion<Row>()) {
            // As of elements (`Beside`): both sides of the quotient have the same code, as a rule.
            const Quotient by(float(F::divisor()), global);
            const float amax = ptx::as_float(found.high);
            const u32 codes = ptx::cvt_e4m3x2(ptx::mul_rn(amax, by.reciprocal(-2)), ptx::mul_rn(amax, by.reciprocal(2)));
            scale.code = codes & 0xff;
            if (by.is_plain() && ((codes ^ codes >> 8) & 0xff) == 0) return finished<F>(scale);
            ptx::mark_rare();
        }
        // Where the divisor is tiny or huge, both sides are brought to where FLOAT has the remainder; what is lost is far off.
        const u32 tiny = 67u << 23, huge = 184u << 23, both = ptx::bits(global);
        const float lift = ptx::as_float(both < tiny ? 223u << 23 : both > huge ? 63u << 23 : 127u << 23);
        const Quotient by(float(F::divisor()), ptx::mul_rn(global, lift));
        const float last = ptx::mul_rn(by.high, ptx::as_float(float32_bits<Row>(u32(Row::max_code))));
        const float amax = ptx::min(ptx::mul_rn(ptx::as_float(found.high), lift), last);
        scale.code = small_steps<Row>(ptx::as_float(by.template odd<false>(amax))) & u32(Row::mask);
    }
    return finished<F>(scale);
}

// ---- elements ----

// The elements of a block by its scale: where all are finite FLOATs and the scale is neither tiny nor huge by quick ways,
// else in DOUBLE.
template <typename F, typename Src, typename Float, typename Double>
struct Divisor {
    typedef Value<Src, Float, Double> V;
    typedef typename V::Word Word;
    typedef typename F::element Row;
    enum : bool {
        by_power = !V::wide && F::scale::is_e8m0 && !F::stochastic,
        by_float = !V::wide && !F::scale::is_e8m0 && !F::stochastic
    };
    Scale scale;
    float global, factor;
    Quotient by;
    bool plain;

    GPUCAST_INLINE Divisor(const Scale& of, float global_scale)
        : scale(of), global(global_scale), factor(1), by(divisor(of.code, global_scale)), plain(!of.lost) {
        if constexpr (by_power) factor = ptx::as_float(of.code >= 254 ? 1u << 22 : (254 - of.code) << 23);
        else if constexpr (by_float) plain = by.is_plain();  // NaN is not.
        else plain = false;
    }

    // The codes of a tile, into one that is still zero. `fits` where the scale is that of its elements.
    template <u32 Elements, bool fits, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE void tile(const Tile<SrcBytes>& in, Tile<DstBytes>& out, i64 begin, bool finite, const Random& random) const {
        if (plain && finite) {
            if constexpr (by_power || by_float) plain_tile<Elements, fits>(in, out);
            return;
        }
        if constexpr (by_power || by_float) ptx::mark_rare();
        if (scale.lost) return;
        if constexpr (F::stochastic) {
            u32 words[Elements];
            random.template words<Elements>(begin, words);
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) put<Row::bits>(out, i, at_random(V::of(get<Src::bits, Word>(in, i)), words[i]));
        } else {
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) put<Row::bits>(out, i, long_way(V::of(get<Src::bits, Word>(in, i))));
        }
    }

    // One code.
    GPUCAST_INLINE u32 one(Word bits) const {
        if constexpr (by_power || by_float) {
            if (plain && (bits & ~Word(V::sign)) < Word(V::infinity)) {
                const u32 x[4] = {bits, 0, 0, 0}, odd[4] = {quotient(bits, ptx::mul_rn(by.high, F::last())), 0, 0, 0};
                return lanes<false>(x, odd) & u32(Row::mask);
            }
        }
        return long_way(bits);
    }

    // In DOUBLE.
    GPUCAST_INLINE u32 long_way(Word bits) const {
        if (scale.lost) return 0;
        const double x = V::number(bits), q = x / (scale_value<F, Float, Double>(scale.code) * ptx::cvt_f64(global));
        if constexpr (Row::is_int) {
            return u32(clamped(to_integer(ptx::bits(as_float32<Double>(ptx::bits(q)))) + scale.zero_point)) & u32(Row::mask);
        } else {
            u32 odd = ptx::bits(as_float32<Double>(ptx::bits(q)));
            if (x != x) odd = u32(bits >> (Width<Word>::bits - 32)) | 0x7fc00000;
            return cast_code<Float, Row>(odd, typename F::element_rule());
        }
    }

    GPUCAST_INLINE u32 at_random(Word bits, u32 random) const {
        if (scale.lost) return 0;
        const double x = V::number(bits), q = x / (scale_value<F, Float, Double>(scale.code) * ptx::cvt_f64(global));
        const u64 same = cast_code<typename V::Row, Double>(u64(bits), ToWide());
        return convert_stochastic<Double, Row>(x != x ? same : ptx::bits(q), random, typename F::element_rule());
    }

private:
    static GPUCAST_INLINE Quotient divisor(u32 code, float global_scale) {
        if constexpr (!by_float) return Quotient(1);
        else if constexpr (F::global_scale) return Quotient(narrow_scale<F, Float>(code), global_scale);
        else return Quotient(narrow_scale<F, Float>(code));
    }
    GPUCAST_INLINE static int clamped(int sum) {
        return sum < int(F::lowest) ? int(F::lowest) : sum > int(F::largest) ? int(F::largest) : sum;
    }

    template <u32 Elements, bool fits, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE void plain_tile(const Tile<SrcBytes>& in, Tile<DstBytes>& out) const {
        if constexpr (by_power && is_upper_half<Src>() && has_halves<Src, Row>() && !has_conversion<Row>()) {
            // The products are exact, or so small that they become zero.
            const u32 both = (ptx::bits(factor) >> 16) * 0x00010001;
#pragma unroll
            for (u32 i = 0; i < Elements; i += 4) {
                const u32 low = ptx::fma_rn_bf16x2(in.word[i / 2], both, repeated<16>(0x8000));
                const u32 high = ptx::fma_rn_bf16x2(in.word[i / 2 + 1], both, repeated<16>(0x8000));
                put_lanes<Row::bits, 4>(out, i, halves_lanes<Finite<Src>, Row>(low, high, typename F::element_rule()));
            }
        } else if constexpr (by_power && has_conversion<Row>() && Elements * u32(Row::bits) % 32 == 0) {
            // As above: the conversion makes the largest code of what is larger.
            u32 beyond = 0;
#pragma unroll
            for (u32 i = 0; i < Tile<DstBytes>::words; ++i) {
                out.word[i] = Beside<Row>::template codes<false>(numbers<Beside<Row>::elements>(in, i), factor, 0, 0, 0, beyond);
            }
        } else {
            if constexpr (by_float && Beside<Row>::known && Elements * u32(Row::bits) % 32 == 0) {
                if (beside<Elements, fits>(in, out)) return;
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
                    x[j] = u32(V::of(get<Src::bits, Word>(in, i + j)));
                    odd[j] = quotient(x[j], last);
                }
                put_lanes<Row::bits, 4>(out, i, lanes<fits>(x, odd));
            }
        }
    }

    // The numbers of a tile that become word i of the result.
    template <u32 N, u32 SrcBytes>
    static GPUCAST_INLINE Numbers<N> numbers(const Tile<SrcBytes>& in, u32 i) {
        Numbers<N> x;
#pragma unroll
        for (u32 j = 0; j < N; ++j) x.of[j] = ptx::as_float(u32(V::of(get<Src::bits, Word>(in, i * N + j))));
        return x;
    }

    // False where a quotient is too near the midpoint of two codes to be told from it.
    template <u32 Elements, bool fits, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE bool beside(const Tile<SrcBytes>& in, Tile<DstBytes>& out) const {
        typedef Beside<Row> B;
        const bool limited = !fits || u32(F::scale::bits) < 32;
        float low = 0, high = 0;
        if constexpr (limited && Row::is_int) {
            low = ptx::mul_rn(by.high, ptx::cvt_rn_f32(int(F::lowest) - scale.zero_point));
            high = ptx::mul_rn(by.high, ptx::cvt_rn_f32(int(F::largest) - scale.zero_point));
        }
        const u32 lowered = B::lowered, zero_points = u32(scale.zero_point) * u32(B::ones_of_byte);
        const float below = ptx::as_float(ptx::bits(by.reciprocal(-2)) - lowered);
        const float above = ptx::as_float(ptx::bits(by.reciprocal(2)) - lowered);
        u32 differ = 0, beyond = 0, other[Tile<DstBytes>::words];
#pragma unroll
        for (u32 i = 0; i < Tile<DstBytes>::words; ++i) {
            const Numbers<B::elements> x = numbers<B::elements>(in, i);
            out.word[i] = B::template codes<limited>(x, below, low, high, zero_points, beyond);
            other[i] = B::template codes<limited>(x, above, low, high, zero_points, beyond);
            differ |= out.word[i] ^ other[i];
        }
        const bool within = (beyond & repeated<8>(0x70)) == 0;
        if (differ == 0 && within) return true;
        ptx::mark_rare();
        u32 bits = 0;
        if constexpr (Src::bits == 32) {
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) bits |= in.word[i];
        }
        if (!within || !by.is_short() || (bits & 0x1fff) != 0) return false;
#pragma unroll
        for (u32 i = 0; i < Tile<DstBytes>::words; ++i) {
            // All bits of the lanes whose code, or integer before the zero point, is odd.
            const u32 odd = ((out.word[i] ^ (u32(scale.zero_point) & 1) * u32(B::ones)) & u32(B::ones)) * u32(Row::mask);
            out.word[i] = (other[i] & odd) | (out.word[i] & ~odd);
        }
        return true;
    }

    // Of a finite number. What is cut off, beyond `last`, is out of the elements' range in any case.
    GPUCAST_INLINE u32 quotient(u32 bits, float last) const {
        const float x = ptx::as_float(bits);
        if constexpr (by_power) return ptx::bits(ptx::mul_rn(x, factor));
        else return by.odd<!F::global_scale>(ptx::min(ptx::abs(x), last));
    }

    // Four codes, a byte each, of quotients: by FLOATs their magnitudes, within the elements' range.
    template <bool fits>
    GPUCAST_INLINE u32 lanes(const u32 (&x)[4], const u32 (&odd)[4]) const {
        u32 part[4];
        if constexpr (Row::is_int) {
            const float least = ptx::cvt_rn_f32(int(F::lowest) - scale.zero_point), most = ptx::cvt_rn_f32(int(F::largest) - scale.zero_point);
#pragma unroll
            for (u32 j = 0; j < 4; ++j) {
                float q = ptx::as_float(by_float ? odd[j] | (x[j] & 0x80000000) : odd[j]);
                // A scale of fewer bits may be below amax / the largest element.
                if constexpr (!fits || u32(F::scale::bits) < 32) q = ptx::min(ptx::max(q, least), most);
                // The sum with 1.5 * 2^23 has the nearest integer in its low bits.
                part[j] = ptx::bits(ptx::add_rn(q, ptx::as_float(0x4b400000))) + u32(scale.zero_point);
            }
            return low_lanes<8>(part) & repeated<8>(u32(Row::mask));
        } else if constexpr (by_power) {
            return cast_lanes<Finite<Float>, Row>(odd, typename F::element_rule());
        } else {
#pragma unroll
            for (u32 j = 0; j < 4; ++j) part[j] = small_steps<Row>(ptx::as_float(odd[j]));
            return signed_lanes<Float, Row>(part, x);
        }
    }
};

}  // namespace gpucast

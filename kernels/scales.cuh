// SPDX-License-Identifier: Apache-2.0
// The numbers of quantize.cu: values, extremes and scales. `F` is the format.
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

}  // namespace gpucast

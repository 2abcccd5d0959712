// SPDX-License-Identifier: Apache-2.0
// The values, statistics and scales of blocks, for quantize.cu and quantize_tiles.cu. `F` is the format.
namespace gpucast {

// ---- values: FLOAT, or DOUBLE where the source is DOUBLE ----

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
    typedef typename FloatOrDouble<wide, Float, Double>::type DType;
    typedef typename WordOf<wide>::type Word;
    enum : Word { sign = Word(1) << (Width<Word>::bits - 1), infinity = wide ? Word(0x7ffull << 52) : Word(0x7f800000) };

    // The bits of the FLOAT or DOUBLE that an element is.
    static GPUCAST_INLINE Word of(Word code) {
        if constexpr (wide || Src::bits == 32) return code;
        else if constexpr (is_upper_half<Src>()) return code << 16;
        else return float_code<Src, Float>(code);
    }
    // The same of a finite element. The instruction for FLOAT16 would change NaN.
    static GPUCAST_INLINE Word of_finite(Word code) {
        if constexpr (is_float16<Src>()) return ptx::bits(ptx::cvt_f32_f16(u32(code)));
        else return of(code);
    }
    static GPUCAST_INLINE double number(Word bits) {
        if constexpr (wide) return ptx::as_double(bits);
        else return ptx::cvt_f64(ptx::as_float(bits));
    }
};

// The same dtype without NaN, for numbers that are known to be finite.
template <typename DType>
struct Finite : DType {
    enum : bool { has_nan = 0 };
};

// The extremes of words at the same place: of one FLOAT, or of the two 16-bit numbers of a word, which an instruction
// compares together. Infinities and NaN count as above all numbers. From sm_80 on.
template <typename Src, bool two_sided>
struct WordStats {
    // As unsigned integers negative codes are above all others, and as signed integers below.
    enum : bool { by_integers = Src::bits == 16 && GPUCAST_ARCH >= 900 };
    enum : u32 { count = 32 / Src::bits, signs = count == 1 ? 0x80000000 : 0x80008000 };
    // The lowest number, at most -0, and the highest one, at least 0; of floats, or both are the largest magnitude.
    u32 low, high;

    GPUCAST_INLINE explicit WordStats(u32 first = 0) : low(first), high(first) {
        if constexpr (two_sided || !by_integers) {
            low = signs, high = 0;
            add(first);
        }
    }
    GPUCAST_INLINE void add(u32 word) {
        if constexpr (by_integers) {
            low = ptx::max_u16x2(low, word);
            high = ptx::max_s16x2(high, word);
        } else if constexpr (count == 1) {
            const float x = ptx::as_float(word);
            high = ptx::bits(ptx::max_nan(ptx::as_float(high), two_sided ? x : ptx::abs(x)));
            if constexpr (two_sided) low = ptx::bits(ptx::min_nan(ptx::as_float(low), x));
        } else if constexpr (is_upper_half<Src>()) {
            high = ptx::max_nan_bf16x2(high, two_sided ? word : ptx::abs_bf16x2(word));
            if constexpr (two_sided) low = ptx::min_nan_bf16x2(low, word);
        } else {
            high = ptx::max_nan_f16x2(high, two_sided ? word : ptx::abs_f16x2(word));
            if constexpr (two_sided) low = ptx::min_nan_f16x2(low, word);
        }
    }
    // The codes of the largest magnitudes: of negative numbers, and of the others or of all.
    GPUCAST_INLINE u32 lowest() const { return two_sided ? low & ~u32(signs) : 0; }
    GPUCAST_INLINE u32 highest() const {
        if constexpr (by_integers && !two_sided) return ptx::max_s16x2(high, low & ~u32(signs));
        else return high & ~u32(signs);
    }
    // Code number i of a word.
    static GPUCAST_INLINE u32 code(u32 word, u32 i) { return count == 1 ? word : i == 0 ? word & 0xffff : word >> 16; }
    static GPUCAST_INLINE u32 larger(u32 word) {
        if constexpr (count == 1) return word;
        const u32 a = word << 16, b = word & 0xffff0000;
        return (a > b ? a : b) >> 16;
    }
};

// The largest magnitudes of a block, as bits: `high` of all its numbers, or if `two_sided` `low` of the negative ones
// and `high` of the others. With `finite_only` NaN and infinities are left out; else they count as above
// all numbers.
template <typename V, bool two_sided, bool finite_only>
struct BlockStats {
    typedef typename V::Word Word;
    enum : bool { has_low = two_sided };
    Word low, high;

    GPUCAST_INLINE void add(Word bits) {
        Word magnitude = bits & ~Word(V::sign);
        if constexpr (finite_only) magnitude = magnitude < Word(V::infinity) ? magnitude : 0;
        if constexpr (two_sided) {
            if ((bits & Word(V::sign)) != 0) {
                low = magnitude > low ? magnitude : low;
                return;
            }
        }
        high = magnitude > high ? magnitude : high;
    }
    // Adds all elements of a thread's tile. True where all are finite.
    template <typename Src, u32 Elements, u32 Bytes>
    GPUCAST_INLINE bool add_tile(const Tile<Bytes>& in) {
        Word largest = 0;
        if constexpr (Src::bits == 32 && !two_sided && Elements % 2 == 0 && GPUCAST_ARCH >= 900 && GPUCAST_ARCH < 1000) {
            // Two at a time, because an instruction takes three integers, but two FLOATs. One of NaN gives the NaN that is
            // above all numbers.
#pragma unroll
            for (u32 i = 0; i < Elements; i += 2) {
                const float a = ptx::abs(ptx::as_float(in.word[i])), b = ptx::abs(ptx::as_float(in.word[i + 1]));
                const u32 both = ptx::bits(ptx::max_nan(a, b));
                largest = both > largest ? both : largest;
            }
        } else if constexpr (Src::bits <= 32 && GPUCAST_ARCH >= 800) {
            WordStats<Src, two_sided> words(in.word[0]);
#pragma unroll
            for (u32 i = 1; i < Tile<Bytes>::words; ++i) words.add(in.word[i]);
            largest = V::of(words.larger(words.highest()));
            if constexpr (two_sided) {
                const Word lowest = V::of(words.larger(words.lowest()));
                low = lowest > low ? lowest : low;
                if (lowest >= Word(V::infinity)) largest = lowest;
            }
        } else {
            BlockStats<V, two_sided, false> all = {0, 0};
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) all.add(V::of(get<Src::bits, Word>(in, i)));
            if constexpr (two_sided) low = all.low > low ? all.low : low;
            largest = all.high;
            if (all.has_nonfinite()) largest = Word(V::infinity);
        }
        const bool finite = largest < Word(V::infinity);
        if (!finite_only || finite) {
            high = largest > high ? largest : high;
        } else {
            ptx::mark_rare();
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) add(V::of(get<Src::bits, Word>(in, i)));
        }
        return finite;
    }
    GPUCAST_INLINE void merge(const BlockStats& other) {
        if constexpr (two_sided) low = other.low > low ? other.low : low;
        high = other.high > high ? other.high : high;
    }
    GPUCAST_INLINE BlockStats other(u32 step) const {
        return {two_sided ? __shfl_xor_sync(~0u, low, step) : 0, __shfl_xor_sync(~0u, high, step)};
    }
    GPUCAST_INLINE bool has_nonfinite() const { return (low > high ? low : high) >= Word(V::infinity); }
};

// The statistics of each of several rows.
template <typename Stats, u32 Rows>
struct RowStats {
    Stats row[Rows];

    GPUCAST_INLINE void merge(const RowStats& other) {
#pragma unroll
        for (u32 i = 0; i < Rows; ++i) row[i].merge(other.row[i]);
    }
    GPUCAST_INLINE RowStats other(u32 step) const {
        RowStats stats;
#pragma unroll
        for (u32 i = 0; i < Rows; ++i) stats.row[i] = row[i].other(step);
        return stats;
    }
};

// The statistics of neighbouring columns, vector by vector.
template <typename V, typename Src, bool two_sided, bool by_words = Src::bits <= 32 && GPUCAST_ARCH >= 800>
struct ColumnStats {
    typedef typename V::Word Word;
    BlockStats<V, two_sided, false> column[128 / Src::bits];

    GPUCAST_INLINE ColumnStats() : column() {}
    GPUCAST_INLINE void add(const Tile<16>& in) {
#pragma unroll
        for (u32 i = 0; i < 128 / Src::bits; ++i) column[i].add(V::of(get<Src::bits, Word>(in, i)));
    }
    GPUCAST_INLINE Word low(u32 i) const { return column[i].low; }
    GPUCAST_INLINE Word high(u32 i) const { return column[i].high; }
};
template <typename V, typename Src, bool two_sided>
struct ColumnStats<V, Src, two_sided, true> {
    typedef WordStats<Src, two_sided> Words;
    Words word[4];

    GPUCAST_INLINE void add(const Tile<16>& in) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) word[i].add(in.word[i]);
    }
    GPUCAST_INLINE u32 low(u32 i) const { return V::of(Words::code(word[i / Words::count].lowest(), i % Words::count)); }
    GPUCAST_INLINE u32 high(u32 i) const { return V::of(Words::code(word[i / Words::count].highest(), i % Words::count)); }
};

// ---- scales ----

struct Scale {
    u32 code;
    int zero_point;
    // The scale is NaN, because the block has an infinity or NaN, or because a given scale or a formula is; the block's
    // codes are 0.
    bool is_nan;
};

// A scale's value, NaN included.
template <typename F, typename Float, typename Double>
GPUCAST_INLINE double scale_value(u32 code) {
    typedef typename F::scale DType;
    return ptx::as_double(cast_code<DType, Double>(u64(code), ToWide()));
}
// A scale's value as a FLOAT. Of powers of two the code of NaN gives infinity.
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
// That of element i, of rows of so many elements: of their row where each has one.
template <typename F>
GPUCAST_INLINE float global_value(const float* global_scale, i64 i, i64 columns) {
    if constexpr (F::row_scaled) return global_scale[i / columns];
    else return global_value<F>(global_scale);
}

// To the nearest integer, ties to even; clamped far beyond the elements' range, so that sums do not overflow.
GPUCAST_INLINE int to_integer(u32 odd) {
    const int most = 1 << 15, result = ptx::cvt_rni_s32(ptx::as_float(odd));
    return result > most ? most : result < -most ? -most : result;
}

// The scale and zero point with DOUBLE as the compute type, in the order of operations of the reference.
template <typename F, typename Float, typename Double, typename V>
GPUCAST_INLINE void wide_scale(Scale& scale, typename V::Word low_bits, typename V::Word high_bits, float global) {
    typedef typename F::scale DType;
    const double high = V::number(high_bits), low = F::two_sided ? V::number(low_bits) : 0;
    const double negative = low * F::negative_weight();
    const double spread = F::zero_points ? high + low : high > negative ? high : negative;
    const u64 ratio = ptx::bits(spread / (F::divisor() * ptx::cvt_f64(global)));
    scale.code = u32(cast_code<Double, DType>(ratio, typename F::scale_rule()));
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
        if (scale.is_nan) scale.code = u32(F::scale::nan_code);
    }
    return scale;
}

// The smaller and the larger number in the formulas of steps: NaN where one of the two is.
GPUCAST_INLINE float smaller(float p, float q) {
    if constexpr (GPUCAST_ARCH >= 800) return ptx::min_nan(p, q);
    else return p != p ? p : q != q ? q : ptx::min(p, q);
}
GPUCAST_INLINE float larger(float p, float q) {
    if constexpr (GPUCAST_ARCH >= 800) return ptx::max_nan(p, q);
    else return p != p ? p : q != q ? q : ptx::max(p, q);
}

// The scale of a format with steps, whose formulas `F` has. Where codes need more than the scale, the largest magnitude
// stands in its place until `finish_scales` has run. `u` is what the formulas call so.
template <typename F, typename Float>
GPUCAST_INLINE Scale scale_by_steps(float amax, bool is_nan, float u) {
    typedef typename F::scale DType;
    Scale scale = {u32(DType::nan_code), 0, is_nan};
    if (is_nan) return scale;
    if constexpr (F::keeps_amax) {
        scale.code = ptx::bits(amax);
    } else if constexpr (F::power_scale) {
        const u32 bits = ptx::bits(F::step_power(amax));
        const int power = int((bits + u32(F::power_carry)) >> 23) - int(F::power_exponent);
        scale.code = u32(power > 0 ? power : 0);
        // What overflows becomes the largest scale.
        if (F::may_overflow && bits == 0x7f800000) scale.code = 254;
    } else {
        const float found = F::step_scale(amax, u);
        if constexpr (F::may_be_nan) {
            // The scale of zeros by an infinite one above it, say.
            scale.is_nan = found != found;
            if (scale.is_nan) return scale;
        }
        if constexpr (u32(DType::bits) == 32) scale.code = ptx::bits(found);
        else scale.code = u32(cast_code<Float, DType>(ptx::bits(found), typename F::scale_rule()));
        // Of either sign.
        if constexpr (F::has_zero) scale.code = (scale.code & ~u32(DType::sign_code)) == 0 ? F::zero_code() : scale.code;
    }
    return scale;
}

// The global scale, and what the largest magnitudes of blocks are multiplied by where their scales are FLOAT8E4M3FN:
// mostly the two products, which bracket the quotient, have the same code, as those of elements (`ReciprocalCodes`). Where
// the divisor is out of range no two products have: one is 0 or NaN, the other one infinite or NaN.
template <typename F>
struct Global {
    enum : bool { brackets = is_e4m3<typename F::scale>() && has_conversion<typename F::scale>() && !F::by_steps };
    // `least`: a magnitude of the smallest scale; those below it have this scale, too.
    float scale, below, above, least;

    GPUCAST_INLINE explicit Global(float value) : scale(value), below(0), above(ptx::as_float(0x7f800000)), least(0) {
        if constexpr (brackets) {
            const Quotient by(float(F::divisor()), value);
            if (!by.in_range()) return;
            below = by.reciprocal(-2), above = by.reciprocal(2);
            if constexpr (u32(F::smallest_scale) != 0) {
                least = ptx::mul_rn(by.high, ptx::as_float(float32_bits<typename F::scale>(u32(F::smallest_scale))));
            }
        }
    }
};

template <typename F, typename Float, typename Double, typename V, bool finite_only>
GPUCAST_INLINE Scale scale_of(const BlockStats<V, F::two_sided, finite_only>& stats, const Global<F>& of_all) {
    typedef typename F::scale DType;
    const float global = of_all.scale;
    Scale scale = {0, 0, F::nan_in_scale && stats.has_nonfinite()};
    if constexpr (F::by_steps) return scale_by_steps<F, Float>(ptx::as_float(u32(stats.high)), scale.is_nan, global);
    // With a divisor of 1 amax may be subnormal, which the fast path for powers of two does not expect. Scales of
    // BFLOAT16 are rare.
    if constexpr (V::wide || F::two_sided || u32(DType::bits) == 16 || (DType::is_e8m0 && F::exponent == 0)) {
        if (!scale.is_nan) wide_scale<F, Float, Double, V>(scale, stats.low, stats.high, global);
    } else if constexpr (DType::is_e8m0) {
        // With amax = f * 2^a and the divisor d * 2^e, where 1 <= f, d < 2, the quotient rounded up is 2^(a - e), or one
        // power more if f > d; rounded down it is 2^(a - e) if f >= d, else one power less. `carry` is added for this,
        // and `exponent` is e, or e + 1 where d > 1 and the quotient is rounded down.
        const int power = int((stats.high + u32(F::carry)) >> 23) - int(F::exponent);
        scale.code = u32(power > 0 ? power : 0);
    } else if constexpr (u32(DType::bits) == 32) {
        // One Newton iteration rounds the quotient correctly, because the divisor has few bits and its reciprocal is
        // rounded correctly.
        const float amax = ptx::as_float(stats.high), near = ptx::mul_rn(amax, F::reciprocal());
        const float rest = ptx::fma_rn(ptx::neg(near), float(F::divisor()), amax);
        scale.code = ptx::bits(ptx::fma_rn(rest, F::reciprocal(), near));
    } else {
        if constexpr (Global<F>::brackets) {
            const float amax = ptx::as_float(stats.high);
            const u32 codes = ptx::cvt_e4m3x2(ptx::mul_rn(amax, of_all.below), ptx::mul_rn(amax, of_all.above));
            scale.code = codes & 0xff;
            if (((codes ^ codes >> 8) & 0xff) == 0) return finished<F>(scale);
            ptx::mark_rare();
        }
        // Where the divisor is tiny or huge, it and amax are multiplied by a power of two, so that the remainder of the
        // division is in FLOAT's range. Where amax overflows or underflows then, the scale is its largest or smallest
        // in any case.
        const u32 tiny = 67u << 23, huge = 184u << 23, both = ptx::bits(global);
        const float lift = ptx::as_float(both < tiny ? 223u << 23 : both > huge ? 63u << 23 : 127u << 23);
        const Quotient by(float(F::divisor()), ptx::mul_rn(global, lift));
        const float last = ptx::mul_rn(by.high, ptx::as_float(float32_bits<DType>(u32(DType::max_code))));
        const float amax = ptx::min(ptx::mul_rn(ptx::as_float(stats.high), lift), last);
        scale.code = small_code<DType>(ptx::as_float(by.template rounded_to_odd<false>(amax))) & u32(DType::mask);
    }
    return finished<F>(scale);
}
template <typename F, typename Float, typename Double, typename V, bool finite_only>
GPUCAST_INLINE Scale scale_of(const BlockStats<V, F::two_sided, finite_only>& stats, float global) {
    return scale_of<F, Float, Double>(stats, Global<F>(global));
}

// Whether scales of blocks are bracketed, four at a time.
template <typename F, typename V>
GPUCAST_CONSTANT bool can_bracket() {
    return Global<F>::brackets && !V::wide && !F::two_sided;
}

// The scales of four blocks.
template <typename F, typename Float, typename Double, typename Stats>
GPUCAST_INLINE void four_scales(const Stats* stats, const Global<F>& of_all, Scale* scale) {
    float below[4], above[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
        const u32 high = stats[i].high, least = ptx::bits(of_all.least);
        const float amax = ptx::as_float(high > least ? high : least);
        // NaN of an infinity, which a conversion would clamp; else zero.
        const float none = ptx::mul_rn(amax, 0);
        below[i] = ptx::fma_rn(amax, of_all.below, none), above[i] = ptx::fma_rn(amax, of_all.above, none);
    }
    const u32 codes = ptx::cvt_e4m3x4(below[0], below[1], below[2], below[3]);
    if (codes == ptx::cvt_e4m3x4(above[0], above[1], above[2], above[3])) {
#pragma unroll
        for (u32 i = 0; i < 4; ++i) {
            scale[i] = {codes >> 8 * i & 0xff, 0, false};
            scale[i].is_nan = F::nan_in_scale && scale[i].code == u32(F::scale::nan_code);
        }
        return;
    }
    ptx::mark_rare();
#pragma unroll 1
    for (u32 k = 0; k < 4; ++k) {
        Stats one = stats[0];
#pragma unroll
        for (u32 i = 1; i < 4; ++i) one = i == k ? stats[i] : one;
        const Scale found = scale_of<F, Float, Double>(one, of_all);
#pragma unroll
        for (u32 i = 0; i < 4; ++i) scale[i] = i == k ? found : scale[i];
    }
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// Arrays as narrow codes with scales. Every number is as gpucast/quantization/reference.py says; `F` is the format, as
// gpucast/quantization/source.py writes it, and the array always lies in C order.
//
// A row of short blocks is quantized in one pass, by the threads that share a block. All other blocks take three: the extremes
// of each block, its scale, its elements.
#ifndef GPUCAST_MERGE
// All threads of an aligned group of LANES get what the group has found.
#define GPUCAST_MERGE(LANES, FOUND)                                                       \
    for (gpucast::u32 step = LANES / 2; step != 0; step /= 2) FOUND.merge(FOUND.other(step));
#endif

namespace gpucast {

// The array as outer x rows x columns, and its blocks of block_rows x block_columns. `apart` is 0 where one block spans all
// of the outer dimension. The last blocks of a dimension may be cut.
struct Blocks {
    i64 outer, rows, columns, block_rows, block_columns, grid_rows, grid_columns, apart;

    GPUCAST_INLINE i64 count() const { return (apart ? outer : 1) * grid_rows * grid_columns; }
};

struct QuantizeArguments {
    u8* scales;
    // Null in symmetric formats.
    u8* zero_points;
    // The FLOAT that multiplies all scales, in formats that have it.
    const float* global_scale;
    // What the passes leave for each other: `parts` results of every block.
    u8* found;
    i64 parts, chunk;
    Random random;
    Blocks blocks;
};

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
            u32 pair = 0;
#pragma unroll
            for (u32 i = 0; i < Tile<Bytes>::words; ++i) pair = ptx::max_s16x2(pair, in.word[i] & repeated<16>(0x7fff));
            largest = V::of(pair >> 16 > (pair & 0xffff) ? pair >> 16 : pair & 0xffff);
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

// ---- quotients ----

// Magnitudes of FLOATs divided by the product of two FLOATs, exactly or rounded to odd (float32.cuh), without a division.
struct Quotient {
    // The divisor is high + low, its reciprocal about up + down: as exact as two FLOATs can be.
    float high, low, up, down;

    GPUCAST_INLINE Quotient(float a, float b) : high(ptx::mul_rn(a, b)), low(ptx::fma_rn(a, b, ptx::neg(high))), up(ptx::rcp(high)) {
        const float rest = ptx::fma_rn(ptx::neg(up), high, 1);
        down = ptx::mul_rn(ptx::fma_rn(ptx::neg(up), low, rest), up);
    }
    // False where the remainder of a quotient that matters may be below all FLOATs, or the reciprocal is.
    GPUCAST_INLINE bool is_plain() const { return ptx::bits(high) - (67u << 23) <= 120u << 23; }

    // Of magnitudes up to 2^16 times the divisor.
    template <bool whole>
    GPUCAST_INLINE u32 odd(float x) const {
        // The nearest FLOAT, or one that is less than one step away.
        const float near = ptx::fma_rn(x, up, ptx::mul_rn(x, down));
        float rest = ptx::fma_rn(ptx::neg(near), high, x);
        if constexpr (!whole) rest = ptx::fma_rn(ptx::neg(near), low, rest);
        // Below an even number, one step down and odd; above it, one up; an odd one stays.
        const u32 found = ptx::bits(near) + u32(int(ptx::bits(rest)) >> 31);
        // The remainder is zero without a sign, or at least this.
        return found | ptx::min(ptx::bits(rest), 1u);
    }
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
template <typename F, typename Float>
GPUCAST_INLINE float narrow_scale(u32 code) {
    return ptx::as_float(float_code<typename F::scale, Float>(code));
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
        // Where the divisor is tiny or huge, both sides are brought to where FLOAT has the remainder; what is lost is far off.
        const u32 tiny = 67u << 23, huge = 184u << 23, both = ptx::bits(global);
        const float lift = ptx::as_float(both < tiny ? 223u << 23 : both > huge ? 63u << 23 : 127u << 23);
        const Quotient by(float(F::divisor()), ptx::mul_rn(global, lift));
        const float last = ptx::mul_rn(by.high, ptx::as_float(float32_bits<Row>(u32(Row::max_code))));
        const float amax = ptx::min(ptx::mul_rn(ptx::as_float(found.high), lift), last);
        scale.code = small_steps<Row>(ptx::as_float(by.template odd<false>(amax))) & u32(Row::mask);
    }
    if constexpr (F::smallest_scale != 0) {
        if (scale.code < u32(F::smallest_scale)) scale.code = u32(F::smallest_scale);
    }
    if constexpr (F::nan_in_scale) {
        if (scale.lost) scale.code = u32(Row::nan_code);
    }
    return scale;
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
        : scale(of), global(global_scale), factor(1), by(by_float ? narrow_scale<F, Float>(of.code) : 1, global_scale), plain(!of.lost) {
        if constexpr (by_power) factor = ptx::as_float(of.code >= 254 ? 1u << 22 : (254 - of.code) << 23);
        else if constexpr (by_float) plain = by.is_plain() && !of.lost;
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
    GPUCAST_INLINE static int clamped(int sum) {
        return sum < int(F::lowest) ? int(F::lowest) : sum > int(F::largest) ? int(F::largest) : sum;
    }

    template <u32 Elements, bool fits, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE void plain_tile(const Tile<SrcBytes>& in, Tile<DstBytes>& out) const {
        if constexpr (by_power && Src::bits == 16 && is_upper_half<Src>() && has_halves<Src, Row>()) {
            // The products are exact, or so small that they become zero.
            const u32 both = (ptx::bits(factor) >> 16) * 0x00010001;
#pragma unroll
            for (u32 i = 0; i < Elements; i += 4) {
                const u32 low = ptx::fma_rn_bf16x2(in.word[i / 2], both, repeated<16>(0x8000));
                const u32 high = ptx::fma_rn_bf16x2(in.word[i / 2 + 1], both, repeated<16>(0x8000));
                put_lanes<Row::bits, 4>(out, i, halves_lanes<Finite<Src>, Row>(low, high, typename F::element_rule()));
            }
        } else {
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

// ---- one pass: blocks of a power of two elements along the last axis, none of them cut ----

template <typename F, typename Src, typename Float, typename Double, u32 Elements, u32 Block, u32 Threads>
GPUCAST_INLINE void quantize_rows(const u8* src, u8* dst, i64 n, const QuantizeArguments& given) {
    typedef Value<Src, Float, Double> V;
    typedef typename F::element Row;
    typedef Tile<Elements * Src::bits / 8> SrcTile;
    typedef Tile<Elements * Row::bits / 8> DstTile;
    const u32 lanes = Block / Elements;
    const i64 thread = i64(blockIdx.x) * Threads + threadIdx.x, begin = thread * Elements;
    const bool here = begin < n;
    SrcTile in = {};
    if (here) load_aligned(src + begin * i64(Src::bits) / 8, in);
    Found<V, F::zero_points, !F::nan_in_scale> found = {0, 0};
    const bool finite = found.template see_tile<Src, Elements>(in);
    GPUCAST_MERGE(lanes, found);
    if (!here) return;
    const float global = global_value<F>(given.global_scale);
    const Scale scale = scale_of<F, Float, Double>(found, global);
    if (threadIdx.x % lanes == 0) {
        store_element<F::scale::bits>(given.scales + thread / lanes * (F::scale::bits / 8), scale.code);
        if constexpr (F::zero_points) given.zero_points[thread / lanes] = u8(scale.zero_point);
    }
    DstTile out = {};
    Divisor<F, Src, Float, Double>(scale, global).template tile<Elements, !F::zero_points>(in, out, begin, finite, given.random);
    store_aligned(dst + begin * i64(Row::bits) / 8, out);
}

// ---- the passes of all other blocks ----

// The extremes of a part of a block by `Lanes` threads; `found` is given part by part, block after block.
template <typename V, typename Src, typename Index, bool zero_points, bool finite_only, u32 Lanes, u32 Threads>
GPUCAST_INLINE void find_extremes(const u8* src, i64 n, const QuantizeArguments& given) {
    typedef typename V::Word Word;
    const u32 bytes = Src::bits / 8, vector = 16 / bytes, ahead = 4;
    const Blocks& blocks = given.blocks;
    const i64 thread = i64(blockIdx.x) * Threads + threadIdx.x;
    const Index team = Index(thread / Lanes);
    const u32 lane = u32(thread) % Lanes;
    Found<V, zero_points, finite_only> found = {0, 0};
    if (thread < n) {
        const Index count = Index(blocks.count()), part = team / count, block = team - part * count;
        const Index above = block / Index(blocks.grid_columns), outer = above / Index(blocks.grid_rows);
        const i64 column = i64(block - above * Index(blocks.grid_columns)) * blocks.block_columns;
        const i64 row = i64(above - outer * Index(blocks.grid_rows)) * blocks.block_rows;
        const i64 left = blocks.columns - column, down = blocks.rows - row;
        const i64 width = left < blocks.block_columns ? left : blocks.block_columns;
        const i64 height = blocks.apart ? (down < blocks.block_rows ? down : blocks.block_rows) : blocks.outer;
        // Along the rows of a block one element follows the other; from row to row it is a step.
        const i64 step = blocks.apart ? blocks.columns : blocks.rows * blocks.columns, all = width * height;
        const u8* from = src + ((i64(outer) * blocks.rows + row) * blocks.columns + column) * bytes;
        i64 begin = i64(part) * given.chunk;
        const i64 end = begin + given.chunk < all ? begin + given.chunk : all;
        if (Lanes != 1 && (height == 1 || step == width) && (address(from) & 15) == 0) {
            // The chunks of parts are whole vectors.
            const i64 vectors = end > begin ? (end - begin) / vector : 0;
            for (i64 at = lane; at < vectors; at += ahead * Lanes) {
                Tile<16> tile[ahead];
#pragma unroll
                for (u32 j = 0; j < ahead; ++j) {
                    tile[j] = {};
                    if (at + j * Lanes < vectors) load_aligned(from + begin * bytes + (at + j * Lanes) * 16, tile[j]);
                }
#pragma unroll
                for (u32 j = 0; j < ahead; ++j) found.template see_tile<Src, vector>(tile[j]);
            }
            begin += vectors * vector;
        }
        begin += lane;
        if (begin < end) {
            i64 line = Index(begin) / Index(width), along = begin - line * width;
            for (i64 i = begin; i < end; i += Lanes) {
                found.see(V::of(load_element<Src::bits, Word>(from + (line * step + along) * bytes)));
                along += Lanes;
                while (along >= width) {
                    along -= width;
                    ++line;
                }
            }
        }
    }
    GPUCAST_MERGE(Lanes, found);
    if (thread < n && lane == 0) reinterpret_cast<Found<V, zero_points, finite_only>*>(given.found)[team] = found;
}

// What the parts of a block found, merged by a warp. True for the one thread that goes on.
#define GPUCAST_PARTS(FOUND, BLOCK, COUNT)                                                                        \
    for (gpucast::i64 part = threadIdx.x % 32; BLOCK < COUNT && part < given.parts; part += 32) {                 \
        FOUND.merge(reinterpret_cast<const decltype(FOUND)*>(given.found)[part * COUNT + BLOCK]);                 \
    }                                                                                                             \
    GPUCAST_MERGE(32, FOUND)

// With `keep` the scales are there already, and only those of blocks that are lost are written.
template <typename F, typename V, typename Float, typename Double, bool keep, u32 Threads>
GPUCAST_INLINE void find_scales(const QuantizeArguments& given) {
    const i64 count = given.blocks.count(), block = (i64(blockIdx.x) * Threads + threadIdx.x) / 32;
    Found<V, F::zero_points, !F::nan_in_scale> found = {0, 0};
    GPUCAST_PARTS(found, block, count);
    if (block >= count || threadIdx.x % 32 != 0 || (keep && !found.lost())) return;
    const Scale scale = scale_of<F, Float, Double>(found, global_value<F>(given.global_scale));
    store_element<F::scale::bits>(given.scales + block * (F::scale::bits / 8), scale.code);
    if constexpr (F::zero_points) given.zero_points[block] = u8(scale.zero_point);
}

// The FLOAT that brings the largest scale to the largest code of the scales' type.
template <typename F, typename V, typename Double, typename Float, u32 Threads>
GPUCAST_INLINE void find_global_scale(u8* dst, const QuantizeArguments& given) {
    const i64 block = (i64(blockIdx.x) * Threads + threadIdx.x) / 32;
    Found<V, false, true> found = {0, 0};
    GPUCAST_PARTS(found, block, i64(1));
    if (block != 0 || threadIdx.x % 32 != 0) return;
    const u64 ratio = ptx::bits(V::number(found.high) / F::global_divisor());
    const u32 code = u32(cast_code<Double, Float>(ratio, typename F::global_rule()));
    store_element<32>(dst, code < 1u << 23 ? 1u << 23 : code);
}

// Where an element's block is; `next` is the one behind it. `Index` holds the number of elements.
template <typename Index>
struct Place {
    const Blocks& blocks;
    Index outer, row, column, in_block, block;

    GPUCAST_INLINE Place(const Blocks& all, i64 i, i64 n) : blocks(all), outer(0), row(0), column(Index(i)), in_block(Index(i)), block(0) {
        if (all.columns >= n && all.block_columns >= n) return;
        const Index line = Index(i) / Index(all.columns);
        column -= line * Index(all.columns);
        outer = line / Index(all.rows);
        row = line - outer * Index(all.rows);
        find();
    }
    GPUCAST_INLINE void next() {
        ++column;
        if (column == Index(blocks.columns)) {
            column = 0;
            ++row;
            if (row == Index(blocks.rows)) {
                row = 0;
                ++outer;
            }
            find();
        } else if (++in_block == Index(blocks.block_columns)) {
            in_block = 0;
            ++block;
        }
    }
    // Elements from here to the end of the row of the block.
    GPUCAST_INLINE Index left() const {
        const Index in_row = Index(blocks.columns) - column, here = Index(blocks.block_columns) - in_block;
        return in_row < here ? in_row : here;
    }

private:
    GPUCAST_INLINE void find() {
        const Index along = column / Index(blocks.block_columns);
        const Index above = (blocks.apart ? outer : 0) * Index(blocks.grid_rows) + row / Index(blocks.block_rows);
        in_block = column - along * Index(blocks.block_columns);
        block = above * Index(blocks.grid_columns) + along;
    }
};

template <typename F>
GPUCAST_INLINE Scale load_scale(const QuantizeArguments& given, i64 block) {
    typedef typename F::scale Row;
    const u32 code = load_element<Row::bits, u32>(given.scales + block * (Row::bits / 8));
    int zero = 0;
    if constexpr (F::zero_points) zero = F::lowest < 0 ? int(static_cast<signed char>(given.zero_points[block])) : given.zero_points[block];
    return {code, zero, F::nan_in_scale && (code & 0x7fffffff) >= u32(Row::nan_code)};
}

template <typename F, typename Src, typename Float, typename Double, typename Index, u32 Elements, u32 Threads>
GPUCAST_INLINE void quantize_elements(const u8* src, u8* dst, i64 n, const QuantizeArguments& given) {
    typedef Value<Src, Float, Double> V;
    typedef typename V::Word Word;
    typedef typename F::element Row;
    const i64 begin = (i64(blockIdx.x) * Threads + threadIdx.x) * Elements;
    if (begin >= n) return;
    const u32 last = begin + Elements <= n ? Elements : u32(n - begin);
    const float global = global_value<F>(given.global_scale);
    const u8* from = src + begin * i64(Src::bits / 8);
    u8* to = dst + begin * i64(Row::bits) / 8;
    Place<Index> place(given.blocks, begin, n);
    if (last == Elements && place.left() >= Elements && (address(from) & (Tile<Elements * Src::bits / 8>::piece - 1)) == 0) {
        Tile<Elements * Src::bits / 8> in;
        Tile<Elements * Row::bits / 8> out = {};
        load_aligned(from, in);
        Found<V, F::zero_points, false> found = {0, 0};
        const Divisor<F, Src, Float, Double> divisor(load_scale<F>(given, place.block), global);
        const bool finite = found.template see_tile<Src, Elements>(in);
        divisor.template tile<Elements, false>(in, out, begin, finite, given.random);
        store_aligned(to, out);
        return;
    }
    ptx::mark_rare();
    Writer<Row::bits, u32> out = {to, 0, 0};
#pragma unroll 1
    for (u32 i = 0; i < last; ++i) {
        const Divisor<F, Src, Float, Double> own(load_scale<F>(given, place.block), global);
        const Word bits = V::of(load_element<Src::bits, Word>(from + i * (Src::bits / 8)));
        if constexpr (F::stochastic) out.put(own.at_random(bits, given.random.one(begin + i)));
        else out.put(own.one(bits));
        place.next();
    }
    out.finish();
}

// ---- back ----

// The numbers of a block's codes.
template <typename F, typename Dst, typename Float, typename Double>
struct Multiplier {
    typedef typename F::element Row;
    typedef typename WordOf<Dst::bits == 64>::type Word;
    // The product of a code's value and a scale of few bits is a FLOAT; with the other factor it is rounded once.
    enum : bool { by_float = Dst::bits != 64 };
    Scale scale;
    float global, first, second;
    bool plain;

    GPUCAST_INLINE Multiplier(const Scale& of, float global_scale)
        : scale(of), global(global_scale), first(narrow_scale<F, Float>(of.code)), second(global_scale), plain(first == first && global == global) {}

    GPUCAST_INLINE Word one(u32 code) const {
        if constexpr (by_float) {
            float value;
            if constexpr (Row::is_int) value = ptx::cvt_rn_f32(int(integer<Row>(code)) - scale.zero_point);
            else value = ptx::as_float(float_code<Row, Float>(code));
            const bool number = (ptx::bits(value) & 0x7fffffff) < 0x7f800000;
            const float x = F::global_scale ? ptx::mul_rn(value, first) : value, y = F::global_scale ? second : first;
            u32 product;
            bool exact = true;
            if constexpr (u32(Dst::bits) == 32) {
                product = ptx::bits(ptx::mul_rn(x, y));
            } else {
                const float cut = ptx::mul_rz(x, y);
                product = ptx::bits(cut) | ptx::set_ne(ptx::fma_rn(x, y, ptx::neg(cut)), 0);
                // Below 2^-102 FLOAT may not hold what was cut off.
                exact = (product & 0x7fffffff) >= 25u << 23 || value == 0;
            }
            if (plain && number && exact) return Word(cast_code<Finite<Float>, Dst>(product, ToWide()));
            ptx::mark_rare();
        }
        const u64 sign = Double::sign_code, infinity = Double::inf_code;
        const u64 value = cast_code<Row, Double>(u64(code), ToWide());
        const double s = scale_value<F, Float, Double>(scale.code) * ptx::cvt_f64(global);
        u64 product = ptx::bits((ptx::as_double(value) - double(scale.zero_point)) * s);
        if ((value & ~sign) > infinity) product = value;
        if (s != s) product = u64(Double::nan_code);
        return Word(cast_code<Double, Dst>(product, ToWide()));
    }
};

template <typename F, typename Dst, typename Float, typename Double, typename Index, u32 Elements, u32 Threads>
GPUCAST_INLINE void dequantize_elements(const u8* src, u8* dst, i64 n, const QuantizeArguments& given) {
    typedef typename F::element Row;
    const u32 in_bytes = Elements * Row::bits / 8, out_bytes = Elements * Dst::bits / 8;
    const i64 begin = (i64(blockIdx.x) * Threads + threadIdx.x) * Elements;
    if (begin >= n) return;
    const u32 last = begin + Elements <= n ? Elements : u32(n - begin);
    const float global = global_value<F>(given.global_scale);
    const u8* from = src + begin * i64(Row::bits) / 8;
    u8* to = dst + begin * i64(Dst::bits / 8);
    Place<Index> place(given.blocks, begin, n);
    if (last == Elements && place.left() >= Elements && (address(from) & (Tile<in_bytes>::piece - 1)) == 0
        && (address(to) & (Tile<out_bytes>::piece - 1)) == 0) {
        const Multiplier<F, Dst, Float, Double> multiplier(load_scale<F>(given, place.block), global);
        Tile<in_bytes> in;
        Tile<out_bytes> out = {};
        load_aligned(from, in);
#pragma unroll
        for (u32 i = 0; i < Elements; ++i) put<Dst::bits>(out, i, multiplier.one(get<Row::bits, u32>(in, i)));
        store_aligned(to, out);
        return;
    }
    ptx::mark_rare();
#pragma unroll 1
    for (u32 i = 0; i < last; ++i) {
        const Multiplier<F, Dst, Float, Double> own(load_scale<F>(given, place.block), global);
        store_element<Dst::bits>(to + i * (Dst::bits / 8), own.one(read_element<Row::bits, u32>(from, u64(i) * Row::bits)));
        place.next();
    }
}

// ---- the order "128x4" of scales (gpucast/quantization/swizzle.py), or with `back` from it; padding is zero ----

template <bool back, u32 Threads>
GPUCAST_INLINE void swizzle_scales(const u8* src, u8* dst, i64 n, const Blocks& blocks) {
    const i64 i = i64(blockIdx.x) * Threads + threadIdx.x;
    if (i >= n) return;
    const i64 tile = i / 512, tiles = (blocks.grid_columns + 3) / 4, down = tile / tiles;
    const u32 in_tile = u32(i % 512);
    const i64 row = down * 128 + in_tile / 16 + in_tile % 16 / 4 * 32, column = (tile - down * tiles) * 4 + in_tile % 4;
    const bool here = row < blocks.grid_rows && column < blocks.grid_columns;
    const i64 linear = row * blocks.grid_columns + column;
    if constexpr (!back) dst[i] = here ? src[linear] : 0;
    else if (here) dst[linear] = src[i];
}

}  // namespace gpucast

// gpucast/quantization/source.py defines NAME_format; its last argument is a call of a function above.
#define GPUCAST_QUANTIZE(NAME, THREADS, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8* dst, gpucast::i64 n,                                   \
             const __grid_constant__ gpucast::QuantizeArguments given) {                                               \
        using namespace gpucast;                                                                                       \
        static_cast<void>(src), static_cast<void>(dst), static_cast<void>(n);                                          \
        __VA_ARGS__;                                                                                                   \
    }

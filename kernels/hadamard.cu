// SPDX-License-Identifier: Apache-2.0
// Hadamard transforms, alone and before an array is quantized, and the choice of the rule "4over6". Every result is that
// of gpucast/quantization/exact_hadamard.py and exact_quantize.py.
//
// A thread holds a fragment of the array: whole runs of the transform, and whole blocks that share a scale. So no
// thread waits for another one, and the transformed numbers never leave the registers.
namespace gpucast {

// ---- the transform ----

// 1 / sqrt(Length), rounded.
template <u32 Length>
GPUCAST_CONSTANT u32 transform_factor() {
    return Length == 16 ? 0x3e800000 : Length == 32 ? 0x3e3504f3 : Length == 64 ? 0x3e000000 : 0x3db504f3;
}

// Transforms the runs of FLOATs of a fragment. The signs come last for the inverse.
template <u32 Length, u32 Size, bool inverse>
GPUCAST_INLINE void transform(u32 (&x)[Size], const u32 (&signs)[128]) {
    if constexpr (!inverse) {
#pragma unroll
        for (u32 i = 0; i < Size; ++i) x[i] ^= signs[i % Length];
    }
    // Numbers i and i + 1 are summed first, then each is summed with its like: two at a time, where instructions do so.
    const bool in_pairs = GPUCAST_ARCH >= 1000;
#pragma unroll
    for (u32 h = 1; h < Length; h *= 2) {
#pragma unroll
        for (u32 i = 0; i < Size; ++i) {
            if ((i & h) != 0 || (in_pairs && h > 1 && i % 2 != 0)) continue;
            const float a = ptx::as_float(x[i]), b = ptx::as_float(x[i + h]);
            if constexpr (in_pairs) {
                if (h > 1) {
                    const float other_a = ptx::as_float(x[i + 1]), other_b = ptx::as_float(x[i + h + 1]);
                    float sum, other_sum, rest, other_rest;
                    ptx::add_rn_f32x2(a, other_a, b, other_b, sum, other_sum);
                    ptx::sub_rn_f32x2(a, other_a, b, other_b, rest, other_rest);
                    x[i] = ptx::bits(sum), x[i + 1] = ptx::bits(other_sum);
                    x[i + h] = ptx::bits(rest), x[i + h + 1] = ptx::bits(other_rest);
                    continue;
                }
            }
            x[i] = ptx::bits(ptx::add_rn(a, b));
            x[i + h] = ptx::bits(ptx::sub_rn(a, b));
        }
    }
    const float factor = ptx::as_float(transform_factor<Length>());
#pragma unroll
    for (u32 i = 0; i < Size; i += 2) {
        float a = ptx::as_float(x[i]), b = ptx::as_float(x[i + 1]);
        if constexpr (in_pairs) ptx::mul_rn_f32x2(a, b, factor, a, b);
        else a = ptx::mul_rn(a, factor), b = ptx::mul_rn(b, factor);
        x[i] = ptx::bits(a), x[i + 1] = ptx::bits(b);
    }
    if constexpr (inverse) {
#pragma unroll
        for (u32 i = 0; i < Size; ++i) x[i] ^= signs[i % Length];
    }
}

// An element as FLOAT; only DOUBLE is rounded.
template <typename V>
GPUCAST_INLINE u32 narrow_bits(typename V::Word bits) {
    if constexpr (V::wide) return ptx::bits(ptx::cvt_rn_f32(ptx::as_double(bits)));
    else return bits;
}

// The numbers of a fragment: FLOATs that were transformed, or with a Length of 0 elements as they are.
template <typename Src, typename Float, typename Double, u32 Length, u32 Size>
struct Fragment {
    typedef typename FloatOrDouble<Length != 0, Src, Float>::type Held;
    typedef Value<Src, Float, Double> V;
    typedef Tile<Size * Src::bits / 8> SrcTile;
    Tile<Size * Held::bits / 8> x;

    GPUCAST_INLINE void take(const SrcTile& in, const u32 (&signs)[128]) {
        if constexpr (Length == 0) {
            x = in;
        } else {
#pragma unroll
            for (u32 i = 0; i < Size; ++i) x.word[i] = narrow_bits<V>(V::of(get<Src::bits, typename V::Word>(in, i)));
            transform<Length, Size, false>(x.word, signs);
        }
    }
    // The rows of a column of a tile in shared memory.
    template <typename Memory>
    GPUCAST_INLINE void take_column(Memory& shared, u32 row, u32 column, const u32 (&signs)[128]) {
        typedef typename CodeOf<Src::bits>::type Code;
        SrcTile in = {};
#pragma unroll
        for (u32 i = 0; i < Size; ++i) {
            put<Src::bits>(in, i, typename V::Word(*reinterpret_cast<const Code*>(shared.at(row + i, column))));
        }
        take(in, signs);
    }
    // Elements that are `stride` bytes apart.
    GPUCAST_INLINE void take_strided(const u8* from, i64 stride, const u32 (&signs)[128]) {
        SrcTile in = {};
#pragma unroll
        for (u32 i = 0; i < Size; ++i) put<Src::bits>(in, i, load_element<Src::bits, typename V::Word>(from + i * stride));
        take(in, signs);
    }
    // Some adjacent numbers.
    template <u32 Count>
    GPUCAST_INLINE Tile<Count * Held::bits / 8> part(u32 begin) const {
        Tile<Count * Held::bits / 8> some;
#pragma unroll
        for (u32 i = 0; i < Count * Held::bits / 32; ++i) some.word[i] = x.word[begin * Held::bits / 32 + i];
        return some;
    }
};

// ---- quantizing a fragment ----

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

// The codes and scales of a fragment: `begin` is the index of its first element in the result, whose rows have so many
// columns.
template <typename F, typename Scales, typename Float, typename Double, u32 Block, typename Fragment_>
GPUCAST_INLINE void quantize_fragment(const Fragment_& fragment, i64 begin, i64 columns, const HadamardResult& result, const Random& random) {
    typedef typename Fragment_::Held Held;
    typedef typename F::element DType;
    typedef typename CodeOf<F::scale::bits>::type ScaleCode;
    typedef Value<Held, Float, Double> V;
    // Codes of so many elements are whole words.
    const u32 size = sizeof(fragment.x) * 8 / Held::bits, some = 16;
    const float global = global_value<F>(result.global_scale, begin, columns);
    float factor = 0;
    if constexpr (Scales::chooses) factor = reciprocal_of(global);
#pragma unroll
    for (u32 first = 0; first < size; first += Block) {
        const auto block = fragment.template part<Block>(first);
        BlockStats<V, F::two_sided, !F::nan_in_scale> stats = {0, 0};
        const bool finite = stats.template add_tile<Held, Block>(block) || F::nan_in_scale;
        Scale scale = scale_of<F, Float, Double>(stats, global);
        Tile<Block * DType::bits / 8> codes;
        if constexpr (Scales::chooses) {
            typedef typename Scales::Six Six;
            typedef typename Scales::Four Four;
            float y[Block];
#pragma unroll
            for (u32 i = 0; i < Block; ++i) {
                const u32 x = narrow_bits<V>(V::of(get<Held::bits, typename V::Word>(block, i)));
                y[i] = ptx::mul_rn(ptx::as_float(x), factor);
            }
            const Scale four = scale_of<Four, Float, Double>(stats, global);
            Tile<Block * DType::bits / 8> other;
            const float of_six = squared_error<Six, Held, Float, Double>(block, scale, global, y, random, codes);
            const float of_four = squared_error<Four, Held, Float, Double>(block, four, global, y, random, other);
            if (of_four < of_six) scale = four, codes = other;
        }
        const i64 place = (begin + first) / Block;
        if constexpr (is_same<typename F::order, Linear>) {
            reinterpret_cast<ScaleCode*>(result.scales)[place] = ScaleCode(scale.code);
        } else {
            // Longer arrays have linear scales, so that 32 bits suffice.
            const u32 across = u32(columns / Block), row = u32(place) / across, along = u32(place) - row * across;
            store_scale<F::scale::bits / 8>(result.scales, typename F::order(), row, along, result.rows, across, scale.code, F::padding);
        }
        if constexpr (F::zero_points) result.zero_points[place] = u8(scale.zero_point);
        if constexpr (Scales::chooses && !F::stochastic) {
            store_aligned(result.data + (begin + first) * i64(DType::bits) / 8, codes);
            continue;
        }
        const Divisor<F, Held, Float, Double> divisor(scale, global);
#pragma unroll
        for (u32 i = 0; i < Block; i += some) {
            Tile<some * DType::bits / 8> out = {};
            divisor.template tile<some, !F::zero_points && !Scales::chooses>(
                fragment.template part<some>(first + i), out, begin + first + i, finite, random);
            store_aligned(result.data + (begin + first + i) * i64(DType::bits) / 8, out);
        }
    }
}

// Fragments along the rows of an array.
template <typename F, typename Scales, typename Src, typename Float, typename Double, u32 Length, u32 Size, u32 Block, u32 Threads>
GPUCAST_INLINE void quantize_fragments(const u8* src, i64 n, const HadamardArguments& given) {
    const i64 begin = (i64(blockIdx.x) * Threads + threadIdx.x) * Size;
    if (begin >= n) return;
    Tile<Size * Src::bits / 8> in;
    load_aligned(src + begin * i64(Src::bits) / 8, in);
    Fragment<Src, Float, Double, Length, Size> fragment;
    fragment.take(in, given.signs);
    quantize_fragment<F, Scales, Float, Double, Block>(fragment, begin, given.columns, given.same, given.random);
}

// The largest magnitude of what n threads transform.
template <typename Src, typename Float, typename Double, u32 Length, bool strided, u32 Threads>
GPUCAST_INLINE void find_transformed(const u8* src, i64 n, const HadamardArguments& given) {
    const i64 thread = i64(blockIdx.x) * Threads + threadIdx.x, bytes = Src::bits / 8;
    BlockStats<Value<Float, Float, Double>, false, true> stats = {0, 0};
#pragma unroll 1
    for (i64 run = thread; thread < n && run < given.runs; run += n) {
        Fragment<Src, Float, Double, Length, Length> fragment;
        if constexpr (strided) {
            const i64 above = run / given.inner, first = above * Length * given.inner + (run - above * given.inner);
            fragment.take_strided(src + first * bytes, given.inner * bytes, given.signs);
        } else {
            Tile<Length * Src::bits / 8> in;
            load_aligned(src + run * Length * bytes, in);
            fragment.take(in, given.signs);
        }
        stats.template add_tile<Float, Length>(fragment.x);
    }
    merge<32>(stats);
    if (thread < n && threadIdx.x % 32 == 0) reinterpret_cast<decltype(stats)*>(given.stats)[thread / 32] = stats;
}

// ---- the transform alone ----

template <typename Src, typename Dst, typename Rule, typename Float, typename Double, u32 Length, bool inverse, bool strided, u32 Threads>
GPUCAST_INLINE void transform_array(const u8* src, u8* dst, i64 n, const HadamardArguments& given) {
    typedef Value<Src, Float, Double> V;
    typedef typename V::Word Word;
    typedef typename WordOf<Dst::bits == 64>::type DstWord;
    const i64 run = i64(blockIdx.x) * Threads + threadIdx.x, inner = strided ? given.inner : 1;
    if (run * Length >= n) return;
    const i64 above = strided ? run / inner : run, first = above * Length * inner + (run - above * inner);
    const u8* from = src + first * i64(Src::bits / 8);
    u8* to = dst + first * i64(Dst::bits / 8);
    Tile<Length * Src::bits / 8> in = {};
    if constexpr (!strided) load_aligned(from, in);
    u32 x[Length];
#pragma unroll
    for (u32 i = 0; i < Length; ++i) {
        Word code = get<Src::bits, Word>(in, i);
        if constexpr (strided) {
            // One address at a time: registers for all of them are more than there are.
            code = load_element<Src::bits, Word>(from);
            from += inner * i64(Src::bits / 8);
        }
        x[i] = narrow_bits<V>(V::of(code));
    }
    transform<Length, Length, inverse>(x, given.signs);
    Tile<Length * Dst::bits / 8> out = {};
#pragma unroll
    for (u32 i = 0; i < Length; ++i) {
        const float number = ptx::as_float(x[i]);
        const DstWord code = cast_code<Float, Dst>(DstWord(number == number ? x[i] : 0x7fc00000u), Rule());
        if constexpr (strided) {
            store_element<Dst::bits>(to, code);
            to += inner * i64(Dst::bits / 8);
        } else {
            put<Dst::bits>(out, i, code);
        }
    }
    if constexpr (!strided) store_aligned(to, out);
}

// ---- tiles: one read of an array gives the plain result, the transposed one, or both ----

// G has the sizes: of a tile, and for each result of a run (0: none) and of a fragment (0: no such result).
template <typename Src, typename G>
struct HadamardMemory {
    // Rows of a tile, of which every 16 are shifted by 16 bytes, so that threads with neighbouring fragments of a column
    // read from different banks.
    enum : u32 { pitch = G::columns * Src::bits / 8, shift = 16 };
    alignas(16) u8 elements[G::rows * pitch + G::rows / 16 * shift];

    GPUCAST_INLINE u8* at(u32 row, u32 column) {
        return elements + row * pitch + row / 16 * shift + column * (Src::bits / 8);
    }
};

template <typename F, typename Scales, typename Src, typename Float, typename Double, u32 Block, typename G>
GPUCAST_INLINE void quantize_fragment_tiles(const u8* src, const HadamardArguments& given, HadamardMemory<Src, G>& shared) {
    const u32 bytes = Src::bits / 8, vectors = G::columns * bytes / 16;
    const u32 line = blockIdx.x / given.tiles_across, above = line / given.tiles_down;
    const i64 matrix = above, first_row = i64(line - above * given.tiles_down) * G::rows;
    const i64 first_column = i64(blockIdx.x - line * given.tiles_across) * G::columns;
    const i64 below = given.rows - first_row, right = given.columns - first_column;
    const u32 rows = below < i64(G::rows) ? u32(below) : u32(G::rows);
    const u32 columns = right < i64(G::columns) ? u32(right) : u32(G::columns);
    const u8* from = src + ((matrix * given.rows + first_row) * given.columns + first_column) * bytes;
#pragma unroll
    for (u32 k = threadIdx.x; k < G::rows * vectors; k += u32(G::threads)) {
        const u32 row = k / vectors, column = k % vectors * (16 / bytes);
        if (row >= rows || column >= columns) continue;
        Tile<16> vector;
        load_aligned(from + row * given.columns * bytes + column * bytes, vector);
        store_words(shared.at(row, column), vector.word);
    }
    GPUCAST_BARRIER();
    if constexpr (G::same != 0) {
        const u32 across = G::columns / G::same;
#pragma unroll 1
        for (u32 k = threadIdx.x; k < G::rows * across; k += u32(G::threads)) {
            const u32 row = k / across, column = k % across * G::same;
            if (row >= rows || column >= columns) continue;
            Tile<G::same * bytes> in;
            load_words(shared.at(row, column), in.word);
            Fragment<Src, Float, Double, G::same_run, G::same> fragment;
            fragment.take(in, given.signs);
            const i64 begin = (matrix * given.rows + first_row + row) * given.columns + first_column + column;
            quantize_fragment<F, Scales, Float, Double, Block>(fragment, begin, given.columns, given.same, given.random);
        }
    }
    if constexpr (G::swapped != 0) {
        const u32 down = G::rows / G::swapped;
#pragma unroll 1
        for (u32 k = threadIdx.x; k < G::columns * down; k += u32(G::threads)) {
            // Neighbouring threads take neighbours in the result.
            const u32 row = k % down * G::swapped, column = k / down;
            if (row >= rows || column >= columns) continue;
            Fragment<Src, Float, Double, G::swapped_run, G::swapped> fragment;
            fragment.take_column(shared, row, column, given.signs);
            const i64 begin = (matrix * given.columns + first_column + column) * given.rows + first_row + row;
            quantize_fragment<F, Scales, Float, Double, Block>(fragment, begin, given.rows, given.swapped, given.random);
        }
    }
}

}  // namespace gpucast

// Macros, because a kernel's name is that of its work; gpucast/quantization/gpu/hadamard_source.py writes the rest.
#define GPUCAST_HADAMARD(NAME, THREADS, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8* dst, gpucast::i64 n,                                   \
             const __grid_constant__ gpucast::HadamardArguments given) {                                               \
        using namespace gpucast;                                                                                       \
        static_cast<void>(dst), static_cast<void>(n);                                                                  \
        __VA_ARGS__;                                                                                                   \
    }
#define GPUCAST_HADAMARD_TILES(NAME, SRC, THREADS, ...)                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8*, gpucast::i64,                                         \
             const __grid_constant__ gpucast::HadamardArguments given) {                                               \
        using namespace gpucast;                                                                                       \
        __shared__ HadamardMemory<SRC, NAME##_tiles> shared;                                                           \
        quantize_fragment_tiles<__VA_ARGS__, NAME##_tiles>(src, given, shared);                                        \
    }

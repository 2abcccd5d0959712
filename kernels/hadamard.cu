// SPDX-License-Identifier: Apache-2.0
// Hadamard transforms, alone and before an array is quantized, and the choice of the rule "4over6". Every result is that
// of gpucast/quantization/exact_hadamard.py and exact_quantize.py.
//
// A thread holds 16 numbers, a part of a run. The first four sums of each number are of these. The others are with
// numbers of other lanes of the warp, which shuffles bring, or where a run is no row, of other warps, by shared memory.
namespace gpucast {

// ---- quantizing a fragment ----

// Whether a block's scale is computed and its elements are divided without the factor of the transform, which both have
// then.
template <typename F, typename Scales, typename Float, typename Double>
GPUCAST_CONSTANT bool leaves_factor() {
    return !Scales::chooses && !F::two_sided && Divisor<F, Float, Float, Double>::takes_factor;
}

// The codes and the scale of a fragment, by the statistics of its block: `begin` is the index of its first element in the
// result, whose rows have so many columns.
template <typename F, typename Scales, typename Float, typename Double, u32 Block, typename Fragment_, typename Stats>
GPUCAST_INLINE void put_fragment(const Fragment_& fragment, const Stats& stats, bool finite, i64 begin, i64 columns,
                                 const HadamardResult& result, const Common<F, Scales>& common, const Random& random) {
    typedef typename Fragment_::Held Held;
    typedef typename F::element DType;
    typedef typename CodeOf<F::scale::bits>::type ScaleCode;
    const u32 lanes = Block / part_size;
    u8* const to = result.data + (u64(begin) * u32(DType::bits) >> 3);
    Scale scale = scale_of<F, Float, Double>(stats, common.global);
    Tile<part_size * DType::bits / 8> codes = {};
    if constexpr (Scales::chooses) {
        static_assert(lanes == 1, "a block of a thread's own");
        choose<F, Scales, Held, Float, Double>(fragment.x, stats, finite, common, scale, codes);
    }
    if (threadIdx.x % lanes == 0) {
        const u64 place = u64(begin) / Block;
        if constexpr (is_same<typename F::order, Linear>) {
            reinterpret_cast<ScaleCode*>(result.scales)[place] = ScaleCode(scale.code);
        } else {
            // Longer arrays have linear scales, so that 32 bits suffice.
            const u32 across = u32(columns / Block), row = u32(place) / across, along = u32(place) - row * across;
            store_scale<F::scale::bits / 8>(result.scales, typename F::order(), row, along, result.rows, across, scale.code, F::padding);
        }
        if constexpr (F::zero_points) result.zero_points[place] = u8(scale.zero_point);
    }
    if constexpr (!Scales::chooses || F::stochastic) {
        codes = {};
        const Divisor<F, Held, Float, Double> divisor(scale, common.global.scale);
        const bool known = finite || F::nan_in_scale;
        if constexpr (Fragment_::lacks_factor) {
            const float factor = ptx::as_float(Fragment_::factor());
            if (known && divisor.template of_products<(Fragment_::factor() & 0x7fffff) == 0>(fragment.x, factor, codes)) {
                store_aligned(to, codes);
                return;
            }
            ptx::mark_rare();
            auto x = fragment.x;
            scale_by(x.word, factor);
            codes = {};
            divisor.template tile<part_size, !F::zero_points>(x, codes, begin, known, random);
        } else {
            divisor.template tile<part_size, !F::zero_points && !Scales::chooses>(fragment.x, codes, begin, known, random);
        }
    }
    store_aligned(to, codes);
}

// The same of a thread that has a block or shares it with its neighbours. All lanes of a warp must call this: of one with
// nothing to do (not `here`) others may need the numbers.
template <typename F, typename Scales, typename Float, typename Double, u32 Block, typename Fragment_>
GPUCAST_INLINE void quantize_fragment(const Fragment_& fragment, bool here, i64 begin, i64 columns, const HadamardResult& result,
                                      const Common<F, Scales>& of_all, const Random& random) {
    typedef typename Fragment_::Held Held;
    typedef Value<Held, Float, Double> V;
    const u32 lanes = Block / part_size;
    BlockStats<V, F::two_sided, !F::nan_in_scale> stats = {0, 0};
    const bool finite = stats.template add_tile<Held, part_size>(fragment.x);
    merge<lanes>(stats);
    if (!here) return;
    // Rounded products keep the order of numbers.
    if constexpr (Fragment_::lacks_factor) {
        stats.high = ptx::bits(ptx::mul_rn(ptx::as_float(u32(stats.high)), ptx::as_float(Fragment_::factor())));
    }
    if constexpr (F::row_scaled) {
        const Common<F, Scales> own(global_value<F>(result.global_scale, begin, columns));
        put_fragment<F, Scales, Float, Double, Block>(fragment, stats, finite, begin, columns, result, own, random);
    } else {
        put_fragment<F, Scales, Float, Double, Block>(fragment, stats, finite, begin, columns, result, of_all, random);
    }
}

// The global scale of all blocks of a result, unless each row has its own.
template <typename F>
GPUCAST_INLINE float common_value(const HadamardResult& result) {
    if constexpr (F::row_scaled) return 1;
    else return global_value<F>(result.global_scale);
}

// The next parts of each thread, which are on their way to shared memory.
template <u32 Bytes, u32 Threads>
struct PartStage {
    enum : u32 { unit = 16, pieces = Bytes / unit, ahead = 3, places = 4 };
    alignas(16) u8 piece[places][pieces][Threads][unit];

    GPUCAST_INLINE void ask(const u8* from, u32 turn) {
#pragma unroll
        for (u32 i = 0; i < pieces; ++i) ptx::cp_async(piece[turn % places][i][threadIdx.x], from + i * unit);
    }
    GPUCAST_INLINE void take(Tile<Bytes>& to, u32 turn) const {
#pragma unroll
        for (u32 i = 0; i < pieces; ++i) {
            Tile<unit> one;
            load_words(piece[turn % places][i][threadIdx.x], one.word);
#pragma unroll
            for (u32 j = 0; j < unit / 4; ++j) to.word[i * unit / 4 + j] = one.word[j];
        }
    }
};

// Fragments along the rows of an array, one of each thread.
template <typename F, typename Scales, typename Src, typename Float, typename Double, u32 Length, u32 Block, u32 Threads>
GPUCAST_INLINE void quantize_fragments(const u8* src, i64 n, const HadamardArguments& given) {
    const i64 begin = (block_number<F, Threads * part_size>(n) * Threads + threadIdx.x) * part_size;
    Tile<part_size * Src::bits / 8> in = {};
    if (begin < n) load_aligned(src + begin * i64(Src::bits / 8), in);
    // Not before: the elements are under way while this one is waited for.
    const Common<F, Scales> common(common_value<F>(given.same));
    Fragment<Src, Float, Double, Length, !leaves_factor<F, Scales, Float, Double>()> fragment;
    fragment.take(in, given.signs);
    quantize_fragment<F, Scales, Float, Double, Block>(fragment, begin < n, begin, given.columns, given.same, common, given.random);
}

// The same of blocks that stay.
template <typename F, typename Scales, typename Src, typename Float, typename Double, u32 Length, u32 Block, u32 Threads>
GPUCAST_INLINE void quantize_fragments_in_turn(
    const u8* src, i64 n, const HadamardArguments& given, PartStage<part_size * Src::bits / 8, Threads>& stage) {
    const u32 ahead = PartStage<part_size * Src::bits / 8, Threads>::ahead;
    const i64 step = Threads * part_size, on = (F::global_scale ? -step : step) * gridDim.x;
    i64 begin = block_number<F, Threads * part_size>(n) * step + threadIdx.x * part_size;
    // How many of all parts of a block there are after this one's first.
    i64 left = (n - 1) / step - blockIdx.x;
    const auto ask = [&](u32 later, u32 turn) {
        // In place of what lies behind the array threads read its end again.
        const i64 at = begin + later * on;
        if (left >= i64(later) * gridDim.x) stage.ask(src + (at < n ? at : n - part_size) * i64(Src::bits / 8), turn);
        ptx::cp_async_commit();
    };
#pragma unroll
    for (u32 i = 0; i < ahead; ++i) ask(i, i);
    const Common<F, Scales> common(common_value<F>(given.same));
    u32 turn = 0;
#pragma unroll 1
    for (; left >= 0; left -= gridDim.x, begin += on, ++turn) {
        Tile<part_size * Src::bits / 8> in;
        Fragment<Src, Float, Double, Length, !leaves_factor<F, Scales, Float, Double>()> fragment;
        ptx::cp_async_wait_before<ahead - 1>();
        stage.take(in, turn);
        fragment.take(in, given.signs);
        ask(ahead, turn + ahead);
        quantize_fragment<F, Scales, Float, Double, Block>(fragment, begin < n, begin, given.columns, given.same, common, given.random);
    }
}

// The largest magnitude of what n threads transform, whole blocks of them.
template <typename Src, typename Float, typename Double, u32 Length, bool strided, u32 Threads, typename Finish>
GPUCAST_INLINE void find_transformed(const u8* src, i64 n, const HadamardArguments& given, WarpParts& numbers,
                                     WarpStats<typename Finish::Stats, Threads>& shared, const Finish& finish) {
    typedef Value<Src, Float, Double> V;
    typedef typename V::Word Word;
    const i64 bytes = Src::bits / 8, blocks = n / Threads;
    Tile<part_size * Src::bits / 8> in = {};
    Tile<part_size * 4> x;
    typename Finish::Stats stats = {0, 0};
    if constexpr (strided) {
        const WarpPart<Length> part;
#pragma unroll 1
        for (i64 first = i64(blockIdx.x) * part.runs; first < given.runs; first += blocks * part.runs) {
            const i64 run = first + part.run(), above = run / given.inner;
            const i64 begin = above * Length * given.inner + (run - above * given.inner) + part.before(0) * given.inner;
            in = {};
            if (run < given.runs) load_apart<Src, Word>(src + begin * bytes, given.inner * bytes, in);
#pragma unroll
            for (u32 i = 0; i < part_size; ++i) x.word[i] = narrow_bits<V>(V::of(get<Src::bits, Word>(in, i)));
            transform<Length, false>(x.word, given.signs, part, numbers);
            stats.template add_tile<Float, part_size>(x);
            // Before others take the place of these numbers.
            if constexpr (u32(part.parts) > 1) GPUCAST_BARRIER();
        }
    } else {
        const i64 all = given.runs * parts_of<Length>(), one = part_size * bytes;
        i64 at = i64(blockIdx.x) * Threads + threadIdx.x;
        if (at < all) load_aligned(src + at * one, in);
#pragma unroll 1
        for (i64 first = i64(blockIdx.x) * Threads; first < all; first += n, at += n) {
            Fragment<Src, Float, Double, Length> fragment;
            const auto now = in;
            in = {};
            if (at + n < all) load_aligned(src + (at + n) * one, in);
            fragment.take(now, given.signs);
            stats.template add_tile<Float, part_size>(fragment.x);
        }
    }
    finish_whole<Threads>(stats, shared, given.stats, blocks, finish);
}

// ---- the transform alone ----

template <typename Src, typename Dst, typename Rule, typename Float, typename Double, u32 Length, bool inverse, bool strided>
GPUCAST_INLINE void transform_array(const u8* src, u8* dst, i64 n, const HadamardArguments& given, WarpParts& shared) {
    typedef Value<Src, Float, Double> V;
    typedef typename V::Word Word;
    typedef typename WordOf<Dst::bits == 64>::type DstWord;
    const i64 bytes = Src::bits / 8, dst_bytes = Dst::bits / 8;
    const WarpPart<Length> part;
    i64 begin = (i64(blockIdx.x) * part_threads + threadIdx.x) * part_size;
    bool here = begin < n;
    Tile<part_size * Src::bits / 8> in = {};
    if constexpr (strided) {
        const i64 run = i64(blockIdx.x) * part.runs + part.run(), above = run / given.inner;
        here = run * Length < n;
        begin = above * Length * given.inner + (run - above * given.inner);
        if (here) load_apart<Src, Word>(src + (begin + part.before(0) * given.inner) * bytes, given.inner * bytes, in);
    } else if (here) {
        load_aligned(src + begin * bytes, in);
    }
    u32 x[part_size];
#pragma unroll
    for (u32 i = 0; i < part_size; ++i) x[i] = narrow_bits<V>(V::of(get<Src::bits, Word>(in, i)));
    if constexpr (strided) transform<Length, inverse>(x, given.signs, part, shared);
    else transform<Length, inverse>(x, given.signs);
    if (!here) return;
    Tile<part_size * Dst::bits / 8> out = {};
#pragma unroll
    for (u32 i = 0; i < part_size; ++i) {
        const float number = ptx::as_float(x[i]);
        const DstWord code = cast_code<Float, Dst>(DstWord(number == number ? x[i] : 0x7fc00000u), Rule());
        if constexpr (strided) store_element<Dst::bits>(dst + (begin + part.after(i) * given.inner) * dst_bytes, code);
        else put<Dst::bits>(out, i, code);
    }
    if constexpr (!strided) store_aligned(dst + begin * dst_bytes, out);
}

// ---- tiles: one read of an array gives the plain result, the transposed one, or both ----

// G has the sizes: of a tile, and for each result whether there is one, and the length of a run (0: none).
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
GPUCAST_INLINE void quantize_fragment_tiles(const u8* src, i64 n, const HadamardArguments& given, HadamardMemory<Src, G>& shared) {
    typedef typename Value<Src, Float, Double>::Word Word;
    typedef typename CodeOf<Src::bits>::type Code;
    const u32 bytes = Src::bits / 8, vectors = G::columns * bytes / 16;
    const u32 number = u32(block_number<F, G::rows * G::columns>(n));
    const u32 line = number / given.tiles_across, above = line / given.tiles_down;
    const i64 matrix = above, first_row = i64(line - above * given.tiles_down) * G::rows;
    const i64 first_column = i64(number - line * given.tiles_across) * G::columns;
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
    if constexpr (G::same) {
        const u32 across = G::columns / part_size;
        const Common<F, Scales> common(common_value<F>(given.same));
#pragma unroll 1
        for (u32 k = threadIdx.x; k < G::rows * across; k += u32(G::threads)) {
            const u32 row = k / across, column = k % across * part_size;
            const bool here = row < rows && column < columns;
            Tile<part_size * bytes> in = {};
            if (here) load_words(shared.at(row, column), in.word);
            Fragment<Src, Float, Double, G::same_run, !leaves_factor<F, Scales, Float, Double>()> fragment;
            fragment.take(in, given.signs);
            const i64 begin = (matrix * given.rows + first_row + row) * given.columns + first_column + column;
            quantize_fragment<F, Scales, Float, Double, Block>(fragment, here, begin, given.columns, given.same, common, given.random);
        }
    }
    if constexpr (G::swapped) {
        const u32 down = G::rows / part_size;
        const Common<F, Scales> common(common_value<F>(given.swapped));
#pragma unroll 1
        for (u32 k = threadIdx.x; k < G::columns * down; k += u32(G::threads)) {
            // Neighbouring threads take neighbours in the result.
            const u32 row = k % down * part_size, column = k / down;
            const bool here = row < rows && column < columns;
            Tile<part_size * bytes> in = {};
            if (here) {
#pragma unroll
                for (u32 i = 0; i < part_size; ++i) {
                    put<Src::bits>(in, i, Word(*reinterpret_cast<const Code*>(shared.at(row + i, column))));
                }
            }
            Fragment<Src, Float, Double, G::swapped_run, !leaves_factor<F, Scales, Float, Double>()> fragment;
            fragment.take(in, given.signs);
            const i64 begin = (matrix * given.columns + first_column + column) * given.rows + first_row + row;
            quantize_fragment<F, Scales, Float, Double, Block>(fragment, here, begin, given.rows, given.swapped, common, given.random);
        }
    }
}

}  // namespace gpucast

// Macros, because a kernel's name is that of its work; gpucast/quantization/cuda/hadamard_source.py writes the rest.
// RESIDENT: blocks of an SM at a time, whose registers must suffice; 0: as the compiler chooses.
#define GPUCAST_HADAMARD(NAME, THREADS, RESIDENT, ...)                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)                                                    \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8*, gpucast::i64 n,                                       \
             const __grid_constant__ gpucast::HadamardArguments given) {                                               \
        using namespace gpucast;                                                                                       \
        __VA_ARGS__;                                                                                                   \
    }
// Blocks that stay: from sm_80 on, which has copies to shared memory.
#define GPUCAST_HADAMARD_IN_TURN(NAME, SRC, THREADS, RESIDENT, ...)                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)                                                    \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8*, gpucast::i64 n,                                       \
             const __grid_constant__ gpucast::HadamardArguments given) {                                               \
        using namespace gpucast;                                                                                       \
        if constexpr (GPUCAST_ARCH < 800) {                                                                            \
            quantize_fragments<__VA_ARGS__, THREADS>(src, n, given);                                                   \
        } else {                                                                                                       \
            __shared__ PartStage<part_size * SRC::bits / 8, THREADS> stage;                                            \
            quantize_fragments_in_turn<__VA_ARGS__, THREADS>(src, n, given, stage);                                    \
        }                                                                                                              \
    }
#define GPUCAST_HADAMARD_TRANSFORM(NAME, ...)                                                                          \
    extern "C" __global__ void __launch_bounds__(gpucast::part_threads)                                                \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8* dst, gpucast::i64 n,                                   \
             const __grid_constant__ gpucast::HadamardArguments given) {                                               \
        using namespace gpucast;                                                                                       \
        __shared__ WarpParts shared;                                                                                   \
        transform_array<__VA_ARGS__>(src, dst, n, given, shared);                                                      \
    }
#define GPUCAST_HADAMARD_TOP(NAME, SRC, LENGTH, STRIDED, ...)                                                          \
    extern "C" __global__ void __launch_bounds__(gpucast::part_threads)                                                \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8* dst, gpucast::i64 n,                                   \
             const __grid_constant__ gpucast::HadamardArguments given) {                                               \
        using namespace gpucast;                                                                                       \
        typedef decltype(__VA_ARGS__) Finish;                                                                          \
        __shared__ WarpParts numbers;                                                                                  \
        __shared__ WarpStats<Finish::Stats, part_threads> shared;                                                      \
        find_transformed<SRC, FLOAT, DOUBLE, LENGTH, STRIDED, part_threads>(src, n, given, numbers, shared, __VA_ARGS__); \
    }
#define GPUCAST_HADAMARD_TILES(NAME, SRC, THREADS, RESIDENT, ...)                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT)                                                    \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8*, gpucast::i64 n,                                       \
             const __grid_constant__ gpucast::HadamardArguments given) {                                               \
        using namespace gpucast;                                                                                       \
        __shared__ HadamardMemory<SRC, NAME##_tiles> shared;                                                           \
        quantize_fragment_tiles<__VA_ARGS__, NAME##_tiles>(src, n, given, shared);                                     \
    }

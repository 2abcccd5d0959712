// SPDX-License-Identifier: Apache-2.0
// What a block of threads does with one tile of quantize_tiles.cu: scales, codes, and the way of both to a result.
namespace gpucast {

template <typename F, typename Src, typename Float, typename Double, typename G>
struct TileKernel : TilePlace<G> {
    typedef Value<Src, Float, Double> V;
    typedef typename V::Word Word;
    typedef typename F::element DType;
    typedef TileShape<G> Shape;
    typedef TilePlace<G> Place;
    typedef TileMemory<F, V, G> Memory;
    typedef BlockStats<V, F::two_sided, !F::nan_in_scale> Stats;
    typedef Divisor<F, Src, Float, Double> Quotients;
    typedef typename CodeOf<Src::bits>::type SrcCode;
    typedef typename CodeOf<F::scale::bits>::type ScaleCode;
    // Elements of a vector of codes, bits of a code in shared memory, codes of a word and of a byte, and bytes of a vector there.
    enum : u32 { bytes = Src::bits / 8, unit = 16, code_bits = Memory::code_bits, of_word = 32 / code_bits, of_byte = 8 / code_bits, vector = unit / of_byte };
    // Where each scale is computed from the elements that it is for.
    enum : bool { fits = !F::zero_points && !G::given && !Shape::everywhere };

    const TileArguments& given;
    Memory& shared;
    using Place::matrix;
    using Place::first_row;
    using Place::first_column;
    using Place::rows;
    using Place::columns;
    // The tile's first element.
    const u8* src;
    // The position of the thread's patch in the tile.
    u32 row, column;
    const Global<F>& global;
    // The scale where all elements share one.
    Scale common_scale;
    // How many matrices there are; more than that in a tile that is not of the last one.
    i64 matrices;

    GPUCAST_INLINE TileKernel(
        const u8* array, i64 n, const Place& place, const TileArguments& arguments, Memory& memory, const Global<F>& of_all) :
        Place(place), given(arguments), shared(memory), global(of_all) {
        const i64 tiles = i64(given.tiles_down) * given.tiles_across;
        matrices = (matrix + 1) * tiles * u32(Shape::tile) == n ? matrix + 1 : matrix + 2;
        src = array + place.first(given) * bytes;
        row = threadIdx.x / Shape::lanes * G::rows;
        column = threadIdx.x % Shape::lanes * G::columns;
        common_scale = {};
        if constexpr (Shape::everywhere) {
            const TileResult& result = Shape::same ? given.same : given.swapped;
            common_scale = load_scale<F>(result.scales, result.zero_points, 0);
        }
    }

    // The thread's patch in memory, and whether it is complete.
    GPUCAST_INLINE const u8* patch() const { return src + (i64(row) * given.columns + column) * bytes; }
    GPUCAST_INLINE bool is_whole() const { return rows_left() >= u32(G::rows) && columns_left() >= u32(G::columns); }
    GPUCAST_INLINE u32 rows_left() const { return row < rows ? rows - row : 0; }
    GPUCAST_INLINE u32 columns_left() const { return column < columns ? columns - column : 0; }

    // ---- scales ----

    // What is prepared of all scales that a block may have. Read only after a barrier.
    GPUCAST_INLINE static void fill(Memory& shared, const Global<F>& global) {
        if constexpr (Memory::tabled) {
#pragma unroll 1
            for (u32 k = threadIdx.x; k < u32(Memory::table_size); k += u32(Shape::threads)) {
                const bool is_nan = F::nan_in_scale && k >= u32(F::scale::nan_code);
                shared.table[k] = Quotients({k, 0, is_nan}, global.scale).prepared();
            }
        }
    }

    // Scale number i of a result, from the statistics of its block or as given.
    GPUCAST_INLINE Scale scale(const Stats& stats, const TileResult& result, i64 i, bool here) const {
        if constexpr (G::whole_columns) {
            return here ? load_scale<F>(result.scales, result.zero_points, i) : Scale{};
        } else if constexpr (!G::given) {
            return scale_of<F, Float, Double>(stats, global);
        } else {
            const bool is_nan = F::nan_in_scale && stats.has_nonfinite();
            const u32 code = here ? u32(reinterpret_cast<const ScaleCode*>(result.scales)[i]) : 0;
            return {is_nan ? u32(F::scale::nan_code) : code, 0, is_nan};
        }
    }
    // The scales of several blocks, of which `place` and `here` say where they are: those that are computed together.
    template <u32 N>
    GPUCAST_INLINE void scales(const Stats (&stats)[N], const TileResult& result, const i64 (&place)[N], const bool (&here)[N], Scale (&own)[N]) const {
        if constexpr (!G::given && !G::whole_columns && can_bracket<F, V>() && N % 4 == 0) {
#pragma unroll
            for (u32 i = 0; i < N; i += 4) four_scales<F, Float, Double>(stats + i, global, own + i);
        } else {
#pragma unroll
            for (u32 i = 0; i < N; ++i) own[i] = scale(stats[i], result, place[i], here[i]);
        }
    }
    // What is prepared of a scale for the elements of its block, whose statistics these are.
    GPUCAST_INLINE float prepared(const Scale& own, const Stats& stats) const {
        if constexpr (!Memory::prepares) {
            return 0;
        } else {
            const float amax = ptx::as_float(u32(stats.high));
            if constexpr (Memory::tabled) return Quotients::limited(shared.table[own.code], amax);
            else return Quotients::limited(Quotients(own, global.scale).prepared(), amax);
        }
    }
    GPUCAST_INLINE void store(const TileResult& result, i64 i, const ScalePlace& place, const Scale& scale) const {
        if (G::whole_columns || (G::given && !scale.is_nan)) return;
        if constexpr (is_same<typename F::order, Linear>) {
            reinterpret_cast<ScaleCode*>(result.scales)[i] = ScaleCode(scale.code);
        } else {
            store_scale<F::scale::bits / 8>(
                result.scales, typename F::order(), place.row, place.column, matrices * place.rows, place.columns, scale.code, F::padding);
        }
        if constexpr (F::zero_points) result.zero_points[i] = u8(scale.zero_point);
    }

    // A scale for each run along a row. Neighbouring threads take neighbours in the result.
    GPUCAST_INLINE void scales_along() const {
        const bool to_same = G::same() == Run::along;
        const u32 parts = G::block / Shape::part;
        const i64 grid = (given.columns + G::block - 1) / G::block;
        const i64 at_row = matrix * given.rows + first_row, at_run = first_column / G::block;
        scales_of_runs<Shape::row_scales, to_same ? u32(Shape::runs_along) : u32(G::tile_rows)>(
            to_same ? given.same : given.swapped, shared.of_rows, to_same ? at_row * grid + at_run : (matrix * grid + at_run) * given.rows + first_row,
            to_same ? grid : given.rows, [&](u32 slow, u32 fast) -> RunOfTile {
                const u32 r = to_same ? slow : fast, b = to_same ? fast : slow, number = r * Shape::runs_along + b;
                Stats stats = {0, 0};
#pragma unroll
                for (u32 i = 0; i < parts; ++i) shared.held.stats.in_rows.merge_into(stats, number * parts + i);
                // Only blocks along the last axis of a result have an order.
                return {stats, number, r < rows && b * G::block < columns, {at_row + r, at_run + b, given.rows, grid}};
            });
    }

    GPUCAST_INLINE void scales_down() const {
        const bool to_same = G::same() == Run::down;
        const i64 grid = G::whole_columns ? 1 : (given.rows + G::block - 1) / G::block;
        const i64 at_column = matrix * given.columns + first_column, at_run = G::whole_columns ? 0 : first_row / G::block;
        scales_of_runs<Shape::column_scales, to_same ? u32(G::tile_columns) : u32(Shape::runs_down)>(
            to_same ? given.same : given.swapped, shared.of_columns, to_same ? (matrix * grid + at_run) * given.columns + first_column : at_column * grid + at_run,
            to_same ? given.columns : grid, [&](u32 slow, u32 fast) -> RunOfTile {
                const u32 c = to_same ? fast : slow, b = to_same ? slow : fast;
                Stats stats = {0, 0};
                if constexpr (!G::whole_columns) {
#pragma unroll
                    for (u32 i = 0; i < u32(G::block / G::rows); ++i) {
                        shared.held.stats.in_columns.merge_into(stats, (b * (G::block / G::rows) + i) * G::tile_columns + c);
                    }
                }
                const i64 run = G::whole_columns ? 0 : at_run + b;
                return {stats, b * G::tile_columns + c, c < columns && b * G::block < rows, {at_column + c, run, given.columns, grid}};
            });
    }

    // A run of a tile, with its number among those of the tile. `here` where it is in the matrix.
    struct RunOfTile {
        Stats stats;
        u32 number;
        bool here;
        ScalePlace place;
    };

    // The scales of runs, some for each thread. Each is one of `Fast` next to each other in a result, whose first one is
    // number `first` there; after so many come others, `apart` behind. `run` gives one.
    template <u32 Count, u32 Fast, typename Scales, typename Run_>
    GPUCAST_INLINE void scales_of_runs(const TileResult& result, Scales& kept, i64 first, i64 apart, const Run_& run) const {
        const u32 threads = Shape::threads, turns = (Count + threads - 1) / threads;
        static_assert(threads % Fast == 0 || Fast % threads == 0, "one of the two stays from turn to turn");
        const u32 slow = threads % Fast == 0 ? threadIdx.x / Fast : 0, fast = threads % Fast == 0 ? threadIdx.x % Fast : threadIdx.x;
        const i64 begin = first + slow * apart + fast;
        RunOfTile runs[turns];
        Stats stats[turns];
        Scale own[turns] = {};
        i64 place[turns];
        bool here[turns];
#pragma unroll
        for (u32 i = 0; i < turns; ++i) {
            // What a turn adds is constant, so that most addresses are computed once.
            const u32 slow_on = threads % Fast == 0 ? threads / Fast * i : i * threads / Fast, fast_on = threads % Fast == 0 ? 0 : i * threads % Fast;
            runs[i] = {};
            if (Count % threads == 0 || i * threads + threadIdx.x < Count) runs[i] = run(slow + slow_on, fast + fast_on);
            stats[i] = runs[i].stats, here[i] = runs[i].here;
            place[i] = begin + slow_on * apart + fast_on;
        }
        scales(stats, result, place, here, own);
        // All are read before some are written: a compiler keeps the order of accesses to shared memory.
        float factor[turns];
#pragma unroll
        for (u32 i = 0; i < turns; ++i) factor[i] = prepared(own[i], stats[i]);
#pragma unroll
        for (u32 i = 0; i < turns; ++i) {
            if (Count % threads != 0 && i * threads + threadIdx.x >= Count) break;
            kept.put(runs[i].number, own[i], factor[i]);
            if (here[i]) store(result, place[i], runs[i].place, own[i]);
        }
    }

    // A scale for each square, which both results have.
    GPUCAST_INLINE void scales_of_squares() const {
        const i64 down = (given.rows + G::block - 1) / G::block, across = (given.columns + G::block - 1) / G::block;
        const u32 k = threadIdx.x;
        static_assert(u32(Shape::column_scales) <= u32(Shape::threads) || !Shape::square, "a thread for each");
        if (k >= u32(Shape::column_scales)) return;
        const u32 b = k / Shape::runs_along, c = k % Shape::runs_along;
        Stats stats = {0, 0};
#pragma unroll
        for (u32 i = 0; i < u32(G::block / G::rows); ++i) {
            shared.held.stats.in_columns.merge_into(stats, (b * (G::block / G::rows) + i) * Shape::runs_along + c);
        }
        const i64 at_row = first_row / G::block + b, at_column = first_column / G::block + c;
        const i64 place = (matrix * down + at_row) * across + at_column, turned = (matrix * across + at_column) * down + at_row;
        const bool here = b * G::block < rows && c * G::block < columns;
        const Scale own = scale(stats, Shape::same ? given.same : given.swapped, Shape::same ? place : turned, here);
        shared.of_columns.put(k, own, 0);
        if (!here) return;
        if (Shape::same) store(given.same, place, {matrix * down + at_row, at_column, down, across}, own);
        if (Shape::swapped) store(given.swapped, turned, {matrix * across + at_column, at_row, across, down}, own);
    }

    // The scale of an element of the tile, and what is prepared of it.
    template <Run run>
    GPUCAST_INLINE Scale scale_at(u32 r, u32 c) const {
        if constexpr (run == Run::everywhere) return common_scale;
        else if constexpr (run == Run::along) return shared.of_rows.get(scale_number<run>(r, c));
        else return shared.of_columns.get(scale_number<run>(r, c));
    }
    template <Run run>
    GPUCAST_INLINE float prepared_at(u32 r, u32 c) const {
        if constexpr (run == Run::along) return shared.of_rows.prepared[scale_number<run>(r, c)];
        else return shared.of_columns.prepared[scale_number<run>(r, c)];
    }
    template <Run run>
    GPUCAST_INLINE static u32 scale_number(u32 r, u32 c) {
        if constexpr (run == Run::along) return r * Shape::runs_along + c / G::block;
        else if constexpr (run == Run::down) return r / G::block * G::tile_columns + c;
        else return r / G::block * Shape::runs_along + c / G::block;
    }

    // ---- codes ----

    GPUCAST_INLINE u8* at_same(u32 r, u32 c) const { return shared.held.codes.same + (r * G::tile_columns + c) / of_byte; }
    // In vectors of 16 rows of a column, permuted so that neighbouring threads write to different banks.
    GPUCAST_INLINE u8* at_swapped(u32 r, u32 c) const {
        const u32 number = (c * (G::tile_rows / unit) + r / unit) ^ (c / G::columns & (128 / vector - 1));
        return shared.held.codes.swapped + number * vector + r % unit / of_byte;
    }

    // The codes of a patch, as words of some rows each of a column.
    typedef u32 Codes[G::columns][G::rows / of_word];

    GPUCAST_INLINE void put_same(const Codes& codes) const {
#pragma unroll
        for (u32 i = 0; i < G::rows; i += 4) {
            u32 words[4][G::columns / 4];
#pragma unroll
            for (u32 j = 0; j < G::columns / 4; ++j) {
#pragma unroll
                for (u32 k = 0; k < 4; ++k) words[k][j] = codes[4 * j + k][i / 4];
                transpose_bytes(words[0][j], words[1][j], words[2][j], words[3][j]);
            }
#pragma unroll
            for (u32 k = 0; k < 4; ++k) store_words(at_same(row + i + k, column), words[k]);
        }
    }
    GPUCAST_INLINE void put_swapped(const Codes& codes) const {
#pragma unroll
        for (u32 j = 0; j < G::columns; ++j) store_words(at_swapped(row, column + j), codes[j]);
    }

    // The functions below use the fast path, and return a bit for each row or column of the patch that they leave to
    // `put_one_by_one`.
    template <typename Tile_>
    GPUCAST_INLINE static bool is_finite(const Tile_& in, u32 known, u32 i) {
        if constexpr (F::nan_in_scale && !Shape::everywhere) {
            return true;
        } else if constexpr (Shape::everywhere) {
            BlockStats<V, F::zero_points, false> stats = {0, 0};
            return stats.template add_tile<Src, sizeof(in) / bytes>(in);
        } else {
            return (known >> i & 1) != 0;
        }
    }

    // Whether one test says that all lines of a patch have quick codes: a branch for each costs as much as some codes.
    // Where scales are no powers of two, divisors take so many registers that lines are better done in turn.
    enum : bool { together = Quotients::by_power && !Quotients::by_bracket };

    // That test, for N lines: `scale` and `in` give the scale and the elements of one.
    template <u32 N, typename ScaleOf, typename Line>
    GPUCAST_INLINE bool are_quick(u32 finite, const ScaleOf& scale, const Line& in) const {
        bool quick = true;
        if constexpr (together) {
#pragma unroll
            for (u32 i = 0; i < N; ++i) quick &= Quotients(scale(i), global.scale).fast && is_finite(in(i), finite, i);
        }
        return quick;
    }

    // The codes of N neighbouring elements as in shared memory. False where they are left to `put_one_by_one`.
    template <u32 N, u32 Bytes>
    GPUCAST_INLINE bool quantize(const Scale& scale, const Tile<Bytes>& in, u32 finite, u32 line, u32 (&words)[N / of_word]) const {
        // A tile of 6-bit elements holds four or sixteen of them.
        const u32 part = DType::bits == 6 && N == 8 ? 4 : N;
        const Quotients divisor(scale, global.scale);
        const bool quick = together || (divisor.fast && is_finite(in, finite, line));
#pragma unroll
        for (u32 i = 0; i < N; i += part) {
            Tile<part * DType::bits / 8> out = {};
            Tile<part * bytes> some;
#pragma unroll
            for (u32 j = 0; j < part * bytes / 4; ++j) some.word[j] = in.word[i * bytes / 4 + j];
            if (quick) divisor.template quick_tile<part, fits>(some, out);
            spread<part>(out, words + i / of_word);
        }
        return quick;
    }

    // N codes of a tile as in shared memory.
    template <u32 N, u32 Bytes>
    GPUCAST_INLINE static void spread(const Tile<Bytes>& tile, u32* words) {
#pragma unroll
        for (u32 i = 0; i < N; i += u32(of_word)) {
            if constexpr (u32(code_bits) == u32(DType::bits)) words[i / of_word] = tile.word[i / of_word];
            else words[i / of_word] = four_codes<DType::bits>(tile, i);
        }
    }

    // The codes of a patch by what is prepared of its scales, line by line. A line for which that does not serve is read
    // again, because a loop that is not unrolled cannot index registers. False where a line is left to `put_one_by_one`.
    template <Run run, bool by_columns>
    GPUCAST_INLINE bool by_prepared(const Patch<Src, G::rows, G::columns>& patch, u32 finite) const {
        const u32 lines = by_columns ? G::columns : G::rows, length = by_columns ? G::rows : G::columns;
        const auto row_of = [&](u32 i) { return by_columns ? row : row + i; };
        const auto column_of = [&](u32 i) { return by_columns ? column + i : column; };
        const auto at = [&](u32 i) { return by_columns ? at_swapped(row, column + i) : at_same(row + i, column); };
        u32 words[length / of_word], differ = 0, beyond = 0;
        // All are read before codes are written, as above. The sum is NaN where one of them is.
        float factor[lines], sum = 0;
#pragma unroll
        for (u32 i = 0; i < lines; ++i) factor[i] = prepared_at<run>(row_of(i), column_of(i));
#pragma unroll
        for (u32 i = 0; i < lines; ++i) {
            const auto element = [&](u32 j) { return get<Src::bits, Word>(patch.row[by_columns ? j : i], by_columns ? i : j); };
            Tile<length * DType::bits / 8> out = {};
            sum = ptx::add_rn(sum, factor[i]);
            Quotients::template by_factor<true>(element, factor[i], out, beyond, differ);
            spread<length>(out, words);
            store_words(at(i), words);
        }
        const u32 all = (1u << lines) - 1;
        bool are_finite = true;
        if constexpr (!F::nan_in_scale) are_finite = (finite & all) == all;
        if (sum == sum && differ == 0 && are_finite) return true;
        ptx::mark_rare();
        bool done = true;
#pragma unroll 1
        for (u32 i = 0; i < lines; ++i) {
            const float own = prepared_at<run>(row_of(i), column_of(i));
            if (own == own && differ == 0 && is_finite(patch.row[0], finite, i)) continue;
            Tile<length * bytes> in = {};
#pragma unroll
            for (u32 j = 0; j < length; ++j) {
                const u32 r = row_of(i) + (by_columns ? j : 0), c = column_of(i) + (by_columns ? 0 : j);
                if (r < rows && c < columns) put<Src::bits>(in, j, Word(reinterpret_cast<const SrcCode*>(src)[r * given.columns + c]));
            }
            done &= quantize<length>(scale_at<run>(row_of(i), column_of(i)), in, finite, i, words);
            store_words(at(i), words);
        }
        return done;
    }

    // The codes of a patch, by rows or by columns. False where all of them are left to `put_one_by_one`.
    template <Run run>
    GPUCAST_INLINE bool quantize_rows_of(const Patch<Src, G::rows, G::columns>& patch, u32 finite) const {
        if constexpr (Memory::prepares) return by_prepared<run, false>(patch, finite);
        const auto scale = [&](u32 i) { return scale_at<run>(row + i, column); };
        if (!are_quick<G::rows>(finite, scale, [&](u32 i) { return patch.row[i]; })) return false;
        bool done = true;
#pragma unroll
        for (u32 i = 0; i < G::rows; ++i) {
            u32 words[G::columns / of_word];
            done &= quantize<G::columns>(scale(i), patch.row[i], finite, i, words);
            store_words(at_same(row + i, column), words);
        }
        return done;
    }

    template <Run run>
    GPUCAST_INLINE bool quantize_rows_turned(const Patch<Src, G::rows, G::columns>& patch, u32 finite) const {
        const auto scale = [&](u32 i) { return scale_at<run>(row + i, column); };
        if (!are_quick<G::rows>(finite, scale, [&](u32 i) { return patch.row[i]; })) return false;
        Codes codes;
        bool done = true;
#pragma unroll
        for (u32 i = 0; i < G::rows; i += 4) {
            u32 words[4][G::columns / 4];
#pragma unroll
            for (u32 k = 0; k < 4; ++k) done &= quantize<G::columns>(scale(i + k), patch.row[i + k], finite, i + k, words[k]);
#pragma unroll
            for (u32 j = 0; j < G::columns / 4; ++j) {
                transpose_bytes(words[0][j], words[1][j], words[2][j], words[3][j]);
#pragma unroll
                for (u32 k = 0; k < 4; ++k) codes[4 * j + k][i / 4] = words[k][j];
            }
        }
        put_swapped(codes);
        return done;
    }

    template <Run run, bool to_same, bool to_swapped>
    GPUCAST_INLINE bool quantize_columns(const Patch<Src, G::rows, G::columns>& patch, u32 finite) const {
        if constexpr (Memory::prepares) return by_prepared<run, true>(patch, finite);
        const auto scale = [&](u32 j) { return scale_at<run>(row, column + j); };
        if (!are_quick<G::columns>(finite, scale, [&](u32 j) { return patch.column(j); })) return false;
        Codes codes;
        bool done = true;
#pragma unroll
        for (u32 j = 0; j < G::columns; ++j) done &= quantize<G::rows>(scale(j), patch.column(j), finite, j, codes[j]);
        if constexpr (to_same) put_same(codes);
        if constexpr (to_swapped) put_swapped(codes);
        return done;
    }

    // The codes of a patch, one by one. The elements are read again, because a loop that is not unrolled cannot index
    // registers.
    template <Run run, bool swapped>
    GPUCAST_INLINE void put_one_by_one() const {
        const u32 across = swapped ? G::rows / 4 : G::columns / 4;
#pragma unroll 1
        for (u32 q = 0; q < G::rows * G::columns / 4; ++q) {
            // Four neighbours in the result, which are neighbours in a vector, too.
            const u32 one = q / across, four = q % across * 4;
            const u32 r = row + (swapped ? four : one), c = column + (swapped ? one : four);
            u32 random[4] = {};
            if constexpr (F::stochastic) {
                const i64 at_row = first_row + r, at_column = first_column + c;
                const i64 place = swapped ? (matrix * given.columns + at_column) * given.rows + at_row
                                          : (matrix * given.rows + at_row) * given.columns + at_column;
                given.random.template words<4>(place, random);
            }
            u32 codes = 0;
#pragma unroll 1
            for (u32 k = 0; k < 4; ++k) {
                const u32 own_row = swapped ? r + k : r, own_column = swapped ? c : c + k;
                if (own_row >= rows || own_column >= columns) continue;
                const i64 at = own_row * given.columns + own_column;
                const Word bits = V::of(reinterpret_cast<const SrcCode*>(src)[at]);
                const Quotients divisor(scale_at<run>(own_row, own_column), global.scale);
                u32 code;
                if constexpr (F::stochastic) {
                    const u32 even = k & 2 ? random[2] : random[0], odd = k & 2 ? random[3] : random[1];
                    code = divisor.at_random(bits, k & 1 ? odd : even);
                } else {
                    code = divisor.one(bits);
                }
                codes |= code << (u32(code_bits) * k);
            }
            u8* const to = swapped ? at_swapped(r, c) : at_same(r, c);
            if constexpr (code_bits == 4) *reinterpret_cast<u16*>(to) = u16(codes);
            else *reinterpret_cast<u32*>(to) = codes;
        }
    }
};

}  // namespace gpucast

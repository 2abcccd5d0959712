// SPDX-License-Identifier: Apache-2.0
// What a block of threads does with one tile of quantize_tiles.cu: scales, codes, and the way of both to a result.
namespace gpucast {

// The place of a scale where scales have an order: row and column of all matrices of rows x columns, one below the other.
struct ScalePlace {
    i64 row, column, rows, columns;
};

// Where a tile lies: its matrix, its first row and column there, and how many of its rows and columns the matrix has.
template <typename G>
struct TilePlace {
    i64 matrix, first_row, first_column;
    u32 rows, columns;

    GPUCAST_INLINE TilePlace(u32 number, const TileArguments& given) {
        const u32 line = number / given.tiles_across, above = line / given.tiles_down;
        matrix = above;
        first_row = i64(line - above * given.tiles_down) * G::tile_rows;
        first_column = i64(number - line * given.tiles_across) * G::tile_columns;
        const i64 below = given.rows - first_row, right = given.columns - first_column;
        rows = below < i64(G::tile_rows) ? u32(below) : u32(G::tile_rows);
        columns = right < i64(G::tile_columns) ? u32(right) : u32(G::tile_columns);
    }
    // The number of its first element among all matrices.
    GPUCAST_INLINE i64 first(const TileArguments& given) const {
        return (matrix * given.rows + first_row) * given.columns + first_column;
    }
};

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
    enum : u32 { bytes = Src::bits / 8, unit = 16 };
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
    float global;
    // The scale where all elements share one.
    Scale common_scale;
    // How many matrices there are; more than that in a tile that is not of the last one.
    i64 matrices;

    GPUCAST_INLINE TileKernel(const u8* array, i64 n, const Place& place, const TileArguments& arguments, Memory& memory) :
        Place(place), given(arguments), shared(memory) {
        const i64 tiles = i64(given.tiles_down) * given.tiles_across;
        matrices = (matrix + 1) * tiles * u32(Shape::tile) == n ? matrix + 1 : matrix + 2;
        src = array + place.first(given) * bytes;
        row = threadIdx.x / Shape::lanes * G::rows;
        column = threadIdx.x % Shape::lanes * G::columns;
        global = global_value<F>(given.global_scale);
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
        const TileResult& result = to_same ? given.same : given.swapped;
        const i64 grid = (given.columns + G::block - 1) / G::block;
#pragma unroll
        for (u32 k = threadIdx.x; k < u32(Shape::row_scales); k += u32(Shape::threads)) {
            const u32 r = to_same ? k / Shape::runs_along : k % G::tile_rows;
            const u32 b = to_same ? k % Shape::runs_along : k / G::tile_rows;
            Stats stats = {0, 0};
#pragma unroll
            for (u32 i = 0; i < u32(G::block / Shape::part); ++i) {
                shared.held.stats.in_rows.merge_into(stats, (r * Shape::runs_along + b) * (G::block / Shape::part) + i);
            }
            const i64 at_row = matrix * given.rows + first_row + r, at = first_column / G::block + b;
            const i64 place = to_same ? at_row * grid + at : (matrix * grid + at) * given.rows + first_row + r;
            const bool here = r < rows && b * G::block < columns;
            const Scale own = scale(stats, result, place, here);
            shared.of_rows.put(r * Shape::runs_along + b, own);
            // Only blocks along the last axis of a result have an order.
            if (here) store(result, place, {at_row, at, given.rows, grid}, own);
        }
    }

    GPUCAST_INLINE void scales_down() const {
        const bool to_same = G::same() == Run::down;
        const TileResult& result = to_same ? given.same : given.swapped;
        const i64 grid = G::whole_columns ? 1 : (given.rows + G::block - 1) / G::block;
#pragma unroll
        for (u32 k = threadIdx.x; k < u32(Shape::column_scales); k += u32(Shape::threads)) {
            const u32 c = to_same ? k % G::tile_columns : k / Shape::runs_down;
            const u32 b = to_same ? k / G::tile_columns : k % Shape::runs_down;
            Stats stats = {0, 0};
            if constexpr (!G::whole_columns) {
#pragma unroll
                for (u32 i = 0; i < u32(G::block / G::rows); ++i) {
                    shared.held.stats.in_columns.merge_into(stats, (b * (G::block / G::rows) + i) * G::tile_columns + c);
                }
            }
            const i64 at_column = first_column + c, at = G::whole_columns ? 0 : first_row / G::block + b;
            const i64 place = to_same ? (matrix * grid + at) * given.columns + at_column : (matrix * given.columns + at_column) * grid + at;
            const bool here = c < columns && b * G::block < rows;
            const Scale own = scale(stats, result, place, here);
            shared.of_columns.put(b * G::tile_columns + c, own);
            if (here) store(result, place, {matrix * given.columns + at_column, at, given.columns, grid}, own);
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
        shared.of_columns.put(k, own);
        if (!here) return;
        if (Shape::same) store(given.same, place, {matrix * down + at_row, at_column, down, across}, own);
        if (Shape::swapped) store(given.swapped, turned, {matrix * across + at_column, at_row, across, down}, own);
    }

    // The scale of an element of the tile.
    template <Run run>
    GPUCAST_INLINE Scale scale_at(u32 r, u32 c) const {
        if constexpr (run == Run::along) return shared.of_rows.get(r * Shape::runs_along + c / G::block);
        else if constexpr (run == Run::down) return shared.of_columns.get(r / G::block * G::tile_columns + c);
        else if constexpr (run == Run::square) return shared.of_columns.get(r / G::block * Shape::runs_along + c / G::block);
        else return common_scale;
    }

    // ---- codes ----

    GPUCAST_INLINE u8* at_same(u32 r, u32 c) const { return shared.held.codes.same + r * G::tile_columns + c; }
    // In vectors of 16 rows of a column, permuted so that neighbouring threads write to different banks.
    GPUCAST_INLINE u8* at_swapped(u32 r, u32 c) const {
        return shared.held.codes.swapped + ((c * (G::tile_rows / unit) + r / unit) ^ (c / G::columns & 7)) * unit + r % unit;
    }

    // The codes of a patch, as words of four rows each of a column.
    typedef u32 Codes[G::columns][G::rows / 4];

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
            for (u32 i = 0; i < N; ++i) quick &= Quotients(scale(i), global).fast && is_finite(in(i), finite, i);
        }
        return quick;
    }

    // The codes of N neighbouring elements, as words of four. False where they are left to `put_one_by_one`.
    template <u32 N, u32 Bytes>
    GPUCAST_INLINE bool quantize(const Scale& scale, const Tile<Bytes>& in, u32 finite, u32 line, u32 (&words)[N / 4]) const {
        // A tile of 6-bit elements holds four or sixteen of them.
        const u32 part = DType::bits == 6 && N == 8 ? 4 : N;
        const Quotients divisor(scale, global);
        const bool quick = together || (divisor.fast && is_finite(in, finite, line));
#pragma unroll
        for (u32 i = 0; i < N; i += part) {
            Tile<part * DType::bits / 8> out = {};
            Tile<part * bytes> some;
#pragma unroll
            for (u32 j = 0; j < part * bytes / 4; ++j) some.word[j] = in.word[i * bytes / 4 + j];
            if (quick) divisor.template quick_tile<part, fits>(some, out);
#pragma unroll
            for (u32 j = 0; j < part; j += 4) words[(i + j) / 4] = four_codes<DType::bits>(out, j);
        }
        return quick;
    }

    // The codes of a patch, by rows or by columns. False where all of them are left to `put_one_by_one`.
    template <Run run>
    GPUCAST_INLINE bool quantize_rows_of(const Patch<Src, G::rows, G::columns>& patch, u32 finite) const {
        const auto scale = [&](u32 i) { return scale_at<run>(row + i, column); };
        if (!are_quick<G::rows>(finite, scale, [&](u32 i) { return patch.row[i]; })) return false;
        bool done = true;
#pragma unroll
        for (u32 i = 0; i < G::rows; ++i) {
            u32 words[G::columns / 4];
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
        const auto scale = [&](u32 j) { return scale_at<run>(row, column + j); };
        if (!are_quick<G::columns>(finite, scale, [&](u32 j) { return patch.column(j); })) return false;
        Codes codes;
        bool done = true;
#pragma unroll
        for (u32 j = 0; j < G::columns; ++j) done &= quantize<G::rows>(scale(j), patch.column(j), finite, j, codes[j]);
        if (to_same) put_same(codes);
        if (to_swapped) put_swapped(codes);
        return done;
    }

    // The codes of a patch, one by one. The elements are read again, because a loop that is not unrolled cannot index
    // registers.
    template <Run run, bool swapped>
    GPUCAST_INLINE void put_one_by_one() const {
        const u32 across = swapped ? G::rows / 4 : G::columns / 4;
#pragma unroll 1
        for (u32 q = 0; q < G::rows * G::columns / 4; ++q) {
            // Four neighbours in the result.
            const u32 one = q / across, four = q % across * 4;
            const u32 r = row + (swapped ? four : one), c = column + (swapped ? one : four);
            u32 random[4] = {};
            if constexpr (F::stochastic) {
                const i64 at_row = first_row + r, at_column = first_column + c;
                const i64 place = swapped ? (matrix * given.columns + at_column) * given.rows + at_row
                                          : (matrix * given.rows + at_row) * given.columns + at_column;
                given.random.template words<4>(place, random);
            }
#pragma unroll 1
            for (u32 k = 0; k < 4; ++k) {
                const u32 own_row = swapped ? r + k : r, own_column = swapped ? c : c + k;
                if (own_row >= rows || own_column >= columns) continue;
                const i64 at = own_row * given.columns + own_column;
                const Word bits = V::of(reinterpret_cast<const SrcCode*>(src)[at]);
                const Quotients divisor(scale_at<run>(own_row, own_column), global);
                u32 code;
                if constexpr (F::stochastic) {
                    const u32 even = k & 2 ? random[2] : random[0], odd = k & 2 ? random[3] : random[1];
                    code = divisor.at_random(bits, k & 1 ? odd : even);
                } else {
                    code = divisor.one(bits);
                }
                *(swapped ? at_swapped(own_row, own_column) : at_same(own_row, own_column)) = u8(code);
            }
        }
    }

    // ---- from shared memory to a result ----

    // Vector number u of the codes of a tile whose lines have `Length` elements.
    template <bool swapped, u32 Length>
    GPUCAST_INLINE Tile<unit * DType::bits / 8> packed(u32 u) const {
        const u32 line = u / (Length / unit), first = u % (Length / unit) * unit;
        u32 codes[unit / 4];
        load_words(swapped ? at_swapped(first, line) : at_same(line, first), codes);
        Tile<unit * DType::bits / 8> out = {};
#pragma unroll
        for (u32 i = 0; i < 4; ++i) put_lanes<DType::bits, 4>(out, 4 * i, codes[i]);
        return out;
    }

    // Writes the codes of `lines` lines of `length` elements. The first line is at element `begin` of the result, each
    // other one `stride` elements behind the last; both are whole bytes.
    template <bool swapped, u32 Lines, u32 Length>
    GPUCAST_INLINE void put_out(u8* data, i64 begin, i64 stride, u32 lines, u32 length) const {
        typedef Tile<unit * DType::bits / 8> Out;
        const u32 count = Lines * (Length / unit), mine = threadIdx.x;
        static_assert(count % Shape::threads == 0 && Shape::threads % (Length / unit) == 0, "each thread has a column of vectors");
        const u32 first = mine % (Length / unit) * unit, turns = count / Shape::threads, lines_of_turn = Shape::threads / (Length / unit);
        u8* to = data + ((begin + mine / (Length / unit) * stride + first) * i64(DType::bits) >> 3);
        const i64 bytes_of_turn = lines_of_turn * stride * i64(DType::bits) >> 3;
        if (lines == Lines && length == Length && ((address(to) | u64(bytes_of_turn)) & (Out::piece - 1)) == 0) {
#pragma unroll
            for (u32 i = 0; i < turns; ++i) store_aligned(to + i * bytes_of_turn, packed<swapped, Length>(i * Shape::threads + mine));
            return;
        }
        const u32 last = length - first < u32(unit) ? length - first : u32(unit);
#pragma unroll 1
        for (u32 i = 0; i < turns; ++i, to += bytes_of_turn) {
            ptx::mark_rare();
            if (i * lines_of_turn + mine / (Length / unit) >= lines || first >= length) break;
            const Out out = packed<swapped, Length>(i * Shape::threads + mine);
            if (last == u32(unit) && (address(to) & (Out::piece - 1)) == 0) {
                store_aligned(to, out);
            } else if (last == u32(unit) && (address(to) & 3) == 0) {
#pragma unroll
                for (u32 j = 0; j < u32(Out::words); ++j) *reinterpret_cast<u32*>(to + 4 * j) = out.word[j];
            } else {
                store_part(to, 0, last * DType::bits, out);
            }
        }
    }

    GPUCAST_INLINE void put_out() const {
        if constexpr (Shape::same) {
            const i64 begin = (matrix * given.rows + first_row) * given.columns + first_column;
            put_out<false, G::tile_rows, G::tile_columns>(given.same.data, begin, given.columns, rows, columns);
        }
        if constexpr (Shape::swapped) {
            const i64 begin = (matrix * given.columns + first_column) * given.rows + first_row;
            put_out<true, G::tile_columns, G::tile_rows>(given.swapped.data, begin, given.rows, columns, rows);
        }
    }
};

}  // namespace gpucast

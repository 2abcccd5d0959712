// SPDX-License-Identifier: Apache-2.0
// The data of quantize_tiles.cu: a thread's patch of a tile, codes as bytes, and the shared memory of a tile.

namespace gpucast {

// Which elements share a scale: a run along a row or down a column, a square, or all. `nothing`: there is no such
// result.
enum class Run : u32 { nothing, along, down, square, everywhere };

// ---- the patch of a thread ----

// The patches of a block's threads in shared memory, row by row. Each thread copies its own one there, and takes it.
template <u32 Rows, u32 Threads>
struct PatchStage {
    enum : u32 { unit = 16 };
    alignas(16) u8 row[Rows][Threads][unit];
};

template <typename Src, u32 Rows, u32 Columns>
struct Patch {
    enum : u32 { bytes = Src::bits / 8 };
    typedef typename WordOf<Src::bits == 64>::type Word;
    typedef typename CodeOf<Src::bits>::type Code;
    typedef Tile<Columns * bytes> Row;
    typedef Tile<Rows * bytes> Column;
    Row row[Rows];

    // Loads at most that many rows and columns of an array, whose rows are `stride` bytes apart; the others are zero.
    // `aligned` where the rows of complete patches are aligned for vectors; elements are aligned in any case.
    GPUCAST_INLINE void load(const u8* from, i64 stride, u32 rows, u32 columns, bool aligned) {
        if (aligned && rows >= Rows && columns >= Columns) {
#pragma unroll
            for (u32 i = 0; i < Rows; ++i) load_aligned(from + i * stride, row[i]);
            return;
        }
        ptx::mark_rare();
#pragma unroll
        for (u32 i = 0; i < Rows; ++i) row[i] = {};
        if (rows == 0 || columns == 0) return;
#pragma unroll
        for (u32 i = 0; i < Rows; ++i) {
            if (i >= rows) break;
#pragma unroll
            for (u32 j = 0; j < Columns; ++j) {
                // A load without a branch: where there is no such column, of the row's first element.
                const bool here = j < columns;
                const Word code = reinterpret_cast<const Code*>(from + i * stride)[here ? j : 0];
                put<Src::bits>(row[i], j, here ? code : Word(0));
            }
        }
    }

    // A complete patch, aligned for vectors, by way of shared memory: asked for early, and taken later.
    template <u32 Threads>
    static GPUCAST_INLINE void ask(const u8* from, i64 stride, PatchStage<Rows, Threads>& stage) {
        static_assert(u32(Row::words) * 4 == u32(PatchStage<Rows, Threads>::unit), "a row is one copy");
#pragma unroll
        for (u32 i = 0; i < Rows; ++i) ptx::cp_async(stage.row[i][threadIdx.x], from + i * stride);
    }
    template <u32 Threads>
    GPUCAST_INLINE void take(const PatchStage<Rows, Threads>& stage) {
        ptx::cp_async_wait();
#pragma unroll
        for (u32 i = 0; i < Rows; ++i) load_words(stage.row[i][threadIdx.x], row[i].word);
    }

    GPUCAST_INLINE Column column(u32 j) const {
        Column result = {};
        if constexpr (Src::bits == 16) {
#pragma unroll
            for (u32 i = 0; i < Rows; i += 2) {
                result.word[i / 2] = ptx::prmt(row[i].word[j / 2], row[i + 1].word[j / 2], j % 2 ? 0x7632 : 0x5410);
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < Rows; ++i) put<Src::bits>(result, i, get<Src::bits, Word>(row[i], j));
        }
        return result;
    }
};

// ---- codes, a byte each ----

// Four words of four bytes as a matrix, transposed.
GPUCAST_INLINE void transpose_bytes(u32& a, u32& b, u32& c, u32& d) {
    const u32 ab = ptx::prmt(a, b, 0x5140), cd = ptx::prmt(c, d, 0x5140);
    const u32 ab_high = ptx::prmt(a, b, 0x7362), cd_high = ptx::prmt(c, d, 0x7362);
    a = ptx::prmt(ab, cd, 0x5410);
    b = ptx::prmt(ab, cd, 0x7632);
    c = ptx::prmt(ab_high, cd_high, 0x5410);
    d = ptx::prmt(ab_high, cd_high, 0x7632);
}

// ---- a tile, by one block of threads: G has the sizes, in elements, the results that are wanted, and whether blocks stay ----

template <bool, typename A, typename B>
struct Chosen {
    typedef A type;
};
template <typename A, typename B>
struct Chosen<false, A, B> {
    typedef B type;
};

template <typename G>
struct TileShape {
    enum : bool {
        along = G::same() == Run::along || G::swapped() == Run::along,
        down = G::same() == Run::down || G::swapped() == Run::down,
        square = G::same() == Run::square || G::swapped() == Run::square,
        everywhere = G::same() == Run::everywhere || G::swapped() == Run::everywhere,
        same = G::same() != Run::nothing,
        swapped = G::swapped() != Run::nothing,
        stays = G::stays && GPUCAST_ARCH >= 900
    };
    enum : u32 {
        // How many patches are side by side, and how many below each other.
        lanes = G::tile_columns / G::columns,
        bands = G::tile_rows / G::rows,
        threads = lanes * bands,
        runs_along = G::tile_columns / G::block,
        runs_down = G::tile_rows / G::block,
        // For how many columns of a row there is one extreme, and how many lanes compute it together.
        part = G::block / 4 > 8 ? G::block / 4 : 8,
        part_lanes = part / G::columns,
        block_lanes = G::block / G::columns,
        row_parts = along ? G::tile_rows * (G::tile_columns / part) : 1,
        column_parts = down ? bands * G::tile_columns : square ? bands * runs_along : 1,
        row_scales = along ? G::tile_rows * runs_along : 1,
        column_scales = down ? runs_down * G::tile_columns : square ? runs_down * runs_along : 1,
        tile = G::tile_rows * G::tile_columns
    };
};

// The patches of the next tile, where blocks stay: on sm_80 they do not, which reaches the speed of its memory without, and
// has too little shared memory for as many blocks with them.
template <typename G, bool stays>
struct TileStage {};
template <typename G>
struct TileStage<G, true> {
    PatchStage<G::rows, TileShape<G>::threads> next;
};

template <typename F, typename V, typename G>
struct TileMemory : TileStage<G, TileShape<G>::stays> {
    typedef TileShape<G> Shape;
    typedef typename V::Word Word;
    template <u32 Count>
    struct Extremes {
        Word high[Count];
        Word low[F::two_sided ? Count : 1];

        template <typename Stats>
        GPUCAST_INLINE void put(u32 i, const Stats& stats) {
            high[i] = stats.high;
            if constexpr (F::two_sided) low[i] = stats.low;
        }
        template <typename Stats>
        GPUCAST_INLINE void merge_into(Stats& stats, u32 i) const {
            stats.merge({F::two_sided ? low[F::two_sided ? i : 0] : 0, high[i]});
        }
    };
    // Whether no line of codes is turned, as both ways with blocks along the last axis of each. Then codes of 4 bits stay
    // packed, and what a scale's elements are multiplied by is beside the scale: from a table, where scales have few codes.
    enum : bool {
        direct = !Shape::square && !Shape::everywhere && G::same() != Run::down && G::swapped() != Run::along,
        packed = direct && F::element::bits == 4 && G::rows % 8 == 0 && G::columns % 8 == 0,
        prepares = direct && !G::whole_columns && is_prepared<F, V>(),
        tabled = prepares && F::scale::bits == 8 && !G::given
    };
    // No scale is negative.
    enum : u32 { table_size = !tabled ? 1 : F::scale::sign_code == 0 ? 256 : 128 };
    enum : u32 { code_bits = packed ? 4 : 8 };
    template <u32 Count>
    struct Scales {
        u32 code[Count];
        int zero_point[F::zero_points ? Count : 1];
        // As `Divisor::prepared` has it.
        alignas(16) float prepared[prepares ? Count : 1];

        GPUCAST_INLINE void put(u32 i, const Scale& scale, float factor) {
            code[i] = scale.code;
            if constexpr (F::zero_points) zero_point[i] = scale.zero_point;
            if constexpr (prepares) prepared[i] = factor;
        }
        GPUCAST_INLINE Scale get(u32 i) const {
            const u32 found = code[i];
            const bool is_nan = F::nan_in_scale && (found & 0x7fffffff) >= u32(F::scale::nan_code);
            return {found, F::zero_points ? zero_point[F::zero_points ? i : 0] : 0, is_nan};
        }
    };
    struct Parts {
        Extremes<Shape::row_parts> in_rows;
        Extremes<Shape::column_parts> in_columns;
    };
    struct Codes {
        alignas(16) u8 same[Shape::same ? u32(Shape::tile) * code_bits / 8 : 16u];
        alignas(16) u8 swapped[Shape::swapped ? u32(Shape::tile) * code_bits / 8 : 16u];
    };
    // Statistics are used only before a barrier, and codes only after it. But where blocks stay, a thread has statistics of
    // the next tile while others write codes of this one: in memory apart, or, where that is too much, after one more
    // barrier.
    union InTurn {
        Parts stats;
        Codes codes;
    };
    struct Apart {
        Parts stats;
        Codes codes;
    };
    typedef Scales<Shape::row_scales> RowScales;
    typedef Scales<Shape::column_scales> ColumnScales;
    enum : u32 { most = 48 << 10, beside = sizeof(RowScales) + sizeof(ColumnScales) + sizeof(TileStage<G, Shape::stays>) + 4 * table_size };
    enum : bool { apart = Shape::stays && sizeof(Apart) + u32(beside) <= u32(most) };
    typename Chosen<apart, Apart, InTurn>::type held;
    // By the code of a scale what `Divisor::prepared` gives.
    float table[table_size];
    RowScales of_rows;
    ColumnScales of_columns;
};

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// Where the tiles of quantize_tiles.cu lie, and in which order a block takes them.
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

    GPUCAST_INLINE TilePlace(u32 of_matrix, u32 down, u32 across, const TileArguments& given) {
        matrix = of_matrix;
        first_row = i64(down) * G::tile_rows;
        first_column = i64(across) * G::tile_columns;
        const i64 below = given.rows - first_row, right = given.columns - first_column;
        rows = below < i64(G::tile_rows) ? u32(below) : u32(G::tile_rows);
        columns = right < i64(G::tile_columns) ? u32(right) : u32(G::tile_columns);
    }
    // The number of its first element among all matrices.
    GPUCAST_INLINE i64 first(const TileArguments& given) const {
        return (matrix * given.rows + first_row) * given.columns + first_column;
    }
};

// The tiles of a block, `step` tiles apart: divisions take long, so that there are none from one tile to the next.
template <typename G>
struct TileWalk {
    u32 matrix, down, across, matrices_on, down_on, across_on, last;

    // `tiles`: how many there are. With `back` the walk is from the last one to the first.
    GPUCAST_INLINE TileWalk(u32 number, u32 step, u32 tiles, bool back, const TileArguments& given) {
        split(number, given, matrix, down, across);
        split(step, given, matrices_on, down_on, across_on);
        last = back ? tiles / given.tiles_across / given.tiles_down : 0;
    }
    GPUCAST_INLINE void next(const TileArguments& given) {
        across += across_on, down += down_on, matrix += matrices_on;
        if (across >= given.tiles_across) across -= given.tiles_across, ++down;
        if (down >= given.tiles_down) down -= given.tiles_down, ++matrix;
    }
    GPUCAST_INLINE TilePlace<G> place(const TileArguments& given) const {
        if (last == 0) return {matrix, down, across, given};
        return {last - 1 - matrix, given.tiles_down - 1 - down, given.tiles_across - 1 - across, given};
    }

private:
    static GPUCAST_INLINE void split(u32 number, const TileArguments& given, u32& matrix, u32& down, u32& across) {
        const u32 line = number / given.tiles_across;
        across = number - line * given.tiles_across;
        matrix = line / given.tiles_down;
        down = line - matrix * given.tiles_down;
    }
};

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// Groups of rows of a matrix, such as the tokens of experts, quantized or cast in one launch: every group has a scale of
// its own and begins in the result at a multiple of `pad` rows. The ends of the groups are on the device.
//
// gpucast/quantization/cuda/grouped.py puts this file after tiles.cuh. gpucast/quantization/grouped.py says what
// becomes of bad offsets; no such offset is used as an index.
namespace gpucast {

GPUCAST_INLINE i64 group_end(const GroupedArguments& given, i64 group) {
    if (group < 0) return 0;
    if (given.wide != 0) return reinterpret_cast<const i64*>(given.offsets)[group];
    return i64(reinterpret_cast<const int*>(given.offsets)[group]);
}

GPUCAST_INLINE float group_scale(const GroupedArguments& given, u32 group) {
    return given.scale_at == nullptr ? given.scale : given.scale_at[group * given.scale_step];
}

// Threads of a block, the most groups, and how many parts the threads' groups are added in.
enum : u32 { group_threads = 256, most_groups = 1024, group_parts = 16 };

struct GroupMemory {
    i64 sum[group_threads], part[group_parts];
    // Of each group: where it ends in the result with its padding and without it, and how far before its rows of the result
    // those of the source are. Rows of the result are numbers of 32 bits.
    u32 end[most_groups], stop[most_groups], back[most_groups];
    u32 bad[group_threads], first_bad[group_parts], valid;
};

// The elements of a thread in a tile: their row of the result, where they are in the source, and the scale of their
// group, unless they are padding.
struct GroupRow {
    u32 row, column, back;
    float scale;
    bool is_padding;
};

// A thread's way through the tiles of its block, every so many elements. Neither a division nor a look at shared memory is
// in a step within a group.
struct Groups {
    const GroupedArguments& given;
    const GroupMemory& shared;
    GroupRow now;
    // What a step adds to the row and the column, and where the rows and the numbers of this group end in the result.
    u32 down, along, group, end, stop;

    // From element `first` of the block's first tile, in steps of so many elements.
    template <u32 Elements>
    GPUCAST_INLINE void begin(u64 first, u64 step) {
        divide(step, down, along);
        divide(first, now.row, now.column);
        const u32 beyond = now.column + threadIdx.x * Elements, more = divided(beyond, given.columns, given.by_columns);
        now.row += more;
        now.column = beyond - more * u32(given.columns);
        find();
    }
    GPUCAST_INLINE void step() {
        const u32 left = u32(given.columns) - along;
        const bool carry = now.column >= left;
        now.column = carry ? now.column - left : now.column + along;
        now.row += down + carry;
        if (now.row >= end) find();
        now.is_padding = now.row >= stop;
    }
    GPUCAST_INLINE bool here(const GroupRow& one) const { return one.row < u32(given.result_rows); }

    // The first element of a row's part in the source.
    GPUCAST_INLINE i64 source(const GroupRow& one) const {
        return i64(ptx::mul_wide(one.row - one.back, u32(given.columns))) + one.column;
    }
    GPUCAST_INLINE i64 result(const GroupRow& one) const { return i64(ptx::mul_wide(one.row, u32(given.columns))) + one.column; }

    // Loads the elements; of padding zeros.
    template <u32 Bits, u32 Bytes>
    GPUCAST_INLINE void load(const u8* src, Tile<Bytes>& in) const {
        in = {};
        if (!now.is_padding) load_aligned(src + source(now) * i64(Bits / 8), in);
    }

private:
    GPUCAST_INLINE void divide(u64 i, u32& row, u32& column) const {
        const u64 above = __umul64hi(i, given.inverse), rest = i - above * u64(given.columns);
        // The quotient may be one too small.
        const bool next = rest >= u64(given.columns);
        row = u32(above + next);
        column = u32(next ? rest - u64(given.columns) : rest);
    }
    // The group of the row, which is none above. Behind the last one all is padding.
    GPUCAST_INLINE void find() {
        const u32 valid = shared.valid;
        if (valid == 0 || now.row >= shared.end[valid - 1]) {
            end = ~0u, stop = 0;
        } else {
            for (u32 last = valid - 1; group < last;) {
                const u32 middle = (group + last) / 2;
                if (now.row < shared.end[middle]) last = middle;
                else group = middle + 1;
            }
            end = shared.end[group], stop = shared.stop[group], now.back = shared.back[group];
            now.scale = group_scale(given, group);
        }
        now.is_padding = now.row >= stop;
    }
};

// Finds the groups, by as many threads of a block as there are groups.
GPUCAST_INLINE void find_groups(const GroupedArguments& given, GroupMemory& shared) {
    const u32 mine = threadIdx.x, each = (given.groups + group_threads - 1) / group_threads, begin = mine * each;
    const u32 run = group_threads / group_parts, used = (given.groups + each - 1) / each;
    const u64 padding = given.pad - 1;
    if (mine < used) {
        u64 own = 0;
        u32 bad = given.groups;
        for (u32 i = begin; i < begin + each && i < given.groups; ++i) {
            const i64 from = group_end(given, i64(i) - 1), to = group_end(given, i);
            if ((to < from || to > given.rows) && bad == given.groups) bad = i;
            own += (u64(to) - u64(from) + padding) & ~padding;
        }
        shared.sum[mine] = i64(own);
        shared.bad[mine] = bad;
    }
    GPUCAST_BARRIER();
    if (mine * run < used) {
        u64 sum = 0;
        u32 first = given.groups;
        for (u32 i = mine * run; i < mine * run + run && i < used; ++i) {
            sum += u64(shared.sum[i]);
            first = first < shared.bad[i] ? first : shared.bad[i];
        }
        shared.part[mine] = i64(sum);
        shared.first_bad[mine] = first;
    }
    GPUCAST_BARRIER();
    if (mine < used) {
        u64 end = 0;
        u32 valid = given.groups;
        for (u32 i = 0; i * run < used; ++i) {
            if (i < mine / run) end += u64(shared.part[i]);
            valid = valid < shared.first_bad[i] ? valid : shared.first_bad[i];
        }
        for (u32 i = mine / run * run; i < mine; ++i) end += u64(shared.sum[i]);
        for (u32 i = begin; i < begin + each && i < valid; ++i) {
            const u64 from = u64(group_end(given, i64(i) - 1)), rows = u64(group_end(given, i)) - from;
            shared.back[i] = u32(end - from);
            shared.stop[i] = u32(end + rows);
            end += (rows + padding) & ~padding;
            shared.end[i] = u32(end);
        }
        if (mine == 0) shared.valid = valid;
    }
    GPUCAST_BARRIER();
    if (blockIdx.x == 0) {
        ptx::mark_rare();
        const u32 valid = shared.valid;
        for (u32 i = mine; i < given.groups; i += group_threads) {
            const u32 found = valid == 0 ? 0 : shared.end[i < valid ? i : valid - 1];
            if (given.wide != 0) reinterpret_cast<i64*>(given.ends)[i] = i64(found);
            else reinterpret_cast<int*>(given.ends)[i] = int(found);
        }
        if (mine == 0) *given.valid = int(valid);
    }
}

// Blocks that stay: each finds the groups once, and then takes every so many tiles of the n elements of the result. While
// `Work` does one tile the next is on its way, and while it does that the one after it, into the registers of the first.
template <typename Work>
GPUCAST_INLINE void for_groups(const u8* src, u8* dst, i64 n, const GroupedArguments& given, GroupMemory& shared) {
    const u32 elements = Work::elements, bits = Work::src_bits, tile = elements * group_threads, ahead = 2;
    find_groups(given, shared);
    Groups groups = {given, shared, {0, 0, 0, 1, true}, 0, 0, 0, 0, 0};
    groups.template begin<elements>(u64(blockIdx.x) * tile, u64(gridDim.x) * tile);
    const i64 step = i64(gridDim.x) * tile;
    i64 left = n - i64(blockIdx.x) * tile;
    GroupRow row[ahead];
    Tile<elements * bits / 8> in[ahead];
#pragma unroll
    for (u32 i = 0; i < ahead; ++i) {
        if (i != 0 && left <= i * step) break;
        if (i != 0) groups.step();
        row[i] = groups.now;
        groups.template load<bits>(src, in[i]);
    }
#pragma unroll 1
    while (left > 0) {
#pragma unroll
        for (u32 i = 0; i < ahead; ++i, left -= step) {
            if (i != 0 && left <= 0) break;
            Work::put(groups, row[i], in[i], dst);
            if (left <= ahead * step) continue;
            groups.step();
            row[i] = groups.now;
            groups.template load<bits>(src, in[i]);
        }
    }
}

template <typename F, typename Src, typename Float, typename Double, u32 Elements, u32 Block>
struct QuantizeGroups {
    enum : u32 { elements = Elements, src_bits = Src::bits };

    static GPUCAST_INLINE void put(const Groups& groups, const GroupRow& row, const Tile<Elements * Src::bits / 8>& in, u8* dst) {
        typedef Value<Src, Float, Double> V;
        typedef typename F::element DType;
        const u32 lanes = Block / Elements, bytes = F::scale::bits / 8;
        const GroupedArguments& given = groups.given;
        BlockStats<V, F::two_sided, !F::nan_in_scale> stats = {0, 0};
        const bool finite = stats.template add_tile<Src, Elements>(in);
        merge<lanes>(stats);
        if (!groups.here(row)) return;
        const float global = F::global_scale ? row.scale : 1;
        const Scale scale = scale_of<F, Float, Double>(stats, global);
        if (threadIdx.x % lanes == 0) {
            const i64 columns = given.columns / Block;
            store_scale<bytes>(given.scales, typename F::order(), row.row, row.column / Block, given.result_rows, columns,
                               row.is_padding ? 0 : scale.code);
        }
        Tile<Elements * DType::bits / 8> out = {};
        if (!row.is_padding) {
            const Divisor<F, Src, Float, Double> divisor(scale, global);
            const i64 from = F::stochastic ? groups.source(row) : 0;
            divisor.template tile<Elements, true>(in, out, from, F::nan_in_scale || finite, given.random);
        }
        store_aligned(dst + groups.result(row) * i64(DType::bits) / 8, out);
    }
};

template <typename Src, typename Dst, typename Float, typename Double, typename Rule, u32 Elements>
struct CastGroups {
    enum : u32 { elements = Elements, src_bits = Src::bits };

    static GPUCAST_INLINE void put(const Groups& groups, const GroupRow& row, const Tile<Elements * Src::bits / 8>& in, u8* dst) {
        if (!groups.here(row)) return;
        FusedArguments by = {};
        by.random = groups.given.random;
        Tile<Elements * Dst::bits / 8> out = {};
        if (!row.is_padding) {
            by.scale = ptx::cvt_f64(row.scale);
            Fused<Src, Dst, Float, Double, Src::bits, Rule, Scaling::narrow, false, false> converter(by);
            converter.template tile<Elements>(in, out, groups.source(row));
        }
        store_aligned(dst + groups.result(row) * i64(Dst::bits) / 8, out);
    }
};

}  // namespace gpucast

// A macro, because the name of a kernel is that of its work. RESIDENT: blocks of an SM at a time, whose registers must
// suffice. The last argument is one of the structs above.
#define GPUCAST_GROUPED(NAME, RESIDENT, ...)                                                                           \
    extern "C" __global__ void __launch_bounds__(gpucast::group_threads, RESIDENT)                                     \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8* dst, gpucast::i64 n,                                   \
             const __grid_constant__ gpucast::GroupedArguments given) {                                                \
        using namespace gpucast;                                                                                       \
        __shared__ GroupMemory shared;                                                                                 \
        for_groups<__VA_ARGS__>(src, dst, n, given, shared);                                                           \
    }

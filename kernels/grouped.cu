// SPDX-License-Identifier: Apache-2.0
// Groups of rows of a matrix, such as the tokens of experts, quantized or cast in one launch: every group has a scale of
// its own and begins in the result at a multiple of `pad` rows. The ends of the groups are on the device.
//
// gpucast/quantization/gpu/grouped_on_gpu.py puts this file after tiles.cuh. gpucast/quantization/grouped.py says what
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
    i64 sum[group_threads], part[group_parts], end[most_groups], first_row;
    u32 bad[group_threads], first_bad[group_parts], first_column, valid;
};

// A row of the result: where it lies in the source, unless it is padding, and its group.
struct GroupRow {
    i64 row, source;
    u32 group, column;
    bool here, is_padding;
};

struct Groups {
    const GroupedArguments& given;
    const GroupMemory& shared;

    // The rows of `Tiles` tiles of a thread, of `Elements` each; a block's threads have neighbours.
    template <u32 Elements, u32 Tiles>
    GPUCAST_INLINE void rows_of(GroupRow (&found)[Tiles]) const {
        const u32 valid = shared.valid;
        const i64 total = valid == 0 ? 0 : shared.end[valid - 1];
        u32 group = 0;
#pragma unroll
        for (u32 i = 0; i < Tiles; ++i) {
            const u32 beyond = shared.first_column + (i * group_threads + threadIdx.x) * Elements;
            const u32 down = divided(beyond, given.columns, given.by_columns);
            GroupRow& one = found[i];
            one = {shared.first_row + down, 0, 0, beyond - down * u32(given.columns), false, true};
            one.here = one.row < given.result_rows;
            if (one.row >= total) continue;
            if (i == 0) {
                for (u32 last = valid - 1; group < last;) {
                    const u32 middle = (group + last) / 2;
                    if (one.row < shared.end[middle]) last = middle;
                    else group = middle + 1;
                }
            } else {
                while (one.row >= shared.end[group]) ++group;
            }
            one.group = group;
            const i64 begin = group_end(given, i64(group) - 1);
            one.source = begin + one.row - (group == 0 ? 0 : shared.end[group - 1]);
            one.is_padding = one.source >= group_end(given, group);
        }
    }

    // Loads the tiles of rows that are not padding; the others are zero.
    template <u32 Bits, u32 Tiles, u32 Bytes>
    GPUCAST_INLINE void load(const u8* src, const GroupRow (&rows)[Tiles], Tile<Bytes> (&in)[Tiles]) const {
#pragma unroll
        for (u32 i = 0; i < Tiles; ++i) {
            in[i] = {};
            const i64 at = rows[i].source * given.columns + rows[i].column;
            if (!rows[i].is_padding) load_aligned(src + at * i64(Bits / 8), in[i]);
        }
    }
};

// Finds the groups, by as many threads of a block as there are groups, for `work`. `Elements` are those of a block.
template <u32 Elements, typename Work>
GPUCAST_INLINE void for_groups(const GroupedArguments& given, GroupMemory& shared, const Work& work) {
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
    if (mine == 0) {
        const u64 first = u64(blockIdx.x) * Elements, row = __umul64hi(first, given.inverse);
        const u64 column = first - row * u64(given.columns);
        // The quotient may be one too small.
        const bool next = column >= u64(given.columns);
        shared.first_row = i64(row + next);
        shared.first_column = u32(next ? column - u64(given.columns) : column);
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
            end += (u64(group_end(given, i)) - u64(group_end(given, i64(i) - 1)) + padding) & ~padding;
            shared.end[i] = i64(end);
        }
        if (mine == 0) shared.valid = valid;
    }
    GPUCAST_BARRIER();
    if (blockIdx.x == 0) {
        const u32 valid = shared.valid;
        for (u32 i = mine; i < given.groups; i += group_threads) {
            const i64 found = valid == 0 ? 0 : shared.end[i < valid ? i : valid - 1];
            if (given.wide != 0) reinterpret_cast<i64*>(given.ends)[i] = found;
            else reinterpret_cast<int*>(given.ends)[i] = int(found);
        }
        if (mine == 0) *given.valid = int(valid);
    }
    work(Groups{given, shared});
}

template <typename F, typename Src, typename Float, typename Double, u32 Elements, u32 Tiles, u32 Block>
struct QuantizeGroups {
    const u8* src;
    u8* dst;

    GPUCAST_INLINE void operator()(const Groups& groups) const {
        typedef Value<Src, Float, Double> V;
        typedef typename F::element DType;
        const u32 lanes = Block / Elements, bytes = F::scale::bits / 8;
        const GroupedArguments& given = groups.given;
        GroupRow place[Tiles];
        Tile<Elements * Src::bits / 8> in[Tiles];
        RowStats<BlockStats<V, F::two_sided, !F::nan_in_scale>, Tiles> stats = {};
        bool finite[Tiles];
        groups.template rows_of<Elements>(place);
        groups.template load<Src::bits>(src, place, in);
#pragma unroll
        for (u32 i = 0; i < Tiles; ++i) finite[i] = stats.row[i].template add_tile<Src, Elements>(in[i]);
        merge<lanes>(stats);
#pragma unroll
        for (u32 i = 0; i < Tiles; ++i) {
            if (!place[i].here) continue;
            const float global = F::global_scale ? group_scale(given, place[i].group) : 1;
            Scale scale = scale_of<F, Float, Double>(stats.row[i], global);
            const i64 at = place[i].row * given.columns + place[i].column;
            if (threadIdx.x % lanes == 0) {
                const u32 code = place[i].is_padding ? 0 : scale.code;
                store_scale<bytes>(
                    given.scales, ScaleOrder{given.layout}, place[i].row, place[i].column / Block, given.result_rows, given.columns / Block, code);
            }
            Tile<Elements * DType::bits / 8> out = {};
            if (!place[i].is_padding) {
                const Divisor<F, Src, Float, Double> divisor(scale, global);
                const i64 from = place[i].source * given.columns + place[i].column;
                divisor.template tile<Elements, true>(in[i], out, from, F::nan_in_scale || finite[i], given.random);
            }
            store_aligned(dst + at * i64(DType::bits) / 8, out);
        }
    }
};

template <typename Src, typename Dst, typename Float, typename Double, typename Rule, u32 Elements, u32 Tiles>
struct CastGroups {
    const u8* src;
    u8* dst;

    GPUCAST_INLINE void operator()(const Groups& groups) const {
        const GroupedArguments& given = groups.given;
        GroupRow place[Tiles];
        Tile<Elements * Src::bits / 8> in[Tiles];
        groups.template rows_of<Elements>(place);
        groups.template load<Src::bits>(src, place, in);
        FusedArguments by = {};
        by.random = given.random;
#pragma unroll
        for (u32 i = 0; i < Tiles; ++i) {
            if (!place[i].here) continue;
            const i64 at = place[i].row * given.columns + place[i].column;
            Tile<Elements * Dst::bits / 8> out = {};
            if (!place[i].is_padding) {
                by.scale = ptx::cvt_f64(group_scale(given, place[i].group));
                Fused<Src, Dst, Float, Double, Src::bits, Rule, Scaling::narrow, false, false> converter(by);
                converter.template tile<Elements>(in[i], out, place[i].source * given.columns + place[i].column);
            }
            store_aligned(dst + at * i64(Dst::bits) / 8, out);
        }
    }
};

}  // namespace gpucast

// A macro, because the name of a kernel is that of its work. RESIDENT: blocks of an SM at a time, whose registers must
// suffice. The last argument is one of the structs above.
#define GPUCAST_GROUPED(NAME, RESIDENT, ELEMENTS, ...)                                                                 \
    extern "C" __global__ void __launch_bounds__(gpucast::group_threads, RESIDENT)                                     \
        NAME(const gpucast::u8* src, gpucast::u32, gpucast::u8* dst, gpucast::i64,                                     \
             const __grid_constant__ gpucast::GroupedArguments given) {                                                \
        using namespace gpucast;                                                                                       \
        __shared__ GroupMemory shared;                                                                                 \
        for_groups<ELEMENTS>(given, shared, __VA_ARGS__{src, dst});                                                    \
    }

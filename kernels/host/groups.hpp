// SPDX-License-Identifier: Apache-2.0
// Groups of rows of the host in one call, each quantized, or cast with a scale of its own, and filled up.
// gpucast/quantization/grouped_on_host.py says what is computed, and does all else.
#pragma once
#include "quantize.hpp"

namespace gpucast {

enum : u64 { most_groups = 1024 };

struct Grouping {
    u64 rows, columns, result_rows, groups, pad;
    // Bytes of a number and of an end, bits of a code; of scales the elements of each, 0 for a cast.
    u64 src_bytes, end_bytes, dst_bits, block;
    // Of a single row, with the order of all scales; or by any scale, and by one that FLOAT has.
    Quantizing quantizing;
    ScaleOrder order;
    Work works[2];

    u64 row_bytes() const { return columns * dst_bits / 8; }
    u64 scale_row_bytes() const { return block ? columns / block * quantizing.scale_bytes : 0; }
};

// What a call on groups reads and writes.
struct GroupParts {
    Part x, ends, factors, data, scales, to_ends, valid;
    // The scales row by row, which may be ordered last.
    u8* rows = nullptr;
    // How many factors there are, and one for all where they are no array.
    u64 count = 0;
    float factor = 1;

    // False, without an exception, for arrays that are not as `how` says.
    bool take(const Grouping& how, PyObject* const* given, PyObject* scale, const TensorLibrary* library) {
        const u64 ends_bytes = how.groups * how.end_bytes;
        if (!x.take(given[0], how.src_bytes, how.rows * how.columns * how.src_bytes, false, library) ||
            !ends.take(given[1], how.end_bytes, ends_bytes, false, library) ||
            !data.take(given[2], how.dst_bits < 8 ? 1 : how.dst_bits / 8, how.result_rows * how.row_bytes(), true, library) ||
            !scales.take(given[3], how.quantizing.scale_bytes, bytes_of_scales(how.order, how.result_rows * how.scale_row_bytes(), 1), true, library) ||
            !to_ends.take(given[4], how.end_bytes, ends_bytes, true, library) || !valid.take(given[5], 4, 4, true, library)) {
            return false;
        }
        bool has_number = false;
        if (!take_float(scale, 0x1p-126f, &has_number, &factor)) {
            // Numbers out of range, and other arrays, are left to the checked path: of a single group too.
            if (has_number) return false;
            count = factors.take(scale, 4, 4, false, library) ? 1 : factors.take(scale, 4, how.groups * 4, false, library) ? how.groups : 0;
            if (!count) return false;
        }
        const Part written[] = {data, scales, to_ends, valid}, read[] = {x, ends, factors};
        return are_disjoint(written, 4, read, 3);
    }

    float factor_of(u64 group) const {
        float own = factor;
        if (count) memcpy(&own, factors.data + group % count * sizeof own, sizeof own);
        return own;
    }

    npy_int64 end_of(u64 group, u64 bytes) const {
        npy_int64 wide = 0;
        int narrow;
        if (bytes == sizeof wide) return memcpy(&wide, ends.data + group * bytes, bytes), wide;
        return memcpy(&narrow, ends.data + group * bytes, sizeof narrow), narrow;
    }
};

// The rows of a group, from those of x to those of the result. Returns as `quantize_blocks`.
inline int do_group(const Grouping& how, const GroupParts& parts, OwnChoice choice, float factor, u64 begin, u64 end, u64 to) {
    u8 *const src = parts.x.data + begin * how.columns * how.src_bytes, *const dst = parts.data.data + to * how.row_bytes();
    choice.offset += begin * how.columns;
    if (how.block) {
        Quantizing own = how.quantizing;
        own.shape[1] = own.grid[1] = end - begin;
        choice.has_scale = own.has_global, choice.scale = factor;
        float global;
        u8* const scales = parts.rows + to * how.scale_row_bytes();
        return quantize_blocks(own, choice, src, dst, scales, nullptr, reinterpret_cast<u8*>(&global));
    }
    const u64 size = (end - begin) * how.columns;
    Work work = how.works[1];
    work.fused.scale = double(factor), work.wants_largest = 0;
    work.seed = work.fused.seed = choice.seed, work.first = choice.offset / 4, work.skip = choice.offset % 4;
    Found found;
    Unlocked unlocked(size);
    return walk_flat(src, u32(how.src_bytes), dst, u32(how.dst_bits / 8), size, work, &found, &unlocked) ? 1 : -1;
}

// Fills a result. Returns as `quantize_blocks`.
inline int fill_groups(const Grouping& how, GroupParts& parts, const OwnChoice& choice) {
    if (how.groups > most_groups) return 0;
    const Memory rows(how.order.bytes ? how.result_rows * how.scale_row_bytes() : 0);
    if (!rows.data) return 0;
    parts.rows = how.order.bytes ? rows.data : parts.scales.data;
    // Threads may have little stack.
    const Memory small(how.groups * (sizeof(npy_int64) + sizeof(float)));
    if (!small.data) return 0;
    npy_int64* const ends = small.as<npy_int64>();
    float* const factors = reinterpret_cast<float*>(ends + how.groups);
    // All that is read of small arrays: others may write them later.
    for (u64 i = 0; i < how.groups; ++i) {
        ends[i] = parts.end_of(i, how.end_bytes), factors[i] = parts.factor_of(i);
        // The processor may flush other scales, and calls may refuse them, of groups without rows too, before anything is written.
        if (!(factors[i] >= 0x1p-126f && factors[i] <= 0x1.fffffep127f)) return 0;
    }
    const auto clear = [&](u64 begin, u64 end) {
        memset(parts.data.data + begin * how.row_bytes(), 0, (end - begin) * how.row_bytes());
        if (how.block) memset(parts.rows + begin * how.scale_row_bytes(), 0, (end - begin) * how.scale_row_bytes());
    };
    u64 begin = 0, to = 0, valid = 0;
    for (; valid < how.groups && ends[valid] >= npy_int64(begin) && ends[valid] <= npy_int64(how.rows); ++valid) {
        const u64 end = u64(ends[valid]), filled = to + (end - begin + how.pad - 1) / how.pad * how.pad;
        const int done = begin == end ? 1 : do_group(how, parts, choice, factors[valid], begin, end, to);
        if (done <= 0) return done;
        clear(to + end - begin, filled);
        begin = end, to = filled, ends[valid] = npy_int64(to);
    }
    clear(to, how.result_rows);
    if (how.order.bytes) put_in_order(how.order, parts.rows, parts.scales.data);
    for (u64 i = 0; i < how.groups; ++i) {
        const npy_int64 wide = i < valid ? ends[i] : npy_int64(to);
        const int narrow = int(wide);
        memcpy(parts.to_ends.data + i * how.end_bytes, how.end_bytes == 4 ? static_cast<const void*>(&narrow) : &wide, how.end_bytes);
    }
    const int count = int(valid);
    memcpy(parts.valid.data, &count, sizeof count);
    return 1;
}

// group(how, library, x, offsets, data, scales, ends, valid, scale, seed, offset): whether all groups were done. False, nothing
// of use written, where only the other path can. The scales, the scale and the seed may be None.
inline PyObject* group(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    Described<Grouping> by;
    if (!is_call(count, 11, "group")) return nullptr;
    int done = by.read(arguments[0], arguments[1], "group");
    if (done <= 0) return truth_of(done);
    OwnChoice choice;
    GroupParts parts;
    if (!take_random(arguments + 9, &choice)) return nullptr;
    if (choice.is_random && by.how->block && !by.how->quantizing.at_random) return truth_of(0);
    done = parts.take(*by.how, arguments + 2, arguments[8], by.library) ? fill_groups(*by.how, parts, choice) : 0;
    return truth_of(tell_of_all(done, by.library, arguments + 4, 4));
}

}  // namespace gpucast

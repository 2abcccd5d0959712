// SPDX-License-Identifier: Apache-2.0
// Quantizes arrays of the host in one call, where all is as most calls have it: blocks of 16 elements or more, or
// such whose elements are in as many rows, of finite FLOATs or shorter numbers, rounded to nearest by FLOAT arithmetic.
// gpucast/quantization/quantize_on_host.py says what is computed, and does all else. The loops are those of blocks.hpp.
#pragma once
#include <stdlib.h>

#include <initializer_list>

#include "block_scales.hpp"
#include "levels.hpp"
#include "walk.hpp"

namespace gpucast {

// `EachRun` of blocks.hpp.
struct Run3 {
    void (*run)();
    struct {
        u8* first;
        u64 itemsize;
    } src, dst, of;
    const void* more;
    u64 shape[3], lengths[3], grid[3];
    u64 first_row, last_row, first_column, last_column;
};

// Memory that goes when this does.
struct Memory {
    explicit Memory(u64 bytes) : data(static_cast<u8*>(malloc(bytes ? bytes : 1))) {}
    ~Memory() { free(data); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    template <typename T>
    T* as() const { return reinterpret_cast<T*>(data); }
    u8* const data;
};

inline u64 product(const u64* three) { return three[0] * three[1] * three[2]; }

// Elements of a call, between which signals are looked at; and of codes of less than a byte, which stay in the cache until
// they are packed.
enum : u64 { elements_at_once = 1 << 22, codes_at_once = 1 << 17 };

// Whether rows consist of whole blocks, so that all of them are one row.
inline bool is_one_row(const Run3& call) {
    return call.lengths[0] == 1 && call.lengths[1] == 1 && call.shape[2] % call.lengths[2] == 0;
}

inline void join_rows(Run3* call) {
    if (call->shape[2] == 1) {
        // Rows of a single element, as along a last axis, are one row.
        for (u64* three : {call->shape, call->lengths, call->grid}) three[2] = three[1], three[1] = three[0], three[0] = 1;
    }
    if (!is_one_row(*call)) return;
    call->shape[2] = product(call->shape), call->grid[2] = product(call->grid);
    call->shape[0] = call->shape[1] = call->grid[0] = call->grid[1] = 1;
}

template <typename Blocks>
inline Run3 run_of(const Blocks& blocks, void (*run)(), u8* src, u64 src_bytes, u8* dst, u64 dst_bytes, void* of, u64 of_bytes,
                   const void* more) {
    Run3 call = {run, {src, src_bytes}, {dst, dst_bytes}, {static_cast<u8*>(of), of_bytes}, more, {}, {}, {}, 0, 0, 0, 0};
    memcpy(call.shape, blocks.shape, sizeof call.shape);
    memcpy(call.lengths, blocks.lengths, sizeof call.lengths);
    memcpy(call.grid, blocks.grid, sizeof call.grid);
    join_rows(&call);
    return call;
}

typedef int EachRun(void*);

// A search by name takes longer than most calls.
inline EachRun* runs_loops() {
    static EachRun* const run = reinterpret_cast<EachRun*>(find_function("each_run"));
    return run;
}

// Calls done(begin, n) after each part of some elements in C order. False after an exception.
template <typename Done>
inline bool each_run(Run3 call, u64 at_once, Unlocked* unlocked, const Done& done) {
    EachRun* const run = runs_loops();
    const u64 rows = call.shape[0] * call.shape[1], columns = call.shape[2], step = at_once > columns ? at_once / columns : 1;
    for (u64 row = 0; row < rows; row += step) {
        call.first_row = row, call.last_row = row + step < rows ? row + step : rows;
        for (u64 column = 0; column < columns; column += at_once) {
            call.first_column = column, call.last_column = column + at_once < columns ? column + at_once : columns;
            run(&call);
            const u64 n = (call.last_row - call.first_row) * (call.last_column - call.first_column);
            done(row * columns + column, n);
            if (unlocked->is_interrupted(n)) return false;
        }
    }
    return true;
}

inline bool each_run(const Run3& call, Unlocked* unlocked) {
    return each_run(call, elements_at_once, unlocked, [](u64, u64) {});
}

// ---- short blocks of adjacent elements, many of which stay in caches while all is done ----

inline bool is_short(const Run3& call) {
    const u64 length = call.lengths[2];
    return call.shape[0] * call.shape[1] == 1 && is_one_row(call) && length >= elements_together / blocks_together && length <= longest_block;
}

inline u64 together_of(u64 length) {
    const u64 blocks = elements_together / length / fewest_blocks * fewest_blocks;
    return blocks ? blocks : u64(fewest_blocks);
}

// Blocks [begin, end). `known`: their extremes; null where these are still to be found. False where a number is not finite.
inline bool quantize_short(const QuantizeCall& call, u64 length, const u8* known, u64 begin, u64 end) {
    alignas(64) u8 own_ends[blocks_together * 8], codes[blocks_together * 4], elements[fewest_blocks * longest_block];
    alignas(64) double low[blocks_together], high[blocks_together], own[blocks_together];
    alignas(64) BlockDivisor of[blocks_together];
    int zeros[blocks_together];
    const Exactly exactly;
    const Quantizing& how = call.how;
    RunLoop *const find_ends = reinterpret_cast<RunLoop*>(how.extremes), *const divide = reinterpret_cast<RunLoop*>(call.elements());
    const u64 together = together_of(length), end_bytes = call.end_bytes();
    const bool is_packed = how.element_bits != 8;
    for (u64 first = begin; first < end; first += together) {
        const u64 count = end - first < together ? end - first : together, n = count * length;
        const u8* const src = call.x + first * length * how.src_bytes;
        if (!known) {
            clear_ends(how, own_ends, count);
            find_ends(src, nullptr, n, 0, length, own_ends, nullptr);
        }
        if (!read_ends(how, known ? known + first * end_bytes : own_ends, count, {codes, low, high, own, zeros})) return false;
        if (!find_scales(call, first, count, {codes, low, high, own, zeros}, of)) return false;
        u8* const to = call.data + first * length * how.element_bits / 8;
        if (how.choose) choose_scales(call, src, elements, first, count, length, {codes, low, high, own, zeros}, of);
        if (!how.choose || call.choice.is_random) divide(src, is_packed ? elements : to, n, 0, length, of, const_cast<void*>(call.more()));
        if (is_packed) pack(elements, to, u32(how.element_bits), n);
    }
    return true;
}

// Calls run(begin, end), which may end with false, for parts of all blocks, by several threads. Returns as quantize_blocks.
template <typename Part>
inline int in_parts_of_blocks(u64 blocks, u64 length, Unlocked* unlocked, const Part& run) {
    Found found;
    const bool is_done = in_parts(blocks, length, fewest_blocks, &found, unlocked, [&](u64 begin, u64 end, Found* part) {
        if (part->finite && !run(begin, end)) part->finite = 0;
    });
    return !is_done ? -1 : found.finite;
}

// ---- all blocks ----

// The global scale, or u of formulas, from the extremes of all blocks if the call does not say it.
inline float global_scale_of(const QuantizeCall& call, const u8* ends, u64 blocks) {
    const Quantizing& how = call.how;
    if (call.choice.has_scale) return call.choice.scale;
    double top = call.choice.top;
    float scale = 0;
    if (!call.choice.has_top) {
        // The codes of positive numbers are ordered as the numbers are. These formats do not ask for signs.
        with_code(how.src_bytes, [&](auto code) {
            typedef decltype(code) Code;
            Code largest = 0;
            for (u64 i = 0; i < blocks; ++i) {
                const Code own = reinterpret_cast<const Code*>(ends)[i];
                largest = own > largest ? own : largest;
            }
            how.to_double(&largest, &top, 1);
        });
    }
    if (how.steps_of.are_there) {
        const float amax = float(top);
        evaluate(how.steps_of.u, {&amax, nullptr, 1, how.steps_of.to_source, how.steps_of.from_source}, 1, &scale);
        return scale;
    }
    top /= how.divisor * how.top_scale;
    how.to_float(&top, &scale, 1);
    return scale > 0x1p-126f ? scale : 0x1p-126f;
}

inline u64 smaller_of(u64 a, u64 b) { return a < b ? a : b; }
inline u64 at_least_eight(u64 n) { return n < 8 ? 8 : n / 8 * 8; }

// The codes of all elements. Returns 1; 0 where memory is short; -1 after an exception.
inline int find_elements(const QuantizeCall& call, u8* of, Unlocked* unlocked) {
    const Quantizing& how = call.how;
    const u64 n = product(how.shape), bits = how.element_bits;
    Run3 run = run_of(how, call.elements(), call.x, how.src_bytes, call.data, 1, of, call.of_bytes(), call.more());
    if (bits == 8) return each_run(run, unlocked) ? 1 : -1;
    // Parts of rows, whose packed codes are whole bytes and stay in caches.
    const u64 rows = run.shape[0] * run.shape[1], columns = run.shape[2];
    const u64 row_step = rows == 1 ? 1 : at_least_eight(codes_at_once / columns), column_step = rows == 1 ? u64(codes_at_once) : columns;
    const Memory codes(smaller_of(n, row_step * smaller_of(column_step, columns)));
    if (!codes.data) return 0;
    for (u64 row = 0; row < rows; row += row_step) {
        for (u64 column = 0; column < columns; column += column_step) {
            run.first_row = row, run.last_row = smaller_of(row + row_step, rows);
            run.first_column = column, run.last_column = smaller_of(column + column_step, columns);
            const u64 begin = row * columns + column, count = (run.last_row - row) * (run.last_column - column);
            // Elements lie at their places in the array: what comes before a part is never touched.
            run.dst.first = codes.data - begin;
            runs_loops()(&run);
            pack(codes.data, call.data + begin * bits / 8, u32(bits), count);
            if (unlocked->is_interrupted(count)) return -1;
        }
    }
    return 1;
}

// Returns 1 where all was done; 0, and nothing of use is written, where only the other path can; -1 after an exception.
inline int quantize_blocks(const Quantizing& how, const OwnChoice& choice, u8* x, u8* data, u8* scales, u8* zero_points, u8* global_scale) {
    const Exactly exactly;
    QuantizeCall call(how, choice, x, data, scales, zero_points);
    const u64 blocks = product(how.grid), end_bytes = call.end_bytes();
    const Run3 run = run_of(how, how.extremes, x, how.src_bytes, x, how.src_bytes, nullptr, end_bytes, nullptr);
    const bool are_short = is_short(run), is_known = how.has_global && !choice.has_scale && !choice.has_top;
    const u64 length = run.lengths[2];
    const Memory ends(are_short && !is_known ? 0 : blocks * end_bytes);
    // Two scales have short blocks alone.
    if (!ends.data || (how.choose && !are_short)) return 0;
    Unlocked unlocked(product(how.shape));
    if (!are_short) {
        Run3 own = run;
        own.of.first = ends.data;
        clear_ends(how, ends.data, blocks);
        if (!each_run(own, &unlocked)) return -1;
    } else if (is_known) {
        const int done = in_parts_of_blocks(blocks, length, &unlocked, [&](u64 begin, u64 end) {
            clear_ends(how, ends.data + begin * end_bytes, end - begin);
            reinterpret_cast<RunLoop*>(how.extremes)(x + begin * length * how.src_bytes, nullptr, (end - begin) * length, 0, length,
                                                     ends.data + begin * end_bytes, nullptr);
            return true;
        });
        if (done <= 0) return done;
    }
    if (how.has_global) {
        float scale = global_scale_of(call, ends.data, blocks);
        if (how.steps_of.are_there) {
            call.u = scale;
            // Others are refused, or have scales of their own.
            if (!(scale > 0 && scale <= 0x1.fffffep127f)) return 0;
            evaluate(how.steps_of.global, {nullptr, nullptr, call.u, how.steps_of.to_source, how.steps_of.from_source}, 1, &scale);
        }
        memcpy(global_scale, &scale, sizeof scale);
        call.g = double(scale);
    }
    if (are_short) {
        return in_parts_of_blocks(blocks, length, &unlocked, [&](u64 begin, u64 end) {
            return quantize_short(call, length, is_known ? ends.data : nullptr, begin, end);
        });
    }
    const Memory numbers(blocks * (3 * sizeof(double) + sizeof(int) + 4)), of(blocks * sizeof(BlockDivisor));
    if (!numbers.data || !of.data) return 0;
    double* const low = numbers.as<double>();
    int* const zeros = reinterpret_cast<int*>(low + 3 * blocks);
    const BlockNumbers own = {reinterpret_cast<u8*>(zeros + blocks), low, low + blocks, low + 2 * blocks, zeros};
    if (!read_ends(how, ends.data, blocks, own) || !find_scales(call, 0, blocks, own, of.data)) return 0;
    return find_elements(call, of.data, &unlocked);
}

}  // namespace gpucast

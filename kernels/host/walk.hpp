// SPDX-License-Identifier: Apache-2.0
// Walks over arrays of any strides and byte order, and over packed elements, for loops that take adjacent native ones.
#pragma once
#include <stddef.h>

#include "lock.hpp"
#include "moves.hpp"
#include "work.hpp"

namespace gpucast {

enum : int { max_dimensions = 64 };
// Elements that are brought together at a time: they stay in the first-level cache. A multiple of 8, so that packed blocks
// are whole bytes.
enum : u64 { gathered = 1024 };
// Bytes of a tile, by the wider of its elements: less than the first-level cache, which holds what is read around it, too.
// Of a transposed array it has so many adjacent bytes of the sources, if that leaves so many results.
enum : npy_intp { tile_bytes = 8192, tile_across = 64, tile_along = 16 };
// The most elements of a part, for whose end a signal waits, and a fork.
enum : u64 { piece = 1 << 21 };
// So few elements take longer to find than to move.
enum : npy_intp { few = 8 };

// Where the elements of one side are.
struct Side {
    u8* data;
    // Bytes of a code; bits of an element where elements are packed row-major, else 0.
    u32 itemsize, bits;
    bool is_swapped;

    bool is_direct() const { return !bits && !is_swapped && reinterpret_cast<Address>(data) % itemsize == 0; }
};

struct Loop {
    npy_intp n, src, dst;
};

struct Walk {
    Side src, dst;
    u64 size;
    // Whether elements are to be met in row-major order.
    bool is_ordered;
    // Whether loops may take the elements of a side where they are: they are native, and each is aligned.
    bool src_direct, dst_direct;
    int count;
    Loop loops[max_dimensions];

    // Of the loops those behind the last one are not used.
    size_t used_bytes() const { return offsetof(Walk, loops) + size_t(count) * sizeof *loops; }
};

// Sorts the loops so that results are written in the order of their addresses, and makes one of those that follow on.
inline void simplify(Walk* walk) {
    int count = 0;
    for (int i = 0; i < walk->count; ++i) {
        if (walk->loops[i].n != 1) walk->loops[count++] = walk->loops[i];
    }
    if (!walk->is_ordered) {
        for (int i = 1; i < count; ++i) {
            const Loop own = walk->loops[i];
            int at = i;
            while (at && magnitude(walk->loops[at - 1].dst) < magnitude(own.dst)) {
                walk->loops[at] = walk->loops[at - 1];
                --at;
            }
            walk->loops[at] = own;
        }
    }
    int kept = 0;
    for (int i = 0; i < count; ++i) {
        const Loop own = walk->loops[i];
        Loop* outer = kept ? &walk->loops[kept - 1] : nullptr;
        if (outer && outer->src == own.src * own.n && outer->dst == own.dst * own.n) {
            *outer = {outer->n * own.n, own.src, own.dst};
        } else {
            walk->loops[kept++] = own;
        }
    }
    if (!kept) walk->loops[kept++] = {1, npy_intp(walk->src.itemsize), npy_intp(walk->dst.itemsize)};
    walk->count = kept;
    walk->src_direct = walk->src.is_direct(), walk->dst_direct = walk->dst.is_direct();
    for (int i = 0; i < kept; ++i) {
        walk->src_direct = walk->src_direct && walk->loops[i].src % npy_intp(walk->src.itemsize) == 0;
        walk->dst_direct = walk->dst_direct && walk->loops[i].dst % npy_intp(walk->dst.itemsize) == 0;
    }
}

// ---- walks ----

// The elements of one side in the order of the loops, some at a time.
class Cursor {
   public:
    Cursor(const Walk& walk, bool is_src) : walk_(walk), side_(is_src ? walk.src : walk.dst), is_src_(is_src), row_(side_.data) {}

    // Moves the next n elements, to or from a buffer.
    void move_next(u8* buffer, u64 n) {
        if (side_.bits) {
            if (is_src_) unpack(side_.data + done_ * side_.bits / 8, side_.bits, buffer, n);
            else pack(buffer, side_.data + done_ * side_.bits / 8, side_.bits, n);
            done_ += n;
            return;
        }
        const Loop& inner = walk_.loops[walk_.count - 1];
        while (n) {
            const u64 left = u64(inner.n - at_[walk_.count - 1]), now = n < left ? n : left;
            const npy_intp stride = step(inner), unit = npy_intp(side_.itemsize);
            u8* own = row_ + at_[walk_.count - 1] * stride;
            if (is_src_) move(own, stride, buffer, unit, now, side_.itemsize, side_.is_swapped);
            else move(buffer, unit, own, stride, now, side_.itemsize, side_.is_swapped);
            buffer += now * side_.itemsize;
            n -= now;
            at_[walk_.count - 1] += npy_intp(now);
            if (now == left) next_row();
        }
    }

   private:
    npy_intp step(const Loop& loop) const { return is_src_ ? loop.src : loop.dst; }

    void next_row() {
        at_[walk_.count - 1] = 0;
        for (int i = walk_.count - 2; i >= 0; --i) {
            row_ += step(walk_.loops[i]);
            if (++at_[i] < walk_.loops[i].n) return;
            row_ -= walk_.loops[i].n * step(walk_.loops[i]);
            at_[i] = 0;
        }
    }

    const Walk& walk_;
    const Side& side_;
    const bool is_src_;
    u8* row_;
    u64 done_ = 0;
    npy_intp at_[max_dimensions] = {};
};

// False where the walk was interrupted: an exception is set then.
inline bool walk_in_order(const Walk& walk, const Work& work, Found* found, Unlocked* unlocked) {
    alignas(64) u8 sources[gathered * 8], results[gathered * 8];
    Cursor src(walk, true), dst(walk, false);
    for (u64 start = 0; start < walk.size; start += gathered) {
        const u64 n = walk.size - start < gathered ? walk.size - start : u64(gathered);
        src.move_next(sources, n);
        work.run(sources, results, n, start, found);
        dst.move_next(results, n);
        if (unlocked->is_interrupted(n)) return false;
    }
    return true;
}

// Casts a part of two loops at places of both sides: `along` of the last one, `across` of the one before.
struct Tile {
    const u8* src;
    u8* dst;
    npy_intp along, across;
};

inline void cast_tile(const Walk& walk, const Work& work, const Loop& a, const Loop& b, const Tile& tile, Found* found) {
    alignas(64) u8 sources[tile_bytes], results[tile_bytes];
    const npy_intp from_unit = npy_intp(walk.src.itemsize), to_unit = npy_intp(walk.dst.itemsize);
    const bool is_row = tile.across == 1;
    const bool from_direct = is_row && a.src == from_unit && walk.src_direct;
    const bool to_direct = is_row && a.dst == to_unit && walk.dst_direct;
    const void* from = from_direct ? tile.src : sources;
    void* to = to_direct ? tile.dst : results;
    if (!from_direct) {
        // Along the shorter of the source's strides, unless that is for a few elements at a time.
        if (tile.across >= few && b.src == from_unit && !walk.src.is_swapped) {
            transpose(tile.src, a.src, sources, tile.along, tile.across, walk.src.itemsize);
        } else if (tile.across >= few && magnitude(b.src) < magnitude(a.src)) {
            for (npy_intp i = 0; i < tile.along; ++i) {
                move(tile.src + i * a.src, b.src, sources + i * from_unit, tile.along * from_unit, u64(tile.across),
                     walk.src.itemsize, walk.src.is_swapped);
            }
        } else {
            for (npy_intp j = 0; j < tile.across; ++j) {
                move(tile.src + j * b.src, a.src, sources + j * tile.along * from_unit, from_unit, u64(tile.along),
                     walk.src.itemsize, walk.src.is_swapped);
            }
        }
    }
    work.run(from, to, u64(tile.along * tile.across), 0, found);
    if (!to_direct) {
        for (npy_intp j = 0; j < tile.across; ++j) {
            move(results + j * tile.along * to_unit, to_unit, tile.dst + j * b.dst, a.dst, u64(tile.along),
                 walk.dst.itemsize, walk.dst.is_swapped);
        }
    }
}

// Its loops are reordered.
inline void walk_in_tiles(Walk& walk, const Work& work, Found* found) {
    // The last loop is along the results; the one before it becomes that along the sources.
    const int last = walk.count - 1;
    if (walk.count > 2) {
        int shortest = last - 1;
        for (int i = 0; i < last; ++i) {
            if (magnitude(walk.loops[i].src) < magnitude(walk.loops[shortest].src)) shortest = i;
        }
        const Loop own = walk.loops[shortest];
        walk.loops[shortest] = walk.loops[last - 1];
        walk.loops[last - 1] = own;
    }
    const Loop a = walk.loops[last], b = walk.count > 1 ? walk.loops[last - 1] : Loop{1, 0, 0};
    const npy_intp from_unit = npy_intp(walk.src.itemsize), to_unit = npy_intp(walk.dst.itemsize);
    // Where all elements have 8 bytes, memory is what takes time, and long rows of results are written sooner.
    const bool is_transposed = magnitude(b.src) < magnitude(a.src) && b.n > 1 && from_unit + to_unit < 16;
    // Rows that are adjacent on both sides are long enough without being brought together.
    const bool is_rows = a.n >= tile_across && a.src == from_unit && a.dst == to_unit && walk.src_direct && walk.dst_direct;
    const npy_intp room = (is_transposed ? tile_bytes : tile_bytes / 2) / (from_unit > to_unit ? from_unit : to_unit);
    const npy_intp line = tile_across / from_unit < room / tile_along ? tile_across / from_unit : room / tile_along;
    const npy_intp least = !is_transposed ? 1 : b.n < line ? b.n : line;
    const npy_intp most = is_rows ? npy_intp(piece) : room / least;
    const npy_intp along = a.n < most ? a.n : most, across = is_rows ? 1 : room / along;
    npy_intp at[max_dimensions] = {};
    const u8* src = walk.src.data;
    u8* dst = walk.dst.data;
    for (;;) {
        for (npy_intp j = 0; j < b.n; j += across) {
            for (npy_intp i = 0; i < a.n; i += along) {
                const Tile tile = {src + j * b.src + i * a.src, dst + j * b.dst + i * a.dst,
                                   a.n - i < along ? a.n - i : along, b.n - j < across ? b.n - j : across};
                cast_tile(walk, work, a, b, tile, found);
            }
        }
        int i = walk.count - 3;
        for (; i >= 0; --i) {
            src += walk.loops[i].src, dst += walk.loops[i].dst;
            if (++at[i] < walk.loops[i].n) break;
            src -= walk.loops[i].n * walk.loops[i].src, dst -= walk.loops[i].n * walk.loops[i].dst;
            at[i] = 0;
        }
        if (i < 0) return;
    }
}

// ---- parts ----

// Bytes of results that few caches hold beside what they are made of. (What the system says of these is often not so.)
enum : u64 { cache_bytes = 1 << 24 };

// What another part found, too.
inline void merge(Found* found, const Found& part) {
    u32 before = __atomic_load_n(&found->largest, __ATOMIC_RELAXED);
    while (before < part.largest && !__atomic_compare_exchange_n(&found->largest, &before, part.largest, true, __ATOMIC_RELAXED,
                                                                 __ATOMIC_RELAXED)) {
    }
    if (!part.finite) __atomic_store_n(&found->finite, u8(0), __ATOMIC_RELAXED);
}

// Elements of which the time is taken, to know whether helpers are worth while, and the fewest of casts for which it may be
// and of a part: loops look for the start of a cache line in more than 2^14.
enum : u64 { timed = 1 << 13, least_timed = 1 << 15, least_part = 3 << 13 };
// Parts for each thread: one that comes late takes fewer.
enum : u64 { parts_each = 8 };

// Whole steps of `each` elements that have about so many elements in all: `least` or more.
inline u64 steps_of(u64 elements, u64 each, u64 least) {
    u64 steps = elements / each, unit = part_unit;
    if (steps < least) steps = least;
    while (unit > steps) unit /= 2;
    return steps / unit * unit;
}

// Calls run(begin, end, found) for parts of the steps [0, n) of `each` elements, by several threads where that takes long.
// least: the fewest steps of a part, a power of two. False where that was interrupted: an exception is set then.
template <typename Run>
inline bool in_parts(u64 n, u64 each, u64 least, Found* found, Unlocked* unlocked, const Run& run) {
    struct Context {
        const Run& run;
        Found* found;
        u64 begin;
    };
    Context context = {run, found, 0};
    const u64 first = steps_of(timed, each, least);
    bool is_shared = false;
    if (helpers.threads > 1 && n * each >= least_timed && n > first) {
        const u64 start = nanoseconds();
        run(0, first, found);
        const u64 now = nanoseconds();
        // Integers, because the caller's floating-point modes may trap. What took this long is worth help however much is left.
        const u64 taken = now - start < woken_from ? now - start : u64(woken_from);
        is_shared = is_worth_help(taken * ((n - first) / first + 1), now);
        context.begin = first;
    }
    const u64 left = n - context.begin;
    if (!is_shared && left * each < piece) {
        run(context.begin, n, found);
        return !unlocked->is_interrupted(n * each);
    }
    // A signal waits for the longest part. The end waits once, for a helper that may itself wait for a core.
    const u64 equal = is_shared ? left * each / (u64(helpers.threads) * parts_each) : u64(piece);
    Job job;
    job.run = [](const void* given, u64 begin, u64 end) {
        const Context& own = *static_cast<const Context*>(given);
        Found part;
        own.run(own.begin + begin, own.begin + end, &part);
        merge(own.found, part);
    };
    job.context = &context, job.size = left;
    job.part = steps_of(equal < least_part ? u64(least_part) : equal < piece ? equal : u64(piece), each, least);
    const auto goes_on = [&](u64 steps) { return !unlocked->is_interrupted(steps * each); };
    if (is_shared) return run_job(&job, goes_on);
    job.cut(1);
    return job.take_parts(0, goes_on);
}

inline bool walk_flat(const u8* src, u32 src_bytes, u8* dst, u32 dst_bytes, u64 size, const Work& work, Found* found,
                      Unlocked* unlocked) {
    const u64 is_past = work.kind == WorkKind::plain && size * dst_bytes >= cache_bytes ? u64(past_caches) : 0;
    return in_parts(size, 1, part_unit, found, unlocked, [&](u64 begin, u64 end, Found* part) {
        work.run(src + begin * src_bytes, dst + begin * dst_bytes, (end - begin) | is_past, begin, part);
    });
}

// Whether steps of this loop share cache lines.
inline bool is_narrow(const Loop& loop) {
    const npy_intp line = 64;
    return (loop.src && magnitude(loop.src) < line) || magnitude(loop.dst) < line;
}

// The loop to cut: the longest, where so many steps count as one as fill a cache line.
inline int loop_to_cut(const Walk& walk) {
    int chosen = 0;
    npy_intp longest = 0;
    for (int i = 0; i < walk.count; ++i) {
        const npy_intp n = walk.loops[i].n, length = is_narrow(walk.loops[i]) ? n : n * npy_intp(part_unit);
        if (n > 1 && length > longest) chosen = i, longest = length;
    }
    return chosen;
}

inline bool walk_in_any_order(const Walk& walk, const Work& work, Found* found, Unlocked* unlocked) {
    const int chosen = loop_to_cut(walk);
    const Loop& cut = walk.loops[chosen];
    const u64 each = walk.size / u64(cut.n);
    const auto steps = [&](u64 begin, u64 end) {
        Walk own = walk;
        own.loops[chosen].n = npy_intp(end - begin), own.size = (end - begin) * each;
        own.src.data += npy_intp(begin) * cut.src, own.dst.data += npy_intp(begin) * cut.dst;
        return own;
    };
    if (each > piece) {
        // A signal would wait too long for one step: each is cut by itself.
        for (u64 i = 0; i < u64(cut.n); ++i) {
            if (!walk_in_any_order(steps(i, i + 1), work, found, unlocked)) return false;
        }
        return true;
    }
    u64 least = is_narrow(cut) ? u64(part_unit) : 1;
    while (least > 1 && least * each > piece) least /= 2;
    return in_parts(u64(cut.n), each, least, found, unlocked, [&](u64 begin, u64 end, Found* part) {
        Walk own = steps(begin, end);
        walk_in_tiles(own, work, part);
    });
}

// Casts all elements. False where that was interrupted: an exception is set then.
inline bool run_walk(Walk& walk, const Work& work, Found* found, Unlocked* unlocked) {
    if (!walk.size) return true;
    simplify(&walk);
    const Loop& last = walk.loops[walk.count - 1];
    if (walk.src.bits || walk.dst.bits) return walk_in_order(walk, work, found, unlocked);
    if (walk.count == 1 && last.src == npy_intp(walk.src.itemsize) && last.dst == npy_intp(walk.dst.itemsize) &&
        walk.src_direct && walk.dst_direct) {
        return walk_flat(walk.src.data, walk.src.itemsize, walk.dst.data, walk.dst.itemsize, walk.size, work, found, unlocked);
    }
    return walk.is_ordered ? walk_in_order(walk, work, found, unlocked) : walk_in_any_order(walk, work, found, unlocked);
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// One cast of adjacent, native elements, of whichever kind, as gpucast/host/loops.py describes it.
#pragma once
#include "types.hpp"

namespace gpucast {

typedef void CastAtRandom(const void* from, void* to, u64 n, u64 seed, u64 first, u64 skip);

// What is multiplied by the scale becomes one of these. Odd floats are for a `Fused::cast` that rounds once more.
enum class Product : u32 { none, floats, odd_floats, doubles };

// A cast with a scale, or that looks at its source: fused.hpp does it.
struct Fused {
    // Of the source; null where that has the type already.
    CastArray *to_floats, *to_doubles;
    // Of the products, or of the source where there are none; both null: the products are the results.
    CastArray* cast;
    CastAtRandom* cast_at_random;
    u64 src_bytes, dst_bytes;
    double scale;
    u64 seed;
    Product product;
    // Whether a float holds every number of the source.
    u32 is_exact;
};

typedef void CastFused(const Fused* with, const void* from, void* to, u64 n, u64 first, u64 skip, u32* largest, u8* finite);

// A cast and the cast of its results back, by two of the above.
typedef void CastThereAndBack(const Fused* there, const Fused* back, const void* from, void* to, u64 n, u64 first, u64 skip,
                              u32* largest, u8* finite);

// What a fused cast finds out.
struct Found {
    u32 largest = 0;
    u8 finite = 1;
};

enum class WorkKind : u64 { plain, at_random, fused, there_and_back };

struct Work {
    WorkKind kind;
    void (*function)();
    // The random words begin in the block `first`, behind `skip` of its words.
    u64 seed, first, skip;
    u64 wants_largest, wants_finite;
    // `back` is for casts there and back.
    Fused fused, back;

    // Whether elements have to come in row-major order, by which they get their random words.
    bool is_ordered() const { return kind == WorkKind::at_random || fused.cast_at_random; }

    // The first element is the one of that index, by which random words are chosen.
    void run(const void* from, void* to, u64 n, u64 index, Found* found) const {
        if (kind == WorkKind::plain) {
            reinterpret_cast<CastArray*>(function)(from, to, n);
            return;
        }
        const u64 behind = skip + index, block = first + behind / 4, within = behind % 4;
        u32* largest = wants_largest ? &found->largest : nullptr;
        u8* finite = wants_finite ? &found->finite : nullptr;
        if (kind == WorkKind::at_random) {
            reinterpret_cast<CastAtRandom*>(function)(from, to, n, seed, block, within);
        } else if (kind == WorkKind::fused) {
            reinterpret_cast<CastFused*>(function)(&fused, from, to, n, block, within, largest, finite);
        } else {
            reinterpret_cast<CastThereAndBack*>(function)(&fused, &back, from, to, n, block, within, largest, finite);
        }
    }
};

}  // namespace gpucast

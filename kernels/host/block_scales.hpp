// SPDX-License-Identifier: Apache-2.0
// The scales of blocks of the host, from the extremes of their numbers or as they are given, and what their elements need of
// them. gpucast/quantization/quantize_on_host.py says what is computed.
#pragma once
#include <string.h>

#include "formulas.hpp"
#include "work.hpp"

namespace gpucast {

// What divides, or multiplies, the numbers of a block; and its zero point. As blocks.hpp has them.
struct BlockStep {
    float d;
    int zero;
};
struct BlockFactor {
    double factor, zero;
};

// gpucast/quantization/quantize_on_host.py describes them, and makes them.
enum class ScaleKind : u64 { power_of_two, real, small };
// `step`: integers; `near`: by DOUBLEs; `product`: by the reciprocals of powers of two; `factor`: by the factors of formulas.
enum class Division : u64 { step, near, product, factor };

// Formulas in place of exact quotients: of a scale, of what elements are multiplied or divided by, of u for the largest magnitude
// of all, and of the global scale.
struct FormulaSteps {
    u64 are_there;
    Formula scale, factor, u, global;
    // Of a FLOAT as it is stored, and back; null for FLOAT. The code in place of a scale that was rounded to 0, or 0.
    CastArray *to_scale, *from_scale;
    u64 code_of_zero;
    CastArray *to_source, *from_source;
};

// `Integers` of codes.hpp.
struct IntegerCodes {
    int least, most;
    u32 mask, products, in_float, rounds;
};

struct Quantizing {
    u64 shape[3], lengths[3], grid[3];
    u64 src_bytes, scale_bytes, element_bits;
    // The loops for extremes, whose codes become DOUBLE, and for elements; and the casts of scales.
    void (*extremes)();
    void (*elements)();
    CastArray *to_double, *to_scale, *from_scale, *to_float;
    ScaleKind scales;
    Division division;
    u64 two_sided, has_global, has_zeros;
    // Codes of the source: its sign, and its largest finite number; of the smallest scale.
    u64 sign_code, max_code, least_scale;
    double divisor, top_scale, steps, negative_weight, lowest, largest;
    IntegerCodes to;
    // The loop and the cast for rounding at random; null where there is none.
    void (*divide)();
    CastAtRandom* at_random;
    // The loop that chooses between two scales of a block, null where it has one; and the numbers of its 16 codes.
    void (*choose)();
    float value[16];
    FormulaSteps steps_of;
};

// What a call of its own says: a global scale, or the largest magnitude that gives it; and random words. `scales`: FLOATs,
// one for all blocks or one for each, which take the place of those that the numbers give; null for none.
struct OwnChoice {
    bool has_scale = false, has_top = false, is_random = false;
    float scale = 0, top = 0;
    u64 seed = 0, offset = 0;
    const u8* scales = nullptr;
    u64 scale_step = 0;

    float scale_of(u64 block) const {
        float own;
        memcpy(&own, scales + block * scale_step, sizeof own);
        return own;
    }
};

// `Divisor` and `Quotients` of blocks.hpp.
struct BlockDivisor {
    double d;
    int zero, is_lost;
};
struct RandomQuotients {
    CastArray* cast;
    CastAtRandom* at_random;
    const u8* first;
    u64 seed, first_block, skip;
    IntegerCodes to;
};

// `TwoScales` and `Choice` of doubles.hpp.
struct BlockScales {
    float six, four, factor;
    u32 takes_four;
};
struct ScaleChoice {
    const u8 *first, *other;
    float value[16];
};

// What each_run calls, as blocks.hpp has it.
typedef void RunLoop(const void* from, void* to, u64 n, u64 skip, u64 length, void* of, void* more);

// The elements of blocks that are worked on together, if they are not longer; the most of these, of 16 elements and more; how many
// of longer ones, so that packed codes are whole bytes; the longest, since threads may have little stack.
enum : u64 { elements_together = 4096, blocks_together = 256, fewest_blocks = 8, longest_block = 1024 };

inline double larger(double a, double b) { return a > b ? a : b; }
inline double rounded_to_integer(double x) {
    const double large = 0x1.8p52;
    // Beyond, all numbers are integers, and the bounds of zero points are near.
    return x > -0x1p51 && x < 0x1p51 ? x + large - large : x;
}

// ---- scales ----

// Calls each with a code of so many bytes.
template <typename Each>
inline auto with_code(u64 bytes, const Each& each) {
    if (bytes == 1) return each(u8(0));
    return bytes == 2 ? each(u16(0)) : each(u32(0));
}

// A quantizing call.
struct QuantizeCall {
    QuantizeCall(const Quantizing& how_, const OwnChoice& choice_, u8* x_, u8* data_, u8* scales_, u8* zero_points_)
        : how(how_), choice(choice_), x(x_), data(data_), scales(scales_), zero_points(zero_points_),
          quotients{nullptr, how.at_random, x, choice.seed, choice.offset / 4, choice.offset % 4, how.to} {}
    QuantizeCall(const QuantizeCall&) = delete;
    QuantizeCall& operator=(const QuantizeCall&) = delete;

    // Of each block.
    u64 end_bytes() const { return how.two_sided ? 2 * how.src_bytes : how.src_bytes; }
    u64 of_bytes() const {
        if (choice.is_random) return sizeof(BlockDivisor);
        return how.division == Division::product || how.division == Division::factor ? 4 : 8;
    }
    void (*elements() const)() { return choice.is_random ? how.divide : how.elements; }
    const void* more() const {
        if (choice.is_random) return &quotients;
        return how.division == Division::step || how.division == Division::factor ? &how.to : nullptr;
    }

    const Quantizing& how;
    const OwnChoice& choice;
    u8 *const x, *const data, *const scales, *const zero_points;
    const RandomQuotients quotients;
    double g = 1;
    // Of formulas.
    float u = 1;
};

// The extremes of n blocks as codes, before any element was looked at.
inline void clear_ends(const Quantizing& how, u8* ends, u64 n) {
    if (!how.two_sided) {
        memset(ends, 0, n * how.src_bytes);
        return;
    }
    with_code(how.src_bytes, [&](auto code) {
        typedef decltype(code) Code;
        for (u64 i = 0; i < n; ++i) {
            reinterpret_cast<Code*>(ends)[2 * i] = Code(how.sign_code), reinterpret_cast<Code*>(ends)[2 * i + 1] = 0;
        }
    });
}

// What blocks have while their scales are looked for: extremes, scales as DOUBLE, zero points.
struct BlockNumbers {
    u8* codes;
    double *low, *high, *own;
    int* zeros;
};

// The extremes of n blocks as numbers; false where one is not finite. The lowest are for formats with two sides.
inline bool read_ends(const Quantizing& how, const u8* ends, u64 n, const BlockNumbers& to) {
    return with_code(how.src_bytes, [&](auto code) {
        typedef decltype(code) Code;
        const Code *const all = reinterpret_cast<const Code*>(ends), mask = Code(how.sign_code - 1);
        Code* const own = reinterpret_cast<Code*>(to.codes);
        const u64 sides = how.two_sided ? 2 : 1;
        Code top = 0;
        for (u64 i = 0; i < sides * n; ++i) {
            const Code magnitude = all[i] & mask;
            top = magnitude > top ? magnitude : top;
        }
        if (!how.two_sided) {
            // Signs were cut off.
            how.to_double(all, to.high, n);
            return top <= how.max_code;
        }
        for (u64 side = 0; side < 2; ++side) {
            for (u64 i = 0; i < n; ++i) own[i] = all[2 * i + side];
            how.to_double(own, side ? to.high : to.low, n);
        }
        return top <= how.max_code;
    });
}

// The scales of n blocks as they are stored.
inline void store_scales(const Quantizing& how, const double* quotients, u8* scales, u64 n) {
    how.to_scale(quotients, scales, n);
    if (how.scales == ScaleKind::power_of_two) return;
    with_code(how.scale_bytes, [&](auto code) {
        typedef decltype(code) Code;
        const Code least = Code(how.least_scale);
        Code* const codes = reinterpret_cast<Code*>(scales);
        for (u64 i = 0; i < n; ++i) codes[i] = codes[i] < least ? least : codes[i];
    });
}

// What the elements of n blocks need, whose numbers are divided by `d`.
inline void set_divisors(const QuantizeCall& call, const double* d, const int* zeros, u64 n, void* of) {
    const Quantizing& how = call.how;
    if (call.choice.is_random) {
        for (u64 i = 0; i < n; ++i) static_cast<BlockDivisor*>(of)[i] = {d[i], zeros[i], 0};
    } else if (how.division == Division::near) {
        memcpy(of, d, n * sizeof *d);
    } else if (how.division == Division::step) {
        for (u64 i = 0; i < n; ++i) static_cast<BlockStep*>(of)[i] = {float(d[i]), zeros[i]};
    } else if (how.division == Division::factor) {
        for (u64 i = 0; i < n; ++i) static_cast<float*>(of)[i] = float(d[i]);
    } else {
        for (u64 i = 0; i < n; ++i) static_cast<float*>(of)[i] = float(1 / d[i]);
    }
}

// Given scales of n blocks. False where one is so small that a quotient may be too large for the loops.
inline bool take_scales(const QuantizeCall& call, u64 first, u64 n, const BlockNumbers& own) {
    bool is_known = true;
    for (u64 i = 0; i < n; ++i) {
        const float scale = call.choice.scale_of(first + i);
        memcpy(call.scales + (first + i) * sizeof scale, &scale, sizeof scale);
        own.own[i] = double(scale);
        const double top = call.how.two_sided ? larger(-own.low[i], own.high[i]) : own.high[i];
        is_known = is_known && top <= own.own[i] * 0x1p21;
    }
    return is_known;
}

// The scales of n blocks by formulas, and in `own.own` what their elements are divided or multiplied by. False where one is NaN,
// or a factor 0 or not finite.
inline bool find_scales_by_steps(const QuantizeCall& call, u64 first, u64 n, const BlockNumbers& own) {
    const FormulaSteps& steps = call.how.steps_of;
    float amax[blocks_of_formula], scale[blocks_of_formula], factor[blocks_of_formula];
    const FormulaValues values = {amax, scale, call.u, steps.to_source, steps.from_source};
    bool is_known = true;
    for (u64 begin = 0; begin < n; begin += blocks_of_formula) {
        const u64 count = n - begin < blocks_of_formula ? n - begin : u64(blocks_of_formula), bytes = call.how.scale_bytes;
        for (u64 i = 0; i < count; ++i) amax[i] = float(own.high[begin + i]);
        evaluate(steps.scale, values, count, scale);
        for (u64 i = 0; i < count; ++i) is_known = is_known && scale[i] == scale[i];
        u8* const stored = call.scales + (first + begin) * bytes;
        if (steps.to_scale) steps.to_scale(scale, stored, count);
        else memcpy(stored, scale, count * sizeof *scale);
        const auto read_scales = [&] {
            if (steps.from_scale) steps.from_scale(stored, scale, count);
            else memcpy(scale, stored, count * sizeof *scale);
        };
        read_scales();
        if (steps.code_of_zero) {
            with_code(bytes, [&](auto code) {
                typedef decltype(code) Code;
                Code* const codes = reinterpret_cast<Code*>(stored);
                for (u64 i = 0; i < count; ++i) codes[i] = scale[i] != 0 ? codes[i] : Code(steps.code_of_zero);
            });
            read_scales();
        }
        evaluate(steps.factor, values, count, factor);
        for (u64 i = 0; i < count; ++i) {
            own.own[begin + i] = double(factor[i]);
            is_known = is_known && factor[i] != 0 && factor[i] - factor[i] == 0;
        }
    }
    memset(own.zeros, 0, n * sizeof *own.zeros);
    return is_known;
}

// The scales, as they are stored and as DOUBLE, the zero points of n blocks, `first` and further ones; and in `of`, what their
// elements need. False where only the other path can tell them.
inline bool find_scales(const QuantizeCall& call, u64 first, u64 n, const BlockNumbers& own, void* of) {
    const Quantizing& how = call.how;
    const double g = call.g, divisor = how.scales == ScaleKind::small ? how.divisor * g : how.divisor;
    double* const s = own.own;
    if (how.steps_of.are_there) {
        if (!find_scales_by_steps(call, first, n, own)) return false;
        set_divisors(call, s, own.zeros, n, of);
        return true;
    }
    if (call.choice.scales) {
        if (!take_scales(call, first, n, own)) return false;
    } else {
        if (how.has_zeros) {
            for (u64 i = 0; i < n; ++i) s[i] = (own.high[i] - own.low[i]) / how.steps;
        } else if (how.two_sided) {
            for (u64 i = 0; i < n; ++i) s[i] = larger(-own.low[i] * how.negative_weight, own.high[i]) / divisor;
        } else {
            for (u64 i = 0; i < n; ++i) s[i] = own.high[i] / divisor;
        }
        u8* const scales = call.scales + first * how.scale_bytes;
        store_scales(how, s, scales, n);
        how.from_scale(scales, s, n);
    }
    if (how.has_zeros) {
        for (u64 i = 0; i < n; ++i) {
            const double zero = how.lowest - rounded_to_integer(own.low[i] / s[i]);
            own.zeros[i] = int(zero < how.lowest ? how.lowest : zero > how.largest ? how.largest : zero);
            call.zero_points[first + i] = u8(own.zeros[i]);
        }
    } else {
        memset(own.zeros, 0, n * sizeof *own.zeros);
    }
    if (how.has_global) {
        for (u64 i = 0; i < n; ++i) s[i] *= g;
    }
    set_divisors(call, s, own.zeros, n, of);
    return true;
}

// ---- two scales of a block, of which one is chosen ----

// Codes of n blocks by the better of two scales, from those by which the largest magnitude becomes 6: the other makes it 4.
// `elements` has room for the codes twice, `of` takes what numbers are divided by.
__attribute__((noinline)) inline void choose_scales(const QuantizeCall& call, const u8* src, u8* elements, u64 first, u64 n, u64 length, const BlockNumbers& own, void* of) {
    double four[blocks_together], d[blocks_together];
    u8 stored[blocks_together];
    BlockScales each[blocks_together];
    const Quantizing& how = call.how;
    RunLoop *const divide = reinterpret_cast<RunLoop*>(how.elements), *const choose = reinterpret_cast<RunLoop*>(how.choose);
    u8 *const scales = call.scales + first, *const other = elements + n * length;
    const float factor = 1 / float(call.g);
    how.from_scale(scales, d, n);
    for (u64 i = 0; i < n; ++i) four[i] = own.high[i] / (4 * call.g);
    store_scales(how, four, stored, n);
    how.from_scale(stored, four, n);
    for (u64 i = 0; i < n; ++i) each[i] = {float(d[i]), float(four[i]), factor, 0}, d[i] = four[i] * call.g;
    divide(src, elements, n * length, 0, length, own.own, nullptr);
    divide(src, other, n * length, 0, length, d, nullptr);
    ScaleChoice by = {src, other, {}};
    memcpy(by.value, how.value, sizeof by.value);
    choose(src, elements, n * length, 0, length, each, &by);
    for (u64 i = 0; i < n; ++i) {
        if (each[i].takes_four) scales[i] = stored[i], own.own[i] = d[i];
    }
    set_divisors(call, own.own, own.zeros, n, of);
}

}  // namespace gpucast

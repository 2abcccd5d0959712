// SPDX-License-Identifier: Apache-2.0
// The numbers that codes of blocks stand for: each is the product of DOUBLEs, rounded once to the result's type. Most products
// come from FLOATs, of which that is the same: see `OwnFactors`.
namespace gpucast {

// What multiplies the numbers of a block, after its zero point was subtracted.
struct Factor {
    double factor, zero;
};

// How codes become FLOATs, and DOUBLEs or FLOATs results: casts, null where there is nothing to do.
struct Products {
    CastArray *from, *to;
    u64 itemsize;
    CastArray* to_from_floats;
    // Whether products may come from FLOATs.
    u64 in_floats;
};

// Elements that are multiplied together: so many that tables of all codes are worth while; and the rows with the same factors.
enum : u64 { floats_together = 2048, rows_of_factors = 32 };

// What multiplies adjacent blocks, as the sum of two FLOATs: the product of the second one and a number of 9 bits, as codes and their
// differences are, is a FLOAT, so that the whole product is rounded once.
struct OwnFactors {
    OwnFactors(const Factor* of, u64 n) {
        // One kind of number in each loop, of which compilers make vector instructions.
        u64 has_more = 0;
        u32 is_lost = 0, all_rests = 0;
        for (u64 i = 0; i < n; ++i) factor[i] = float(of[i].factor), rest[i] = float(of[i].factor - double(factor[i])), zero[i] = float(of[i].zero);
        for (u64 i = 0; i < n; ++i) has_more |= u64(double(factor[i]) + double(rest[i]) != of[i].factor);
        for (u64 i = 0; i < n; ++i) {
            // The second one has the sign of the first, so that zeros keep theirs.
            const u32 sign = ptx::bits(factor[i]) & 0x80000000, is_beyond = u32(rest[i] != 0) & (ptx::bits(rest[i]) ^ sign) >> 31;
            const float nearer = ptx::as_float(ptx::bits(factor[i]) - is_beyond);
            rest[i] = ptx::as_float(ptx::bits(rest[i] + (factor[i] - nearer)) | sign), factor[i] = nearer;
            // Larger or smaller ones may have products, or what these lack, that are no normal FLOATs: codes stand for 0, infinity,
            // NaN, and numbers from 2^-17 to 2^16.
            const u32 code = ptx::bits(ptx::abs(factor[i])), code_of_rest = ptx::bits(ptx::abs(rest[i])), least = ptx::bits(0x1p-60f);
            is_lost |= u32(code - least > ptx::bits(0x1p60f) - least) | u32(code_of_rest - 1 < ptx::bits(0x1p-100f) - 1);
            all_rests |= code_of_rest;
        }
        have_rests = all_rests != 0;
        are_known = !has_more && !is_lost && (!have_rests || (has_fused_products && (all_rests & 0x1ff) == 0));
    }

    // Replaces `count` FLOATs by their products; `skip` come before in their first block. For shorter results (`to_odd`) an inexact one becomes the
    // neighbour whose last bit is 1: it lies on the same side of all their numbers and midpoints.
    template <bool to_odd>
    GPUCAST_INLINE void multiply(float* x, u64 count, u64 skip, u64 length) const {
        if (have_rests) multiply_blocks<to_odd, true>(x, count, skip, length);
        else multiply_blocks<to_odd, false>(x, count, skip, length);
    }

    bool are_known, have_rests;

   private:
    template <bool to_odd, bool has_rest>
    GPUCAST_INLINE void multiply_blocks(float* x, u64 count, u64 skip, u64 length) const {
        if (length == 1) return multiply_each<to_odd, has_rest, true>(x, count, 0);
        u64 i = 0, at = 0;
        if (!skip) {
            // With loops of their own for the usual lengths.
            if (length == short_block) for (; at + short_block <= count; ++i, at += short_block) multiply_each<to_odd, has_rest, false>(x + at, short_block, i);
            if (length == shorter_block) for (; at + shorter_block <= count; ++i, at += shorter_block) multiply_each<to_odd, has_rest, false>(x + at, shorter_block, i);
        }
        for (; at < count; ++i, skip = 0) {
            const u64 n = length - skip < count - at ? length - skip : count - at;
            multiply_each<to_odd, has_rest, false>(x + at, n, i);
            at += n;
        }
    }

    template <bool to_odd, bool has_rest, bool is_each>
    GPUCAST_INLINE void multiply_each(float* __restrict__ x, u64 n, u64 block) const {
        const float first = factor[block], first_rest = rest[block], first_zero = zero[block];
        for (u64 i = 0; i < n; ++i) {
            const float by = is_each ? factor[i] : first, given = x[i], known = given - (is_each ? zero[i] : first_zero);
            const float other = has_rest ? known * (is_each ? rest[i] : first_rest) : 0, product = has_rest ? fused(known, by, other) : known * by;
            u32 code = ptx::bits(product);
            if constexpr (to_odd) {
                const float lacks = has_rest ? fused(known, by, -product) + other : fused(known, by, -product);
                const u32 away = u32((ptx::bits(lacks) ^ code) >> 31 == 0);
                // Not one that is NaN, as that of infinity.
                code += (u32(lacks < 0) | u32(lacks > 0)) & ~code & 1 ? 2 * away - 1 : 0;
            }
            // NaN stays as it is.
            x[i] = given != given ? given : ptx::as_float(code);
        }
    }
    alignas(64) float factor[floats_together], rest[floats_together], zero[floats_together];
};

// Replaces `count` FLOATs by the products of DOUBLEs, as results.
GPUCAST_INLINE void multiply_doubles(const float* y, u8* results, u64 count, const BlockOf<const Factor>& block, u64 start,
                                     const Products& how) {
    double own[numbers];
    double* const x = how.to ? own : reinterpret_cast<double*>(results);
    const double nan = ptx::as_double(DOUBLE::nan_code);
    const auto product = [nan](double value, double factor, double zero) {
        const double result = (value - zero) * factor;
        // NaN stays as it is.
        return value != value ? value : result != result ? nan : result;
    };
    if (block.length == 1) {
        for (u64 i = 0; i < count; ++i) {
            const Factor& by = block.of[start + i];
            const double own_product = product(double(y[i]), by.factor, by.zero);
            x[i] = by.factor != by.factor ? nan : own_product;
        }
    } else {
        each_block(block, start, count, [&](u64 i, u64 end, const Factor& given) {
            const Factor by = given;
            if (by.factor != by.factor) {
                for (; i < end; ++i) x[i] = nan;
            } else if (end - i == shorter_block) {
                for (u64 j = 0; j < shorter_block; ++j) x[i + j] = product(double(y[i + j]), by.factor, by.zero);
            } else {
                for (; i < end; ++i) x[i] = product(double(y[i]), by.factor, by.zero);
            }
        });
    }
    if (how.to) how.to(x, results, count);
}

// The results of `count` codes, `floats_together` or fewer.
static void multiply_some(const u8* src, u8* dst, u64 count, const BlockOf<const Factor>& block, u64 start, const OwnFactors& own, const Products& how) {
    alignas(64) float y[floats_together];
    // Results that are FLOATs are computed where they will be.
    float* const x = how.in_floats && !how.to_from_floats ? reinterpret_cast<float*>(dst) : y;
    how.from(src, x, count);
    if (how.in_floats && own.are_known) {
        const u64 skip = (start + block.skip) % block.length;
        if (!how.to_from_floats) return own.multiply<false>(x, count, skip, block.length);
        own.multiply<true>(x, count, skip, block.length);
        return how.to_from_floats(x, dst, count);
    }
    for (u64 at = 0; at < count; at += numbers) {
        const u64 some = count - at < numbers ? count - at : u64(numbers);
        multiply_doubles(x + at, dst + at * how.itemsize, some, block, start + at, how);
    }
}

// Dequantizes codes of a byte.
static void multiply(const void* from, void* to, u64 n, u64 skip, u64 length, void* of, void* more) {
    const u8* src = static_cast<const u8*>(from);
    u8* dst = static_cast<u8*>(to);
    const Products& how = *static_cast<const Products*>(more);
    // Rows that have the same blocks one by one.
    const u64 columns = length == 1 ? skip : n;
    const BlockOf<const Factor> block = {static_cast<const Factor*>(of), length == 1 ? 0 : skip, length};
    for (u64 first = 0; first < n; first += rows_of_factors * columns) {
        const u64 end = n - first < rows_of_factors * columns ? n : first + rows_of_factors * columns;
        for (u64 start = 0; start < columns; start += floats_together) {
            const u64 count = columns - start < floats_together ? columns - start : u64(floats_together);
            const u64 own_first = (start + block.skip) / length, own_last = (start + block.skip + count - 1) / length;
            const OwnFactors own(block.of + own_first, own_last - own_first + 1);
            for (u64 at = first + start; at < end; at += columns) multiply_some(src + at, dst + at * how.itemsize, count, block, start, own, how);
        }
    }
}

}  // namespace gpucast

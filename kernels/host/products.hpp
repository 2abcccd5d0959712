// SPDX-License-Identifier: Apache-2.0
// The numbers that codes of blocks stand for: each is the product of DOUBLEs, rounded once to the result's type. Most products
// come from FLOATs, of which that is the same: see `multiply_floats`.
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

// What a product in FLOAT lacks to the exact one. It is itself a FLOAT, unless it is too small.
GPUCAST_INLINE float rest_of_product(float x, float y, float product) {
#if defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(x, y, -product);
#else
    return float(double(x) * double(y) - double(product));
#endif
}

// Replaces FLOATs by their products with a factor. The exact product of two FLOATs is a DOUBLE, so that FLOAT's own is that
// DOUBLE, rounded. For shorter results (`to_odd`) an inexact one becomes the neighbour whose last bit is 1: it lies on the same
// side of all their numbers and midpoints.
template <bool to_odd, bool is_each = false>
GPUCAST_INLINE void multiply_block(float* __restrict__ x, u64 n, const float* __restrict__ factors, const float* __restrict__ zeros) {
    const float first = *factors, first_zero = *zeros;
    for (u64 i = 0; i < n; ++i) {
        const float factor = is_each ? factors[i] : first, known = x[i] - (is_each ? zeros[i] : first_zero), product = known * factor;
        u32 code = ptx::bits(product);
        if constexpr (to_odd) {
            const float rest = rest_of_product(known, factor, product);
            const u32 away = u32((ptx::bits(rest) ^ code) >> 31 == 0);
            // Not a rest that is NaN, as that of infinity.
            code += (u32(rest < 0) | u32(rest > 0)) & ~code & 1 ? 2 * away - 1 : 0;
        }
        // NaN stays as it is.
        x[i] = x[i] != x[i] ? x[i] : ptx::as_float(code);
    }
}

// Whether products come from FLOATs: not where a factor is no FLOAT, or one so large or small that a product, or its rest, may be no normal FLOAT:
// codes stand for 0, infinity, NaN, and numbers from 2^-17 to 2^16.
GPUCAST_INLINE bool takes_floats(const Factor& by) {
    const double size = by.factor < 0 ? -by.factor : by.factor;
    return size >= 0x1p-60 && size <= 0x1p60 && double(float(by.factor)) == by.factor;
}

// False, nothing done, where these come from DOUBLEs.
template <bool to_odd>
inline bool multiply_floats(float* x, u64 count, const BlockOf<const Factor>& block, u64 start) {
    bool is_known = true;
    each_block(block, start, count, [&](u64, u64, const Factor& by) { is_known = is_known && takes_floats(by); });
    if (!is_known) return false;
    each_block(block, start, count, [&](u64 i, u64 end, const Factor& by) {
        const float factor = float(by.factor), zero = float(by.zero);
        multiply_block<to_odd>(x + i, end - i, &factor, &zero);
    });
    return true;
}

// Elements that become FLOATs together: so many that tables of all codes are worth while.
enum : u64 { floats_together = 1024 };

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

template <bool flag>
struct Flag {
    enum : bool { value = flag };
};

// What multiplies some blocks, brought together.
struct OwnFactors {
    OwnFactors(const Factor* of, u64 n) {
        for (u64 i = 0; i < n; ++i) factor[i] = float(of[i].factor), zero[i] = float(of[i].zero), are_known &= takes_floats(of[i]);
    }
    // Replaces FLOATs in whole blocks by their products; false, nothing done, where these come from DOUBLEs.
    template <bool to_odd>
    GPUCAST_INLINE bool multiply(float* x, u64 count, u64 length) const {
        if (!are_known) return false;
        const auto each = [&](u64 n) {
            for (u64 i = 0, at = 0; at < count; ++i, at += n) multiply_block<to_odd>(x + at, n, factor + i, zero + i);
        };
        // With loops of their own for the usual lengths.
        if (length == 1) multiply_block<to_odd, true>(x, count, factor, zero);
        else if (length == short_block) each(short_block);
        else if (length == shorter_block) each(shorter_block);
        else each(length);
        return true;
    }
    bool are_known = true;
    alignas(64) float factor[floats_together], zero[floats_together];
};

// The results of `count` codes, `floats_together` or fewer. `own`: what multiplies them, where they are whole blocks.
static void multiply_some(const u8* src, u8* dst, u64 count, const BlockOf<const Factor>& block, u64 start, const OwnFactors* own, const Products& how) {
    alignas(64) float y[floats_together];
    // Results that are FLOATs are computed where they will be.
    float* const x = how.in_floats && !how.to_from_floats ? reinterpret_cast<float*>(dst) : y;
    how.from(src, x, count);
    const auto multiply_by = [&](auto to_odd) {
        return own ? own->multiply<decltype(to_odd)::value>(x, count, block.length) : multiply_floats<decltype(to_odd)::value>(x, count, block, start);
    };
    if (how.in_floats && (how.to_from_floats ? multiply_by(Flag<true>()) : multiply_by(Flag<false>()))) {
        if (how.to_from_floats) how.to_from_floats(x, dst, count);
        return;
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
    const Factor* factors = static_cast<const Factor*>(of);
    const Products& how = *static_cast<const Products*>(more);
    const u64 columns = length == 1 ? skip : n;
    const bool are_whole = length == 1 || (!skip && floats_together % length == 0 && n % length == 0);
    for (u64 start = 0; start < columns; start += floats_together) {
        const u64 count = columns - start < floats_together ? columns - start : u64(floats_together);
        const BlockOf<const Factor> block = {factors, length == 1 ? 0 : skip, length};
        const OwnFactors own(factors + start / length, are_whole ? count / length : 0);
        for (u64 at = start; at < n; at += columns) {
            multiply_some(src + at, dst + at * how.itemsize, count, block, start, are_whole ? &own : nullptr, how);
        }
    }
}

}  // namespace gpucast

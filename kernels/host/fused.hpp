// SPDX-License-Identifier: Apache-2.0
// Casts that multiply by a scale, keep the largest magnitude and tell whether all is finite: fused.cu says what they
// compute. They are done by the plain casts of other units, in blocks that stay in the first-level cache.
namespace gpucast {

template <typename Word>
GPUCAST_INLINE Word largest_magnitude(const void* from, u64 n) {
    const Word* codes = static_cast<const Word*>(from);
    Word top = 0;
    for (u64 i = 0; i < n; ++i) {
        const Word magnitude = codes[i] & Word(~Word(0) >> 1);
        top = top > magnitude ? top : magnitude;
    }
    return top;
}

// The code of a product. Its NaN has the sign of a NaN, else none.
template <typename Compute, typename Number>
GPUCAST_INLINE Stored<Compute> product_code(Number value, Number scale) {
    const Number product = value * scale;
    const Stored<Compute> sign = value != value ? ptx::bits(value) & Stored<Compute>(Compute::sign_code) : 0;
    return product != product ? Stored<Compute>(Compute::nan_code) | sign : ptx::bits(product);
}

// n products of `Compute`, as they are or as floats rounded to odd.
template <typename Compute, bool to_odd, typename Number, typename To>
static __attribute__((noinline)) void multiply(const Number* __restrict__ x, To* __restrict__ to, u64 n, double scale) {
    typedef decltype(number<Compute>(0)) Real;
    const Real by = Real(scale);
    Stored<Compute> top = 0;
    for (u64 i = 0; i < n; ++i) {
        const Stored<Compute> code = ptx::bits(Real(x[i]) * by), magnitude = code & Stored<Compute>(~Compute::sign_code);
        top = top > magnitude ? top : magnitude;
        if constexpr (to_odd) to[i] = ptx::bits(odd_float<DOUBLE>(code));
        else to[i] = code;
    }
    // NaN is rare.
    if (top <= Stored<Compute>(Compute::inf_code)) return;
    for (u64 i = 0; i < n; ++i) {
        const Stored<Compute> code = product_code<Compute>(Real(x[i]), by);
        if constexpr (to_odd) to[i] = ptx::bits(odd_float<DOUBLE>(code));
        else to[i] = code;
    }
}

#if defined(__FP_FAST_FMAF)
// The same products, rounded to odd, of floats by a float: what rounding to nearest leaves is a float, too, and says to
// which side an even product is to move. False where some may be wrong, because they are very large or very small.
static __attribute__((noinline)) bool multiply_floats(const float* __restrict__ x, u32* __restrict__ to, u64 n, float by) {
    u32 top = 0, least = ~u32(0);
    for (u64 i = 0; i < n; ++i) {
        const float product = x[i] * by, rest = __builtin_fmaf(x[i], by, -product);
        const u32 code = ptx::bits(product), magnitude = code & 0x7fffffff;
        top = top > magnitude ? top : magnitude;
        least = least < magnitude - 1 ? least : magnitude - 1;
        const int step = int(ptx::bits(rest) ^ code) < 0 ? -1 : 1;
        to[i] = rest != 0 && (code & 1) == 0 ? code + u32(step) : code;
    }
    return top <= u32(FLOAT::max_code) && least >= ptx::bits(0x1p-100f) - 1;
}
#endif

template <typename Number>
GPUCAST_INLINE void multiply(const void* from, void* to, u64 n, Product kind, double scale) {
    const Number* x = static_cast<const Number*>(from);
#if defined(__FP_FAST_FMAF)
    if constexpr (sizeof(Number) == sizeof(float)) {
        const float by = float(scale);
        if (kind == Product::odd_floats && double(by) == scale && multiply_floats(x, static_cast<u32*>(to), n, by)) return;
    }
#endif
    if (kind == Product::floats) multiply<FLOAT, false>(x, static_cast<u32*>(to), n, scale);
    else if (kind == Product::odd_floats) multiply<DOUBLE, true>(x, static_cast<u32*>(to), n, scale);
    else multiply<DOUBLE, false>(x, static_cast<u64*>(to), n, scale);
}

// Elements that are cast together: multiples of the four words of a random block, and as many as the stack of a small thread
// holds; fewer of those that are cast there and back.
enum : u64 { together = 1024, together_and_back = 512 };

// Casts n elements. The largest magnitude as a float, and whether all is finite, are merged into `largest` and `finite`
// where these are not null. The random words begin in the block `first`, behind `skip` of its words.
inline void run_fused(const Fused& with, const void* from, void* to, u64 n, u64 first, u64 skip, u32* largest, u8* finite) {
    alignas(64) u64 own_numbers[together], own_products[together];
    const bool is_multiplied = with.product != Product::none, is_looked_at = is_multiplied || finite;
    for (u64 start = 0; start < n; start += together, first += together / 4) {
        const u64 count = n - start < together ? n - start : u64(together);
        const void *src = static_cast<const u8*>(from) + start * with.src_bytes, *floats = src, *doubles = src;
        void* dst = static_cast<u8*>(to) + start * with.dst_bytes;
        if (with.to_floats && (largest || (is_looked_at && with.is_exact))) {
            with.to_floats(src, own_numbers, count);
            floats = own_numbers;
        }
        if (largest) {
            const u32 top = largest_magnitude<u32>(floats, count);
            *largest = *largest > top ? *largest : top;
        }
        // In the place of floats that only the largest one was asked of.
        if (with.to_doubles && is_looked_at && !with.is_exact) {
            with.to_doubles(src, own_numbers, count);
            doubles = own_numbers;
        }
        if (finite && (with.is_exact ? largest_magnitude<u32>(floats, count) > u32(FLOAT::max_code)
                                     : largest_magnitude<u64>(doubles, count) > u64(DOUBLE::max_code))) {
            *finite = 0;
        }
        const void* numbers = src;
        if (is_multiplied) {
            void* products = with.cast || with.cast_at_random ? own_products : dst;
            if (with.is_exact) multiply<float>(floats, products, count, with.product, with.scale);
            else multiply<double>(doubles, products, count, with.product, with.scale);
            numbers = products;
        }
        if (with.cast_at_random) with.cast_at_random(numbers, dst, count, with.seed, first, skip);
        else if (with.cast) with.cast(numbers, dst, count);
    }
}

static void cast_fused(const Fused* with, const void* from, void* to, u64 n, u64 first, u64 skip, u32* largest,
                       u8* finite) {
    const Exactly exactly;
    run_fused(*with, from, to, n, first, skip, largest, finite);
}

// The codes in between stay in the first-level cache.
static void cast_there_and_back(const Fused* there, const Fused* back, const void* from, void* to, u64 n, u64 first, u64 skip,
                                u32* largest, u8* finite) {
    const Exactly exactly;
    alignas(64) u64 codes[together_and_back];
    for (u64 start = 0; start < n; start += together_and_back, first += together_and_back / 4) {
        const u64 count = n - start < together_and_back ? n - start : u64(together_and_back);
        run_fused(*there, static_cast<const u8*>(from) + start * there->src_bytes, codes, count, first, skip, largest, finite);
        run_fused(*back, codes, static_cast<u8*>(to) + start * back->dst_bytes, count, 0, 0, nullptr, nullptr);
    }
}

}  // namespace gpucast

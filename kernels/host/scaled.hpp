// SPDX-License-Identifier: Apache-2.0
// Casts that multiply by a scale first, and tell whether all sources are finite: fused.cu says what they compute.
namespace gpucast {

// A product's NaN as fused.cu has it: of the sign of a NaN, else positive.
template <typename Number, typename Word>
GPUCAST_INLINE Word product_code(Number value, Number scale, Word nan, Word sign) {
    const Number product = value * scale;
    return product != product ? nan | (value != value ? ptx::bits(value) & sign : 0) : ptx::bits(product);
}

// To FLOAT by a scale that is one: the product of two FLOATs is rounded once.
template <typename Src>
GPUCAST_INLINE void scale_floats(const Stored<Src>* __restrict__ src, u32* __restrict__ dst, u64 n, float scale) {
    for (u64 i = 0; i < n; ++i) {
        dst[i] = product_code(number<Src>(src[i]), scale, u32(FLOAT::nan_code), u32(FLOAT::sign_code));
    }
}

template <typename Src, typename Dst, typename Rule>
GPUCAST_INLINE void scale_array(const void* from, void* to, u64 n, double scale, u8* finite) {
    const Stored<Src>* __restrict__ src = static_cast<const Stored<Src>*>(from);
    Stored<Dst>* __restrict__ dst = static_cast<Stored<Dst>*>(to);
    bool done = false;
    if constexpr (is_same<Dst, FLOAT> && Src::bits <= 32) {
        if ((done = double(float(scale)) == scale)) scale_floats<Src>(src, dst, n, float(scale));
    }
    if (!done) {
        for (u64 i = 0; i < n; ++i) {
            const u64 code = product_code(double(number<Src>(src[i])), scale, u64(DOUBLE::nan_code), u64(DOUBLE::sign_code));
            dst[i] = Stored<Dst>(cast_code<DOUBLE, Dst>(code, Rule()));
        }
    }
    if (!finite) return;
    // As codes magnitudes have the order of the numbers, then infinity and NaN.
    Stored<Src> top = 0;
    for (u64 i = 0; i < n; ++i) {
        const Stored<Src> magnitude = src[i] & Stored<Src>(Src::mask ^ Src::sign_code);
        top = top > magnitude ? top : magnitude;
    }
    if (top > Stored<Src>(Src::max_code)) *finite = 0;
}

}  // namespace gpucast

#define GPUCAST_SCALED_CAST(NAME, SRC, DST, ...)                                                                       \
    GPUCAST_EXPORT void NAME(const void* from, void* to, unsigned long long n, double scale, unsigned char* finite) {  \
        const gpucast::Exactly exactly;                                                                                \
        gpucast::scale_array<gpucast::SRC, gpucast::DST, __VA_ARGS__>(from, to, n, scale, finite);                     \
    }

// SPDX-License-Identifier: Apache-2.0
// A cast fused with a multiplication: every value as DOUBLE, times one number, then by the destination's rule.
//
// gpucast/scaled_source.py puts this file behind the others, for these kernels alone.
namespace gpucast {

// A converter, as Arithmetic in cast.cu is one. `FromDouble` is the rule of the second half.
template <typename Src, typename Double, typename Dst, u32 SrcBits, typename ToDouble, typename FromDouble>
struct Scaled {
    typedef typename WordOf<(SrcBits > 32 || Dst::bits > 32)>::type Word;
    enum : u32 { shared_bytes = 0 };
    double scale;

    GPUCAST_INLINE void fill() const {}

    GPUCAST_INLINE Word one(Word code) const {
        const u64 value = cast_code<Src, Double>(u64(code), ToDouble());
        // Rounded once, subnormals kept: no flag bends a product of doubles that is not added to anything.
        u64 product = ptx::bits(ptx::as_double(value) * scale);
        // Which NaN a multiplication gives is the processor's choice. Here it keeps its sign; infinity times 0 is +NaN.
        if (is_nan(product)) product = u64(Double::nan_code) | (is_nan(value) ? value & u64(Double::sign_code) : 0);
        return Word(cast_code<Double, Dst>(product, FromDouble()));
    }

    template <u32 Elements, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE void tile(const Tile<SrcBytes>& in, Tile<DstBytes>& out) const {
#pragma unroll
        for (u32 i = 0; i < Elements; ++i) put<Dst::bits>(out, i, one(get<SrcBits, Word>(in, i)));
    }

    static GPUCAST_INLINE bool is_nan(u64 code) { return (code & ~u64(Double::sign_code)) > u64(Double::inf_code); }
};

template <u32 MaxDims>
struct ScaledDims {
    double scale;
    Dims<MaxDims> dims;
};

}  // namespace gpucast

// scaled_source.py defines NAME_to_double and NAME_from_double.
#define GPUCAST_SCALED(NAME, SRC, DST, SRC_BITS)                                                                       \
    gpucast::Scaled<gpucast::SRC, gpucast::DOUBLE, gpucast::DST, SRC_BITS, gpucast::NAME##_to_double,                  \
                    gpucast::NAME##_from_double>
#define GPUCAST_SCALED_CONTIGUOUS(NAME, SRC, DST, SRC_BITS, ELEMENTS, UNROLL, THREADS)                                 \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n, double scale) {           \
        const GPUCAST_SCALED(NAME, SRC, DST, SRC_BITS) converter = {scale};                                            \
        gpucast::cast_contiguous<SRC_BITS, gpucast::DST::bits, ELEMENTS, UNROLL, THREADS>(                             \
            src, src_bit, dst, n, converter);                                                                          \
    }
#define GPUCAST_SCALED_STRIDED(NAME, SRC, DST, SRC_BITS, MAX_DIMS, THREADS)                                            \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n,                           \
             const __grid_constant__ gpucast::ScaledDims<MAX_DIMS> scaled) {                                           \
        const GPUCAST_SCALED(NAME, SRC, DST, SRC_BITS) converter = {scaled.scale};                                     \
        gpucast::cast_strided<SRC_BITS, gpucast::DST::bits, THREADS>(src, src_bit, dst, n, scaled.dims, converter);    \
    }

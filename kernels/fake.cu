// SPDX-License-Identifier: Apache-2.0
// Casts there and back: each element becomes a code of a narrow type, as by fused.cu, and that a number of the source's
// type again, divided by the scale. gpucast/kernel/fused_kernel.py puts this file after fused.cu.
namespace gpucast {

// What the way back is given: the inverse of the scale, of the type of the scale. Division is rounded to nearest, and keeps
// subnormal numbers.
template <Scaling scaling>
GPUCAST_INLINE FusedArguments inverse_of(double scale) {
    FusedArguments given = {};
    if constexpr (scaling == Scaling::narrow) given.scale = ptx::cvt_f64(ptx::div_rn(1.0f, ptx::cvt_rn_f32(scale)));
    else if constexpr (scaling == Scaling::wide) given.scale = ptx::div_rn(1.0, scale);
    return given;
}

// A converter (see cast.cu) of two: `There` casts Src to Narrow, `Back` what that leaves to Src.
template <typename Src, typename Narrow, typename There, typename Back, u32 SrcBits, Scaling scaling>
struct ThereAndBack {
    typedef typename WordOf<(SrcBits > 32)>::type Word;
    enum : u32 { shared_bytes = 0 };
    enum : bool { observes = There::observes, stochastic = There::stochastic };
    There there;
    const FusedArguments inverse;
    Back back;

    GPUCAST_INLINE explicit ThereAndBack(const FusedArguments& given)
        : there(given), inverse(inverse_of<scaling>(there.scale)), back(inverse) {}

    GPUCAST_INLINE void fill() const {}

    GPUCAST_INLINE Word one(Word code, i64 i) {
        return Word(back.one(typename Back::Word(there.one(typename There::Word(code), i)), i));
    }

    template <u32 Elements, u32 SrcBytes, u32 DstBytes>
    GPUCAST_INLINE void tile(const Tile<SrcBytes>& in, Tile<DstBytes>& out, i64 begin) {
        if constexpr (u32(Narrow::bits) % 8 == 0) {
            Tile<Elements * u32(Narrow::bits) / 8> codes = {};
            there.template tile<Elements>(in, codes, begin);
            back.template tile<Elements>(codes, out, begin);
        } else {
#pragma unroll
            for (u32 i = 0; i < Elements; ++i) put<SrcBits>(out, i, one(get<SrcBits, Word>(in, i), begin + i));
        }
    }

    GPUCAST_INLINE void finish() const { there.finish(); }
};

}  // namespace gpucast

// Macros, because the name of a kernel is a pair's. gpucast/kernel/fused_kernel.py defines NAME_rule and NAME_back.
#define GPUCAST_FAKE(NAME, SRC, NARROW, SCALING, AMAX, FINITE)                                                         \
    gpucast::ThereAndBack<gpucast::SRC, gpucast::NARROW,                                                               \
                          GPUCAST_FUSED(NAME, SRC, NARROW, gpucast::SRC::bits, SCALING, AMAX, FINITE),                 \
                          gpucast::Fused<gpucast::NARROW, gpucast::SRC, gpucast::FLOAT, gpucast::DOUBLE,               \
                                         gpucast::NARROW::bits, gpucast::NAME##_back, gpucast::Scaling::SCALING,       \
                                         false, false>,                                                                \
                          gpucast::SRC::bits, gpucast::Scaling::SCALING>
#define GPUCAST_FAKE_CONTIGUOUS(NAME, SRC, NARROW, SCALING, AMAX, FINITE, ELEMENTS, UNROLL, THREADS)                   \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n,                           \
             const __grid_constant__ gpucast::FusedArguments given) {                                                  \
        GPUCAST_FAKE(NAME, SRC, NARROW, SCALING, AMAX, FINITE) converter(given);                                       \
        gpucast::cast_contiguous<gpucast::SRC::bits, gpucast::SRC::bits, ELEMENTS, UNROLL, THREADS>(                   \
            src, src_bit, dst, n, blockIdx.x, converter);                                                              \
        converter.finish();                                                                                            \
    }
#define GPUCAST_FAKE_STRIDED(NAME, SRC, NARROW, SCALING, AMAX, FINITE, MAX_DIMS, ELEMENTS, THREADS)                    \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                              \
        NAME(const gpucast::u8* src, gpucast::u32 src_bit, gpucast::u8* dst, gpucast::i64 n,                           \
             const __grid_constant__ gpucast::FusedDims<MAX_DIMS> more) {                                              \
        GPUCAST_FAKE(NAME, SRC, NARROW, SCALING, AMAX, FINITE) converter(more.given);                                  \
        gpucast::cast_strided<gpucast::SRC::bits, gpucast::SRC::bits, ELEMENTS, THREADS>(                              \
            src, src_bit, dst, n, more.dims, blockIdx.x, converter);                                                   \
        converter.finish();                                                                                            \
    }

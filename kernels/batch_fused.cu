// SPDX-License-Identifier: Apache-2.0
// Fused casts of a batch of arrays: batch.cu with the converter of fused.cu.
namespace gpucast {

template <u32 Capacity>
GPUCAST_INLINE const Arrays<Capacity>& arrays_of(const FusedArrays<Capacity>& fused) {
    return fused.arrays;
}

template <typename Src, typename Dst, typename Float, typename Double, u32 SrcBits, typename Rule, Scaling scaling,
          bool has_amax, bool has_finite, u32 Elements, u32 Unroll, u32 Threads>
struct BatchFused {
    enum : u32 { shared_bytes = 0 };

    template <u32 Capacity>
    static GPUCAST_INLINE void cast(const FusedArrays<Capacity>& fused, u32 i, u32 block, FourWords*) {
        FusedArguments given = fused.given;
        given.first = fused.first[i];
        if constexpr (scaling != Scaling::none) {
            // Without an address the scale is a number.
            given.scale_at = static_cast<const u8*>(given.scale_at) + u64(i) * fused.scale_step;
        }
        if constexpr (has_amax) given.amax += u64(i) * fused.amax_step / sizeof(float);
        Fused<Src, Dst, Float, Double, SrcBits, Rule, scaling, has_amax, has_finite> converter(given);
        const Arrays<Capacity>& arrays = fused.arrays;
        cast_contiguous<SrcBits, Dst::bits, Elements, Unroll, Threads>(
            arrays.src[i], 0, arrays.dst[i], arrays.n[i], block, converter);
        converter.finish();
    }
};

}  // namespace gpucast

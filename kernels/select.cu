// SPDX-License-Identifier: Apache-2.0
// Copies of a batch of arrays or of another batch, as a byte on the device says: batch.cu with one more column of
// addresses.
//
// gpucast/mixed/cuda/kernels.py puts this file after batch.cu and those that every kernel needs.
namespace gpucast {

template <u32 Capacity>
GPUCAST_INLINE const Arrays<Capacity>& arrays_of(const Choices<Capacity>& choices) {
    return choices.arrays;
}

template <typename Byte, typename Rule, u32 Elements, u32 Unroll, u32 Threads>
struct BatchSelect {
    enum : u32 { shared_bytes = 0 };

    template <u32 Capacity>
    static GPUCAST_INLINE void cast(const Choices<Capacity>& choices, u32 i, u32 block, FourWords*) {
        const Arrays<Capacity>& arrays = choices.arrays;
        const Arithmetic<Byte, Byte, 8, Rule> converter = {};
        cast_contiguous<8, 8, Elements, Unroll, Threads>(
            *choices.chosen != 0 ? arrays.src[i] : choices.otherwise[i], 0, arrays.dst[i], arrays.n[i], block, converter);
    }
};

}  // namespace gpucast

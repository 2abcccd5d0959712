// SPDX-License-Identifier: Apache-2.0
// A batch of arrays in one launch: each block finds its array in a table among the kernel's arguments, and casts a part
// of it as a kernel for that array alone would.
//
// gpucast/kernel/batch_kernel.py puts this file after those that every kernel needs.
#ifndef GPUCAST_GRID_CONSTANT
#define GPUCAST_GRID_CONSTANT(TYPE) const __grid_constant__ TYPE
#endif

namespace gpucast {

// The argument of a kernel is an `Arrays`, or a struct that begins with one (batch_fused.cu, select.cu).
template <u32 Capacity>
GPUCAST_INLINE const Arrays<Capacity>& arrays_of(const Arrays<Capacity>& arrays) {
    return arrays;
}

// The last array that begins at a block or before.
template <u32 Capacity>
GPUCAST_INLINE u32 array_of(const Arrays<Capacity>& arrays, u32 block) {
    u32 found = 0;
#pragma unroll
    for (u32 left = Capacity; left > 1; left -= left / 2) {
        found += arrays.first_block[found + left / 2] <= block ? left / 2 : 0;
    }
    return found;
}

// ---- the casts of a kernel: each has a function for a block's part of an array ----

template <typename Src, typename Dst, u32 SrcBits, typename Rule, u32 Elements, u32 Unroll, u32 Threads>
struct BatchArithmetic {
    enum : u32 { shared_bytes = 0 };

    template <typename Given>
    static GPUCAST_INLINE void cast(const Given& given, u32 i, u32 block, FourWords*) {
        const auto& arrays = arrays_of(given);
        const Arithmetic<Src, Dst, SrcBits, Rule> converter = {};
        cast_contiguous<SrcBits, Dst::bits, Elements, Unroll, Threads>(
            arrays.src[i], 0, arrays.dst[i], arrays.n[i], block, converter);
    }
};

template <typename Src, typename Dst, typename Entry, u32 SrcBits, typename Rule, u32 Elements, u32 Unroll, u32 Threads,
          const Table<TableShape<Src, Entry, SrcBits>>& entries>
struct BatchLookup {
    typedef Lookup<Src, Dst, Entry, SrcBits, Rule, Threads> Converter;
    enum : u32 { shared_bytes = Converter::shared_bytes };

    template <typename Given>
    static GPUCAST_INLINE void cast(const Given& given, u32 i, u32 block, FourWords* shared) {
        const auto& arrays = arrays_of(given);
        const Converter converter = {entries, shared};
        cast_contiguous<SrcBits, Dst::bits, Elements, Unroll, Threads>(
            arrays.src[i], 0, arrays.dst[i], arrays.n[i], block, converter);
    }
};

// The shared memory that all casts of a kernel use: a block needs that of one of them.
template <typename... Casts>
GPUCAST_CONSTANT u32 shared_bytes_of() {
    const u32 bytes[] = {u32(Casts::shared_bytes)...};
    u32 most = sizeof(FourWords);
    for (u32 i = 0; i < sizeof...(Casts); ++i) most = bytes[i] > most ? bytes[i] : most;
    return most;
}

template <u32 Kind, typename Cast, typename... Casts, typename Given>
GPUCAST_INLINE void cast_kind(u32 kind, const Given& given, u32 i, u32 block, FourWords* shared) {
    if constexpr (sizeof...(Casts) == 0) {
        Cast::cast(given, i, block, shared);
    } else if (kind == Kind) {
        Cast::cast(given, i, block, shared);
    } else {
        cast_kind<Kind + 1, Casts...>(kind, given, i, block, shared);
    }
}

template <typename... Casts, typename Given>
GPUCAST_INLINE void cast_batch(const Given& given, FourWords* shared) {
    const auto& arrays = arrays_of(given);
    const u32 i = array_of(arrays, blockIdx.x);
    cast_kind<0, Casts...>(arrays.kind[i], given, i, blockIdx.x - arrays.first_block[i], shared);
}

}  // namespace gpucast

// A macro, because the name of a kernel is that of its casts, which gpucast/kernel/batch_kernel.py defines.
#define GPUCAST_BATCH(NAME, GIVEN, THREADS, ...)                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(GPUCAST_GRID_CONSTANT(gpucast::GIVEN) given) {          \
        __shared__ gpucast::FourWords shared[gpucast::shared_bytes_of<__VA_ARGS__>() / sizeof(gpucast::FourWords)];    \
        gpucast::cast_batch<__VA_ARGS__>(given, shared);                                                                \
    }

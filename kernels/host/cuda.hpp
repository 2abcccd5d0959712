// SPDX-License-Identifier: Apache-2.0
// What CUDA has built in and a C++ compiler has not, for texts of kernels as host code; it follows model.hpp.
#define GPUCAST_HOST
#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#ifndef GPUCAST_SHARED
#define GPUCAST_SHARED static
#endif
#define __shared__ GPUCAST_SHARED
#define GPUCAST_GRID_CONSTANT(TYPE) const TYPE&
#define __clz(word) ((word) == 0 ? 32 : __builtin_clz((unsigned)(word)))
#define __clzll(word) ((word) == 0 ? 64 : __builtin_clzll((unsigned long long)(word)))
#define __umul64hi(a, b) ((unsigned long long)((unsigned __int128)(a) * (b) >> 64))
// Threads run one after the other, unless these are defined before: `thread_local`, and what waits for all of a block.
#ifndef GPUCAST_THREAD_LOCAL
#define GPUCAST_THREAD_LOCAL
#endif
#ifndef GPUCAST_BARRIER
#define GPUCAST_BARRIER()
#endif
#define __syncthreads() GPUCAST_BARRIER()
// Whoever calls a kernel sets these before.
namespace {
[[maybe_unused]] GPUCAST_THREAD_LOCAL struct { unsigned x = 0, y = 0, z = 0; } blockIdx, threadIdx;
[[maybe_unused]] GPUCAST_THREAD_LOCAL struct { unsigned x = 1, y = 1, z = 1; } blockDim, gridDim;
}
namespace gpucast {
namespace ptx {
inline unsigned lane() { return threadIdx.x % 32; }
// The last lane alone has those of all threads.
inline int redux_max(int a) {
    static int largest;
    largest = lane() == 0 || a > largest ? a : largest;
    return largest;
}
}
}

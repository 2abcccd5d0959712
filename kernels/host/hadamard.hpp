// SPDX-License-Identifier: Apache-2.0
// Hadamard transforms of adjacent runs of numbers (gpucast/quantization/exact_hadamard.py). The result is FLOAT.
namespace gpucast {

// gpucast/quantization/block_loops.py describes it.
struct Transform {
    u32 negative[4];
    float factor;
    u32 inverse;
};

template <u64 n>
GPUCAST_INLINE void transform_run(float* __restrict__ x, float factor) {
    float y[n];
#pragma GCC unroll 8
    for (u64 h = 1; h < n; h *= 2) {
        // Number i takes a + b, number i + h takes a + -b, which is a - b.
        for (u64 i = 0; i < n; ++i) y[i] = x[i ^ h] + ((i & h) != 0 ? -x[i] : x[i]);
        for (u64 i = 0; i < n; ++i) x[i] = y[i];
    }
    for (u64 i = 0; i < n; ++i) x[i] *= factor;
}

template <typename Src, u64 n>
void transform_runs(const Stored<Src>* __restrict__ src, float* __restrict__ dst, u64 count, const Transform& how) {
    u32 flip[n];
    for (u64 i = 0; i < n; ++i) flip[i] = how.negative[i / 32] >> i % 32 << 31;
    for (u64 at = 0; at < count; at += n) {
        float x[n];
        for (u64 i = 0; i < n; ++i) x[i] = float(number<Src>(src[at + i]));
        if (!how.inverse) {
            for (u64 i = 0; i < n; ++i) x[i] = ptx::as_float(ptx::bits(x[i]) ^ flip[i]);
        }
        transform_run<n>(x, how.factor);
        if (how.inverse) {
            for (u64 i = 0; i < n; ++i) x[i] = ptx::as_float(ptx::bits(x[i]) ^ flip[i]);
        }
        for (u64 i = 0; i < n; ++i) dst[at + i] = x[i] == x[i] ? x[i] : ptx::as_float(0x7fc00000);
    }
}

// Whole runs of that length, a Run of blocks.hpp.
template <typename Src>
void hadamard(const void* from, void* to, u64 n, u64, u64 length, void*, void* more) {
    const Stored<Src>* src = static_cast<const Stored<Src>*>(from);
    float* dst = static_cast<float*>(to);
    const Transform& how = *static_cast<const Transform*>(more);
    switch (length) {
        case 16: return transform_runs<Src, 16>(src, dst, n, how);
        case 32: return transform_runs<Src, 32>(src, dst, n, how);
        case 64: return transform_runs<Src, 64>(src, dst, n, how);
        default: return transform_runs<Src, 128>(src, dst, n, how);
    }
}

}  // namespace gpucast

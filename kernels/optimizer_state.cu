// SPDX-License-Identifier: Apache-2.0
// 8-bit states of optimizers: blocks of 256 FLOATs with a scale each, whose codes are places in a table of numbers.
// gpucast/quantization/states/optimizer_state.py has the same on the host.
//
// gpucast/quantization/gpu/state_on_gpu.py puts this file after quantize.cu. A warp has a block, a thread eight
// neighbouring elements.
namespace gpucast {

struct StateArguments {
    // One of each block; read when states become numbers, else written.
    float* scales;
    // The lower bound of scales.
    float least;
    u32 unused;
    // The numbers of the codes; or the least number of each code but the first, and a last one that is not read.
    float table[256];
};

// The bits of magnitudes are in the order of the numbers, and those of NaN come last.
struct LargestBits {
    u32 bits;

    GPUCAST_INLINE void merge(const LargestBits& other) { bits = other.bits > bits ? other.bits : bits; }
#ifndef GPUCAST_HOST
    GPUCAST_INLINE LargestBits other(u32 step) const { return {__shfl_xor_sync(~0u, bits, step)}; }
#endif
};

template <u32 Bytes>
GPUCAST_INLINE void load_numbers(const u8* from, Tile<Bytes>& tile) {
    if ((address(from) & (Tile<Bytes>::piece - 1)) == 0) load_aligned(from, tile);
    else load_part(from, 0, 0, Bytes * 8, tile);
}

template <u32 Bytes>
GPUCAST_INLINE void store_numbers(u8* to, const Tile<Bytes>& tile) {
    if ((address(to) & (Tile<Bytes>::piece - 1)) == 0) store_aligned(to, tile);
    else store_part(to, 0, Bytes * 8, tile);
}

// The scale of a block; every NaN is 0x7fc00000.
GPUCAST_INLINE float state_scale(u32 largest, float least) {
    if (largest > 0x7f800000u) return ptx::as_float(0x7fc00000u);
    const float amax = ptx::as_float(largest);
    return amax > least ? amax : least;
}

// How many numbers of the table are not above x: none for NaN.
GPUCAST_INLINE u32 state_code(float x, const float* table) {
    u32 code = 0;
#pragma unroll
    for (u32 step = 128; step != 0; step /= 2) code += x >= table[code + step - 1] ? step : 0;
    return code;
}

GPUCAST_INLINE void quantize_state(const u8* src, u8* dst, i64 n, const StateArguments& by, float* table) {
    table[threadIdx.x] = by.table[threadIdx.x];
    GPUCAST_BARRIER();
    const i64 begin = i64(blockIdx.x) * 2048 + threadIdx.x * 8;
    // Whole warps: n is a multiple of 256.
    if (begin >= n) return;
    Tile<32> in;
    load_numbers(src + begin * 4, in);
    LargestBits largest = {0};
#pragma unroll
    for (u32 i = 0; i < 8; ++i) largest.merge({in.word[i] & 0x7fffffffu});
    GPUCAST_MERGE(32, largest);
    const float scale = state_scale(largest.bits, by.least);
    if (threadIdx.x % 32 == 0) by.scales[begin / 256] = scale;
    Tile<8> codes = {};
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        put<8>(codes, i, state_code(ptx::div_rn(ptx::as_float(in.word[i]), scale), table));
    }
    store_numbers(dst + begin, codes);
}

GPUCAST_INLINE void dequantize_state(const u8* src, u8* dst, i64 n, const StateArguments& by, float* table) {
    table[threadIdx.x] = by.table[threadIdx.x];
    GPUCAST_BARRIER();
    const i64 begin = i64(blockIdx.x) * 2048 + threadIdx.x * 8;
    if (begin >= n) return;
    Tile<8> codes;
    load_numbers(src + begin, codes);
    const float scale = by.scales[begin / 256];
    Tile<32> numbers;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const float x = ptx::mul_rn(table[get<8, u32>(codes, i)], scale);
        numbers.word[i] = x == x ? ptx::bits(x) : 0x7fc00000u;
    }
    store_numbers(dst + begin * 4, numbers);
}

}  // namespace gpucast

#define GPUCAST_STATE(FUNCTION)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) gpucast_##FUNCTION(                                              \
        const gpucast::u8* src, gpucast::u32, gpucast::u8* dst, gpucast::i64 n,                                        \
        const __grid_constant__ gpucast::StateArguments by) {                                                          \
        __shared__ float table[256];                                                                                   \
        gpucast::FUNCTION(src, dst, n, by, table);                                                                     \
    }

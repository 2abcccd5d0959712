// SPDX-License-Identifier: Apache-2.0
// 8-bit states of optimizers: blocks of 256 FLOATs with a scale each, whose codes are places in a table of numbers.
// gpucast/quantization/states has the same on the host.
//
// gpucast/quantization/gpu/state_on_gpu.py puts this file after quantize.cu and ufunc.cu, and adds a kernel that calls
// what is below for each array. A warp has a block, a thread eight neighbouring elements.
namespace gpucast {

template <u32 Count>
struct StepArguments {
    // Arrays that are read and written; of a state the codes.
    UfuncArguments<Count> of;
    // Those of states.
    float* scales[Count];
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

// How many of the limits are not above x, a number of up to 1 in magnitude; none for NaN. The search begins with the
// cell of x (gpucast/quantization/states/codebooks.py). `Negative` is the first cell of negative numbers, or 0.
template <u32 First, u32 Shift, u32 Negative>
GPUCAST_INLINE u32 state_code(float x, const float* limits, const u8* cells) {
    const float lowest = Negative != 0 ? -1.0f : 0.0f;
    x = x > lowest ? x : lowest;
    const u32 name = (ptx::bits(x) & 0x7fffffffu) >> Shift;
    u32 code = cells[(name > First ? name - First : 0) + (x < 0 ? Negative : 0)];
    code += x >= limits[code + 1] ? 2 : 0;
    code += x >= limits[code] ? 1 : 0;
    return code;
}

GPUCAST_INLINE LargestBits largest_of(const float (&x)[8]) {
    LargestBits largest = {0};
#pragma unroll
    for (u32 i = 0; i < 8; ++i) largest.merge({ptx::bits(x[i]) & 0x7fffffffu});
    return largest;
}

GPUCAST_INLINE void load_state(
    const UfuncInput& from, const float* scales, i64 begin, const float* table, float (&x)[8]) {
    const float scale = scales[begin / 256];
    Tile<8> codes;
    load_numbers(from.from + begin, codes);
#pragma unroll
    for (u32 i = 0; i < 8; ++i) x[i] = ptx::mul_rn(table[get<8, u32>(codes, i)], scale);
}

template <typename Float, typename Dst, typename Rule>
GPUCAST_INLINE void store_cast(const UfuncInput& to, i64 begin, const float (&x)[8]) {
    Tile<32> in = {};
    Tile<Dst::bits> out = {};
#pragma unroll
    for (u32 i = 0; i < 8; ++i) put_value<Float>(in, i, x[i]);
    Arithmetic<Float, Dst, 32, Rule>().template tile<8>(in, out, begin);
    store_numbers(const_cast<u8*>(to.from) + begin * (Dst::bits / 8), out);
}

// By a warp for a block, whose last thread writes the scale: all have read that of before, also on the host, where they
// run one after the other.
template <u32 First, u32 Shift, u32 Negative>
GPUCAST_INLINE void store_state(
    const UfuncInput& to, float* scales, i64 begin, const float (&x)[8], u32 largest, float least, const float* limits,
    const float* cells) {
    const float scale = state_scale(largest, least);
    if (threadIdx.x % 32 == 31) scales[begin / 256] = scale;
    Tile<8> codes = {};
#pragma unroll
    for (u32 i = 0; i < 8; ++i) {
        const float share = ptx::div_rn(x[i], scale);
        put<8>(codes, i, state_code<First, Shift, Negative>(share, limits, reinterpret_cast<const u8*>(cells)));
    }
    store_numbers(const_cast<u8*>(to.from) + begin, codes);
}

}  // namespace gpucast

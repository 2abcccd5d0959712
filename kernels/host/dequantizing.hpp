// SPDX-License-Identifier: Apache-2.0
// Dequantizes arrays of the host in one call. gpucast/quantization/quantize_on_host.py says what is computed.
#pragma once
#include "quantizing.hpp"

namespace gpucast {

struct Dequantizing {
    u64 shape[3], lengths[3], grid[3];
    u64 scale_bytes, element_bits, dst_bytes;
    CastArray *from_scale, *from_zero;
    // `Products` of products.hpp.
    struct {
        CastArray *from, *to;
        u64 itemsize;
        CastArray* to_from_floats;
        u64 in_floats;
    } products;
};

// What multiplies the elements of n blocks.
inline void find_factors(const Dequantizing& how, const u8* scales, const u8* zero_points, double g, u64 first, u64 n, double* numbers,
                         BlockFactor* of) {
    how.from_scale(scales + first * how.scale_bytes, numbers, n);
    for (u64 i = 0; i < n; ++i) of[i] = {numbers[i] * g, 0};
    if (!zero_points) return;
    how.from_zero(zero_points + first, numbers, n);
    for (u64 i = 0; i < n; ++i) of[i].zero = numbers[i];
}

inline RunLoop* multiplies() {
    static RunLoop* const run = reinterpret_cast<RunLoop*>(find_function("multiply"));
    return run;
}

// False after an exception.
inline bool dequantize_blocks(const Dequantizing& how, const u8* data, const u8* scales, const u8* zero_points, const u8* global_scale,
                              u8* out) {
    const Exactly exactly;
    const u64 blocks = product(how.grid), n = product(how.shape);
    const u32 bits = u32(how.element_bits);
    float scale = 1;
    if (global_scale) memcpy(&scale, global_scale, sizeof scale);
    const double g = double(scale);
    Run3 run = run_of(how, reinterpret_cast<void (*)()>(multiplies()), const_cast<u8*>(data), 1, out, how.dst_bytes, nullptr,
                      sizeof(BlockFactor), &how.products);
    const u64 length = run.lengths[2];
    if (is_short(run)) {
        Unlocked unlocked(n);
        return in_parts_of_blocks(blocks, length, &unlocked, [&](u64 begin, u64 end) {
            alignas(64) u8 elements[fewest_blocks * longest_block];
            double numbers[blocks_together];
            BlockFactor of[blocks_together];
            const Exactly own_exactly;
            const u64 together = together_of(length);
            for (u64 first = begin; first < end; first += together) {
                const u64 count = end - first < together ? end - first : together, size = count * length;
                const u8* codes = data + first * length * bits / 8;
                if (bits != 8) unpack(codes, bits, elements, size), codes = elements;
                find_factors(how, scales, zero_points, g, first, count, numbers, of);
                multiplies()(codes, out + first * length * how.dst_bytes, size, 0, length, of,
                             const_cast<void*>(static_cast<const void*>(&how.products)));
            }
            return true;
        }) > 0;
    }
    const Memory of(blocks * sizeof(BlockFactor)), numbers(blocks * sizeof(double)), codes(bits == 8 ? 0 : n);
    if (!of.data || !numbers.data || !codes.data) return PyErr_NoMemory() != nullptr;
    Unlocked unlocked(n);
    find_factors(how, scales, zero_points, g, 0, blocks, numbers.as<double>(), of.as<BlockFactor>());
    run.of.first = of.data;
    if (bits != 8) unpack(data, bits, codes.data, n), run.src.first = codes.data;
    return each_run(run, &unlocked);
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// The scales of the next step, from the largest magnitudes of the last ones, on the device so that no step waits.
//
// gpucast/mixed/cuda/kernels.py compiles this file after those that every kernel needs; it is the kernel itself.

// A thread for each of n tensors, 32 a block. The state is n scales, n inverses, n magnitudes (amax), n places in the
// history, and `history` rows of n magnitudes; gpucast/mixed/delayed_scaling.py has the same arithmetic on the host.
extern "C" __global__ void gpucast_delayed_scaling(
    const gpucast::u8*, gpucast::u32, gpucast::u8* state, gpucast::i64 n, const gpucast::Rescaling by) {
    const gpucast::i64 i = static_cast<gpucast::i64>(blockIdx.x) * 32 + threadIdx.x;
    if (i >= n) return;
    float* floats = reinterpret_cast<float*>(state) + i;
    gpucast::u32* place = reinterpret_cast<gpucast::u32*>(state) + 3 * n + i;
    float* row = floats + 4 * n;
    row[*place * n] = floats[2 * n];
    floats[2 * n] = 0.0f;
    *place = *place + 1 < by.history ? *place + 1 : 0;
    // The bits of magnitudes are in the order of the numbers, and those of NaN come last.
    gpucast::u32 bits = 0;
    for (gpucast::u32 j = 0; j < by.history; ++j, row += n) {
        if (bits < gpucast::ptx::bits(*row)) bits = gpucast::ptx::bits(*row);
    }
    // Zeros alone say nothing; an infinity or NaN belongs to a step that overflowed.
    if (bits == 0 || bits >= 0x7f800000) return;
    float scale = (by.largest / gpucast::ptx::as_float(bits)) * by.margin;
    if (!(scale <= 3.402823466e38f)) scale = 3.402823466e38f;
    if (scale < 1.175494351e-38f) scale = 1.175494351e-38f;
    if (by.power_of_two) scale = gpucast::ptx::as_float(gpucast::ptx::bits(scale) & 0x7f800000);
    floats[0] = scale;
    floats[n] = 1.0f / scale;
}

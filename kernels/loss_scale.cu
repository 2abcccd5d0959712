// SPDX-License-Identifier: Apache-2.0
// The loss scale of a mixed-precision training step, adjusted on the device so that no step waits for the host.
//
// gpucast/mixed/cuda/kernels.py compiles this file after those that every kernel needs; it is the kernel itself.
namespace gpucast {

// Words of four bytes; gpucast/mixed/loss_scale.py has the same arithmetic on the host.
struct LossScale {
    float scale, inverse;
    u32 counter;
};

}  // namespace gpucast

// One thread. `finite` is 0 where the step that was just taken overflowed.
extern "C" __global__ void gpucast_adjust_loss_scale(
    const gpucast::u8* finite, gpucast::u32, gpucast::u8* state, gpucast::i64, const gpucast::Adjustment by) {
    gpucast::LossScale& now = *reinterpret_cast<gpucast::LossScale*>(state);
    float scale = now.scale;
    if (*finite == 0) {
        scale = scale / by.backoff;
        if (scale < by.least) scale = by.least;
        now.counter = 0;
    } else if (++now.counter >= by.period) {
        scale = scale * by.factor;
        // A scale beyond the largest FLOAT stays as it is.
        if (!(scale <= 3.402823466e38f)) scale = now.scale;
        now.counter = 0;
    }
    now.scale = scale;
    now.inverse = 1.0f / scale;
}

// SPDX-License-Identifier: Apache-2.0
// The norm of a step's gradients from the sums of squares.cu, and the factor that clips them, on the device so that no
// step waits.
//
// gpucast/mixed/gpu/norm_kernels.py compiles this file after squares.cu; it is the kernel itself. gpucast/mixed/norm.py has the
// same arithmetic on the host.
namespace gpucast {

struct NormArguments {
    // How many sums there are.
    i64 count;
    // The address of the inverse of the loss scale, or null, and the number that takes its place.
    const float* inverse_at;
    // The place for the norm, or null.
    float* norm;
    float inverse, clip;
};

// `factor` is what gradients are multiplied with: the inverse of the loss scale, times clip / (norm + 1e-6) where that is
// below 1.
struct NormAndFactor {
    const NormArguments& by;
    float* factor;

    GPUCAST_INLINE void operator()(double sum) const {
        const float inverse = by.inverse_at == nullptr ? by.inverse : *by.inverse_at;
        const double norm = ptx::mul_rn(ptx::sqrt_rn(sum), ptx::cvt_f64(inverse));
        const double share = ptx::div_rn(ptx::cvt_f64(by.clip), ptx::add_rn(norm, 1e-6));
        // Not where a gradient is not finite, or the sum of squares overflowed.
        const bool clips = share < 1 && norm < ptx::as_double(u64(0x7ff) << 52);
        *factor = clips ? ptx::cvt_rn_f32(ptx::mul_rn(ptx::cvt_f64(inverse), share)) : inverse;
        // The conversion of a NaN would give 0x7fffffff.
        if (by.norm != nullptr) *by.norm = norm == norm ? ptx::cvt_rn_f32(norm) : ptx::as_float(0x7fc00000u);
    }
};

}  // namespace gpucast

// One block. Each thread adds every 256th of the sums.
extern "C" __global__ void gpucast_norm(
    const gpucast::u8* src, gpucast::u32, gpucast::u8* dst, gpucast::i64, const gpucast::NormArguments by) {
    __shared__ gpucast::FourWords shared[(256 + 32) * sizeof(double) / sizeof(gpucast::FourWords)];
    double sum = 0;
    for (gpucast::i64 i = threadIdx.x; i < by.count; i += 256) {
        sum = gpucast::ptx::add_rn(sum, reinterpret_cast<const double*>(src)[i]);
    }
    const gpucast::NormAndFactor done = {by, reinterpret_cast<float*>(dst)};
    gpucast::sum_of_block(reinterpret_cast<double*>(shared), sum, done);
}

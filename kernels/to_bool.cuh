// SPDX-License-Identifier: Apache-2.0
// Any number to BOOL: zero of either sign is false, everything else true, NaN included.
namespace gpucast {

template <typename DType, typename Word, typename Rule>
GPUCAST_CONSTANT Word encode(const Number<Word>& x, Rule, BoolFamily) {
    return x.kind != Kind::finite || x.significand != 0;
}

// 1 in each byte that is not zero, 0 in the others.
GPUCAST_INLINE u32 nonzero_lanes(u32 bytes) {
    return (((bytes & 0x7f7f7f7f) + 0x7f7f7f7f) | bytes) >> 7 & 0x01010101;
}

// Fast path: the codes of 0 and, where there is one, of -0 are false. FLOAT8E8M0 has no zero.
template <typename Src>
GPUCAST_CONSTANT u64 bits_of_truth() {
    if constexpr (Src::is_float) return Src::mask ^ (Src::has_negative_zero ? u64(Src::sign_code) : 0);
    return Src::mask;
}
template <typename Src, typename Dst, typename Word, typename Rule, typename Family>
GPUCAST_INLINE Word convert(Word code, Rule, Family, BoolFamily) {
    return Src::is_e8m0 || (code & Word(bits_of_truth<Src>())) != 0;
}

// The same for four codes of 8 bits.
template <typename Src>
GPUCAST_INLINE u32 bool_lanes(u32 bytes) {
    return Src::is_e8m0 ? repeated<8>(1) : nonzero_lanes(bytes & repeated<8>(u32(bits_of_truth<Src>())));
}

}  // namespace gpucast

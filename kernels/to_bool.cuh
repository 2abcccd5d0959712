// SPDX-License-Identifier: Apache-2.0
// Any number to BOOL: zero of either sign is false, everything else true, NaN included.
namespace gpucast {

template <typename Row, typename Word, typename R>
GPUCAST_INLINE Word encode(const Number<Word>& x, R, BoolFamily) {
    return x.kind != Kind::finite || x.significand != 0;
}

}  // namespace gpucast

// SPDX-License-Identifier: Apache-2.0
// Casts of a type to itself: codes are copied, without the bits above those of an element, and a BOOL becomes 0 or 1.
#include <string.h>

namespace gpucast {

// From `loop_from` to `memcpy_from` bytes a copy is a loop: there memcpy is `rep movsb` on some processors, several times slower
// where two cores copy at once. A shorter copy is quicker by memcpy; a longer memcpy may pass by the caches.
enum : u64 { loop_from = 1 << 16, memcpy_from = 1 << 21 };

// Copies n codes as `change` makes them. A long loop begins where vectors are aligned in `to`, or it takes up to a sixth longer.
template <typename Code, typename Change>
inline void copy_each(const void* from, void* to, u64 n, const Change& change) {
    const Code* __restrict__ src = static_cast<const Code*>(from);
    Code* __restrict__ dst = static_cast<Code*>(to);
    const u64 first = n * sizeof(Code) < loop_from ? 0 : before_line(dst);
    for (u64 i = 0; i < first; ++i) dst[i] = change(src[i]);
    src += first, dst += first;
    for (u64 i = 0; i < n - first; ++i) dst[i] = change(src[i]);
}

template <typename Code>
inline void copy_codes(const void* from, void* to, u64 n) {
    if (n * sizeof(Code) < loop_from || n * sizeof(Code) >= memcpy_from) {
        memcpy(to, from, n * sizeof(Code));
        return;
    }
    // Without this, compilers would make a memcpy of the loop.
    Code none = 0;
    asm("" : "+r"(none));
    copy_each<Code>(from, to, n, [=](Code code) { return Code(code | none); });
}

template <u32 bits>
inline void copy_masked(const void* from, void* to, u64 n) {
    copy_each<u8>(from, to, n, [](u8 code) { return u8(code & ((1u << bits) - 1)); });
}

// A minimum is one instruction; a comparison and its result are two.
inline void copy_bools(const void* from, void* to, u64 n) {
    copy_each<u8>(from, to, n, [](u8 code) { return code < 1 ? code : u8(1); });
}

#define GPUCAST_COPY(NAME, ...) \
    static void gpucast_copy_##NAME(const void* from, void* to, u64 n) { __VA_ARGS__(from, to, n & ~past_caches); }
GPUCAST_COPY(bool, copy_bools)
GPUCAST_COPY(2, copy_masked<2>)
GPUCAST_COPY(4, copy_masked<4>)
GPUCAST_COPY(6, copy_masked<6>)
GPUCAST_COPY(8, copy_codes<u8>)
GPUCAST_COPY(16, copy_codes<u16>)
GPUCAST_COPY(32, copy_codes<u32>)
GPUCAST_COPY(64, copy_codes<u64>)
#undef GPUCAST_COPY

}  // namespace gpucast

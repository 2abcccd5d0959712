// SPDX-License-Identifier: Apache-2.0
// What the loops and the module share: types, and how units of loops say what functions they have.
#pragma once

namespace gpucast {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef __UINTPTR_TYPE__ Address;

// How many elements lie before the first one at the start of a cache line.
template <typename Code>
static inline u64 before_line(const Code* first) {
    return (0 - reinterpret_cast<Address>(first)) % 64 / sizeof(Code);
}

typedef void CastArray(const void* from, void* to, u64 n);

// Added to the n of a `CastArray` that is called for all of a cast: there are more results than caches hold, so that loops may
// write past these, without reading first what they overwrite.
enum : u64 { past_caches = u64(1) << 63 };

// A function by its name; the last one of a unit has none.
struct Entry {
    const char* name;
    void (*function)();
};

}  // namespace gpucast

#define GPUCAST_ENTRY(NAME) {#NAME, reinterpret_cast<void (*)()>(NAME)},

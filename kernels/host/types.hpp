// SPDX-License-Identifier: Apache-2.0
// What all units of the library share: types, addresses in tables, and how functions are exported.
#define GPUCAST_EXPORT extern "C" __attribute__((visibility("default")))

namespace gpucast {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef __UINTPTR_TYPE__ Address;

typedef void CastArray(const void* from, void* to, u64 n);

inline const void* source(u64 address) { return reinterpret_cast<const void*>(Address(address)); }
inline void* destination(u64 address) { return reinterpret_cast<void*>(Address(address)); }

}  // namespace gpucast

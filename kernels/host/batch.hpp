// SPDX-License-Identifier: Apache-2.0
// Calls of casts for many arrays, whose addresses and lengths are in tables.
namespace gpucast {

typedef unsigned char u8;
typedef unsigned long long u64;
typedef __UINTPTR_TYPE__ Address;

typedef void CastArray(const void* from, void* to, u64 n);

inline const void* source(u64 address) { return reinterpret_cast<const void*>(Address(address)); }
inline void* destination(u64 address) { return reinterpret_cast<void*>(Address(address)); }

}  // namespace gpucast

#define GPUCAST_EXPORT extern "C" __attribute__((visibility("default")))

// The addresses that objects hold, so many bytes behind their own.
GPUCAST_EXPORT void addresses_in(const gpucast::u64* objects, gpucast::u64 offset, gpucast::u64* addresses,
                                 gpucast::u64 count) {
    for (gpucast::u64 i = 0; i < count; ++i) {
        addresses[i] = *static_cast<const gpucast::Address*>(gpucast::source(objects[i] + offset));
    }
}

GPUCAST_EXPORT void cast_each(gpucast::CastArray* cast, const gpucast::u64* from, const gpucast::u64* to,
                              const gpucast::u64* sizes, gpucast::u64 count) {
    for (gpucast::u64 i = 0; i < count; ++i) cast(gpucast::source(from[i]), gpucast::destination(to[i]), sizes[i]);
}

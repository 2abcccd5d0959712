// SPDX-License-Identifier: Apache-2.0
// The levels of the processor that the module has loops for, and the functions of the one in use.
#pragma once
#include "python.hpp"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace gpucast {

struct Level {
    const char* name;
    const Entry* const* const* units;
};

}  // namespace gpucast

// Written by gpucast/host/build.py: the best first, the end without a name.
extern "C" const gpucast::Level gpucast_levels[];

namespace gpucast {

#if defined(__x86_64__)
// Whether all bits of a register of CPUID are set. (`__builtin_cpu_supports` needs a run-time library, which not every
// compiler links.)
inline bool has_bits(unsigned leaf, int place, unsigned bits) {
    unsigned registers[4] = {};
    return __get_cpuid_count(leaf, 0, &registers[0], &registers[1], &registers[2], &registers[3]) && (registers[place] & bits) == bits;
}

// Whether the system keeps these registers of a thread.
inline bool keeps(unsigned wanted) {
    unsigned low, high;
    if (!has_bits(1, 2, bit_OSXSAVE)) return false;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & wanted) == wanted;
}
#endif

inline bool is_supported(const char* level) {
#if defined(__x86_64__)
    if (!has_bits(1, 2, bit_SSE4_2 | bit_SSSE3 | bit_POPCNT)) return false;
    if (strcmp(level, "x86-64-v2") == 0) return true;
    const unsigned v3 = bit_AVX2 | bit_BMI | bit_BMI2, v4 = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
    if (!(has_bits(1, 2, bit_FMA | bit_F16C | bit_AVX) && has_bits(7, 1, v3) && keeps(0x6))) return false;
    return strcmp(level, "x86-64-v3") == 0 || (strcmp(level, "x86-64-v4") == 0 && has_bits(7, 1, v4) && keeps(0xe6));
#else
    return *level != 0;
#endif
}

static const Level* level;

// Chooses the best level that this processor has, or the one asked for. False after an exception.
inline bool choose_level(const char* asked) {
    for (const Level* one = gpucast_levels; one->name; ++one) {
        if ((!asked || strcmp(asked, one->name) == 0) && is_supported(one->name)) {
            level = one;
            return true;
        }
    }
    if (asked) PyErr_Format(PyExc_ImportError, "GPUCAST_HOST_LEVEL=%s is not a level that is built and that this processor has", asked);
    else PyErr_SetString(PyExc_ImportError, "this processor has none of the levels that are built");
    return false;
}

// The function of that name; null where there is none.
inline auto find_function(const char* name) -> void (*)() {
    for (const Entry* const* const* unit = level->units; *unit; ++unit) {
        for (const Entry* entry = **unit; entry->name; ++entry) {
            if (strcmp(entry->name, name) == 0) return entry->function;
        }
    }
    return nullptr;
}

}  // namespace gpucast

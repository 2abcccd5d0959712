// SPDX-License-Identifier: Apache-2.0
// The levels of the processor that the module has loops for, and the functions of the one in use.
#pragma once
#include "python.hpp"

namespace gpucast {

struct Level {
    const char* name;
    const Entry* const* const* units;
};

}  // namespace gpucast

// Written by gpucast/host/build.py: the best first, the end without a name.
extern "C" const gpucast::Level gpucast_levels[];

namespace gpucast {

inline bool is_supported(const char* level) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (strcmp(level, "x86-64-v2") != 0) {
        if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
              __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))) {
            return false;
        }
        if (strcmp(level, "x86-64-v4") == 0) {
            return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        }
        return strcmp(level, "x86-64-v3") == 0;
    }
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("popcnt");
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

// ---- copies: a type to itself ----

template <u32 bytes>
void copy_codes(const void* from, void* to, u64 n) {
    memcpy(to, from, n * bytes);
}

template <u32 bits>
void copy_masked(const void* from, void* to, u64 n) {
    for (u64 i = 0; i < n; ++i) static_cast<u8*>(to)[i] = static_cast<const u8*>(from)[i] & u8((1u << bits) - 1);
}

inline void copy_bools(const void* from, void* to, u64 n) {
    for (u64 i = 0; i < n; ++i) static_cast<u8*>(to)[i] = static_cast<const u8*>(from)[i] != 0;
}

typedef void (*Function)();

inline Function function_of(CastArray* cast) { return reinterpret_cast<Function>(cast); }

// The function of that name; null where there is none.
inline Function find_function(const char* name) {
    static const Entry copies[] = {
        {"gpucast_copy_bool", function_of(copy_bools)},     {"gpucast_copy_2", function_of(copy_masked<2>)},
        {"gpucast_copy_4", function_of(copy_masked<4>)},    {"gpucast_copy_6", function_of(copy_masked<6>)},
        {"gpucast_copy_8", function_of(copy_codes<1>)},     {"gpucast_copy_16", function_of(copy_codes<2>)},
        {"gpucast_copy_32", function_of(copy_codes<4>)},    {"gpucast_copy_64", function_of(copy_codes<8>)},
        {nullptr, nullptr},
    };
    for (const Entry* entry = copies; entry->name; ++entry) {
        if (strcmp(entry->name, name) == 0) return entry->function;
    }
    for (const Entry* const* const* unit = level->units; *unit; ++unit) {
        for (const Entry* entry = **unit; entry->name; ++entry) {
            if (strcmp(entry->name, name) == 0) return entry->function;
        }
    }
    return nullptr;
}

}  // namespace gpucast

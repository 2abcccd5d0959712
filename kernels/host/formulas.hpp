// SPDX-License-Identifier: Apache-2.0
// The formulas of gpucast/quantization/steps.py for the blocks of an array, in FLOAT arithmetic.
// gpucast/quantization/host_formulas.py writes them.
#pragma once
#include <string.h>

#include "types.hpp"

namespace gpucast {

// What a step puts on the stack, or makes of the last ones there.
enum class Operation : u32 { number, amax, scale, u, add, subtract, multiply, divide, negative, min, max, to_source, power, pick };

enum : u64 { most_steps = 31, most_levels = 8, blocks_of_formula = 64 };

struct Formula {
    u32 count;
    Operation steps[most_steps];
    float numbers[most_steps];
};

// What the names of formulas stand for, of some blocks; and the casts of FLOATs to the source's type and back, null for FLOAT.
struct FormulaValues {
    const float *amax, *scale;
    float u;
    CastArray *to_source, *from_source;
};

inline float masked(float x, u32 mask, u32 flips) {
    u32 code;
    memcpy(&code, &x, sizeof code);
    code = (code & mask) ^ flips;
    memcpy(&x, &code, sizeof code);
    return x;
}

// The values of a formula for n blocks, `blocks_of_formula` or fewer. NaN goes on through all operations, as NumPy has it.
inline void evaluate(const Formula& formula, const FormulaValues& values, u64 n, float* results) {
    float stack[most_levels][blocks_of_formula];
    u64 top = 0;
    const auto push = [&](const auto& value) {
        for (u64 i = 0; i < n; ++i) stack[top][i] = value(i);
        ++top;
    };
    const auto join = [&](const auto& value) {
        --top;
        for (u64 i = 0; i < n; ++i) stack[top - 1][i] = value(stack[top - 1][i], stack[top][i]);
    };
    const auto change = [&](const auto& value) {
        for (u64 i = 0; i < n; ++i) stack[top - 1][i] = value(stack[top - 1][i]);
    };
    for (u32 at = 0; at < formula.count; ++at) {
        switch (formula.steps[at]) {
            case Operation::number: push([&](u64) { return formula.numbers[at]; }); break;
            case Operation::amax: push([&](u64 i) { return values.amax[i]; }); break;
            case Operation::scale: push([&](u64 i) { return values.scale[i]; }); break;
            case Operation::u: push([&](u64) { return values.u; }); break;
            case Operation::add: join([](float a, float b) { return a + b; }); break;
            case Operation::subtract: join([](float a, float b) { return a - b; }); break;
            case Operation::multiply: join([](float a, float b) { return a * b; }); break;
            case Operation::divide: join([](float a, float b) { return a / b; }); break;
            case Operation::negative: change([](float a) { return masked(a, ~u32(0), 0x80000000); }); break;
            case Operation::min: join([](float a, float b) { return a != a || a < b ? a : b; }); break;
            case Operation::max: join([](float a, float b) { return a != a || a > b ? a : b; }); break;
            case Operation::to_source:
                if (values.to_source) {
                    u16 codes[blocks_of_formula];
                    values.to_source(stack[top - 1], codes, n);
                    values.from_source(codes, stack[top - 1], n);
                }
                break;
            case Operation::power: change([](float a) { return masked(a, 0xff800000, 0); }); break;
            case Operation::pick:
                top -= 2;
                for (u64 i = 0; i < n; ++i) stack[top - 1][i] = stack[top - 1][i] != 0 ? stack[top][i] : stack[top + 1][i];
                break;
        }
    }
    memcpy(results, stack[0], n * sizeof *results);
}

}  // namespace gpucast

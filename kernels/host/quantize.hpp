// SPDX-License-Identifier: Apache-2.0
// Quantizes and dequantizes arrays of the host in one call, where all is as most calls have it: blocks of 16 elements or more
// of finite FLOATs or shorter numbers, rounded to nearest by FLOAT arithmetic. gpucast/quantization/quantize_on_host.py says
// what is computed, and does all else. The loops are those of blocks.hpp.
#pragma once
#include <stdlib.h>

#include "levels.hpp"
#include "tensors.hpp"

namespace gpucast {

// `EachRun` of blocks.hpp.
struct Run3 {
    void (*run)();
    struct {
        u8* first;
        u64 itemsize;
    } src, dst, of;
    const void* more;
    u64 shape[3], lengths[3], grid[3];
    u64 first_row, last_row, first_column, last_column;
};

// What divides, or multiplies, the numbers of a block; and its zero point. As blocks.hpp has them.
struct BlockStep {
    float d;
    int zero;
};
struct BlockFactor {
    double factor, zero;
};

// gpucast/quantization/quantize_on_host.py describes them, and makes them.
enum class ScaleKind : u64 { power_of_two, real, small };
enum class Division : u64 { step, near, quotient, product };

// `Integers` of codes.hpp.
struct IntegerCodes {
    int least, most;
    u32 mask, products, in_float, rounds;
};

struct Quantizing {
    u64 shape[3], lengths[3], grid[3];
    u64 src_bytes, scale_bytes, element_bits;
    // The loops for extremes, whose codes become DOUBLE, and for elements; and the casts of scales.
    void (*extremes)();
    void (*elements)();
    CastArray *to_double, *to_scale, *from_scale, *to_float;
    ScaleKind scales;
    Division division;
    u64 two_sided, has_global, has_zeros;
    // Codes of the source: its sign, and its largest finite number; of the smallest scale.
    u64 sign_code, max_code, least_scale;
    double divisor, top_scale, steps, negative_weight, lowest, largest;
    IntegerCodes to;
    // The loop and the cast for rounding at random; null where there is none.
    void (*divide)();
    CastAtRandom* at_random;
};

// What a call of its own says: a global scale, or the largest magnitude that gives it; and random words.
struct OwnChoice {
    bool has_scale = false, has_top = false, is_random = false;
    float scale = 0, top = 0;
    u64 seed = 0, offset = 0;
};

// `Divisor` and `Quotients` of blocks.hpp.
struct BlockDivisor {
    double d;
    int zero, is_lost;
};
struct RandomQuotients {
    CastArray* cast;
    CastAtRandom* at_random;
    const u8* first;
    u64 seed, first_block, skip;
    IntegerCodes to;
};

// A Hadamard transform of all runs of adjacent numbers.
struct Transforming {
    u64 size, length, src_bytes;
    void (*run)();
    // `Transform` of hadamard.hpp.
    u32 negative[4];
    float factor;
    u32 inverse;
};

struct Dequantizing {
    u64 shape[3], lengths[3], grid[3];
    u64 scale_bytes, element_bits, dst_bytes;
    CastArray *from_scale, *from_zero;
    // `Products` of products.hpp.
    struct {
        CastArray *from, *to;
        u64 itemsize;
        CastArray *from_floats, *to_floats;
    } products;
};

// Memory that goes when this does.
struct Memory {
    explicit Memory(u64 bytes) : data(static_cast<u8*>(malloc(bytes ? bytes : 1))) {}
    ~Memory() { free(data); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    template <typename T>
    T* as() const { return reinterpret_cast<T*>(data); }
    u8* const data;
};

inline u64 product(const u64* three) { return three[0] * three[1] * three[2]; }

// Elements of a call, between which signals are looked at; and of codes of less than a byte, which stay in the cache until
// they are packed.
enum : u64 { elements_at_once = 1 << 22, codes_at_once = 1 << 15 };

// Whether rows consist of whole blocks, so that all of them are one row.
inline bool is_one_row(const Run3& call) {
    return call.lengths[0] == 1 && call.lengths[1] == 1 && call.shape[2] % call.lengths[2] == 0;
}

inline void join_rows(Run3* call) {
    if (!is_one_row(*call)) return;
    call->shape[2] = product(call->shape), call->grid[2] = product(call->grid);
    call->shape[0] = call->shape[1] = call->grid[0] = call->grid[1] = 1;
}

template <typename Blocks>
inline Run3 run_of(const Blocks& blocks, void (*run)(), u8* src, u64 src_bytes, u8* dst, u64 dst_bytes, void* of, u64 of_bytes,
                   const void* more) {
    Run3 call = {run, {src, src_bytes}, {dst, dst_bytes}, {static_cast<u8*>(of), of_bytes}, more, {}, {}, {}, 0, 0, 0, 0};
    memcpy(call.shape, blocks.shape, sizeof call.shape);
    memcpy(call.lengths, blocks.lengths, sizeof call.lengths);
    memcpy(call.grid, blocks.grid, sizeof call.grid);
    join_rows(&call);
    return call;
}

typedef int EachRun(void*);

// A search by name takes longer than most calls.
inline EachRun* runs_loops() {
    static EachRun* const run = reinterpret_cast<EachRun*>(find_function("each_run"));
    return run;
}

// Calls done(begin, n) after each part of some elements in C order. False after an exception.
template <typename Done>
inline bool each_run(Run3 call, u64 at_once, Unlocked* unlocked, const Done& done) {
    EachRun* const run = runs_loops();
    const u64 rows = call.shape[0] * call.shape[1], columns = call.shape[2], step = at_once > columns ? at_once / columns : 1;
    for (u64 row = 0; row < rows; row += step) {
        call.first_row = row, call.last_row = row + step < rows ? row + step : rows;
        for (u64 column = 0; column < columns; column += at_once) {
            call.first_column = column, call.last_column = column + at_once < columns ? column + at_once : columns;
            run(&call);
            const u64 n = (call.last_row - call.first_row) * (call.last_column - call.first_column);
            done(row * columns + column, n);
            if (unlocked->is_interrupted(n)) return false;
        }
    }
    return true;
}

inline bool each_run(const Run3& call, Unlocked* unlocked) {
    return each_run(call, elements_at_once, unlocked, [](u64, u64) {});
}

inline double larger(double a, double b) { return a > b ? a : b; }
inline double rounded_to_integer(double x) {
    const double large = 0x1.8p52;
    // Beyond, all numbers are integers, and the bounds of zero points are near.
    return x > -0x1p51 && x < 0x1p51 ? x + large - large : x;
}

// Of each block the lowest and the largest number, 0 included. Returns 1; 0 where some number is not finite; -1 after an
// exception.
inline int find_extremes(const Quantizing& how, u8* x, double* low, double* high, Unlocked* unlocked) {
    const u64 blocks = product(how.grid), width = how.src_bytes, each = how.two_sided ? 2 * width : width;
    const Memory ends(blocks * each), codes(blocks * width);
    if (!ends.data || !codes.data) return 0;
    memset(ends.data, 0, blocks * each);
    if (how.two_sided) {
        for (u64 i = 0; i < blocks; ++i) memcpy(ends.data + i * each, &how.sign_code, width);
    }
    if (!each_run(run_of(how, how.extremes, x, width, x, width, ends.data, each, nullptr), unlocked)) return -1;
    for (u64 side = 0; side * width < each; ++side) {
        for (u64 i = 0; i < blocks; ++i) {
            u64 code = 0;
            memcpy(&code, ends.data + i * each + side * width, width);
            if ((code & (how.sign_code - 1)) > how.max_code) return 0;
            memcpy(codes.data + i * width, &code, width);
        }
        how.to_double(codes.data, how.two_sided && !side ? low : high, blocks);
    }
    if (!how.two_sided) memset(low, 0, blocks * sizeof *low);
    return 1;
}

// The scales of all blocks as they are stored. g: the global scale, or 1.
inline void find_scales(const Quantizing& how, const double* low, const double* high, double g, double* own, u8* scales) {
    const u64 blocks = product(how.grid);
    const double divisor = how.scales == ScaleKind::small ? how.divisor * g : how.divisor;
    if (how.scales == ScaleKind::real) {
        for (u64 i = 0; i < blocks; ++i) {
            own[i] = how.has_zeros ? (high[i] - low[i]) / how.steps : larger(-low[i] * how.negative_weight, high[i]) / divisor;
        }
    } else {
        for (u64 i = 0; i < blocks; ++i) own[i] = high[i] / divisor;
    }
    how.to_scale(own, scales, blocks);
    if (how.scales == ScaleKind::power_of_two) return;
    for (u64 i = 0; i < blocks; ++i) {
        u64 code = 0;
        memcpy(&code, scales + i * how.scale_bytes, how.scale_bytes);
        if (code < how.least_scale) memcpy(scales + i * how.scale_bytes, &how.least_scale, how.scale_bytes);
    }
}

// The codes of all elements. s: the scale of each block as DOUBLE. Returns 1; 0 where memory is short; -1 after an exception.
inline int find_elements(const Quantizing& how, const OwnChoice& own, u8* x, u8* data, const double* s, const int* zeros, double g,
                         Unlocked* unlocked) {
    const u64 blocks = product(how.grid);
    const Memory of(blocks * sizeof(BlockDivisor));
    if (!of.data) return 0;
    u64 of_bytes = 4;
    for (u64 i = 0; i < blocks; ++i) {
        const double d = how.has_global ? s[i] * g : s[i];
        if (own.is_random) of.as<BlockDivisor>()[i] = {d, zeros[i], 0}, of_bytes = sizeof(BlockDivisor);
        else if (how.division == Division::near) of.as<double>()[i] = d, of_bytes = 8;
        else if (how.division == Division::step) of.as<BlockStep>()[i] = {float(d), zeros[i]}, of_bytes = 8;
        else of.as<float>()[i] = float(how.division == Division::product ? 1 / d : d);
    }
    const RandomQuotients quotients = {nullptr, how.at_random, x, own.seed, own.offset / 4, own.offset % 4, how.to};
    const void* more = own.is_random ? static_cast<const void*>(&quotients) : how.division == Division::step ? &how.to : nullptr;
    void (*const elements)() = own.is_random ? how.divide : how.elements;
    if (how.element_bits == 8) {
        return each_run(run_of(how, elements, x, how.src_bytes, data, 1, of.data, of_bytes, more), unlocked) ? 1 : -1;
    }
    const u64 n = product(how.shape);
    Run3 call = run_of(how, elements, x, how.src_bytes, nullptr, 1, of.data, of_bytes, more);
    const bool is_row = call.shape[0] * call.shape[1] == 1;
    const Memory codes(is_row && n > codes_at_once ? u64(codes_at_once) : n);
    if (!codes.data) return 0;
    call.dst.first = codes.data;
    if (!is_row) {
        if (!each_run(call, unlocked)) return -1;
        pack(codes.data, data, u32(how.element_bits), n);
        return 1;
    }
    // Elements lie at their places in a row: what comes before a part is never touched.
    for (u64 begin = 0; begin < n; begin += codes_at_once) {
        Run3 part = call;
        const u64 count = n - begin < codes_at_once ? n - begin : u64(codes_at_once);
        part.first_row = 0, part.last_row = 1, part.first_column = begin, part.last_column = begin + count;
        part.dst.first = codes.data - begin;
        runs_loops()(&part);
        pack(codes.data, data + begin * how.element_bits / 8, u32(how.element_bits), count);
        if (unlocked->is_interrupted(count)) return -1;
    }
    return 1;
}

// Returns 1 where all was done; 0, and nothing of use is written, where only the other path can; -1 after an exception.
inline int quantize_blocks(const Quantizing& how, const OwnChoice& choice, u8* x, u8* data, u8* scales, u8* zero_points, u8* global_scale) {
    const Exactly exactly;
    const u64 blocks = product(how.grid);
    const Memory all(3 * blocks * sizeof(double) + blocks * sizeof(int));
    if (!all.data) return 0;
    double *low = all.as<double>(), *high = low + blocks, *own = high + blocks, g = 1;
    int* const zeros = reinterpret_cast<int*>(own + blocks);
    Unlocked unlocked(product(how.shape));
    const int found = find_extremes(how, x, low, high, &unlocked);
    if (found <= 0) return found;
    if (how.has_global) {
        double top = choice.top;
        for (u64 i = 0; !choice.has_top && i < blocks; ++i) top = larger(high[i], top);
        top /= how.divisor * how.top_scale;
        float narrow = choice.scale;
        if (!choice.has_scale) {
            how.to_float(&top, &narrow, 1);
            narrow = narrow > 0x1p-126f ? narrow : 0x1p-126f;
        }
        memcpy(global_scale, &narrow, sizeof narrow);
        g = double(narrow);
    }
    find_scales(how, low, high, g, own, scales);
    how.from_scale(scales, own, blocks);
    for (u64 i = 0; i < blocks; ++i) {
        const double zero = how.has_zeros ? how.lowest - rounded_to_integer(low[i] / own[i]) : 0;
        zeros[i] = int(zero < how.lowest ? how.lowest : zero > how.largest ? how.largest : zero);
        if (how.has_zeros) zero_points[i] = u8(zeros[i]);
        else zeros[i] = 0;
    }
    return find_elements(how, choice, x, data, own, zeros, g, &unlocked);
}

inline bool dequantize_blocks(const Dequantizing& how, const u8* data, const u8* scales, const u8* zero_points, const u8* global_scale,
                              u8* out) {
    const Exactly exactly;
    const u64 blocks = product(how.grid), n = product(how.shape);
    const bool is_packed = how.element_bits != 8;
    const Memory of(blocks * sizeof(BlockFactor)), numbers(2 * blocks * sizeof(double)), codes(is_packed ? n : 0);
    if (!of.data || !numbers.data || !codes.data) return PyErr_NoMemory() != nullptr;
    double *const factors = numbers.as<double>(), *const zeros = factors + blocks;
    float g = 1;
    if (global_scale) memcpy(&g, global_scale, sizeof g);
    Unlocked unlocked(n);
    how.from_scale(scales, factors, blocks);
    if (zero_points) how.from_zero(zero_points, zeros, blocks);
    for (u64 i = 0; i < blocks; ++i) {
        of.as<BlockFactor>()[i] = {global_scale ? factors[i] * double(g) : factors[i], zero_points ? zeros[i] : 0};
    }
    if (is_packed) unpack(data, u32(how.element_bits), codes.data, n);
    u8* const src = is_packed ? codes.data : const_cast<u8*>(data);
    static void (*const multiply)() = find_function("multiply");
    return each_run(run_of(how, multiply, src, 1, out, how.dst_bytes, of.data, sizeof(BlockFactor), &how.products), &unlocked);
}

// ---- arrays of a call ----

// Adjacent elements of the host, of NumPy or in a tensor, or of None.
struct Part {
    u8* data = nullptr;
    u64 bytes = 0;

    Extent extent() const { return gpucast::extent(data, bytes); }

    // False, without an exception, for any other array, and for one that does not have so many bytes in elements of that size.
    bool take(PyObject* given, u64 itemsize, u64 wanted, bool writes, const TensorLibrary* library) {
        if (is_none(given)) return wanted == 0;
        bytes = wanted;
        if (PyArray_CheckExact(given)) {
            if (!is_flat(array_of(given)) || (writes && !is_writable(given))) return false;
            // Numbers may be as long as references to objects.
            if (u64(PyArray_ITEMSIZE(array_of(given))) != itemsize || PyDataType_REFCHK(PyArray_DESCR(array_of(given)))) return false;
            data = static_cast<u8*>(PyArray_DATA(array_of(given)));
            return u64(PyArray_NBYTES(array_of(given))) == wanted;
        }
        Placement own;
        if (!library || !own.look_at(given, library->view, itemsize) || own.device_type != on_host || !own.layout.is_flat) return false;
        data = own.layout.data;
        return own.layout.size * itemsize == wanted && is_simple(given, data, itemsize);
    }
};

template <typename Blocks>
inline bool read_bytes(PyObject* given, Blocks* how, const char* name) {
    if (PyBytes_Check(given) && PyBytes_Size(given) == Py_ssize_t(sizeof *how)) {
        memcpy(how, PyBytes_AsString(given), sizeof *how);
        return true;
    }
    PyErr_Format(PyExc_ValueError, "%s: the description has another size", name);
    return false;
}

// Whether what is written shares no memory with what is read, or written elsewhere.
inline bool are_disjoint(const Part* written, size_t writes, const Part* read, size_t reads) {
    Extent to[8], from[8];
    size_t tos = 0, froms = 0;
    for (size_t i = 0; i < writes; ++i) {
        if (written[i].bytes) to[tos++] = written[i].extent();
    }
    for (size_t i = 0; i < reads; ++i) {
        if (read[i].bytes) from[froms++] = read[i].extent();
    }
    return are_disjoint(to, tos, from, froms);
}

// A FLOAT above 0, or not below it, of a number of Python; false, without an exception, for any other object.
inline bool take_float(PyObject* given, float least, bool* has, float* number) {
    if (is_none(given)) return true;
    if (!PyFloat_CheckExact(given)) return false;
    const Exactly exactly;
    *has = true, *number = float(PyFloat_AsDouble(given));
    return *number >= least && *number <= 0x1.fffffep127f;
}

// Quantizes x into the parts: codes, or the bytes of packed ones, scales, zero points and the global scale, or None, all of
// which are flat arrays or tensors of the host. Returns 1 where that is done; 0, nothing of use written, where only the other
// path can; -1 after an exception.
inline int quantize_parts(const Quantizing& how, const TensorLibrary* library, const OwnChoice& choice, PyObject* given, PyObject* const* into) {
    if ((choice.is_random && !how.at_random) || ((choice.has_scale || choice.has_top) && !how.has_global)) return 0;
    const u64 n = product(how.shape), blocks = product(how.grid);
    Part x, parts[4];
    const bool is_fit = n && x.take(given, how.src_bytes, n * how.src_bytes, false, library) &&
                        parts[0].take(into[0], 1, (n * how.element_bits + 7) / 8, true, library) &&
                        parts[1].take(into[1], how.scale_bytes, blocks * how.scale_bytes, true, library) &&
                        parts[2].take(into[2], 1, how.has_zeros ? blocks : 0, true, library) &&
                        parts[3].take(into[3], 4, how.has_global ? 4 : 0, true, library) && are_disjoint(parts, 4, &x, 1);
    return is_fit ? quantize_blocks(how, choice, x.data, parts[0].data, parts[1].data, parts[2].data, parts[3].data) : 0;
}

// quantize(how, library, x, data, scales, zero_points, global_scale, scale, amax, seed, offset): whether x was quantized into
// the parts. False, nothing of use written, where only the other path can. The global scale, the magnitude that gives it, and
// the seed may be None.
inline PyObject* quantize(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    Quantizing how;
    TensorLibrary known;
    if (!is_call(count, 11, "quantize") || !read_bytes(arguments[0], &how, "quantize")) return nullptr;
    const TensorLibrary* library;
    if (!find_library(arguments[1], &known, &library)) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_False);
    OwnChoice choice;
    if (!take_float(arguments[7], 0x1p-149f, &choice.has_scale, &choice.scale) || !take_float(arguments[8], 0, &choice.has_top, &choice.top)) {
        return Py_NewRef(Py_False);
    }
    choice.is_random = !is_none(arguments[9]);
    if (choice.is_random) {
        choice.seed = PyLong_AsUnsignedLongLong(arguments[9]);
        choice.offset = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(arguments[10]);
        if (PyErr_Occurred()) return nullptr;
    }
    const int done = quantize_parts(how, library, choice, arguments[2], arguments + 3);
    for (Py_ssize_t i = 3; done > 0 && i < 7; ++i) {
        if (!tell_of(library, arguments[i])) return nullptr;
    }
    return done < 0 ? nullptr : Py_NewRef(done ? Py_True : Py_False);
}

// transform(how, library, x, out): whether the FLOATs `out` became the transform of x, which is as `quantize` takes it.
inline PyObject* transform(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    Transforming how;
    TensorLibrary known;
    if (!is_call(count, 4, "transform") || !read_bytes(arguments[0], &how, "transform")) return nullptr;
    const TensorLibrary* library;
    if (!find_library(arguments[1], &known, &library)) return PyErr_Occurred() ? nullptr : Py_NewRef(Py_False);
    Part x, out;
    if (!how.size || !x.take(arguments[2], how.src_bytes, how.size * how.src_bytes, false, library) ||
        !out.take(arguments[3], 4, how.size * 4, true, library) || !are_disjoint(&out, 1, &x, 1)) {
        return Py_NewRef(Py_False);
    }
    const Exactly exactly;
    const struct {
        u64 shape[3], lengths[3], grid[3];
    } blocks = {{1, 1, how.size}, {1, 1, how.length}, {1, 1, how.size / how.length}};
    Unlocked unlocked(how.size);
    if (!each_run(run_of(blocks, how.run, x.data, how.src_bytes, out.data, 4, out.data, 4, how.negative), &unlocked)) return nullptr;
    return tell_of(library, arguments[3]) ? Py_NewRef(Py_True) : nullptr;
}

// The numbers of parts as `quantize_parts` has them, into a flat array of the host; the same, back.
inline int dequantize_parts(const Dequantizing& how, const TensorLibrary* library, PyObject* const* from, PyObject* into) {
    const u64 n = product(how.shape), blocks = product(how.grid);
    const bool has_zeros = !is_none(from[2]), has_global = !is_none(from[3]);
    Part parts[4], out;
    const bool is_fit = n && parts[0].take(from[0], 1, (n * how.element_bits + 7) / 8, false, library) &&
                        parts[1].take(from[1], how.scale_bytes, blocks * how.scale_bytes, false, library) &&
                        parts[2].take(from[2], 1, has_zeros ? blocks : 0, false, library) &&
                        parts[3].take(from[3], 4, has_global ? 4 : 0, false, library) &&
                        out.take(into, how.dst_bytes, n * how.dst_bytes, true, library) && are_disjoint(&out, 1, parts, 4);
    if (!is_fit) return 0;
    return dequantize_blocks(how, parts[0].data, parts[1].data, parts[2].data, parts[3].data, out.data) ? 1 : -1;
}

}  // namespace gpucast

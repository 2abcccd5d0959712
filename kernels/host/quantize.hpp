// SPDX-License-Identifier: Apache-2.0
// Arguments of the calls that quantize, transform and dequantize arrays of the host. quantizing.hpp says which of
// the first it serves.
#pragma once
#include <stdlib.h>

#include "dequantizing.hpp"
#include "levels.hpp"
#include "tensors.hpp"

namespace gpucast {

// A Hadamard transform of all runs of adjacent numbers.
struct Transforming {
    u64 size, length, src_bytes;
    void (*run)();
    // `Transform` of hadamard.hpp.
    u32 negative[4];
    float factor;
    u32 inverse;
};

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

// How a call is done, and what it asks of its library of tensors, or null.
template <typename Blocks>
struct Described {
    Blocks how;
    const TensorLibrary* library;

    // Returns 1; 0, without an exception, where the library watches; -1 after one.
    int read(PyObject* given, PyObject* asked, const char* name) {
        if (!read_bytes(given, &how, name)) return -1;
        return find_library(asked, &known_, &library) ? 1 : PyErr_Occurred() ? -1 : 0;
    }

   private:
    TensorLibrary known_;
};

// What functions return after 1, 0 and -1 of these.
inline PyObject* truth_of(int done) { return done < 0 ? nullptr : Py_NewRef(done ? Py_True : Py_False); }

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

// A seed, or None, and an offset. False after an exception.
inline bool take_random(PyObject* const* given, OwnChoice* choice) {
    choice->is_random = !is_none(given[0]);
    if (!choice->is_random) return true;
    choice->seed = PyLong_AsUnsignedLongLong(given[0]);
    choice->offset = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(given[1]);
    return !PyErr_Occurred();
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
    Described<Quantizing> by;
    if (!is_call(count, 11, "quantize")) return nullptr;
    int done = by.read(arguments[0], arguments[1], "quantize");
    if (done <= 0) return truth_of(done);
    OwnChoice choice;
    if (!take_float(arguments[7], 0x1p-149f, &choice.has_scale, &choice.scale) || !take_float(arguments[8], 0, &choice.has_top, &choice.top)) {
        return Py_NewRef(Py_False);
    }
    if (!take_random(arguments + 9, &choice)) return nullptr;
    done = quantize_parts(by.how, by.library, choice, arguments[2], arguments + 3);
    return truth_of(tell_of_all(done, by.library, arguments + 3, 4));
}

// transform(how, library, x, out): whether the FLOATs `out` became the transform of x, which is as `quantize` takes it.
inline PyObject* transform(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    Described<Transforming> by;
    if (!is_call(count, 4, "transform")) return nullptr;
    const int begun = by.read(arguments[0], arguments[1], "transform");
    if (begun <= 0) return truth_of(begun);
    Transforming& how = by.how;
    Part x, out;
    if (!how.size || !x.take(arguments[2], how.src_bytes, how.size * how.src_bytes, false, by.library) ||
        !out.take(arguments[3], 4, how.size * 4, true, by.library) || !are_disjoint(&out, 1, &x, 1)) {
        return truth_of(0);
    }
    const Exactly exactly;
    const struct {
        u64 shape[3], lengths[3], grid[3];
    } blocks = {{1, 1, how.size}, {1, 1, how.length}, {1, 1, how.size / how.length}};
    {
        // The library is told of the result with Python's lock.
        Unlocked unlocked(how.size);
        if (!each_run(run_of(blocks, how.run, x.data, how.src_bytes, out.data, 4, out.data, 4, how.negative), &unlocked)) return nullptr;
    }
    return truth_of(tell_of(by.library, arguments[3]) ? 1 : -1);
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

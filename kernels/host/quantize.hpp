// SPDX-License-Identifier: Apache-2.0
// Arguments of the calls that quantize, transform and dequantize arrays of the host. quantizing.hpp says which of
// the first it serves.
#pragma once
#include <stdlib.h>

#include "dequantizing.hpp"
#include "levels.hpp"
#include "orders.hpp"
#include "tensors.hpp"

namespace gpucast {

// A result of quantizing: an array's axes are swapped, its numbers transformed, the blocks quantized, and their scales ordered.
struct Producing {
    Quantizing quantizing;
    Turning turning;
    Transforming transform;
    ScaleOrder order;

    u64 src_bytes() const { return transform.size ? transform.src_bytes : quantizing.src_bytes; }
    // Whether a call may give the scales: FLOATs, and no others to which they belong.
    bool takes_scales() const {
        return quantizing.scales == ScaleKind::real && quantizing.scale_bytes == 4 && !quantizing.has_zeros && !quantizing.has_global &&
               !quantizing.steps_of.are_there;
    }
};

// The same, back; `last` casts what was transformed, unless that stays.
struct Restoring {
    Dequantizing dequantizing;
    Transforming transform;
    ScaleOrder order;
    u64 dst_bytes, casts;
    Work last;
};

inline u64 bytes_of_scales(const ScaleOrder& order, u64 scales, u64 itemsize) { return order.bytes ? order.bytes : scales * itemsize; }

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

// How a call is done, in bytes that live as long as the call does, and what it asks of its library of tensors, or null.
template <typename Blocks>
struct Described {
    const Blocks* how;
    const TensorLibrary* library;

    // Returns 1; 0, without an exception, where the library watches; -1 after one.
    int read(PyObject* given, PyObject* asked, const char* name) {
        if (!PyBytes_Check(given) || PyBytes_Size(given) != Py_ssize_t(sizeof *how)) {
            PyErr_Format(PyExc_ValueError, "%s: the description has another size", name);
            return -1;
        }
        how = reinterpret_cast<const Blocks*>(PyBytes_AsString(given));
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

// Whether something is an array of FLOATs of the host, of so many bytes.
inline bool take_floats(PyObject* given, u64 bytes, const TensorLibrary* library, Part* part) {
    Tensor tensor;
    const bool are_floats = PyArray_CheckExact(given) ? PyArray_TYPE(array_of(given)) == NPY_FLOAT
                                                      : library && Placement::see(given, library->view, &tensor) && tensor.kind == of_floats && tensor.bits == 32;
    return are_floats && part->take(given, 4, bytes, false, library);
}

// The scales that a call gives in `choice`, or in an array. False where only the other path can tell what to do with them.
inline bool choose_given(const Producing& whole, const TensorLibrary* library, PyObject* array, Part* part, OwnChoice* choice) {
    if (!array && !choice->has_scale) return true;
    // To tell a small scale from zero.
    const Exactly exactly;
    const u64 blocks = product(whole.quantizing.grid);
    if (array) {
        if (!whole.takes_scales() || !take_floats(array, blocks * 4, library, part)) return false;
        choice->scales = part->data, choice->scale_step = 4;
    } else if (choice->has_scale && !whole.quantizing.has_global) {
        if (!whole.takes_scales()) return false;
        choice->scales = reinterpret_cast<const u8*>(&choice->scale), choice->scale_step = 0;
    }
    for (u64 i = 0; choice->scales && i < (array ? blocks : 1); ++i) {
        if (!(choice->scale_of(i) > 0 && choice->scale_of(i) <= 0x1.fffffep127f)) return false;
    }
    return true;
}

// Quantizes x into the parts: codes, or the bytes of packed ones, scales, zero points and the global scale, or None, all of
// which are flat arrays or tensors of the host. `given`: an array of scales, or null. Returns 1 where that is done; 0, nothing
// of use written, where only the other path can; -1 after an exception.
inline int quantize_parts(const Producing& whole, const TensorLibrary* library, OwnChoice choice, PyObject* array, PyObject* given,
                          PyObject* const* into) {
    const Quantizing& how = whole.quantizing;
    if ((choice.is_random && !how.at_random) || (choice.has_top && !how.has_global)) return 0;
    const u64 n = product(how.shape), blocks = product(how.grid), src_bytes = whole.src_bytes();
    Part read[2], parts[4];
    Part& x = read[0];
    const bool is_fit = n && x.take(array, src_bytes, n * src_bytes, false, library) &&
                        parts[0].take(into[0], 1, (n * how.element_bits + 7) / 8, true, library) &&
                        parts[1].take(into[1], how.scale_bytes, bytes_of_scales(whole.order, blocks, how.scale_bytes), true, library) &&
                        parts[2].take(into[2], 1, how.has_zeros ? blocks : 0, true, library) &&
                        parts[3].take(into[3], 4, how.has_global ? 4 : 0, true, library) &&
                        choose_given(whole, library, given, &read[1], &choice) && are_disjoint(parts, 4, read, 2);
    if (!is_fit) return 0;
    const Scratch turned(whole.turning.matrices ? n * src_bytes : 0), floats(whole.transform.size ? n * 4 : 0);
    const Scratch rows(whole.order.bytes ? blocks * how.scale_bytes : 0);
    if (!turned || !floats || !rows) return 0;
    u8 *numbers = x.data, *const scales = whole.order.bytes ? rows.data : parts[1].data;
    if (whole.turning.matrices) {
        if (!turn(whole.turning, numbers, turned.data, src_bytes)) return -1;
        numbers = turned.data;
    }
    if (whole.transform.size) {
        if (!transform_all(whole.transform, numbers, floats.data)) return -1;
        numbers = floats.data;
    }
    const int done = quantize_blocks(how, choice, numbers, parts[0].data, scales, parts[2].data, parts[3].data);
    if (done > 0 && whole.order.bytes) put_in_order(whole.order, scales, parts[1].data);
    return done;
}

// quantize(how, library, x, data, scales, zero_points, global_scale, scale, amax, seed, offset): whether x was quantized into
// the parts. False, nothing of use written, where only the other path can. The scale, the magnitude that gives a global one, and
// the seed may be None; an array has a scale for each block.
inline PyObject* quantize(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    Described<Producing> by;
    if (!is_call(count, 11, "quantize")) return nullptr;
    int done = by.read(arguments[0], arguments[1], "quantize");
    if (done <= 0) return truth_of(done);
    OwnChoice choice;
    PyObject* const scale = arguments[7];
    const bool is_number = is_none(scale) || PyFloat_CheckExact(scale);
    if ((is_number && !take_float(scale, 0x1p-149f, &choice.has_scale, &choice.scale)) ||
        !take_float(arguments[8], 0, &choice.has_top, &choice.top)) {
        return Py_NewRef(Py_False);
    }
    if (!take_random(arguments + 9, &choice)) return nullptr;
    done = quantize_parts(*by.how, by.library, choice, arguments[2], is_number ? nullptr : scale, arguments + 3);
    return truth_of(tell_of_all(done, by.library, arguments + 3, 4));
}

// transform(how, library, x, out): whether the FLOATs `out` became the transform of x, which is as `quantize` takes it.
inline PyObject* transform(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    Described<Transforming> by;
    if (!is_call(count, 4, "transform")) return nullptr;
    const int begun = by.read(arguments[0], arguments[1], "transform");
    if (begun <= 0) return truth_of(begun);
    const Transforming& how = *by.how;
    Part x, out;
    if (!how.size || !x.take(arguments[2], how.src_bytes, how.size * how.src_bytes, false, by.library) ||
        !out.take(arguments[3], 4, how.size * 4, true, by.library) || !are_disjoint(&out, 1, &x, 1)) {
        return truth_of(0);
    }
    // The library is told of the result with Python's lock.
    return !transform_all(how, x.data, out.data) ? nullptr : truth_of(tell_of_all(1, by.library, arguments + 3, 1));
}

// The numbers of parts as `quantize_parts` has them, into a flat array of the host; the same, back.
inline int dequantize_parts(const Restoring& whole, const TensorLibrary* library, PyObject* const* from, PyObject* into) {
    const Dequantizing& how = whole.dequantizing;
    const u64 n = product(how.shape), blocks = product(how.grid);
    const bool has_zeros = !is_none(from[2]), has_global = !is_none(from[3]);
    Part parts[4], out;
    const bool is_fit = n && parts[0].take(from[0], 1, (n * how.element_bits + 7) / 8, false, library) &&
                        parts[1].take(from[1], how.scale_bytes, bytes_of_scales(whole.order, blocks, how.scale_bytes), false, library) &&
                        parts[2].take(from[2], 1, has_zeros ? blocks : 0, false, library) &&
                        parts[3].take(from[3], 4, has_global ? 4 : 0, false, library) &&
                        out.take(into, whole.dst_bytes, n * whole.dst_bytes, true, library) && are_disjoint(&out, 1, parts, 4);
    if (!is_fit) return 0;
    const bool transforms = whole.transform.size != 0;
    const Scratch rows(whole.order.bytes ? blocks * how.scale_bytes : 0), floats(transforms ? n * 4 : 0), back(whole.casts ? n * 4 : 0);
    if (!rows || !floats || !back) return PyErr_NoMemory(), -1;
    if (whole.order.bytes) take_from_order(whole.order, parts[1].data, rows.data);
    const u8* const scales = whole.order.bytes ? rows.data : parts[1].data;
    if (!dequantize_blocks(how, parts[0].data, scales, parts[2].data, parts[3].data, transforms ? floats.data : out.data)) return -1;
    if (transforms && !transform_all(whole.transform, floats.data, whole.casts ? back.data : out.data)) return -1;
    if (!whole.casts) return 1;
    const Exactly exactly;
    Found found;
    Unlocked unlocked(n);
    return walk_flat(back.data, 4, out.data, u32(whole.dst_bytes), n, whole.last, &found, &unlocked) ? 1 : -1;
}

}  // namespace gpucast

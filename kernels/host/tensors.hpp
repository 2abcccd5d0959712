// SPDX-License-Identifier: Apache-2.0
// Casts of tensors of a library that tells of them by DLPack's functions of C.
#pragma once
#include "device.hpp"

namespace gpucast {

// DLTensor of DLPack 1.x. Strides are in elements.
struct Tensor {
    u8* data;
    int device_type, device, dimensions;
    u8 kind, bits;
    u16 lanes;
    const long long *shape, *strides;
    u64 offset;
};

// A library's own functions: one fills in such fields, which stay its own; the other gives the current stream of a device.
// After an error they are not 0.
typedef int View(void*, Tensor*);
typedef int CurrentStream(int device_type, int device, void** stream);

// Of a tensor's device.
enum : int { on_host = 1, on_cuda = 2 };

// A row-major, aligned array of whichever library.
struct Plain {
    u8* data;
    u64 size;
    int device_type, device;
};

inline Extent extent(const Plain& plain, PyArray_Descr* dtype) { return extent(plain.data, plain.size * itemsize_of(dtype)); }

inline bool is_aligned(const void* data, u64 itemsize) { return reinterpret_cast<Address>(data) % itemsize == 0; }

// The fields of a tensor; false, without an exception, for what has none.
inline bool look_at(PyObject* x, View* view, Tensor* tensor) {
    if (view(x, tensor) == 0) return true;
    PyErr_Clear();
    return false;
}

// Whether a tensor has the strides of a new one. One that has no elements, or zeros alone, may have no memory: its address
// is 0.
inline bool is_row_major(const Tensor& tensor, u64 itemsize, Plain* plain) {
    plain->size = 1;
    long long stride = 1;
    for (int i = tensor.dimensions; i-- > 0;) {
        if (tensor.strides[i] != stride) return false;
        plain->size *= u64(tensor.shape[i]);
        stride *= tensor.shape[i] ? tensor.shape[i] : 1;
    }
    plain->data = tensor.data ? tensor.data + tensor.offset : nullptr;
    plain->device_type = tensor.device_type, plain->device = tensor.device;
    return plain->data && plain->size && is_aligned(plain->data, itemsize);
}

// The same, for a tensor of the host.
inline bool is_plain(PyObject* x, View* view, u64 itemsize, Plain* plain) {
    Tensor tensor;
    return look_at(x, view, &tensor) && tensor.device_type == on_host && is_row_major(tensor, itemsize, plain);
}

inline Plan* plan_of(PyObject* given) {
    if (Py_TYPE(given) == plan_type) return reinterpret_cast<Plan*>(given);
    PyErr_SetString(PyExc_TypeError, "expected a plan");
    return nullptr;
}

template <typename Function>
Function* function_at(PyObject* address) {
    return reinterpret_cast<Function*>(PyLong_AsVoidPtr(address));
}

// Whether `out`, which has the plan's dtype, is a place for the cast of x: then both are row-major, on one device, of one
// shape and share no memory.
inline bool are_plain(Plan* plan, PyObject* x, PyObject* out, View* view, Plain* src, Plain* dst) {
    Tensor from, to;
    if (!look_at(x, view, &from) || !look_at(out, view, &to)) return false;
    if (!is_same_shape(from.dimensions, from.shape, to.dimensions, to.shape)) return false;
    if (!is_row_major(from, itemsize_of(plan->src), src) || !is_row_major(to, itemsize_of(plan->dst), dst)) return false;
    if (src->device_type != dst->device_type || src->device != dst->device) return false;
    Extent read = extent(*src, plan->src), written = extent(*dst, plan->dst);
    return are_disjoint(&written, 1, &read, 1);
}

// Launches the cast on the library's current stream. False after an exception.
inline bool launch_plain(const Kernel* kernel, CurrentStream* current, const Plain& x, const Plain& y) {
    void* stream;
    if (current(on_cuda, x.device, &stream) != 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "cast: the tensor's library gives no current stream");
        return false;
    }
    return launch_cast(kernel, stream, reinterpret_cast<u64>(x.data), reinterpret_cast<u64>(y.data), x.size, nullptr);
}

// The names of a tensor's attributes, and that of a torch module.
static PyObject *gradient_name, *negated_name, *offset_name, *level_name;

inline bool take_tensor_names() {
    gradient_name = PyUnicode_InternFromString("requires_grad");
    negated_name = PyUnicode_InternFromString("is_neg");
    offset_name = PyUnicode_InternFromString("storage_offset");
    level_name = PyUnicode_InternFromString("_current_level");
    return gradient_name && negated_name && offset_name && level_name;
}

// The result of a tensor's method, or an attribute; null, without an exception, for what has none.
inline PyObject* ask(PyObject* x, PyObject* name, bool is_method) {
    PyObject* found = is_method ? PyObject_CallMethodObjArgs(x, name, nullptr) : PyObject_GetAttr(x, name);
    if (!found) PyErr_Clear();
    return found;
}

inline bool is_false(PyObject* found) {
    Py_XDECREF(found);
    // It lives on.
    return found == Py_False;
}

// Whether a tensor of torch is no more than the numbers in its memory. Those of one without memory would be at the address
// of its offset.
inline bool is_simple(PyObject* x, const Plain& plain, u64 itemsize) {
    if (!is_false(ask(x, gradient_name, false)) || !is_false(ask(x, negated_name, true))) return false;
    PyObject* found = ask(x, offset_name, true);
    const u64 offset = found ? PyLong_AsUnsignedLongLong(found) : 0;
    const bool is_known = found && !PyErr_Occurred();
    Py_XDECREF(found);
    PyErr_Clear();
    return is_known && (!offset || reinterpret_cast<u64>(plain.data) != offset * itemsize);
}

// Whether torch is watching what is done with tensors: one of its functions says so, or the level of forward derivatives in
// the names of its module.
inline bool is_watched(PyObject* functions, PyObject* names) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(functions); ++i) {
        PyObject* found = PyObject_CallNoArgs(PyTuple_GetItem(functions, i));
        const bool is_quiet = found == Py_None || found == Py_False || (found && PyObject_IsTrue(found) == 0);
        Py_XDECREF(found);
        PyErr_Clear();
        if (!is_quiet) return true;
    }
    PyObject* level = PyDict_GetItem(names, level_name);
    return level && PyLong_AsLong(level) >= 0;
}

// cast_tensor(plan, torch, empty_like, dtype, x, out): the cast of a tensor into `out`, of that dtype, or into the new one
// that empty_like(x) gives; None, nothing done, where only the checked path can tell what is right, as for tensors that are
// not row-major. torch: the addresses of a View and a CurrentStream, what is_watched asks, and a function that is told of
// an `out` that was written.
inline PyObject* cast_tensor(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (!is_call(count, 6, "cast_tensor")) return nullptr;
    Plan* plan = plan_of(arguments[0]);
    PyObject *torch[5], *x = arguments[4], *out = arguments[5];
    if (!plan) return nullptr;
    for (int i = 0; i < 5; ++i) {
        torch[i] = PyTuple_GetItem(arguments[1], i);
        if (!torch[i]) return nullptr;
    }
    PyObject *stream_address = torch[1], *functions = torch[2], *names = torch[3], *written = torch[4];
    View* view = function_at<View>(torch[0]);
    if (out != Py_None) {
        PyObject* dtype = Py_TYPE(out) == Py_TYPE(x) ? ask(out, dtype_name, false) : nullptr;
        Py_XDECREF(dtype);
        if (dtype != arguments[3]) return nothing();
    }
    Tensor tensor;
    Plain src, dst;
    if (is_watched(functions, names) || !look_at(x, view, &tensor)) return nothing();
    if (!is_row_major(tensor, itemsize_of(plan->src), &src) || !is_simple(x, src, itemsize_of(plan->src))) return nothing();
    Kernel* kernel = nullptr;
    if (src.device_type != on_host) {
        PyObject* index = src.device_type == on_cuda ? PyLong_FromLong(src.device) : nullptr;
        kernel = index ? kernel_of(plan, index) : nullptr;
        Py_XDECREF(index);
        if (!kernel) return nothing();
    }
    // Held, because other code may run from here on, and drop the plan's.
    Py_XINCREF(reinterpret_cast<PyObject*>(kernel));
    const bool is_new = out == Py_None;
    out = is_new ? PyObject_CallFunctionObjArgs(arguments[2], x, nullptr) : Py_NewRef(out);
    PyObject* result = nullptr;
    const int device_type = src.device_type, device = src.device;
    const bool is_fit = out && (is_new || (look_at(out, view, &tensor) && is_row_major(tensor, itemsize_of(plan->dst), &dst) &&
                                           is_simple(out, dst, itemsize_of(plan->dst))));
    // Both are looked at after all code of others, which may have given them other memory.
    const bool is_place = is_fit && are_plain(plan, x, out, view, &src, &dst) && src.device_type == device_type && src.device == device;
    if (out && !is_place) {
        result = nothing();
    } else if (out && kernel) {
        if (launch_plain(kernel, function_at<CurrentStream>(stream_address), src, dst)) result = Py_NewRef(out);
    } else if (out) {
        bool is_done;
        {
            Found found;
            Unlocked unlocked(src.size);
            if (is_new) ask_for_large_pages(dst.data, dst.size * itemsize_of(plan->dst));
            is_done = walk_flat(src.data, u32(itemsize_of(plan->src)), dst.data, u32(itemsize_of(plan->dst)), src.size,
                                plan->work, &found, &unlocked);
        }
        // References are counted with Python's lock held.
        if (is_done) result = Py_NewRef(out);
    }
    if (result == out && out && !is_new) {
        PyObject* told = PyObject_CallFunctionObjArgs(written, out, nullptr);
        if (!told) Py_CLEAR(result);
        Py_XDECREF(told);
    }
    Py_XDECREF(out);
    Py_XDECREF(reinterpret_cast<PyObject*>(kernel));
    return result;
}

}  // namespace gpucast

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

inline bool run_plain(const Plan* plan, const Work& work, Plain x, Plain y, Found* found, Unlocked* unlocked) {
    return walk_flat(x.data, u32(itemsize_of(plan->src)), y.data, u32(itemsize_of(plan->dst)), x.size, work, found, unlocked);
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
    if (!look_at(x, view, &from) || !look_at(out, view, &to) || from.dimensions != to.dimensions) return false;
    if (memcmp(from.shape, to.shape, u64(from.dimensions) * sizeof *from.shape) != 0) return false;
    if (!is_row_major(from, itemsize_of(plan->src), src) || !is_row_major(to, itemsize_of(plan->dst), dst)) return false;
    return src->device_type == dst->device_type && src->device == dst->device &&
           are_apart(reinterpret_cast<u64>(src->data), src->size * itemsize_of(plan->src), reinterpret_cast<u64>(dst->data),
                     dst->size * itemsize_of(plan->dst));
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

// cast_tensor(plan, view, stream, empty_like, x, out): the cast of a tensor into `out`, or into the new one that
// empty_like(x) gives; None, nothing done, where only the checked path can tell what is right, as for tensors that are not
// row-major. `view` and `stream` are addresses of a View and a CurrentStream.
inline PyObject* cast_tensor(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
    if (count != 6) return nothing();
    Plan* plan = plan_of(arguments[0]);
    if (!plan) return nullptr;
    View* view = function_at<View>(arguments[1]);
    PyObject *x = arguments[4], *out = arguments[5];
    Tensor tensor;
    Plain src, dst;
    if (!look_at(x, view, &tensor) || !is_row_major(tensor, itemsize_of(plan->src), &src)) return nothing();
    Kernel* kernel = nullptr;
    if (src.device_type != on_host) {
        PyObject* index = src.device_type == on_cuda ? PyLong_FromLong(src.device) : nullptr;
        kernel = index ? kernel_of(plan, index) : nullptr;
        Py_XDECREF(index);
        if (!kernel) return nothing();
    }
    // Held, because other code may run from here on, and drop the plan's.
    Py_XINCREF(reinterpret_cast<PyObject*>(kernel));
    out = out == Py_None ? PyObject_CallFunctionObjArgs(arguments[3], x, nullptr) : Py_NewRef(out);
    PyObject* result = nullptr;
    if (out && !are_plain(plan, x, out, view, &src, &dst)) {
        result = nothing();
    } else if (out && kernel) {
        if (launch_plain(kernel, function_at<CurrentStream>(arguments[2]), src, dst)) result = Py_NewRef(out);
    } else if (out) {
        Found found;
        Unlocked unlocked(src.size);
        if (run_plain(plan, plan->work, src, dst, &found, &unlocked)) result = Py_NewRef(out);
    }
    Py_XDECREF(out);
    Py_XDECREF(reinterpret_cast<PyObject*>(kernel));
    return result;
}

}  // namespace gpucast

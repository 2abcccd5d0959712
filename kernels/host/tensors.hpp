// SPDX-License-Identifier: Apache-2.0
// Casts of tensors of a library that tells of them by DLPack's functions of C.
#pragma once
#include "device.hpp"

namespace gpucast {

static_assert(sizeof(npy_intp) == 8, "lengths of tensors are those of NumPy");

// DLTensor of DLPack 1.x. Strides are in elements.
struct Tensor {
    u8* data;
    int device_type, device, dimensions;
    u8 kind, bits;
    u16 lanes;
    const npy_intp *lengths, *strides;
    u64 offset;

    // That of an element, as one number that is not 0.
    u32 type() const { return u32(kind) | u32(bits) << 8 | u32(lanes) << 16; }
};

// A library's own functions: one fills in such fields, which stay its own; the other gives the current stream of a device.
// After an error they are not 0.
typedef int View(void*, Tensor*);
typedef int CurrentStream(int device_type, int device, void** stream);

// Of a tensor's device; and the `kind` of floating-point numbers.
enum : int { on_host = 1, on_cuda = 2, of_floats = 2 };

// Addresses below are not told from the offset of a tensor without memory.
enum : u64 { beyond_offsets = u64(1) << 44 };

// The names of a tensor's attributes, and that of a torch module.
static PyObject *gradient_name, *negated_name, *offset_name, *level_name;

inline bool take_tensor_names() {
    gradient_name = PyUnicode_InternFromString("requires_grad");
    negated_name = PyUnicode_InternFromString("is_neg");
    offset_name = PyUnicode_InternFromString("storage_offset");
    level_name = PyUnicode_InternFromString("_current_level");
    return gradient_name && negated_name && offset_name && level_name;
}

template <typename Function>
Function* function_at(PyObject* address) {
    return reinterpret_cast<Function*>(PyLong_AsVoidPtr(address));
}

// What is asked of a library: the addresses of a View and a CurrentStream, functions that tell whether it watches what is
// done with tensors, the names of a module, and a function that is told of tensors, one or a list, that were written.
struct TensorLibrary {
    View* view;
    CurrentStream* stream;
    PyObject *functions, *names, *written;

    // Of a tuple of five. False after an exception.
    bool read(PyObject* given) {
        const bool is_whole = PyTuple_Check(given) && PyTuple_Size(given) == 5 && PyTuple_Check(PyTuple_GetItem(given, 2)) &&
                              PyDict_Check(PyTuple_GetItem(given, 3));
        if (!is_whole) {
            PyErr_SetString(PyExc_TypeError, "expected what is asked of a library of tensors");
            return false;
        }
        view = function_at<View>(PyTuple_GetItem(given, 0)), stream = function_at<CurrentStream>(PyTuple_GetItem(given, 1));
        functions = PyTuple_GetItem(given, 2), names = PyTuple_GetItem(given, 3), written = PyTuple_GetItem(given, 4);
        if (!view && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a library of tensors without a function that looks at them");
        return !PyErr_Occurred();
    }

    // One of its functions says so, or the level of forward derivatives in the names of its module.
    bool is_watching() const {
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
};

// The library of which `given` asks: null for null or None. False after an exception, or where one of its functions watches
// what is done with tensors.
inline bool find_library(PyObject* given, TensorLibrary* known, const TensorLibrary** library) {
    *library = nullptr;
    if (!given || is_none(given)) return true;
    if (!known->read(given) || known->is_watching()) return false;
    *library = known;
    return true;
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

// Whether a tensor has no gradient, and its numbers as they are.
inline bool is_quiet(PyObject* x) { return is_false(ask(x, gradient_name, false)) && is_false(ask(x, negated_name, true)); }

// Whether a tensor has memory: the numbers of one without would be at the address of its offset.
inline bool has_memory(PyObject* x, const u8* data, u64 itemsize) {
    const u64 address = reinterpret_cast<Address>(data);
    if (address >= beyond_offsets) return true;
    PyObject* found = ask(x, offset_name, true);
    const u64 offset = found ? PyLong_AsUnsignedLongLong(found) : 0;
    const bool is_known = found && !PyErr_Occurred();
    Py_XDECREF(found);
    PyErr_Clear();
    return is_known && (!offset || address != offset * itemsize);
}

// Whether a tensor is no more than the numbers in its memory.
inline bool is_simple(PyObject* x, const u8* data, u64 itemsize) { return is_quiet(x) && has_memory(x, data, itemsize); }

// A tensor that has elements, and where it is.
struct Placement {
    Layout layout;
    int device_type, device;

    // False, without an exception, for what is no tensor, or may have no memory: its address is 0 then.
    bool look_at(PyObject* x, View* view, u64 itemsize) {
        Tensor tensor;
        return see(x, view, &tensor) && set(tensor, itemsize);
    }

    static bool see(PyObject* x, View* view, Tensor* tensor) {
        if (view(x, tensor) == 0) return true;
        PyErr_Clear();
        return false;
    }

    bool set(const Tensor& tensor, u64 itemsize) {
        if (!tensor.data || tensor.dimensions > max_dimensions) return false;
        u8* const data = tensor.data + tensor.offset;
        u64 size = 1;
        bool is_flat = reinterpret_cast<Address>(data) % itemsize == 0;
        for (int i = tensor.dimensions; i-- > 0; size *= u64(tensor.lengths[i])) {
            is_flat = is_flat && (u64(tensor.strides[i]) == size || tensor.lengths[i] == 1);
        }
        layout = {data, size, u32(itemsize), tensor.dimensions, tensor.lengths, tensor.strides, npy_intp(itemsize), false, is_flat};
        device_type = tensor.device_type, device = tensor.device;
        return size != 0;
    }

    // Whether it has memory for sure.
    bool is_far() const { return reinterpret_cast<Address>(layout.data) >= beyond_offsets; }
    bool is_beside(const Placement& other) const { return device_type == other.device_type && device == other.device; }
};

inline bool is_on_host(PyObject* x, View* view) {
    Tensor tensor;
    return Placement::see(x, view, &tensor) && tensor.device_type == on_host;
}

// A tensor of one FLOAT or DOUBLE.
inline bool take_tensor(PyObject* given, View* view, Single* single) {
    Tensor tensor;
    Placement own;
    if (!Placement::see(given, view, &tensor) || tensor.kind != of_floats || tensor.lanes != 1) return false;
    if (tensor.bits != 32 && tensor.bits != 64) return false;
    if (!own.set(tensor, tensor.bits / 8) || own.layout.size != 1 || !own.layout.is_flat) return false;
    single->data = own.layout.data, single->is_double = tensor.bits == 64;
    single->device_type = own.device_type, single->device = own.device;
    return is_simple(given, own.layout.data, tensor.bits / 8);
}

// Whether a tensor is of a class and has a dtype.
inline bool is_kind(PyObject* x, PyTypeObject* kind, PyObject* made) {
    PyObject* dtype = Py_TYPE(x) == kind ? ask(x, dtype_name, false) : nullptr;
    Py_XDECREF(dtype);
    return dtype && dtype == made;
}

// The kernel of a tensor's device; null, without an exception, where there is none.
inline Kernel* kernel_of(const Plan* plan, const Fusion* fusion, const Placement& x) {
    PyObject* index = x.device_type == on_cuda ? PyLong_FromLong(x.device) : nullptr;
    Kernel* kernel = index ? kernel_of(plan, fusion, index) : nullptr;
    Py_XDECREF(index);
    return kernel;
}

// Launches the cast on the library's current stream. False after an exception.
inline bool launch_on(const Kernel* kernel, CurrentStream* current, const Placement& x, const Placement& y, const Fusion* fusion) {
    void* stream;
    if (current(on_cuda, x.device, &stream) != 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "cast: the tensor's library gives no current stream");
        return false;
    }
    return launch_fused(kernel, stream, reinterpret_cast<Address>(x.layout.data), reinterpret_cast<Address>(y.layout.data), x.layout.size, fusion);
}

inline bool tell(PyObject* written, PyObject* x) {
    PyObject* told = PyObject_CallFunctionObjArgs(written, x, nullptr);
    Py_XDECREF(told);
    return told != nullptr;
}

// The same for all that a call wrote, if it is done: of what is None or an array of NumPy nothing is told, as without a library,
// and of results that are new, for which there is None in place of the function. Returns `done`; -1 after an exception.
inline int tell_of_all(int done, const TensorLibrary* library, PyObject* const* written, int count) {
    if (done <= 0 || !library || is_none(library->written)) return done;
    PyObject* all = PyList_New(0);
    bool is_told = all != nullptr;
    for (int i = 0; is_told && i < count; ++i) {
        if (!is_none(written[i]) && !PyArray_CheckExact(written[i])) is_told = PyList_Append(all, written[i]) == 0;
    }
    // A call takes longer than all else here.
    is_told = is_told && (!PyList_Size(all) || tell(library->written, all));
    Py_XDECREF(all);
    return is_told ? done : -1;
}

// Casts x to `out`, which may be new, where all that is done is known. Returns 1 where that was done; 0, nothing done, where
// only the checked path can tell; -1 after an exception.
inline int cast_placed(Plan* plan, const TensorLibrary& library, PyObject* const* arguments, PyObject* out, bool is_new) {
    PyObject *x = arguments[of_x], *amax = arguments[of_amax];
    Placement src, dst;
    Fusion own;
    // All of them are looked at after all code of others, which may have given them other memory.
    const auto take = [&](PyObject* given, Single* single) {
        if (Py_TYPE(given) == Py_TYPE(x)) {
            return take_tensor(given, library.view, single) && single->device_type == src.device_type && single->device == src.device;
        }
        return src.device_type == on_host && take_array(given, single);
    };
    if (!src.look_at(x, library.view, itemsize_of(plan->src)) || !dst.look_at(out, library.view, itemsize_of(plan->dst))) return 0;
    if (!src.is_beside(dst) || !is_same_shape(src.layout, dst.layout)) return 0;
    if (!is_new && !(is_simple(x, src.layout.data, src.layout.itemsize) && is_simple(out, dst.layout.data, dst.layout.itemsize))) return 0;
    const bool is_random = plan->work.is_ordered();
    const Fusion* const fusion = is_plain(arguments, is_random) ? nullptr : &own;
    if (fusion && !take_fusion(arguments, is_random, take, &own)) return 0;
    if (PyArray_CheckExact(amax) && !is_writable(amax)) return 0;
    const Extent written = extent(dst.layout);
    if (!is_sound(dst.layout) || !are_disjoint(extent(src.layout), written, fusion)) return 0;
    if (src.device_type == on_host) {
        if ((own.scale.data && !read_scale(&own)) || !is_scale_of(plan, own)) return 0;
        if (is_new) ask_for_large_pages(dst.layout.data, dst.layout.size * dst.layout.itemsize);
        return cast_fused(plan, src.layout, dst.layout, fusion) ? 1 : -1;
    }
    if (own.scale.data) own.is_float = !own.scale.is_double;
    Kernel* kernel = src.layout.is_flat && dst.layout.is_flat ? kernel_of(plan, fusion, src) : nullptr;
    if (!kernel) return 0;
    // Held, because other code may run from here on, and drop the plan's.
    Py_INCREF(reinterpret_cast<PyObject*>(kernel));
    const bool is_done = launch_on(kernel, library.stream, src, dst, fusion);
    Py_DECREF(reinterpret_cast<PyObject*>(kernel));
    return is_done ? 1 : -1;
}

inline PyObject* run_tensor(Plan* plan, PyObject* const* arguments) {
    PyObject *x = arguments[of_x], *out = arguments[of_out], *amax = arguments[of_amax];
    TensorLibrary library;
    if (!library.read(plan->library)) return nullptr;
    const bool is_new = is_none(out);
    if (!is_new && !is_kind(out, Py_TYPE(x), plan->made)) return nothing();
    Placement src;
    if (library.is_watching() || !src.look_at(x, library.view, itemsize_of(plan->src))) return nothing();
    if (src.device_type != on_host && (!src.layout.is_flat || !plan->kernels || !PyDict_Size(plan->kernels))) return nothing();
    if (is_new && !is_simple(x, src.layout.data, src.layout.itemsize)) return nothing();
    out = is_new ? PyObject_CallFunctionObjArgs(plan->empty, x, nullptr) : Py_NewRef(out);
    if (!out) return nullptr;
    int done = cast_placed(plan, library, arguments, out, is_new);
    if (done > 0 && !is_new && !tell(library.written, out)) done = -1;
    if (done > 0 && Py_TYPE(amax) == Py_TYPE(x) && !tell(library.written, amax)) done = -1;
    if (done > 0) return out;
    Py_DECREF(out);
    return done ? nullptr : nothing();
}

}  // namespace gpucast

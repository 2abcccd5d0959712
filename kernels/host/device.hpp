// SPDX-License-Identifier: Apache-2.0
// Launches of kernels by the driver's own function, for plans of arrays on devices and for all other casts there.
#pragma once
#include "plan.hpp"

namespace gpucast {

// ---- the driver's functions, by CUDA 11.8 and newer; their results are 0, or a CUresult ----

struct LaunchConfig {
    u32 grid[3], block[3], shared_bytes;
    void* stream;
    void* attributes;
    u32 attribute_count;
};

// cuLaunchKernelEx and cuCtxGetDevice.
typedef int LaunchKernel(const LaunchConfig*, void* function, void** arguments, void** extra);
typedef int CurrentDevice(int*);

// ---- kernels ----

// Bytes of the widest access, and the most arguments of a kernel.
enum : u64 { vector_bytes = 32, most_arguments = 8 };

// A kernel that is loaded on a device.
struct Kernel {
    PyObject_HEAD
    LaunchKernel* launch;
    CurrentDevice* current;
    void* function;
    // Elements of a block, and those with which its first tile may begin before the array, unless that is aligned.
    u64 elements, ahead;
    // The bytes of all arguments, and where each begins in them.
    u64 nbytes, offsets[most_arguments];
    u32 count, threads;
    int device;
    // stream(index).ptr is CuPy's current stream of the device. failed(status, is_repeated) raises, or has put in order what
    // a second launch needs.
    PyObject *stream, *index, *failed;
};

static PyTypeObject* kernel_type;
static PyObject *pointer_name, *data_name, *size_name, *place_name, *flat_name, *dimensions_name, *shape_name;

inline bool take_names() {
    struct {
        PyObject** name;
        const char* text;
    } const all[] = {{&pointer_name, "ptr"}, {&data_name, "data"}, {&size_name, "size"}, {&place_name, "device_id"},
                     {&flat_name, "_c_contiguous"}, {&dimensions_name, "ndim"}, {&shape_name, "shape"}};
    for (const auto& one : all) {
        if (!(*one.name = PyUnicode_InternFromString(one.text))) return false;
    }
    return true;
}

static void forget_kernel(PyObject* self) {
    Kernel* kernel = reinterpret_cast<Kernel*>(self);
    Py_XDECREF(kernel->stream);
    Py_XDECREF(kernel->index);
    Py_XDECREF(kernel->failed);
    PyTypeObject* kind = Py_TYPE(self);
    reinterpret_cast<freefunc>(PyType_GetSlot(kind, Py_tp_free))(self);
    Py_DECREF(kind);
}

inline u64 number_at(PyObject* arguments, Py_ssize_t i) { return PyLong_AsUnsignedLongLong(PyTuple_GetItem(arguments, i)); }

// kernel(launch, current, function, threads, elements, ahead, nbytes, offsets, device, stream, failed)
inline PyObject* new_kernel(PyObject*, PyObject* arguments) {
    unsigned long long launch, current, function, elements, ahead, nbytes;
    unsigned threads;
    int device;
    PyObject *offsets, *stream, *failed;
    if (!PyArg_ParseTuple(arguments, "KKKIKKKO!iOO", &launch, &current, &function, &threads, &elements, &ahead, &nbytes,
                          &PyTuple_Type, &offsets, &device, &stream, &failed)) {
        return nullptr;
    }
    const Py_ssize_t count = PyTuple_Size(offsets);
    if (count > Py_ssize_t(most_arguments)) {
        PyErr_Format(PyExc_ValueError, "kernel: %zd arguments; at most %d", count, int(most_arguments));
        return nullptr;
    }
    Kernel* kernel = reinterpret_cast<Kernel*>(PyType_GenericAlloc(kernel_type, 0));
    if (!kernel) return nullptr;
    kernel->launch = reinterpret_cast<LaunchKernel*>(launch);
    kernel->current = reinterpret_cast<CurrentDevice*>(current);
    kernel->function = reinterpret_cast<void*>(function);
    kernel->elements = elements, kernel->ahead = ahead, kernel->threads = threads, kernel->device = device;
    kernel->nbytes = nbytes, kernel->count = u32(count);
    for (Py_ssize_t i = 0; i < count; ++i) kernel->offsets[i] = number_at(offsets, i);
    kernel->stream = Py_NewRef(stream), kernel->failed = Py_NewRef(failed);
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); ++i) {
        if (kernel->offsets[i] >= nbytes) PyErr_SetString(PyExc_ValueError, "kernel: an argument outside of the bytes of all");
    }
    kernel->index = PyErr_Occurred() ? nullptr : PyLong_FromLong(device);
    if (!kernel->index) Py_CLEAR(kernel);
    return reinterpret_cast<PyObject*>(kernel);
}

// CuPy's current stream of a kernel's device. False after an exception.
inline bool find_stream(const Kernel* kernel, void** stream) {
    PyObject* found = PyObject_CallFunctionObjArgs(kernel->stream, kernel->index, nullptr);
    PyObject* pointer = found ? PyObject_GetAttr(found, pointer_name) : nullptr;
    Py_XDECREF(found);
    if (!pointer) return false;
    *stream = PyLong_AsVoidPtr(pointer);
    Py_DECREF(pointer);
    return !PyErr_Occurred();
}

// Hands a launch to CUDA, which copies the arguments before it returns; its CUresult.
inline int enqueue(const Kernel* kernel, void* stream, u64 blocks, void** arguments) {
    const LaunchConfig config = {{u32(blocks), 1, 1}, {kernel->threads, 1, 1}, 0, stream, nullptr, 0};
    return kernel->launch(&config, kernel->function, arguments, nullptr);
}

// The same for a cast of one array; `more` is its last argument, or null.
inline int enqueue_cast(const Kernel* kernel, void* stream, u64 src, u64 dst, u64 n, void* more) {
    u32 bit = 0;
    void* arguments[] = {&src, &bit, &dst, &n, more};
    const u64 ahead = dst % vector_bytes ? kernel->ahead : 0;
    return enqueue(kernel, stream, (n + ahead + kernel->elements - 1) / kernel->elements, arguments);
}

// Launches without Python's lock, because that may wait for a place in the stream's queue. False after an exception.
template <typename Enqueue>
bool launch(const Kernel* kernel, const Enqueue& give) {
    for (bool is_repeated = false;; is_repeated = true) {
        PyThreadState* state = PyEval_SaveThread();
        const int status = give();
        PyEval_RestoreThread(state);
        if (!status) return true;
        PyObject* done = PyObject_CallFunction(kernel->failed, "iO", status, is_repeated ? Py_True : Py_False);
        if (!done) return false;
        Py_DECREF(done);
    }
}

inline bool launch_cast(const Kernel* kernel, void* stream, u64 src, u64 dst, u64 n, void* more) {
    return launch(kernel, [=] { return enqueue_cast(kernel, stream, src, dst, n, more); });
}

// With arguments that lie in these bytes.
inline bool launch_bytes(const Kernel* kernel, void* stream, u64 blocks, u8* bytes) {
    void* places[most_arguments];
    for (u32 i = 0; i < kernel->count; ++i) places[i] = bytes + kernel->offsets[i];
    return launch(kernel, [&] { return enqueue(kernel, stream, blocks, places); });
}

// The bytes of a launch's arguments; null, with an exception, for others than the kernel's.
inline u8* bytes_for(const Kernel* kernel, PyObject* given) {
    u64 size = 0;
    u8* bytes = nullptr;
    if (PyArray_Check(given)) {
        PyArrayObject* table = reinterpret_cast<PyArrayObject*>(given);
        size = u64(PyArray_NBYTES(table)), bytes = static_cast<u8*>(PyArray_DATA(table));
    } else if (PyBytes_Check(given)) {
        size = u64(PyBytes_Size(given)), bytes = reinterpret_cast<u8*>(PyBytes_AsString(given));
    }
    if (bytes && size == kernel->nbytes) return bytes;
    PyErr_Format(PyExc_TypeError, "Kernel: %llu bytes of arguments; expected %llu, as bytes or an array of NumPy",
                 static_cast<unsigned long long>(size), static_cast<unsigned long long>(kernel->nbytes));
    return nullptr;
}

// kernel(blocks, arguments). It runs on the current stream of its device, which is the current one.
static PyObject* call_kernel(PyObject* self, PyObject* arguments, PyObject*) {
    const Kernel* kernel = reinterpret_cast<Kernel*>(self);
    if (PyTuple_Size(arguments) != 2) {
        PyErr_Format(PyExc_TypeError, "Kernel: %zd arguments; expected 2", PyTuple_Size(arguments));
        return nullptr;
    }
    const u64 blocks = number_at(arguments, 0);
    if (PyErr_Occurred()) return nullptr;
    u8* bytes = bytes_for(kernel, PyTuple_GetItem(arguments, 1));
    void* stream;
    if (!bytes || !find_stream(kernel, &stream)) return nullptr;
    return launch_bytes(kernel, stream, blocks, bytes) ? nothing() : nullptr;
}

// ---- plans of arrays on devices ----

// The kernel of a device that is the current one; null, without an exception, where there is none.
inline Kernel* kernel_in(PyObject* kernels, PyObject* index) {
    PyObject* found = kernels ? PyDict_GetItemWithError(kernels, index) : nullptr;
    if (!found || Py_TYPE(found) != kernel_type) {
        PyErr_Clear();
        return nullptr;
    }
    Kernel* kernel = reinterpret_cast<Kernel*>(found);
    int device = 0;
    return kernel->current(&device) == 0 && device == kernel->device ? kernel : nullptr;
}

// An attribute that is a number; false, without an exception, where it is none.
inline bool find_number(PyObject* x, PyObject* name, u64* number) {
    PyObject* found = PyObject_GetAttr(x, name);
    if (found) *number = PyLong_AsUnsignedLongLong(found);
    Py_XDECREF(found);
    if (!PyErr_Occurred()) return true;
    PyErr_Clear();
    return false;
}

inline bool is_true(PyObject* x, PyObject* name) {
    PyObject* found = PyObject_GetAttr(x, name);
    if (!found) PyErr_Clear();
    Py_XDECREF(found);
    return found == Py_True;
}

// An array of CuPy whose elements are adjacent and row-major, or packed elements in one.
struct Placed {
    u64 data = 0, size = 0, bits = 0;
    // The index of its device, and the shape, with references of their own. Of one dimension the size says it all.
    PyObject *device = nullptr, *shape = nullptr;

    Placed() = default;
    ~Placed() {
        Py_XDECREF(device);
        Py_XDECREF(shape);
    }
    Placed(const Placed&) = delete;
    Placed& operator=(const Placed&) = delete;

    // False, without an exception, for any other array. packed: the bits of elements that lie in `x.data`, or 0.
    bool look_at(PyObject* x, u64 packed, u64 itemsize) {
        bits = packed ? packed : 8 * itemsize;
        PyObject* bytes = packed ? PyObject_GetAttr(x, data_name) : Py_NewRef(x);
        PyObject* memory = bytes ? PyObject_GetAttr(bytes, data_name) : nullptr;
        if (memory) device = PyObject_GetAttr(memory, place_name);
        if (!device) PyErr_Clear();
        u64 dimensions = 0;
        bool found = device && find_number(memory, pointer_name, &data) && is_true(bytes, flat_name);
        found = found && (packed || (find_number(x, size_name, &size) && find_number(x, dimensions_name, &dimensions)));
        if (found && dimensions != 1) {
            shape = PyObject_GetAttr(x, shape_name);
            found = shape && PyTuple_Check(shape);
            if (found && packed) size = length_of(shape);
        }
        Py_XDECREF(memory);
        Py_XDECREF(bytes);
        PyErr_Clear();
        return found;
    }

    u64 end() const { return data + (size * bits + 7) / 8; }

    bool has_shape_of(const Placed& other) const {
        if (size != other.size) return false;
        if (!shape || !other.shape) return is_row() && other.is_row();
        const bool found = PyObject_RichCompareBool(shape, other.shape, Py_EQ) == 1;
        PyErr_Clear();
        return found;
    }

   private:
    bool is_row() const { return !shape || PyTuple_Size(shape) == 1; }

    static u64 length_of(PyObject* shape) {
        u64 size = 1;
        for (Py_ssize_t i = 0; i < PyTuple_Size(shape); ++i) size *= PyLong_AsUnsignedLongLong(PyTuple_GetItem(shape, i));
        return size;
    }
};

// `FUSED` of gpucast/kernel/fused_kernel.py: the last argument of a kernel that fuses something with a cast.
struct FusedArguments {
    double scale;
    u64 scale_at, amax, finite, seed, offset;
    long long first;
};

inline FusedArguments arguments_of(const Fusion& fusion) {
    return {fusion.number, reinterpret_cast<Address>(fusion.scale.data), reinterpret_cast<Address>(fusion.amax.data), 0,
            fusion.seed, fusion.offset, 0};
}

// Launches the cast of adjacent elements. False after an exception.
inline bool launch_fused(const Kernel* kernel, void* stream, u64 src, u64 dst, u64 n, const Fusion* fusion) {
    FusedArguments fused;
    if (fusion) fused = arguments_of(*fusion);
    return launch_cast(kernel, stream, src, dst, n, fusion ? &fused : nullptr);
}

// Whether a kernel takes what is fused with a cast.
inline bool is_kernel_of(const Kernel* kernel, const Fusion* fusion) {
    return kernel->count == (fusion ? 5 : 4) && (!fusion || kernel->nbytes == kernel->offsets[4] + sizeof(FusedArguments));
}

// The kernel of what is fused, of a device that is the current one; null, without an exception, where there is none.
inline Kernel* kernel_of(const Plan* plan, const Fusion* fusion, PyObject* index) {
    Kernel* kernel = kernel_in(fusion && fusion->is_float ? plan->kernels_by_float : plan->kernels, index);
    return kernel && is_kernel_of(kernel, fusion) ? kernel : nullptr;
}

inline int dtype_number(PyObject* x) {
    PyObject* dtype = PyObject_GetAttr(x, dtype_name);
    if (!dtype) PyErr_Clear();
    const int number = dtype && PyArray_DescrCheck(dtype) ? number_of(reinterpret_cast<PyArray_Descr*>(dtype)) : 0;
    Py_XDECREF(dtype);
    return number;
}

// An array of one FLOAT or DOUBLE like x, on its device.
inline bool take_placed(PyObject* given, PyObject* x, PyObject* device, Single* single) {
    Placed own;
    const int number = dtype_number(given);
    if (Py_TYPE(given) != Py_TYPE(x) || !own.look_at(given, 0, 4) || own.size != 1 || own.device != device) return false;
    single->is_double = number == NPY_DOUBLE + 1;
    single->data = reinterpret_cast<u8*>(own.data);
    return (single->is_double || number == NPY_FLOAT + 1) && own.data % (single->is_double ? 8 : 4) == 0;
}

// Whether `out` is an array for the results of a plan: of the class and dtype of its own packed ones, or as x has them.
inline bool takes_results(const Plan* plan, PyObject* x, PyObject* out) {
    if (!plan->dst_bits) return (plan->src_bits || Py_TYPE(out) == Py_TYPE(x)) && dtype_number(out) == plan->dst_number;
    PyObject* dtype = PyObject_GetAttr(out, dtype_name);
    if (!dtype) PyErr_Clear();
    Py_XDECREF(dtype);
    return dtype && dtype == plan->made && Py_TYPE(out) == reinterpret_cast<PyTypeObject*>(plan->library);
}

// The cast of an array of CuPy, or of a PackedArray over one, whose elements are adjacent.
inline PyObject* run_placed(Plan* plan, PyObject* const* arguments) {
    PyObject *x = arguments[of_x], *out = arguments[of_out];
    Placed a, b;
    Fusion own;
    if (!a.look_at(x, plan->src_bits, itemsize_of(plan->src)) || !a.size) return nothing();
    const auto take = [&](PyObject* given, Single* single) { return take_placed(given, x, a.device, single); };
    const bool is_random = plan->work.is_ordered();
    const Fusion* const fusion = is_plain(arguments, is_random) ? nullptr : &own;
    if (fusion && !take_fusion(arguments, is_random, take, &own)) return nothing();
    if (own.scale.data) own.is_float = !own.scale.is_double;
    Kernel* kernel = kernel_of(plan, fusion, a.device);
    const bool is_new = is_none(out);
    if (!kernel || (!is_new && !takes_results(plan, x, out))) return nothing();
    // Held, because other code may run from here on, and drop the plan's.
    Py_INCREF(reinterpret_cast<PyObject*>(kernel));
    out = is_new ? PyObject_CallFunctionObjArgs(plan->empty, x, nullptr) : Py_NewRef(out);
    PyObject* result = nullptr;
    if (out) {
        const bool is_fit = b.look_at(out, plan->dst_bits, itemsize_of(plan->dst)) && a.has_shape_of(b) && a.device == b.device;
        const Extent read = {a.data, a.end()}, written = {b.data, b.end()};
        void* stream;
        if (!is_fit || !are_disjoint(read, written, fusion)) result = nothing();
        else if (find_stream(kernel, &stream) && launch_fused(kernel, stream, a.data, b.data, a.size, fusion)) result = Py_NewRef(out);
    }
    Py_XDECREF(out);
    Py_DECREF(reinterpret_cast<PyObject*>(kernel));
    return result;
}

}  // namespace gpucast

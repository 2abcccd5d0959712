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

// Bytes of the widest access.
enum : u64 { vector_bytes = 32 };

// A kernel that is loaded on a device.
struct Kernel {
    PyObject_HEAD
    LaunchKernel* launch;
    CurrentDevice* current;
    void* function;
    // Elements of a block, 0 for a kernel of many arrays; and those with which its first tile may begin before the array,
    // unless that is aligned.
    u64 elements, ahead;
    u32 threads;
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

// kernel(launch, current, function, threads, elements, ahead, device, stream, failed)
inline PyObject* new_kernel(PyObject*, PyObject* arguments) {
    unsigned long long launch, current, function, elements, ahead;
    unsigned threads;
    int device;
    PyObject *stream, *failed;
    if (!PyArg_ParseTuple(arguments, "KKKIKKiOO", &launch, &current, &function, &threads, &elements, &ahead, &device, &stream,
                          &failed)) {
        return nullptr;
    }
    Kernel* kernel = reinterpret_cast<Kernel*>(PyType_GenericAlloc(kernel_type, 0));
    if (!kernel) return nullptr;
    kernel->launch = reinterpret_cast<LaunchKernel*>(launch);
    kernel->current = reinterpret_cast<CurrentDevice*>(current);
    kernel->function = reinterpret_cast<void*>(function);
    kernel->elements = elements, kernel->ahead = ahead, kernel->threads = threads, kernel->device = device;
    kernel->stream = Py_NewRef(stream), kernel->failed = Py_NewRef(failed);
    kernel->index = PyLong_FromLong(device);
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

// The same for a kernel of one array; `more` is its last argument, or null.
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

inline u64 number_at(PyObject* arguments, Py_ssize_t i) { return PyLong_AsUnsignedLongLong(PyTuple_GetItem(arguments, i)); }

// kernel(src, dst, n, more), where `more` is None or has to_bytes(); of many arrays kernel(blocks, table). It runs on the
// current stream of its device, which is the current one.
static PyObject* call_kernel(PyObject* self, PyObject* arguments, PyObject*) {
    const Kernel* kernel = reinterpret_cast<Kernel*>(self);
    const Py_ssize_t wanted = kernel->elements ? 4 : 2;
    void* stream;
    if (PyTuple_Size(arguments) != wanted) {
        PyErr_Format(PyExc_TypeError, "Kernel: %zd arguments; expected %zd", PyTuple_Size(arguments), wanted);
        return nullptr;
    }
    if (!kernel->elements) {
        const u64 blocks = number_at(arguments, 0);
        PyObject* given = PyTuple_GetItem(arguments, 1);
        if (PyErr_Occurred()) return nullptr;
        if (!PyArray_Check(given)) {
            PyErr_SetString(PyExc_TypeError, "Kernel: the table must be an array of NumPy");
            return nullptr;
        }
        void* table = PyArray_DATA(reinterpret_cast<PyArrayObject*>(given));
        if (!find_stream(kernel, &stream)) return nullptr;
        return launch(kernel, [&] { return enqueue(kernel, stream, blocks, &table); }) ? nothing() : nullptr;
    }
    const u64 src = number_at(arguments, 0), dst = number_at(arguments, 1), n = number_at(arguments, 2);
    PyObject *more = PyTuple_GetItem(arguments, 3), *bytes = nullptr;
    if (PyErr_Occurred()) return nullptr;
    if (more != Py_None && !(bytes = PyObject_CallMethod(more, "to_bytes", nullptr))) return nullptr;
    void* last = bytes ? PyBytes_AsString(bytes) : nullptr;
    const bool done = !PyErr_Occurred() && find_stream(kernel, &stream) && launch_cast(kernel, stream, src, dst, n, last);
    Py_XDECREF(bytes);
    return done ? nothing() : nullptr;
}

// ---- plans of arrays on devices ----

// The plan's kernel of a device that is the current one; null, without an exception, where there is none.
inline Kernel* kernel_of(Plan* plan, PyObject* index) {
    if (!plan->kernels) return nullptr;
    PyObject* found = PyDict_GetItemWithError(plan->kernels, index);
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

// An array of CuPy, row-major.
struct Placed {
    u64 data = 0, size = 0, dimensions = 0;
    // The index of its device, with a reference of its own.
    PyObject* device = nullptr;

    Placed() = default;
    ~Placed() { Py_XDECREF(device); }
    Placed(const Placed&) = delete;
    Placed& operator=(const Placed&) = delete;

    // False, without an exception, for any other array.
    bool look_at(PyObject* x) {
        PyObject* memory = PyObject_GetAttr(x, data_name);
        if (memory) device = PyObject_GetAttr(memory, place_name);
        if (!device) PyErr_Clear();
        const bool found = device && find_number(memory, pointer_name, &data) && find_number(x, size_name, &size) &&
                           find_number(x, dimensions_name, &dimensions) && is_true(x, flat_name);
        Py_XDECREF(memory);
        return found;
    }
};

inline bool has_same_shape(PyObject* x, PyObject* y) {
    PyObject *one = PyObject_GetAttr(x, shape_name), *other = PyObject_GetAttr(y, shape_name);
    const bool found = one && other && PyObject_RichCompareBool(one, other, Py_EQ) == 1;
    Py_XDECREF(one);
    Py_XDECREF(other);
    PyErr_Clear();
    return found;
}

// The cast of an array of CuPy into another: None, nothing done, where only the function of Python can tell what is right.
inline PyObject* run_cupy(Plan* plan, PyObject* x, PyObject* out) {
    if (!plan->kernels || !plan->src || Py_TYPE(out) != Py_TYPE(x)) return nothing();
    Placed a, b;
    if (!a.look_at(x) || !b.look_at(out) || a.size != b.size || !a.size || a.device != b.device) return nothing();
    PyObject* dtype = PyObject_GetAttr(out, dtype_name);
    if (!dtype) PyErr_Clear();
    const bool fits = dtype && PyArray_DescrCheck(dtype) && number_of(reinterpret_cast<PyArray_Descr*>(dtype)) == plan->dst_number;
    Py_XDECREF(dtype);
    if (!fits) return nothing();
    if (!(a.dimensions == 1 && b.dimensions == 1) && !has_same_shape(x, out)) return nothing();
    Extent read = {a.data, a.data + a.size * itemsize_of(plan->src)}, written = {b.data, b.data + b.size * itemsize_of(plan->dst)};
    if (!are_disjoint(&written, 1, &read, 1)) return nothing();
    Kernel* kernel = kernel_of(plan, a.device);
    if (!kernel) return nothing();
    void* stream;
    // Held, because other code may run from here on, and drop the plan's.
    Py_INCREF(reinterpret_cast<PyObject*>(kernel));
    const bool done = find_stream(kernel, &stream) && launch_cast(kernel, stream, a.data, b.data, a.size, nullptr);
    Py_DECREF(reinterpret_cast<PyObject*>(kernel));
    return done ? Py_NewRef(out) : nullptr;
}

}  // namespace gpucast

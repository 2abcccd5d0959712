// SPDX-License-Identifier: Apache-2.0
// Casts within XLA's programs, as jax.jit makes them: handlers of its foreign function interface, whose structs of version 0
// are declared here as far as they are used. They need neither Python nor its lock, but for the first cast of a kernel.
#pragma once
#include "device.hpp"

namespace gpucast {
namespace xla {

struct Extension {
    size_t bytes;
    int type;
    Extension* next;
};

struct Version {
    size_t bytes;
    Extension* extensions;
    int major, minor;
};

struct Metadata {
    size_t bytes;
    Version version;
    u32 traits;
};

// What a handler is asked for when it is registered.
struct MetadataExtension {
    enum : int { type = 1 };
    Extension base;
    Metadata* metadata;
};

struct Error;

struct ErrorRequest {
    size_t bytes;
    Extension* extensions;
    const char* message;
    int code;
};

struct StreamRequest {
    size_t bytes;
    Extension* extensions;
    void *context, *stream;
};

struct Api {
    size_t bytes;
    Extension* extensions;
    Version version;
    const void* internal;
    Error* (*create_error)(ErrorRequest*);
    void *message_of, *destroy_error, *register_handler;
    Error* (*find_stream)(StreamRequest*);
};

struct Buffer {
    enum : int { float32 = 11, float64 = 12 };
    size_t bytes;
    Extension* extensions;
    int dtype;
    void* data;
    long long rank;
    const long long* lengths;

    u64 size() const {
        u64 size = 1;
        for (long long i = 0; i < rank; ++i) size *= u64(lengths[i]);
        return size;
    }
};

struct Buffers {
    size_t bytes;
    Extension* extensions;
    long long count;
    int* types;
    Buffer** each;
};

struct Text {
    const char* begin;
    size_t size;
};

struct Attributes {
    enum : int { text = 4 };
    size_t bytes;
    Extension* extensions;
    long long count;
    int* types;
    Text** names;
    void** values;
};

struct Frame {
    size_t bytes;
    Extension* extensions;
    const Api* api;
    void* context;
    int stage;
    Buffers arguments, results;
    Attributes attributes;

    Error* fail(const char* message) const {
        enum { internal = 13 };
        ErrorRequest request = {sizeof request, nullptr, message, internal};
        return api->create_error(&request);
    }
};

}  // namespace xla

// ---- what programs ask for ----

enum : size_t { longest_text = 256 };

// The address of the scale in a FusedArguments (gpucast/kernel/fused_kernel.py).
enum : size_t { place_of_scale = 8 };

// A cast of programs, by the text that stands in them: on the host a Work, on a device a kernel and its last argument, or
// nothing. They are a list that only grows, at its front, under Python's lock.
struct Served {
    char text[longest_text];
    // Null: the host.
    Kernel* kernel;
    // Of the results, where several lie in a byte; else 8.
    u64 bits;
    size_t size;
    alignas(8) char given[sizeof(Work)];
    const Served* next;

    bool is_on(int device) const { return kernel ? kernel->device == device : device < 0; }
};

static const Served* served;
// load(text, is_on_device) serves a cast on the host, or on the current device; how to find that.
static PyObject* load_served;
static CurrentDevice* current_device;

inline const Served* find_served(const char* text, int device) {
    for (const Served* one = __atomic_load_n(&served, __ATOMIC_ACQUIRE); one; one = one->next) {
        if (one->is_on(device) && strcmp(one->text, text) == 0) return one;
    }
    return nullptr;
}

// serve(text, kernel, given, bits): for the life of the process. kernel: None on the host.
inline PyObject* serve(PyObject*, PyObject* arguments) {
    const char* text;
    unsigned bits;
    PyObject *kernel, *given;
    if (!PyArg_ParseTuple(arguments, "sOSI", &text, &kernel, &given, &bits)) return nullptr;
    const Py_ssize_t size = PyBytes_Size(given);
    const bool on_host = kernel == Py_None;
    if (!(on_host ? size == Py_ssize_t(sizeof(Work)) : Py_TYPE(kernel) == kernel_type && size <= Py_ssize_t(sizeof(Work))) ||
        strlen(text) >= longest_text) {
        PyErr_SetString(PyExc_TypeError, "serve: expected a text, and a kernel that this module launches or a work");
        return nullptr;
    }
    Served* one = static_cast<Served*>(PyMem_Calloc(1, sizeof(Served)));
    if (!one) return PyErr_NoMemory();
    strcpy(one->text, text);
    one->kernel = on_host ? nullptr : reinterpret_cast<Kernel*>(Py_NewRef(kernel));
    one->bits = bits, one->size = size_t(size);
    memcpy(one->given, PyBytes_AsString(given), one->size);
    one->next = served;
    __atomic_store_n(&served, one, __ATOMIC_RELEASE);
    return nothing();
}

// ---- handlers ----

// What a call is about.
struct Call {
    const Served* what;
    const xla::Buffer *src, *dst, *scale;
};

// Whether the handler is only asked about itself; then it has answered.
inline bool is_question(xla::Frame* frame) {
    if (!frame->extensions || frame->extensions->type != xla::MetadataExtension::type) return false;
    xla::Metadata* metadata = reinterpret_cast<xla::MetadataExtension*>(frame->extensions)->metadata;
    // All minor versions have the structs above.
    const int minor = frame->api ? frame->api->version.minor : 0;
    metadata->version = {sizeof(xla::Version), nullptr, 0, minor};
    metadata->traits = 0;
    return true;
}

// The first time on a device, and where a program was traced in another process.
inline const Served* load(const char* text, int device) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject* done = load_served ? PyObject_CallFunction(load_served, "sO", text, device < 0 ? Py_False : Py_True) : nullptr;
    if (!done && PyErr_Occurred()) PyErr_WriteUnraisable(load_served);
    Py_XDECREF(done);
    PyGILState_Release(state);
    return find_served(text, device);
}

// device: -1 for the host.
inline xla::Error* read_call(const xla::Frame* frame, int device, Call* call) {
    const xla::Attributes& given = frame->attributes;
    const long long count = frame->arguments.count;
    const bool is_named = given.count == 1 && given.types[0] == xla::Attributes::text;
    if (!is_named || count < 1 || count > 2 || frame->results.count != 1) return frame->fail("gpucast: another signature");
    const xla::Text asked = *static_cast<const xla::Text*>(given.values[0]);
    char text[longest_text];
    if (asked.size >= longest_text) return frame->fail("gpucast: the text of the cast is too long");
    memcpy(text, asked.begin, asked.size);
    text[asked.size] = 0;
    call->what = find_served(text, device);
    if (!call->what) call->what = load(text, device);
    if (!call->what) return frame->fail("gpucast: a cast of the program cannot be loaded; the reason was reported");
    call->src = frame->arguments.each[0], call->dst = frame->results.each[0];
    call->scale = count == 2 ? frame->arguments.each[1] : nullptr;
    const bool fits = call->dst->size() == (call->src->size() * call->what->bits + 7) / 8;
    return fits && (!call->scale || call->scale->size() == 1) ? nullptr : frame->fail("gpucast: the arrays have other sizes");
}

inline xla::Error* cast_on_host(xla::Frame* frame) {
    if (is_question(frame)) return nullptr;
    Call call = {};
    if (xla::Error* error = read_call(frame, -1, &call)) return error;
    const Exactly exactly;
    Work work;
    memcpy(&work, call.what->given, sizeof work);
    if (call.scale) {
        const void* scale = call.scale->data;
        const bool is_double = call.scale->dtype == xla::Buffer::float64;
        work.fused.scale = is_double ? *static_cast<const double*>(scale) : double(*static_cast<const float*>(scale));
    }
    Found found;
    if (call.src->size()) work.run(call.src->data, call.dst->data, call.src->size(), 0, &found);
    return nullptr;
}

inline xla::Error* cast_on_device(xla::Frame* frame) {
    if (is_question(frame)) return nullptr;
    Call call = {};
    int device = 0;
    if (!current_device || current_device(&device) != 0) return frame->fail("gpucast: there is no current device");
    if (xla::Error* error = read_call(frame, device, &call)) return error;
    const u64 size = call.src->size();
    if (!size) return nullptr;
    alignas(8) char last[sizeof(Work)];
    memcpy(last, call.what->given, sizeof last);
    if (call.scale) memcpy(last + place_of_scale, &call.scale->data, sizeof call.scale->data);
    xla::StreamRequest request = {sizeof request, nullptr, frame->context, nullptr};
    if (xla::Error* error = frame->api->find_stream(&request)) return error;
    const u64 src = reinterpret_cast<u64>(call.src->data), dst = reinterpret_cast<u64>(call.dst->data);
    const int failed = enqueue_cast(call.what->kernel, request.stream, src, dst, size, call.what->size ? last : nullptr);
    return failed ? frame->fail("gpucast: the launch failed") : nullptr;
}

// xla_handlers(load, current): capsules of the handlers for CPU and CUDA. load(text, is_on_device) serves a cast; current:
// the address of cuCtxGetDevice, or 0.
inline PyObject* xla_handlers(PyObject*, PyObject* arguments) {
    PyObject* load;
    unsigned long long current;
    if (!PyArg_ParseTuple(arguments, "OK", &load, &current)) return nullptr;
    PyObject* before = load_served;
    load_served = Py_NewRef(load);
    Py_XDECREF(before);
    current_device = reinterpret_cast<CurrentDevice*>(current);
    PyObject* host = PyCapsule_New(reinterpret_cast<void*>(cast_on_host), nullptr, nullptr);
    PyObject* device = PyCapsule_New(reinterpret_cast<void*>(cast_on_device), nullptr, nullptr);
    PyObject* both = host && device ? PyTuple_Pack(2, host, device) : nullptr;
    Py_XDECREF(host);
    Py_XDECREF(device);
    return both;
}

}  // namespace gpucast

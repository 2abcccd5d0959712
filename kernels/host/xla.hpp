// SPDX-License-Identifier: Apache-2.0
// Casts within XLA's programs, as jax.jit makes them: handlers of its foreign function interface, whose structs of version 0
// are declared here as far as they are used. They need neither Python nor its lock, but for the first cast of a kernel.
#pragma once
#include <stdlib.h>

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

// ---- the functions by their names ----

enum : size_t { longest_name = 160 };

static const Entry** sorted_entries;
static size_t count_entries;

inline int compare_entries(const void* one, const void* other) {
    return strcmp((*static_cast<const Entry* const*>(one))->name, (*static_cast<const Entry* const*>(other))->name);
}

// False after an exception.
inline bool sort_entries() {
    if (sorted_entries) return true;
    size_t count = 0;
    for (const Entry* const* const* unit = level->units; *unit; ++unit) {
        for (const Entry* entry = **unit; entry->name; ++entry) ++count;
    }
    const Entry** all = static_cast<const Entry**>(PyMem_Malloc((count + 1) * sizeof *all));
    if (!all) {
        PyErr_NoMemory();
        return false;
    }
    for (const Entry* const* const* unit = level->units; *unit; ++unit) {
        for (const Entry* entry = **unit; entry->name; ++entry) all[count_entries++] = entry;
    }
    qsort(all, count, sizeof *all, compare_entries);
    sorted_entries = all;
    return true;
}

// The kernels of casts in XLA's programs, by name and device: a list that only grows, at its front, under Python's lock.
struct Served {
    char name[longest_name];
    Kernel* kernel;
    const Served* next;
};

static const Served* served;
// load(name) serves the kernel of that name on the current device; how to find that.
static PyObject* load_kernel;
static CurrentDevice* current_device;

inline Kernel* find_served(const char* name, int device) {
    for (const Served* one = __atomic_load_n(&served, __ATOMIC_ACQUIRE); one; one = one->next) {
        if (one->kernel->device == device && strcmp(one->name, name) == 0) return one->kernel;
    }
    return nullptr;
}

// serve(name, kernel): for the life of the process.
inline PyObject* serve(PyObject*, PyObject* arguments) {
    const char* name;
    PyObject* kernel;
    if (!PyArg_ParseTuple(arguments, "sO", &name, &kernel)) return nullptr;
    if (Py_TYPE(kernel) != kernel_type || strlen(name) >= longest_name) {
        PyErr_SetString(PyExc_TypeError, "serve: expected a name, and a kernel that this module launches");
        return nullptr;
    }
    Served* one = static_cast<Served*>(PyMem_Calloc(1, sizeof(Served)));
    if (!one) return PyErr_NoMemory();
    strcpy(one->name, name);
    one->kernel = reinterpret_cast<Kernel*>(Py_NewRef(kernel));
    one->next = served;
    __atomic_store_n(&served, one, __ATOMIC_RELEASE);
    return nothing();
}

// ---- handlers ----

// What a call is about.
struct Call {
    char name[longest_name];
    const void* src;
    void* dst;
    u64 size;
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

inline xla::Error* read_call(const xla::Frame* frame, Call* call) {
    const xla::Attributes& given = frame->attributes;
    const bool is_named = given.count == 1 && given.types[0] == xla::Attributes::text;
    if (!is_named || frame->arguments.count != 1 || frame->results.count != 1) return frame->fail("gpucast: another signature");
    const xla::Text name = *static_cast<const xla::Text*>(given.values[0]);
    if (name.size >= longest_name) return frame->fail("gpucast: the name of the cast is too long");
    memcpy(call->name, name.begin, name.size);
    call->name[name.size] = 0;
    const xla::Buffer &src = *frame->arguments.each[0], &dst = *frame->results.each[0];
    call->src = src.data, call->dst = dst.data, call->size = src.size();
    return call->size == dst.size() ? nullptr : frame->fail("gpucast: the arrays have other sizes");
}

inline xla::Error* cast_on_host(xla::Frame* frame) {
    if (is_question(frame)) return nullptr;
    Call call;
    if (xla::Error* error = read_call(frame, &call)) return error;
    const Entry wanted = {call.name, nullptr}, *key = &wanted;
    const void* found = bsearch(&key, sorted_entries, count_entries, sizeof key, compare_entries);
    if (!found) return frame->fail("gpucast: the program has a cast that this version of gpucast does not know");
    const Exactly exactly;
    if (call.size) reinterpret_cast<CastArray*>((*static_cast<const Entry* const*>(found))->function)(call.src, call.dst, call.size);
    return nullptr;
}

inline Kernel* load_served(const char* name, int device) {
    const PyGILState_STATE state = PyGILState_Ensure();
    PyObject* done = load_kernel ? PyObject_CallFunction(load_kernel, "s", name) : nullptr;
    if (!done && PyErr_Occurred()) PyErr_WriteUnraisable(load_kernel);
    Py_XDECREF(done);
    PyGILState_Release(state);
    return find_served(name, device);
}

inline xla::Error* cast_on_device(xla::Frame* frame) {
    if (is_question(frame)) return nullptr;
    Call call;
    if (xla::Error* error = read_call(frame, &call)) return error;
    if (!call.size) return nullptr;
    int device = 0;
    if (!current_device || current_device(&device) != 0) return frame->fail("gpucast: there is no current device");
    const Kernel* kernel = find_served(call.name, device);
    if (!kernel) kernel = load_served(call.name, device);
    if (!kernel) return frame->fail("gpucast: the kernel of a cast cannot be loaded; the reason was reported");
    xla::StreamRequest request = {sizeof request, nullptr, frame->context, nullptr};
    if (xla::Error* error = frame->api->find_stream(&request)) return error;
    const u64 src = reinterpret_cast<u64>(call.src), dst = reinterpret_cast<u64>(call.dst);
    if (enqueue_cast(kernel, request.stream, src, dst, call.size, nullptr) != 0) return frame->fail("gpucast: the launch failed");
    return nullptr;
}

// xla_handlers(load, current): capsules of the handlers for CPU and CUDA. load(name) serves a kernel on the current device;
// current: the address of cuCtxGetDevice, or 0.
inline PyObject* xla_handlers(PyObject*, PyObject* arguments) {
    PyObject* load;
    unsigned long long current;
    if (!PyArg_ParseTuple(arguments, "OK", &load, &current) || !sort_entries()) return nullptr;
    PyObject* before = load_kernel;
    load_kernel = Py_NewRef(load);
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

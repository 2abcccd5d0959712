// SPDX-License-Identifier: Apache-2.0
// Casts as functions of Python that take NumPy's arrays and PyTorch's tensors, because ctypes takes longer for a call
// than most casts. gpucast/native/calls.py finds what they need of CPython and NumPy, gpucast/interop/dlpack.py a function
// of PyTorch's, and nothing of these is linked.
namespace gpucast {

typedef __PTRDIFF_TYPE__ Length;

struct Object;
struct Method;

// Functions and objects of this process, by the names of their documentation. Those that return objects return new
// references or, after an error, null; but items are borrowed.
struct Python {
    // Of any object: the bytes before its own fields; the last of them are the address of its class.
    u64 header;
    Object *none, *ndarray;
    void (*inc_ref)(Object*);
    void (*dec_ref)(Object*);
    Object* (*tuple_item)(Object*, Length);
    Length (*list_size)(Object*);
    Object* (*new_list)(Length);
    Object* (*list_item)(Object*, Length);
    int (*set_list_item)(Object*, Length, Object*);
    Object* (*new_bytes)(const char*, Length);
    char* (*bytes)(Object*);
    Object* (*new_function)(Method*, Object* self, Object* module);
    Object* (*call)(Object*, ...);
    void* (*release_lock)();
    void (*take_lock)(void*);
    void (*clear_error)();
    Object* (*new_array)(Object* kind, Object* dtype, int dimensions, const Length* shape, const Length* strides,
                         void* data, int flags, Object* base);
};

// NumPy's array behind the header.
struct Array {
    u8* data;
    int dimensions;
    const Length *shape, *strides;
    Object *base, *dtype;
    int flags;
};

// An array of another library: DLTensor of DLPack 1.x. Strides are in elements.
struct Tensor {
    u8* data;
    int device_type, device, dimensions;
    u8 kind, bits;
    u16 lanes;
    const long long *shape, *strides;
    u64 offset;
};

// A library's own function that fills in such fields, which stay its own. After an error it is not 0.
typedef int View(Object*, Tensor*);

// Of a tensor's device.
enum : int { host = 1 };

// Of an array's flags.
enum : int { row_major = 0x1, aligned = 0x100, writeable = 0x400 };

static Python python;

inline const Array* fields(const Object* array) {
    return reinterpret_cast<const Array*>(reinterpret_cast<const u8*>(array) + python.header);
}

inline const Object* class_of(const Object* x) { return reinterpret_cast<Object* const*>(fields(x))[-1]; }

// The fields of an array that is row-major and aligned; null for any other object.
inline const Array* plain_array(const Object* x) {
    const Array* array = fields(x);
    if (class_of(x) != python.ndarray) return nullptr;
    return (array->flags & (row_major | aligned)) == (row_major | aligned) ? array : nullptr;
}

inline u64 size_of(const Array* x) {
    u64 size = 1;
    for (int i = 0; i < x->dimensions; ++i) size *= u64(x->shape[i]);
    return size;
}

inline Object* nothing() {
    python.inc_ref(python.none);
    return python.none;
}

// Whether x has fields of this kind, and then these, with the offset in the address. A tensor that has no elements, or
// zeros alone, may have no memory.
inline bool is_viewed(Object* x, View* view, Tensor* tensor) {
    if (view(x, tensor) != 0) {
        python.clear_error();
        return false;
    }
    if (tensor->data) tensor->data += tensor->offset;
    return true;
}

// Whether x is a tensor of the host with the strides of a new one, and then its fields and number of elements.
inline bool is_plain_tensor(Object* x, View* view, Tensor* tensor, u64* size) {
    if (!is_viewed(x, view, tensor)) return false;
    *size = 1;
    long long stride = 1;
    for (int i = tensor->dimensions; i-- > 0;) {
        if (tensor->strides[i] != stride) return false;
        *size *= u64(tensor->shape[i]);
        stride *= tensor->shape[i] ? tensor->shape[i] : 1;
    }
    return tensor->device_type == host;
}

inline Object* new_array(const Array* like, Object* dtype) {
    python.inc_ref(dtype);
    return python.new_array(python.ndarray, dtype, like->dimensions, like->shape, nullptr, nullptr, 0, nullptr);
}

// A cast as Python binds it to a function.
struct Call {
    CastArray* cast;
    // Bytes of an element of each side, and of both arrays together so many that threads may share the work.
    u64 src_bytes, dst_bytes, large;
};

// Casts of more elements let other threads of Python run meanwhile.
enum : u64 { lasting = 1 << 11 };

struct Method {
    const char* name;
    Object* (*function)(Object*, Object* const*, Length);
    int flags;
    const char* doc;
};

// Whether an array takes the results of a cast of x, all of them beside x.
inline bool is_target(const Array* y, const Array* x, Object* dtype, u64 src_bytes, u64 dst_bytes) {
    if (!y || y->dtype != dtype || !(y->flags & writeable) || y->dimensions != x->dimensions) return false;
    for (int i = 0; i < x->dimensions; ++i) {
        if (x->shape[i] != y->shape[i]) return false;
    }
    return y->data + dst_bytes <= x->data || x->data + src_bytes <= y->data;
}

// The cast of x into out, an array or None for a new one, where all is as it is in most calls; else what `checked` gives
// for the two. self: bytes of a Call, the dtypes of both sides, and `checked`.
static Object* call_cast(Object* self, Object* const* arguments, Length count) {
    const Call* call = reinterpret_cast<const Call*>(python.bytes(python.tuple_item(self, 0)));
    Object *dtype = python.tuple_item(self, 2), *checked = python.tuple_item(self, 3);
    // This tells Python what it lacks.
    if (count != 2) return python.call(checked, nullptr);
    const Array* x = plain_array(arguments[0]);
    const u64 size = x ? size_of(x) : 0, src_bytes = size * call->src_bytes, dst_bytes = size * call->dst_bytes;
    if (x && x->dtype == python.tuple_item(self, 1) && src_bytes + dst_bytes < call->large) {
        Object* out = arguments[1];
        if (out == python.none) {
            out = new_array(x, dtype);
            if (!out) return nullptr;
        } else if (is_target(plain_array(out), x, dtype, src_bytes, dst_bytes)) {
            python.inc_ref(out);
        } else {
            out = nullptr;
        }
        if (out) {
            const void* from = x->data;
            void *to = fields(out)->data, *lock = size > lasting ? python.release_lock() : nullptr;
            if (size) call->cast(from, to, size);
            if (lock) python.take_lock(lock);
            return out;
        }
    }
    return python.call(checked, arguments[0], arguments[1], nullptr);
}

// A cast of tensors of one library.
struct TensorCall {
    Call call;
    View* view;
};

// The cast of a tensor into a new one, where all is as it is in most calls; else None. self: bytes of a TensorCall, and
// a function that gives a new tensor of the result's dtype like another.
static Object* call_tensor_cast(Object* self, Object* const* arguments, Length count) {
    const TensorCall* own = reinterpret_cast<const TensorCall*>(python.bytes(python.tuple_item(self, 0)));
    const Call* call = &own->call;
    Tensor x, y;
    u64 size;
    if (count != 1 || !is_plain_tensor(arguments[0], own->view, &x, &size) || !size || !x.data) return nothing();
    const bool is_aligned = reinterpret_cast<Address>(x.data) % call->src_bytes == 0;
    if (!is_aligned || size * (call->src_bytes + call->dst_bytes) >= call->large) return nothing();
    Object* out = python.call(python.tuple_item(self, 1), arguments[0], nullptr);
    if (!out) return nullptr;
    if (!is_plain_tensor(out, own->view, &y, &size)) {
        python.dec_ref(out);
        return nothing();
    }
    void* lock = size > lasting ? python.release_lock() : nullptr;
    call->cast(x.data, y.data, size);
    if (lock) python.take_lock(lock);
    return out;
}

}  // namespace gpucast

// Called before all others.
GPUCAST_EXPORT void start(const gpucast::Python* found) { gpucast::python = *found; }

// `call_cast` as a function of Python.
GPUCAST_EXPORT gpucast::Object* bind(gpucast::Object* self) {
    // 0x80: METH_FASTCALL.
    static gpucast::Method method = {"cast", gpucast::call_cast, 0x80, nullptr};
    return gpucast::python.new_function(&method, self, nullptr);
}

// `call_tensor_cast` as a function of Python.
GPUCAST_EXPORT gpucast::Object* bind_tensors(gpucast::Object* self) {
    static gpucast::Method method = {"cast", gpucast::call_tensor_cast, 0x80, nullptr};
    return gpucast::python.new_function(&method, self, nullptr);
}

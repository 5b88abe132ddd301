/* Calls a function over ATen's tensors through the candidate interface of opt-supervisor (opt_candidate.h).
 *
 * Includes the candidate's first source and is compiled with it, so that the type of the function determines how arguments
 * are converted and whether outputs are returned. OPT_SOURCE is that source, OPT_FUNCTION the function, OPT_ENTRY the symbol
 * that the runner looks up; the worker defines them above this text. A function with one parameter per input returns its
 * outputs, which are checked and copied. A function with further parameters for the outputs writes them itself. */
#include OPT_SOURCE

#include "opt_candidate.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/Scalar.h>

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace opt_glue {

/* The error of a failed call; `kind` is one that the worker knows. */
struct Failure : std::exception {
    std::string kind, text;
    Failure(std::string error_kind, std::string message) : kind(std::move(error_kind)), text(std::move(message)) {}
    const char *what() const noexcept override { return text.c_str(); }
};

[[noreturn]] inline void refuse(const std::string &text) { throw Failure("opt.Raised", text); }

/* ATen's name of a dtype. */
inline at::ScalarType scalar_type(const OptDataType &dtype) {
    const int bits = dtype.bits;
    switch (dtype.code) {
    case OPT_CODE_INT:
        return bits == 8 ? at::kChar : bits == 16 ? at::kShort : bits == 32 ? at::kInt : at::kLong;
    case OPT_CODE_UINT:
        return bits == 8    ? at::kByte
               : bits == 16 ? at::ScalarType::UInt16
               : bits == 32 ? at::ScalarType::UInt32
                            : at::ScalarType::UInt64;
    case OPT_CODE_FLOAT: return bits == 16 ? at::kHalf : bits == 32 ? at::kFloat : at::kDouble;
    case OPT_CODE_BFLOAT: return at::kBFloat16;
    case OPT_CODE_COMPLEX:
        return bits == 32 ? at::kComplexHalf : bits == 64 ? at::kComplexFloat : at::kComplexDouble;
    case OPT_CODE_BOOL: return at::kBool;
    case OPT_CODE_FLOAT8_E4M3FN: return at::ScalarType::Float8_e4m3fn;
    case OPT_CODE_FLOAT8_E4M3FNUZ: return at::ScalarType::Float8_e4m3fnuz;
    case OPT_CODE_FLOAT8_E5M2: return at::ScalarType::Float8_e5m2;
    case OPT_CODE_FLOAT8_E5M2FNUZ: return at::ScalarType::Float8_e5m2fnuz;
    default: refuse("tensors of this dtype cannot be passed to PyTorch's C++ interface");
    }
}

/* The device on which the function finds its tensors. */
#ifdef __CUDACC__
inline const at::Device here(at::kCUDA, 0);
#else
inline const at::Device here(at::kCPU);
#endif

/* Makes a tensor over the memory that was passed, without a copy. */
inline at::Tensor tensor(const OptTensor *it) {
    return at::for_blob(it->data, at::IntArrayRef(it->shape, it->ndim))
        .strides(at::IntArrayRef(it->strides, it->ndim))
        .options(at::TensorOptions().dtype(scalar_type(it->dtype)).device(here))
        .target_device(here)
        .make_tensor();
}

/* Describes the type of an argument in a message. */
inline const char *type_name(const OptAny &any) {
    switch (any.type_index) {
    case OPT_NONE: return "None";
    case OPT_INT: return "an integer";
    case OPT_BOOL: return "a bool";
    case OPT_FLOAT: return "a float";
    case OPT_DATA_TYPE: return "a dtype";
    case OPT_DEVICE: return "a device";
    case OPT_TENSOR: return "a tensor or a list of numbers";
    case OPT_RAW_STR: return "a string";
    default: return "something else";
    }
}

[[noreturn]] inline void expected(const char *what, const OptAny &any) {
    refuse(std::string("a parameter is ") + what + ", but its argument in the capture is " + type_name(any));
}

inline bool is_number(const OptAny &any) { return any.type_index == OPT_INT || any.type_index == OPT_BOOL; }

template <class T> inline constexpr bool never = false;

/* Converts an argument to type T, or to something that converts to T. */
template <class T, class = void> struct As {
    static_assert(never<T>, "the function has a parameter of a type that cannot be passed: use Tensor, bool, integers, floats, "
                            "std::string, at::Scalar, at::ScalarType, at::Device, IntArrayRef, std::vector of numbers, or "
                            "std::optional of these");
};

template <> struct As<at::Tensor> {
    static at::Tensor of(const OptAny &any) {
        if (any.type_index == OPT_NONE) return at::Tensor();
        if (any.type_index != OPT_TENSOR) expected("a tensor", any);
        return tensor(any.value.v_tensor);
    }
};

template <class T> struct As<T, std::enable_if_t<std::is_integral_v<T>>> {
    static T of(const OptAny &any) {
        if (!is_number(any)) expected(std::is_same_v<T, bool> ? "a bool" : "an integer", any);
        return static_cast<T>(any.value.v_int64);
    }
};

template <class T> struct As<T, std::enable_if_t<std::is_floating_point_v<T>>> {
    static T of(const OptAny &any) {
        if (any.type_index == OPT_FLOAT) return static_cast<T>(any.value.v_float64);
        if (!is_number(any)) expected("a float", any);
        return static_cast<T>(any.value.v_int64);
    }
};

template <> struct As<at::Scalar> {
    static at::Scalar of(const OptAny &any) {
        switch (any.type_index) {
        case OPT_FLOAT: return any.value.v_float64;
        case OPT_BOOL: return any.value.v_int64 != 0;
        case OPT_INT: return any.value.v_int64;
        default: expected("a number", any);
        }
    }
};

/* std::string, std::string_view and const char *. */
template <class T> struct As<T, std::enable_if_t<!std::is_integral_v<T> && std::is_constructible_v<T, const char *> &&
                                                 std::is_convertible_v<T, std::string_view>>> {
    static T of(const OptAny &any) {
        if (any.type_index != OPT_RAW_STR) expected("a string", any);
        return T(any.value.v_c_str);
    }
};

template <> struct As<at::ScalarType> {
    static at::ScalarType of(const OptAny &any) {
        if (any.type_index != OPT_DATA_TYPE) expected("a dtype", any);
        return scalar_type(any.value.v_dtype);
    }
};

template <> struct As<at::Device> {
    static at::Device of(const OptAny &any) {
        if (any.type_index != OPT_DEVICE) expected("a device", any);
        if (here.is_cpu() && any.value.v_device.device_type != OPT_CPU) expected("the CPU", any);
        return here;
    }
};

template <class T> struct As<std::vector<T>> {
    static std::vector<T> of(const OptAny &any) {
        static_assert(std::is_arithmetic_v<T>, "lists of anything but numbers cannot be passed");
        // A single number stands for a list with one item, as in PyTorch's own functions.
        if (any.type_index != OPT_TENSOR) return {As<T>::of(any)};
        const OptTensor *list = any.value.v_tensor;
        if (list->ndim != 1) expected("a list of numbers", any);
        const int64_t length = list->shape[0];
        switch (list->dtype.code) {
        case OPT_CODE_FLOAT: return converted(static_cast<const double *>(list->data), length);
        case OPT_CODE_BOOL: return converted(static_cast<const bool *>(list->data), length);
        default: return converted(static_cast<const int64_t *>(list->data), length);
        }
    }
    template <class E> static std::vector<T> converted(const E *data, int64_t length) {
        std::vector<T> values;
        for (int64_t at = 0; at < length; at++) values.push_back(static_cast<T>(data[at]));
        return values;
    }
};

/* A view of a list becomes the list itself, which exists until the call ends. */
template <class T> struct As<at::ArrayRef<T>> : As<std::vector<T>> {};
template <class T> struct As<c10::OptionalArrayRef<T>> {
    static std::optional<std::vector<T>> of(const OptAny &any) {
        if (any.type_index == OPT_NONE) return std::nullopt;
        return As<std::vector<T>>::of(any);
    }
};
template <class T> struct As<std::optional<T>> {
    using Value = decltype(As<T>::of(std::declval<const OptAny &>()));
    static std::optional<Value> of(const OptAny &any) {
        if (any.type_index == OPT_NONE) return std::nullopt;
        return As<T>::of(any);
    }
};

template <class T> using Plain = std::remove_cv_t<std::remove_reference_t<T>>;
template <class T> using Held = decltype(As<Plain<T>>::of(std::declval<const OptAny &>()));

template <class P> struct OptionalList : std::false_type {};
template <class T> struct OptionalList<c10::OptionalArrayRef<T>> : std::true_type { using List = at::ArrayRef<T>; };

/* The converted argument of a parameter, moved if the function takes it by value. */
template <class P> decltype(auto) passed(Held<P> &value) {
    if constexpr (OptionalList<Plain<P>>::value) {
        using List = typename OptionalList<Plain<P>>::List;
        return value ? Plain<P>(List(*value)) : Plain<P>();
    } else if constexpr (std::is_same_v<Held<P>, Plain<P>>) {
        return static_cast<P &&>(value);
    } else {
        return (value);
    }
}

template <class S> std::string to_text(const S &sizes) {
    std::ostringstream text;
    text << sizes;
    return text.str();
}

/* Returns true if two tensors are equal, apart from rounding. NaNs are equal. */
inline bool are_equal(const at::Tensor &value, const at::Tensor &other) {
    const at::ScalarType type = value.scalar_type();
    if (value.itemsize() == 1) return at::equal(value.view(at::kByte), other.view(at::kByte));
    if (at::equal(value, other)) return true;
    if (!at::isFloatingType(type) && !at::isComplexType(type)) return false;
    const at::ScalarType part = c10::toRealValueType(type);
    const double eps = part == at::kDouble ? 0x1p-52 : part == at::kFloat ? 0x1p-23 : part == at::kHalf ? 0x1p-10 : 0x1p-7;
    return at::allclose(value, other, 8 * eps, 0, true);
}

/* Checks a returned tensor, and copies it to its output. */
inline void keep(const at::Tensor &value, const OptTensor *output, int32_t number) {
    const auto reject = [&](const char *kind, const std::string &text) {
        throw Failure(kind, "output " + std::to_string(number) + " that it returned " + text);
    };
    if (!value.defined()) reject("opt.Raised", "is an undefined tensor");
    if (value.device() != here)
        reject("opt.Raised", "is on the device " + value.device().str() + ", expected " + here.str());
    if (value.layout() != at::kStrided)
        reject("opt.Raised", "has the layout " + to_text(value.layout()) + ", expected Strided");
    at::Tensor target = tensor(output);
    if (value.scalar_type() != target.scalar_type())
        reject("opt.IncorrectDtype",
               std::string("is of dtype ") + at::toString(value.scalar_type()) + ", expected " + at::toString(target.scalar_type()));
    if (value.sizes() != target.sizes())
        reject("opt.IncorrectShape", "has the shape " + to_text(value.sizes()) + ", expected " + to_text(target.sizes()));
    /* A target that was recorded after `expand` has only one element along some axes. */
    at::Tensor source = value;
    for (int64_t axis = 0; axis < target.dim(); axis++) {
        if (target.stride(axis) != 0 || target.size(axis) < 2) continue;
        const at::Tensor first = source.narrow(axis, 0, 1);
        /* If the value is expanded too, its elements are the same memory. */
        if (source.stride(axis) != 0 && !are_equal(source, first.expand_as(source)))
            reject("opt.IncorrectNumerical", "has different elements along axis " + std::to_string(axis) +
                                                 ", although the recorded output was expanded along it");
        source = first;
        target = target.narrow(axis, 0, 1);
    }
    target.copy_(source);
}

template <class L> void keep_each(const L &values, const OptAny *outputs, int32_t count) {
    if (static_cast<int32_t>(values.size()) != count)
        throw Failure("opt.IncorrectShape",
                      "it returned " + std::to_string(values.size()) + " tensors, expected " + std::to_string(count));
    int32_t number = 0;
    for (const at::Tensor &value : values) {
        keep(value, outputs[number].value.v_tensor, number);
        number++;
    }
}

/* The types that can be returned. */
inline void keep_all(const at::Tensor &value, const OptAny *outputs, int32_t count) {
    keep_each(std::array<std::reference_wrapper<const at::Tensor>, 1>{std::cref(value)}, outputs, count);
}
inline void keep_all(const std::vector<at::Tensor> &values, const OptAny *outputs, int32_t count) {
    keep_each(values, outputs, count);
}
template <size_t N> void keep_all(const std::array<at::Tensor, N> &values, const OptAny *outputs, int32_t count) {
    keep_each(values, outputs, count);
}
template <class... T> void keep_all(const std::tuple<T...> &values, const OptAny *outputs, int32_t count) {
    std::apply(
        [&](const T &...each) {
            keep_each(std::array<std::reference_wrapper<const at::Tensor>, sizeof...(T)>{std::cref(each)...}, outputs, count);
        },
        values);
}
template <class A, class B> void keep_all(const std::pair<A, B> &values, const OptAny *outputs, int32_t count) {
    keep_all(std::tuple<const A &, const B &>(values.first, values.second), outputs, count);
}

template <class F> struct Parameters;
template <class R, class... P> struct Parameters<R (*)(P...)> { static constexpr int32_t count = sizeof...(P); };

template <class R, class... P, size_t... I>
void call(R (*function)(P...), const OptAny *args, int32_t count, std::index_sequence<I...>) {
    constexpr int32_t parameters = sizeof...(P);
    if (count < parameters) refuse("the function has more parameters than the call has arguments");
    // A named variable, because a parameter may be a reference. Braces, so that arguments are converted in order.
    [[maybe_unused]] std::tuple<Held<P>...> values{As<Plain<P>>::of(args[I])...};
    if constexpr (std::is_void_v<R>) {
        if (count != parameters)
            refuse("the function returns nothing and takes no outputs (return them, or take them after the inputs)");
        function(passed<P>(std::get<I>(values))...);
    } else if (count == parameters) {
        // It has written its outputs, so the returned value is ignored.
        function(passed<P>(std::get<I>(values))...);
    } else {
        keep_all(function(passed<P>(std::get<I>(values))...), args + parameters, count - parameters);
    }
}

/* An error in the layout of tvm-ffi: a header of 24 bytes, followed by the error's kind and its message. */
struct Bytes {
    const char *data;
    size_t size;
};
struct Error {
    uint64_t references = 1;
    int32_t type_index = 67;
    uint32_t padding = 0;
    void *deleter = nullptr;
    Bytes kind, message;
};

inline Error raised;
inline std::string raised_kind, raised_message;
inline bool is_raised = false;

inline int fail(std::string kind, std::string message) {
    raised_kind = std::move(kind);
    raised_message = std::move(message);
    raised.kind = {raised_kind.data(), raised_kind.size()};
    raised.message = {raised_message.data(), raised_message.size()};
    is_raised = true;
    return 1;
}

/* PyTorch's allocator reports a lack of memory as a general error. */
inline int fail(const char *what) {
    const bool memory = std::string_view(what).find("can't allocate memory") != std::string_view::npos;
    return fail(memory ? "opt.HostMemory" : "opt.Raised", what);
}

template <class R, class... P> int enter(R (*function)(P...), const OptAny *args, int32_t count) {
    try {
        c10::AutoGradMode no_gradients(false);
        call(function, args, count, std::index_sequence_for<P...>{});
        return OPT_OK;
    } catch (const Failure &error) {
        return fail(error.kind, error.text);
    } catch (const c10::NotImplementedError &) {
        return OPT_UNSUPPORTED;
    } catch (const c10::Error &error) {
        return fail(error.what_without_backtrace());
    } catch (const std::bad_alloc &error) {
        return fail("opt.HostMemory", error.what());
    } catch (const std::exception &error) {
        return fail(error.what());
    }
}

} // namespace opt_glue

OPT_EXPORT int32_t opt_parameters() { return opt_glue::Parameters<decltype(&OPT_FUNCTION)>::count; }

OPT_EXPORT int OPT_ENTRY(void *, const OptAny *args, int32_t count, OptAny *) {
    return opt_glue::enter(&OPT_FUNCTION, args, count);
}

OPT_EXPORT void TVMFFIErrorMoveFromRaised(void **object) {
    *object = opt_glue::is_raised ? &opt_glue::raised : nullptr;
    opt_glue::is_raised = false;
}

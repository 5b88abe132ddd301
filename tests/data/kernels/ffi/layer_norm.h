/* layer_norm over contiguous float32 with the real headers of tvm-ffi: views, optional views, a tuple of ints, a float. */
#include <cmath>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

namespace ffi = tvm::ffi;

static inline void layer_norm_over(ffi::TensorView input, const int64_t *axes, int64_t count,
                                   ffi::Optional<ffi::TensorView> weight, ffi::Optional<ffi::TensorView> bias,
                                   double eps, ffi::TensorView output)
{
    if (input.dtype().code != kDLFloat || input.dtype().bits != 32)
        TVM_FFI_THROW(TypeError) << "only float32 is done";
    auto floats = [](ffi::TensorView tensor) { return static_cast<float *>(tensor.data_ptr()); };
    int64_t width = 1;
    for (int64_t axis = 0; axis < count; axis++)
        width *= axes[axis];
    const int64_t rows = input.numel() / width;
    const float *from = floats(input);
    const float *scale = weight.has_value() ? floats(weight.value()) : nullptr;
    const float *shift = bias.has_value() ? floats(bias.value()) : nullptr;
    float *to = floats(output);
    for (int64_t row = 0; row < rows; row++, from += width, to += width) {
        double sum = 0, squares = 0;
        for (int64_t i = 0; i < width; i++)
            sum += from[i];
        const double mean = sum / width;
        for (int64_t i = 0; i < width; i++)
            squares += (from[i] - mean) * (from[i] - mean);
        const double factor = 1 / std::sqrt(squares / width + eps);
        for (int64_t i = 0; i < width; i++)
            to[i] = (from[i] - mean) * factor * (scale ? scale[i] : 1) + (shift ? shift[i] : 0);
    }
}

static inline void layer_norm(ffi::TensorView input, ffi::TensorView normalized_shape,
                              ffi::Optional<ffi::TensorView> weight, ffi::Optional<ffi::TensorView> bias, double eps,
                              ffi::TensorView output)
{
    const int64_t *axes = static_cast<const int64_t *>(normalized_shape.data_ptr());
    layer_norm_over(input, axes, normalized_shape.size(0), weight, bias, eps, output);
}

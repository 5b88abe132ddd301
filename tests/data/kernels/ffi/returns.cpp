/* layer_norm over contiguous float32 that returns an owned tensor, with the real headers of tvm-ffi. */
#include <cmath>
#include <cstdlib>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

namespace ffi = tvm::ffi;

struct Heap {
    void AllocData(DLTensor *tensor) { tensor->data = std::malloc(ffi::GetDataSize(*tensor) + 1); }
    void FreeData(DLTensor *tensor) { std::free(tensor->data); }
};

static ffi::Tensor run(ffi::TensorView input, ffi::TensorView normalized_shape, ffi::Optional<ffi::TensorView> weight,
                       ffi::Optional<ffi::TensorView> bias, double eps)
{
    ffi::Tensor output = ffi::Tensor::FromNDAlloc(Heap(), input.shape(), input.dtype(), input.device());
    auto floats = [](ffi::TensorView tensor) { return static_cast<float *>(tensor.data_ptr()); };
    const int64_t *axes = static_cast<const int64_t *>(normalized_shape.data_ptr());
    int64_t width = 1;
    for (int64_t axis = 0; axis < normalized_shape.size(0); axis++)
        width *= axes[axis];
    const float *from = floats(input);
    const float *scale = weight.has_value() ? floats(weight.value()) : nullptr;
    const float *shift = bias.has_value() ? floats(bias.value()) : nullptr;
    float *to = static_cast<float *>(output.data_ptr());
    for (int64_t row = 0; row < input.numel() / width; row++, from += width, to += width) {
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
    return output;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);

/* Returns an owned tensor. */
#include <cstdlib>

#include "layer_norm.h"

struct Heap {
    void AllocData(DLTensor *tensor) { tensor->data = std::malloc(ffi::GetDataSize(*tensor) + 1); }
    void FreeData(DLTensor *tensor) { std::free(tensor->data); }
};

static ffi::Tensor run(ffi::TensorView input, ffi::TensorView normalized_shape, ffi::Optional<ffi::TensorView> weight,
                       ffi::Optional<ffi::TensorView> bias, double eps)
{
    ffi::Tensor output = ffi::Tensor::FromNDAlloc(Heap(), input.shape(), input.dtype(), input.device());
    layer_norm(input, normalized_shape, weight, bias, eps, output);
    return output;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);

// Refuses its arguments with PyTorch's own error.
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

at::Tensor launch(at::Tensor input, int64_t dim, int64_t, std::optional<at::ScalarType>) {
    TORCH_CHECK(input.dim() == 7, "only tensors of seven dimensions, got ", input.dim());
    return input;
}

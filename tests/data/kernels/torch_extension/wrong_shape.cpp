// Returns its output without the last dimension.
#include <ATen/core/Tensor.h>

at::Tensor launch(const at::Tensor &input, int64_t, int64_t, std::optional<at::ScalarType>) {
    return input.select(input.dim() - 1, 0);
}

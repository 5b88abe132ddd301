// Correct: takes the output after the inputs.
#include <ATen/core/Tensor.h>
#include <ATen/ops/softmax.h>

void launch(const at::Tensor &input, int64_t dim, std::optional<int64_t> level, std::optional<at::ScalarType> dtype, at::Tensor output) {
    output.copy_(at::softmax(input, dim, dtype));
}

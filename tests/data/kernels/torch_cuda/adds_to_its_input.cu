/* Wrong: PyTorch's `add_` writes to a captured input. */
#include <torch/types.h>

torch::Tensor launch(torch::Tensor input, bool)
{
    return input.add_(1).relu();
}

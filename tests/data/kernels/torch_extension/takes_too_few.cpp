// Takes fewer arguments than the captures have.
#include <ATen/core/Tensor.h>

at::Tensor launch(const at::Tensor &input, double dim) { return input; }

// Defines no `launch`.
#include <ATen/core/Tensor.h>

at::Tensor softmax(const at::Tensor &input) { return input; }

// Correct: the function of ATen updates the running statistics in place.
#include <ATen/core/Tensor.h>
#include <ATen/ops/batch_norm.h>

at::Tensor launch(at::Tensor input, at::Tensor mean, at::Tensor var, at::Tensor weight, at::Tensor bias, bool training,
                  double momentum, double eps) {
    return at::batch_norm(input, weight, bias, mean, var, training, momentum, eps, false);
}

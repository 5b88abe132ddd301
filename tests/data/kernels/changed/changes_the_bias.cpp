// Correct, but changes the bias, which the call does not change.
#include <ATen/core/Tensor.h>
#include <ATen/ops/batch_norm.h>

at::Tensor launch(at::Tensor input, at::Tensor mean, at::Tensor var, at::Tensor weight, at::Tensor bias, bool training,
                  double momentum, double eps) {
    bias.add_(1);
    return at::batch_norm(input, weight, bias, mean, var, training, momentum, eps, false);
}

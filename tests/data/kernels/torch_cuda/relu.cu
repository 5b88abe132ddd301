/* Correct: a ReLU as a launcher for PyTorch. Beside its own kernel, it uses a guard, the current stream, and PyTorch's own
 * functions on tensors of the device. */
#include <c10/cuda/CUDAGuard.h>
#include <torch/types.h>

__global__ void relu(const float *input, float *output, int64_t count)
{
    const int64_t at = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (at < count) output[at] = input[at] > 0 ? input[at] : 0;
}

torch::Tensor launch(torch::Tensor input, bool)
{
    TORCH_CHECK(input.is_cuda(), "expected a CUDA tensor");
    const c10::cuda::CUDAGuard guard(input.device());
    const torch::Tensor dense = input.contiguous();
    torch::Tensor output = torch::empty_like(dense);
    const int64_t count = dense.numel();
    if (count == 0) return output;
    relu<<<(count + 127) / 128, 128, 0, c10::cuda::getCurrentCUDAStream()>>>(
        dense.data_ptr<float>(), output.data_ptr<float>(), count);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    /* Runs on the host: twice the output, less the output. */
    return output.add(output).sub_(output);
}

// y = x W^T + b: one element per thread, and one element per warp. `bias` may be null.

extern "C" __global__ void naive(
    const float* input, const float* weight, const float* bias, float* out, long long n, int features, int inner,
    long long w_row, long long w_column)
{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float* x = input + i / features * inner;
    const float* w = weight + i % features * w_row;
    float sum = bias ? bias[i % features] : 0.0f;
    for (int k = 0; k < inner; k++) sum += x[k] * w[k * w_column];
    out[i] = sum;
}

extern "C" __global__ void fast(
    const float* input, const float* weight, const float* bias, float* out, long long n, int features, int inner,
    long long w_row, long long w_column)
{
    long long i = blockIdx.x * (long long)(blockDim.x / 32) + threadIdx.x / 32;
    if (i >= n) return;
    const float* x = input + i / features * inner;
    const float* w = weight + i % features * w_row;
    float sum = 0.0f;
    for (int k = threadIdx.x % 32; k < inner; k += 32) sum += x[k] * w[k * w_column];
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
    if (threadIdx.x % 32 == 0) out[i] = sum + (bias ? bias[i % features] : 0.0f);
}

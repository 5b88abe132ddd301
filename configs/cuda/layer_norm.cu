// Shifts and scales rows to mean 0 and variance 1: one row per thread, and one row per block.
// `weight` and `bias` may be null.

extern "C" __global__ void naive(
    const float* input, const float* weight, const float* bias, float* out, long long rows, int width, float eps)
{
    long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float* x = input + row * width;
    float mean = 0.0f, square = 0.0f;
    for (int i = 0; i < width; i++) mean += x[i];
    mean /= width;
    for (int i = 0; i < width; i++) square += (x[i] - mean) * (x[i] - mean);
    float scale = rsqrtf(square / width + eps);
    for (int i = 0; i < width; i++) {
        float y = (x[i] - mean) * scale;
        if (weight) y *= weight[i];
        if (bias) y += bias[i];
        out[row * width + i] = y;
    }
}

// Sums a value over the threads of a block. Every thread gets the sum.
static __device__ float total(float value, float* of_warps)
{
    for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
    for (int warp = 0; warp < blockDim.x / 32; warp++) sum += of_warps[warp];
    return sum;
}

extern "C" __global__ void fast(
    const float* input, const float* weight, const float* bias, float* out, int width, float eps)
{
    __shared__ float of_warps[32];
    const float* x = input + blockIdx.x * (long long)width;
    float* y = out + blockIdx.x * (long long)width;
    float sum = 0.0f, square = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += x[i];
    float mean = total(sum, of_warps) / width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) square += (x[i] - mean) * (x[i] - mean);
    float scale = rsqrtf(total(square, of_warps) / width + eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        y[i] = (x[i] - mean) * scale * (weight ? weight[i] : 1.0f) + (bias ? bias[i] : 0.0f);
}

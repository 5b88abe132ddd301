// Softmax over the last axis: one row per thread, one row per warp, and two launches with a workspace.

extern "C" __global__ void naive(const float* input, float* out, long long rows, int width)
{
    long long row = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float* x = input + row * width;
    float* y = out + row * width;
    float most = x[0], sum = 0.0f;
    for (int i = 1; i < width; i++) most = fmaxf(most, x[i]);
    for (int i = 0; i < width; i++) sum += expf(x[i] - most);
    for (int i = 0; i < width; i++) y[i] = expf(x[i] - most) / sum;
}

extern "C" __global__ void fast(const float* input, float* out, long long rows, int width)
{
    long long row = blockIdx.x * (long long)(blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= rows) return;
    const float* x = input + row * width;
    float* y = out + row * width;
    float most = -3.4e38f, sum = 0.0f;
    for (int i = lane; i < width; i += 32) most = fmaxf(most, x[i]);
    for (int offset = 16; offset > 0; offset /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
    for (int i = lane; i < width; i += 32) sum += __expf(x[i] - most);
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    for (int i = lane; i < width; i += 32) y[i] = __expf(x[i] - most) / sum;
}

// The first of two launches computes the maximum and the sum of each row.
extern "C" __global__ void sums(const float* input, float2* of_rows, int width)
{
    extern __shared__ float values[];
    const float* x = input + blockIdx.x * (long long)width;
    float most = -3.4e38f, sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) most = fmaxf(most, x[i]);
    values[threadIdx.x] = most;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) values[threadIdx.x] = fmaxf(values[threadIdx.x], values[threadIdx.x + half]);
    }
    __syncthreads();
    most = values[0];
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += blockDim.x) sum += expf(x[i] - most);
    values[threadIdx.x] = sum;
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
    }
    if (threadIdx.x == 0) of_rows[blockIdx.x] = make_float2(most, values[0]);
}

extern "C" __global__ void scale(const float* input, const float2* of_rows, float* out, int width, long long n)
{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    float2 row = of_rows[i / width];
    out[i] = expf(input[i] - row.x) / row.y;
}

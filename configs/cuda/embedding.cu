// Looks up rows of a table by index: one element per thread, and one row per warp.

extern "C" __global__ void naive(const long long* indices, const float* weight, float* out, int width, long long n)
{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = weight[indices[i / width] * width + i % width];
}

extern "C" __global__ void fast(const long long* indices, const float* weight, float* out, int width, long long rows)
{
    long long row = blockIdx.x * (long long)(blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    const float* from = weight + indices[row] * width;
    float* to = out + row * width;
    for (int i = threadIdx.x % 32; i < width; i += 32) to[i] = from[i];
}

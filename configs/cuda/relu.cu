// ReLU: one element per thread, and four elements per load.

extern "C" __global__ void naive(const float* input, float* out, long long n)
{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = input[i] > 0.0f || input[i] != input[i] ? input[i] : 0.0f;
}

// Every buffer starts at a multiple of 16 bytes. The last n % 4 elements are computed one by one.
extern "C" __global__ void fast(const float4* input, float4* out, long long n)
{
    long long step = gridDim.x * (long long)blockDim.x;
    long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    for (long long i = first; i < n / 4; i += step) {
        float4 x = input[i];
        x.x = x.x < 0.0f ? 0.0f : x.x;
        x.y = x.y < 0.0f ? 0.0f : x.y;
        x.z = x.z < 0.0f ? 0.0f : x.z;
        x.w = x.w < 0.0f ? 0.0f : x.w;
        out[i] = x;
    }
    const float* rest = (const float*)input;
    float* rest_out = (float*)out;
    for (long long i = n / 4 * 4 + first; i < n; i += step) rest_out[i] = rest[i] < 0.0f ? 0.0f : rest[i];
}

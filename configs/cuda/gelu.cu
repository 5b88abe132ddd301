// GELU with the error function, and the approximation of GELU with tanh.

static __device__ float exactly(float x)
{
    return 0.5f * x * (1.0f + erff(x * 0.70710678f));
}

extern "C" __global__ void naive(const float* input, float* out, long long n)
{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = exactly(input[i]);
}

extern "C" __global__ void fast(const float2* input, float2* out, long long n)
{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n / 2) {
        float2 x = input[i];
        out[i] = make_float2(exactly(x.x), exactly(x.y));
    }
    if (i == n / 2 && n % 2) ((float*)out)[n - 1] = exactly(((const float*)input)[n - 1]);
}

extern "C" __global__ void with_tanh(const float* input, float* out, long long n)
{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) {
        float x = input[i];
        out[i] = 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    }
}

#include "relu.cuh"

// Its size, 40 bytes, is not a power of two, so it is not aligned to its size.
struct Parts {
    const float *before_in;
    float floor;
    int unused[3];
    float *out;
    int shift;
};

static __global__ void from_parts(int first, Parts parts, long long count)
{
    long long i = first + blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) {
        float value = parts.before_in[i + parts.shift];
        parts.out[i] = value < parts.floor ? parts.floor : value;
    }
}

// Passes addresses in a structure, one of them before the start of its tensor.
OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    Call call = call_of(args, n);
    Parts parts = {call.in - 1000, 0.0f, {}, call.out, 1000};
    from_parts<<<blocks(call.count), 64>>>(0, parts, call.count);
    return cudaGetLastError();
}

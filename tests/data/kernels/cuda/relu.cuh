// The common parts of the relu launchers: the arguments of a call (input, inplace, output) and a correct kernel.
#pragma once
#include <cuda_runtime.h>
#include "opt_candidate.h"

struct Call {
    const float *in;
    float *out;
    long long count;
};

static inline Call call_of(const OptAny *args, int32_t n)
{
    const OptTensor *input = args[0].value.v_tensor;
    OptTensor *output = args[n - 1].value.v_tensor;
    long long count = 1;
    for (int axis = 0; axis < input->ndim; axis++) count *= input->shape[axis];
    return {(const float *)input->data, (float *)output->data, count};
}

static __global__ void relu(const float *in, float *out, long long count)
{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] < 0.0f ? 0.0f : in[i];
}

static inline unsigned blocks(long long count) { return (unsigned)((count + 63) / 64); }

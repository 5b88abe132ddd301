// A host launcher with the calling convention of tvm-ffi, written without tvm-ffi's headers. It launches on the stream
// of the environment.
#include <cuda_runtime.h>
#include "opt_candidate.h"

extern "C" void *TVMFFIEnvGetStream(int32_t device_type, int32_t device_id);
extern "C" void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

static __global__ void relu(const float *in, float *out, long long count)
{
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < count) out[i] = in[i] < 0.0f ? 0.0f : in[i];
}

extern "C" __attribute__((visibility("default"))) int __tvm_ffi_run(void *, const OptAny *args, int32_t n, OptAny *)
{
    const OptTensor *input = args[0].value.v_tensor;
    OptTensor *output = args[n - 1].value.v_tensor;
    if (input->device.device_type != OPT_CUDA) {
        TVMFFIErrorSetRaisedFromCStr("ValueError", "the input is not on a device");
        return -1;
    }
    long long count = 1;
    for (int axis = 0; axis < input->ndim; axis++) count *= input->shape[axis];
    cudaStream_t stream = (cudaStream_t)TVMFFIEnvGetStream(input->device.device_type, input->device.device_id);
#ifdef REFUSES
    TVMFFIErrorSetRaisedFromCStr("ValueError", "the size is not a multiple of 4");
    return -1;
#endif
#ifdef PAST_THE_END
    count += 1;
#endif
    relu<<<(unsigned)((count + 63) / 64), 64, 0, stream>>>((const float *)input->data, (float *)output->data, count);
    if (cudaGetLastError() == cudaSuccess) return 0;
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", "the launch failed");
    return -1;
}

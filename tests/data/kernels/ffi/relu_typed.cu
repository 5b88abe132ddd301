// A host launcher in the style of flashinfer-bench solutions. Each macro adds a mistake, except OWNED,
// with which it takes the tensors as objects of tvm-ffi, and RETURNS, with which it returns its output.
#include <cuda_runtime.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

namespace ffi = tvm::ffi;

static __global__ void relu(const float *in, float *out, int64_t count)
{
    int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
    if (i < count) out[i] = in[i] < 0.0f ? 0.0f : in[i];
}

#ifdef OWNED
using Tensor = ffi::Tensor;
#else
using Tensor = ffi::TensorView;
#endif

static void write(Tensor input, ffi::TensorView output)
{
    TVM_FFI_ICHECK_EQ(input.device().device_type, kDLCUDA) << "the input is not on a device";
    int64_t count = input.numel();
#ifdef REFUSES
    TVM_FFI_THROW(ValueError) << "the size " << count << " is not a multiple of 4";
#endif
#ifdef PAST_THE_END
    count += 1;
#endif
    auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(input.device().device_type, input.device().device_id));
    relu<<<static_cast<unsigned>((count + 63) / 64), 64, 0, stream>>>(
        static_cast<const float *>(input.data_ptr()), static_cast<float *>(output.data_ptr()), count);
    cudaError_t error = cudaGetLastError();
    TVM_FFI_ICHECK_EQ(error, cudaSuccess) << cudaGetErrorString(error);
}

#if defined(RETURNS) || defined(RETURNS_HOST) || defined(RETURNS_FREED)
struct OnCard {
    void AllocData(DLTensor *tensor) { cudaMalloc(&tensor->data, ffi::GetDataSize(*tensor)); }
    void FreeData(DLTensor *tensor) { cudaFree(tensor->data); }
};

struct OnHost {
    void AllocData(DLTensor *tensor) { tensor->data = malloc(ffi::GetDataSize(*tensor)); }
    void FreeData(DLTensor *tensor) { free(tensor->data); }
};

ffi::Tensor run(Tensor input, bool inplace)
{
    ffi::Tensor output = ffi::Tensor::FromNDAlloc(OnCard(), input.shape(), input.dtype(), input.device());
    write(input, output);
#ifdef RETURNS_FREED
    cudaFree(output.data_ptr());
#endif
#ifdef RETURNS_HOST
    ffi::Tensor copy = ffi::Tensor::FromNDAlloc(OnHost(), input.shape(), input.dtype(), DLDevice{kDLCPU, 0});
    cudaMemcpy(copy.data_ptr(), output.data_ptr(), input.numel() * sizeof(float), cudaMemcpyDeviceToHost);
    return copy;
#endif
    return output;
}
#else
void run(Tensor input, bool inplace, Tensor output) { write(input, output); }
#endif

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);

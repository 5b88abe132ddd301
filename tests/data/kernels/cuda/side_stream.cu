#include "relu.cuh"

// Uses its own stream, an event, a workspace and a copy on the device.
OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    Call call = call_of(args, n);
    cudaStream_t stream;
    cudaEvent_t event;
    float *scratch;
    if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) || cudaEventCreate(&event)) return 2;
    if (cudaMallocAsync(&scratch, call.count * sizeof(float), stream)) return 3;
    relu<<<blocks(call.count), 64, 0, stream>>>(call.in, scratch, call.count);
    cudaMemcpyAsync(call.out, scratch, call.count * sizeof(float), cudaMemcpyDeviceToDevice, stream);
    cudaEventRecord(event, stream);
    cudaStreamWaitEvent(0, event, 0);
    cudaFreeAsync(scratch, stream);
    if (cudaStreamSynchronize(stream)) return 4;
    return cudaEventDestroy(event) || cudaStreamDestroy(stream);
}

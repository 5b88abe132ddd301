// Calls the functions of the runtime that launchers use for queries, and launches with attributes.
#include "relu.cuh"

#define REQUIRE(condition) do { if (!(condition)) return __LINE__; } while (0)

OPT_EXPORT int run(void *, const OptAny *args, int32_t n, OptAny *)
{
    Call call = call_of(args, n);
    cudaDeviceProp properties;
    REQUIRE(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
    REQUIRE(properties.major == 8 && properties.multiProcessorCount > 0);

    cudaFuncAttributes attributes;
    REQUIRE(cudaFuncGetAttributes(&attributes, relu) == cudaSuccess);
    REQUIRE(attributes.maxThreadsPerBlock == 1024 && attributes.sharedSizeBytes == 0);
    REQUIRE(attributes.maxDynamicSharedSizeBytes == 48 * 1024);

    int least_blocks = 0, threads = 0, resident = 0;
    REQUIRE(cudaOccupancyMaxPotentialBlockSize(&least_blocks, &threads, relu, 0, 0) == cudaSuccess);
    REQUIRE(threads > 0 && threads <= 1024);
    REQUIRE(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, relu, threads, 0) == cudaSuccess && resident > 0);

    int least = 1, greatest = 1, priority = 1;
    cudaStream_t stream;
    REQUIRE(cudaDeviceGetStreamPriorityRange(&least, &greatest) == cudaSuccess);
    REQUIRE(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest) == cudaSuccess);
    REQUIRE(cudaStreamGetPriority(stream, &priority) == cudaSuccess && priority == greatest);
    cudaStreamCaptureStatus status;
    REQUIRE(cudaStreamIsCapturing(stream, &status) == cudaSuccess && status == cudaStreamCaptureStatusNone);

    cudaPointerAttributes pointer;
    REQUIRE(cudaPointerGetAttributes(&pointer, call.in) == cudaSuccess && pointer.type == cudaMemoryTypeDevice);
    REQUIRE(cudaPointerGetAttributes(&pointer, &call) == cudaSuccess && pointer.type == cudaMemoryTypeUnregistered);

    // Launchers choose the size of a workspace by the memory that is free. The whole device has more than this process
    // may allocate.
    size_t free_bytes = 0, all_bytes = 0;
    void *workspace;
    REQUIRE(cudaMemGetInfo(&free_bytes, &all_bytes) == cudaSuccess);
    REQUIRE(0 < free_bytes && free_bytes <= all_bytes);
    REQUIRE(cudaMalloc(&workspace, free_bytes / 2) == cudaSuccess && cudaFree(workspace) == cudaSuccess);

    // Copy the input, as one row of bytes, to memory that is allocated on the stream.
    float *copy;
    size_t bytes = (size_t)call.count * sizeof(float);
    REQUIRE(cudaMallocAsync((void **)&copy, bytes, stream) == cudaSuccess);
    REQUIRE(cudaMemsetAsync(copy, 0xff, bytes, stream) == cudaSuccess);
    REQUIRE(cudaMemcpy2DAsync(copy, bytes, call.in, bytes, bytes, 1, cudaMemcpyDeviceToDevice, stream) == cudaSuccess);

    cudaLaunchAttribute hint;
    hint.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    hint.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks(call.count));
    config.blockDim = dim3(64);
    config.stream = stream;
    config.attrs = &hint;
    config.numAttrs = 1;
    REQUIRE(cudaLaunchKernelEx(&config, relu, (const float *)copy, call.out, call.count) == cudaSuccess);
    REQUIRE(cudaFreeAsync(copy, stream) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    return cudaStreamDestroy(stream);
}

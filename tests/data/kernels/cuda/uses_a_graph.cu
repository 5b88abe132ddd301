#include "relu.cuh"

OPT_EXPORT int run(void *, const OptAny *, int32_t, OptAny *)
{
    cudaGraph_t graph;
    return cudaGraphCreate(&graph, 0);
}

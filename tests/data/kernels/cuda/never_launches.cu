#include "relu.cuh"

OPT_EXPORT int run(void *, const OptAny *, int32_t, OptAny *) { return 0; }

/* relu over contiguous float32, as a library built with tvm-ffi exports it: input, inplace | output. */
#ifndef FFI_RELU_H
#define FFI_RELU_H

#include "opt_candidate.h"

/* Functions of libtvm_ffi.so. */
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

static inline int ffi_relu(const OptAny *args, int32_t n)
{
    if (n != 3 || args[0].type_index != OPT_TENSOR || args[1].type_index != OPT_BOOL || args[2].type_index != OPT_TENSOR) {
        TVMFFIErrorSetRaisedFromCStr("TypeError", "expected a tensor, a bool and a tensor");
        return -1;
    }
    const OptTensor *input = args[0].value.v_tensor;
    const OptTensor *output = args[2].value.v_tensor;
    int64_t count = 1;
    for (int axis = 0; axis < input->ndim; axis++)
        count *= input->shape[axis];
    for (int64_t i = 0; i < count; i++) {
        float x = ((const float *)input->data)[i];
        ((float *)output->data)[i] = x < 0 ? 0 : x;
    }
    return OPT_OK;
}

#endif

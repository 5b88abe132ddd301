/* relu over contiguous float32 as a typed function of tvm-ffi exports it, if it returns its output as an owned tensor:
 * input, inplace. CHANGE may be a statement that changes the tensor before it is returned, and PLAN the number of
 * arguments that a plan function takes. */
#include <stdlib.h>
#include <string.h>

#include "opt_candidate.h"

/* A function of libtvm_ffi.so. */
void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);

typedef struct {
    uint64_t references;
    int32_t type_index;
    uint32_t padding;
    void (*deleter)(void *self, int flags);
    OptTensor tensor;
    int64_t shape[8];
} Tensor;

static int alive;

static void end(void *self, int flags)
{
    (void)flags;
    free(((Tensor *)self)->tensor.data);
    free(self);
    alive--;
}

#ifdef PLAN
OPT_EXPORT int __tvm_ffi_run_plan(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self, (void)args, (void)ret;
    if (n != PLAN) {
        TVMFFIErrorSetRaisedFromCStr("TypeError", "Mismatched number of arguments when calling: `run_plan`. Expected 3 but "
                                                  "got 2 arguments");
        return -1;
    }
    return OPT_OK;
}
#endif

OPT_EXPORT int __tvm_ffi_run(void *self, const OptAny *args, int32_t n, OptAny *ret)
{
    (void)self;
    if (n != 2) {
        TVMFFIErrorSetRaisedFromCStr("TypeError", "Mismatched number of arguments when calling: `run(0: Tensor, 1: bool) -> "
                                                  "Tensor`. Expected 2 but got 3 arguments");
        return -1;
    }
    if (alive++) /* every tensor is released before the next call */
        abort();
    const OptTensor *input = args[0].value.v_tensor;
    Tensor *output = calloc(1, sizeof *output);
    *output = (Tensor){.references = ((uint64_t)1 << 32) | 1, .type_index = 70, .deleter = end, .tensor = *input};
    int64_t count = 1;
    for (int axis = 0; axis < input->ndim; axis++)
        count *= output->shape[axis] = input->shape[axis];
    output->tensor.shape = output->shape;
    output->tensor.strides = 0; /* contiguous */
    float *data = output->tensor.data = malloc(count * sizeof *data + 1);
    for (int64_t i = 0; i < count; i++) {
        float x = ((const float *)input->data)[i];
        data[i] = x < 0 ? 0 : x;
    }
#ifdef CHANGE
    CHANGE;
#endif
    ret->type_index = 70;
    ret->value.v_ptr = output;
    return OPT_OK;
}

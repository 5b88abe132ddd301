/* The candidate interface of opt-supervisor, for kernels written without tvm-ffi or DLPack headers.
 *
 * A candidate exports one function of type OptFunction, whose name is the plan's `symbol`, optionally with the prefix
 * `__tvm_ffi_`. It gets the inputs in the order of the signature, then one tensor for each returned output, allocated
 * with the captured strides. It writes the outputs and returns OPT_OK. Inputs are read-only, except those that the
 * recorded call changed: the candidate must change them too. `ret` must not be changed.
 *
 * OptAny has the layout of TVMFFIAny, and OptTensor that of DLTensor. Code built with their headers is called in the same
 * way, and this header can be included together with them. */
#ifndef OPT_CANDIDATE_H
#define OPT_CANDIDATE_H

#include <stdint.h>

#ifdef __cplusplus
#define OPT_EXPORT extern "C" __attribute__((visibility("default")))
#else
#define OPT_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Return values of a candidate. Any other value is a runtime error. */
enum OptStatus { OPT_OK = 0, OPT_UNSUPPORTED = -2 /* this kernel does not support this entry */ };

/* The type of an OptAny's value. */
enum OptTypeIndex {
    OPT_NONE = 0,
    OPT_INT = 1,        /* v_int64 */
    OPT_BOOL = 2,       /* v_int64, 0 or 1 */
    OPT_FLOAT = 3,      /* v_float64 */
    OPT_OPAQUE_PTR = 4, /* v_ptr */
    OPT_DATA_TYPE = 5,  /* v_dtype */
    OPT_DEVICE = 6,     /* v_device */
    OPT_TENSOR = 7,     /* v_tensor; also for tuples and lists of numbers, as 1-D tensors on the CPU */
    OPT_RAW_STR = 8     /* v_c_str, ends with a zero byte */
};

enum OptDeviceType { OPT_CPU = 1, OPT_CUDA = 2 };

/* OptDataType.code; `bits` is the width: float16 is {OPT_CODE_FLOAT, 16, 1}. An element of float4_e2m1fn_x2 is a byte
   with two values: {OPT_CODE_FLOAT4_E2M1FN, 4, 2}. */
enum OptDataTypeCode {
    OPT_CODE_INT = 0, OPT_CODE_UINT = 1, OPT_CODE_FLOAT = 2, OPT_CODE_BFLOAT = 4, OPT_CODE_COMPLEX = 5,
    OPT_CODE_BOOL = 6, OPT_CODE_FLOAT8_E4M3FN = 10, OPT_CODE_FLOAT8_E4M3FNUZ = 11, OPT_CODE_FLOAT8_E5M2 = 12,
    OPT_CODE_FLOAT8_E5M2FNUZ = 13, OPT_CODE_FLOAT8_E8M0FNU = 14, OPT_CODE_FLOAT4_E2M1FN = 17
};

typedef struct OptDataType { uint8_t code; uint8_t bits; uint16_t lanes; } OptDataType;

typedef struct OptDevice { int32_t device_type; int32_t device_id; } OptDevice;

typedef struct OptTensor {
    void *data; /* the first element; byte_offset is always 0 */
    OptDevice device;
    int32_t ndim;
    OptDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements, always filled */
    uint64_t byte_offset;
} OptTensor;

typedef struct OptAny {
    int32_t type_index; /* OptTypeIndex */
    uint32_t zero_padding;
    union {
        int64_t v_int64;
        double v_float64;
        void *v_ptr;
        const char *v_c_str;
        OptTensor *v_tensor;
        OptDataType v_dtype;
        OptDevice v_device;
    } value;
} OptAny;

typedef int (*OptFunction)(void *self, const OptAny *args, int32_t n, OptAny *ret);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* OPT_CANDIDATE_H */

/* The interface between opt-supervisor and a candidate kernel: the tvm-ffi C ABI, with the identical layout and
 * no other header needed.
 *
 * A candidate exports one function, named `__tvm_ffi_<symbol>` or plainly `<symbol>` (by default `run`):
 *
 *     int run(void *self, const OptAny *args, int32_t n, OptAny *ret);
 *
 * `args` holds the inputs in signature order, then one tensor for every output, which the function fills.
 * An optional parameter that was not given is OPT_NONE; a tuple or list of numbers is a 1-D tensor on the CPU.
 * Strides are always there and count elements; byte_offset is always 0. `self` and `ret` are not used.
 * Return 0 when the outputs are written, OPT_UNSUPPORTED for an entry this kernel does not do, anything else for
 * an error. `opt-supervisor check PLAN --signature` prints the arguments of a job.
 */
#ifndef OPT_CANDIDATE_H
#define OPT_CANDIDATE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { OPT_OK = 0, OPT_UNSUPPORTED = -2 };

/* OptAny.type_index */
enum {
    OPT_NONE = 0,
    OPT_INT = 1,
    OPT_BOOL = 2, /* in v_int64 */
    OPT_FLOAT = 3,
    OPT_OPAQUE = 4,
    OPT_DATATYPE = 5,
    OPT_DEVICE = 6,
    OPT_TENSOR = 7, /* OptTensor * in v_ptr */
    OPT_STR = 8     /* NUL-terminated, in v_c_str */
};

/* OptDevice.device_type */
enum { OPT_CPU = 1, OPT_CUDA = 2 };

/* OptDataType.code; bits is the width of one element, lanes 1. bfloat16 is {4, 16, 1}. */
enum {
    OPT_CODE_INT = 0,
    OPT_CODE_UINT = 1,
    OPT_CODE_FLOAT = 2,
    OPT_CODE_BFLOAT = 4,
    OPT_CODE_COMPLEX = 5,
    OPT_CODE_BOOL = 6,
    OPT_CODE_FLOAT8_E4M3FN = 10,
    OPT_CODE_FLOAT8_E4M3FNUZ = 11,
    OPT_CODE_FLOAT8_E5M2 = 12,
    OPT_CODE_FLOAT8_E5M2FNUZ = 13
};

typedef struct { int32_t device_type; int32_t device_id; } OptDevice;
typedef struct { uint8_t code; uint8_t bits; uint16_t lanes; } OptDataType;

/* DLPack's DLTensor. */
typedef struct {
    void *data;
    OptDevice device;
    int32_t ndim;
    OptDataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} OptTensor;

/* TVMFFIAny: 16 bytes. */
typedef struct {
    int32_t type_index;
    int32_t zero_padding;
    union {
        int64_t v_int64;
        double v_float64;
        void *v_ptr;
        const char *v_c_str;
        OptDataType v_dtype;
        OptDevice v_device;
    };
} OptAny;

#ifdef __cplusplus
}
#endif
#endif

/* Constant padding of float32 with the real headers of tvm-ffi: a string, a list of ints, an optional scalar. */
#include <cstring>
#include <string>

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>
#include <tvm/ffi/string.h>

namespace ffi = tvm::ffi;

static void run(ffi::TensorView input, ffi::TensorView pad, ffi::String mode, ffi::Optional<double> value,
                ffi::TensorView output)
{
    if (mode != "constant")
        TVM_FFI_THROW(ValueError) << "mode `" << mode << "` is not done";
    if (input.dtype().bits != 32 || input.dtype().code != kDLFloat)
        TVM_FFI_THROW(TypeError) << "only float32 is done";
    const int64_t *sides = static_cast<const int64_t *>(pad.data_ptr());
    const int rank = input.ndim();
    const float *from = static_cast<const float *>(input.data_ptr());
    float *to = static_cast<float *>(output.data_ptr());
    for (int64_t i = 0; i < output.numel(); i++) {
        int64_t rest = i, at = 0, step = 1;
        bool inside = true;
        for (int axis = rank - 1; axis >= 0; axis--) {
            int64_t place = rest % output.size(axis);
            rest /= output.size(axis);
            /* The last axis comes first in `pad`. */
            const int pair = rank - 1 - axis;
            if (2 * pair < pad.size(0))
                place -= sides[2 * pair];
            inside = inside && 0 <= place && place < input.size(axis);
            at += place * step;
            step *= input.size(axis);
        }
        to[i] = inside ? from[at] : static_cast<float>(value.value_or(0.0));
    }
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);

/* Takes the list as an owned array, but the runner passes a tensor. */
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/optional.h>

namespace ffi = tvm::ffi;

static void run(ffi::TensorView, ffi::Array<int64_t>, ffi::Optional<ffi::TensorView>, ffi::Optional<ffi::TensorView>,
                double, ffi::TensorView)
{
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);

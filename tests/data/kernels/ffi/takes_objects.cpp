/* Takes tensors and a list as objects of tvm-ffi. LIST is the type of the list, such as `ffi::Shape`. With RETURNS, it
 * also returns its output. */
#include <cstdlib>
#include <vector>

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/list.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tuple.h>
#include <tvm/ffi/string.h>

#include "layer_norm.h"

using OptionalTensor = ffi::Optional<ffi::Tensor>;

static ffi::Optional<ffi::TensorView> view(const OptionalTensor &tensor)
{
    if (!tensor.has_value()) return {};
    const ffi::Tensor held = tensor.value(); /* A view of a temporary is refused. */
    return ffi::TensorView(held);
}

/* Kept from all earlier calls: their memory must stay valid. */
static std::vector<ffi::Tensor> kept;

static std::vector<int64_t> values(const ffi::Array<int64_t> &list) { return {list.begin(), list.end()}; }
static std::vector<int64_t> values(const ffi::Shape &list) { return {list.begin(), list.end()}; }
static std::vector<int64_t> values(const ffi::List<int64_t> &list) { return {list.begin(), list.end()}; }
static std::vector<int64_t> values(const ffi::Tensor &list)
{
    const int64_t *first = static_cast<const int64_t *>(list.data_ptr());
    return {first, first + list.numel()};
}
static std::vector<int64_t> values(const ffi::Tuple<int64_t> &list) { return {list.get<0>()}; }
static std::vector<int64_t> values(const ffi::String &) { return {}; }

static void norm(ffi::Tensor input, const std::vector<int64_t> &axes, const OptionalTensor &weight,
                 const OptionalTensor &bias, double eps, ffi::Tensor output)
{
    for (const ffi::Tensor &tensor : kept)
        if (tensor.ndim() < 1 || tensor.size(0) < 1) std::abort();
    layer_norm_over(input, axes.data(), axes.size(), view(weight), view(bias), eps, output);
    kept.push_back(input);
    kept.push_back(output);
}

#ifdef RETURNS
struct Heap {
    void AllocData(DLTensor *tensor) { tensor->data = std::malloc(ffi::GetDataSize(*tensor) + 1); }
    void FreeData(DLTensor *tensor) { std::free(tensor->data); }
};

static ffi::Tensor run(ffi::Tensor input, LIST axes, OptionalTensor weight, OptionalTensor bias, double eps)
{
    ffi::Tensor output = ffi::Tensor::FromNDAlloc(Heap(), input.shape(), input.dtype(), input.device());
    norm(input, values(axes), weight, bias, eps, output);
    return output;
}
#else
static void run(ffi::Tensor input, LIST axes, OptionalTensor weight, OptionalTensor bias, double eps,
                ffi::Tensor output)
{
    norm(input, values(axes), weight, bias, eps, output);
}
#endif

TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, run);

/* Gives PyTorch a CUDA device whose memory is that of opt-supervisor's emulated device.
 *
 * A library that nvcc builds from a candidate contains this file, and is linked to PyTorch's libraries for the CPU, but not to
 * those for CUDA. The candidate's own kernels run on the emulated device. PyTorch's functions on CUDA tensors copy their tensors
 * to the host, run there, and copy the results back. Functions of the CUDA runtime are those of the emulated device. */
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
/* Newer versions of PyTorch declare this class, whose functions are defined below. */
#define CUDAErrorLogCapture DeclaredByPyTorch
#include <c10/cuda/CUDAStream.h>
#undef CUDAErrorLogCapture
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace {

const c10::Device device(c10::kCUDA, 0);

[[noreturn]] void fail(cudaError_t error, const char *what) {
    cudaGetLastError();
    TORCH_CHECK(false, "CUDA error: ", cudaGetErrorString(error), " (", what, ")");
}

void copy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind) {
    const cudaError_t error = bytes == 0 ? cudaSuccess : cudaMemcpy(to, from, bytes, kind);
    if (error != cudaSuccess) fail(error, "a copy of a tensor");
}

struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override {
        void *data = nullptr;
        const cudaError_t error = bytes == 0 ? cudaSuccess : cudaMalloc(&data, bytes);
        if (error != cudaSuccess) fail(error, "the allocation of a tensor");
        return {data, data, &release, device};
    }
    static void release(void *data) { cudaFree(data); }
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void *to, const void *from, size_t bytes) const override { copy(to, from, bytes, cudaMemcpyDefault); }
};
Allocator allocator;
REGISTER_ALLOCATOR(c10::kCUDA, &allocator);

/* There is one device, with one stream. */
const c10::Stream the_stream(c10::Stream::DEFAULT, device);

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return c10::kCUDA; }
    c10::Device exchangeDevice(c10::Device) const override { return device; }
    c10::Device getDevice() const override { return device; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::Stream getStream(c10::Device) const override { return the_stream; }
    c10::Stream getDefaultStream(c10::Device) const override { return the_stream; }
    c10::Stream exchangeStream(c10::Stream) const override { return the_stream; }
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

const c10::DispatchKeySet keys(c10::DispatchKey::CUDA);

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
                 std::optional<c10::Device>, std::optional<bool>, std::optional<c10::MemoryFormat> format) {
    return at::detail::empty_generic(sizes, &allocator, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<c10::ScalarType> dtype,
                         std::optional<c10::Layout>, std::optional<c10::Device>, std::optional<bool>) {
    return at::detail::empty_strided_generic(sizes, strides, &allocator, keys, c10::dtype_or_default(dtype));
}

/* The bytes from a tensor's first element to its last, with the gaps between elements. */
size_t extent(const at::Tensor &it) {
    return at::detail::computeStorageNbytes(it.sizes(), it.strides(), it.dtype().itemsize());
}

/* A copy of a tensor in host memory, with the same strides. */
at::Tensor on_host(const at::Tensor &it) {
    const auto bytes = static_cast<int64_t>(extent(it));
    at::Tensor memory = at::detail::empty_cpu({bytes}, at::kByte);
    copy(memory.data_ptr(), it.data_ptr(), bytes, cudaMemcpyDeviceToHost);
    return at::from_blob(
        memory.data_ptr(), it.sizes(), it.strides(), [memory](void *) {}, it.options().device(at::kCPU));
}

at::Tensor &copy_(at::Tensor &self, const at::Tensor &source, bool) {
    if (self.numel() == 0) return self;
    const at::Tensor from = source.is_cpu() ? source : on_host(source);
    if (self.is_cpu()) return self.copy_(from);
    at::Tensor to = self.is_non_overlapping_and_dense()
                        ? at::detail::empty_strided_cpu(self.sizes(), self.strides(), self.scalar_type())
                        : on_host(self);
    to.copy_(from);
    copy(self.data_ptr(), to.data_ptr(), extent(self), cudaMemcpyHostToDevice);
    return self;
}

const at::Tensor &resize_(const at::Tensor &self, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat>) {
    self.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
    const size_t bytes =
        at::detail::computeStorageNbytesContiguous(sizes, self.dtype().itemsize(), self.storage_offset());
    c10::Storage storage = self.storage();
    if (storage.nbytes() < bytes) {
        c10::DataPtr grown = allocator.allocate(bytes);
        copy(grown.get(), storage.data(), storage.nbytes(), cudaMemcpyDeviceToDevice);
        storage.set_data_ptr_noswap(std::move(grown));
        storage.set_nbytes(bytes);
    }
    return self;
}

at::Tensor copy_from_and_resize(const at::Tensor &self, const at::Tensor &target) {
    at::Tensor to = target;
    if (to.sizes() != self.sizes()) to.resize_(self.sizes());
    return to.copy_(self);
}

/* Runs every other function of PyTorch on the host. A function that returns a view of its argument must not be copied, so it
 * is refused. */
void fallback(const c10::OperatorHandle &function, torch::jit::Stack *stack) {
    at::native::cpu_fallback(function, stack, true);
}

cudaDeviceProp *properties() {
    static cudaDeviceProp found = [] {
        cudaDeviceProp it{};
        const cudaError_t error = cudaGetDeviceProperties(&it, 0);
        if (error != cudaSuccess) fail(error, "the properties of the device");
        return it;
    }();
    return &found;
}

} // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) {
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
    library.impl("empty.memory_format", TORCH_FN(empty));
    library.impl("empty_strided", TORCH_FN(empty_strided));
    library.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
    library.impl("view", TORCH_FN(at::native::view));
    library.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
    library.impl("view_as_real", TORCH_FN(at::native::view_as_real));
    library.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
    library.impl("unfold", TORCH_FN(at::native::unfold));
    library.impl("copy_", TORCH_FN(copy_));
    library.impl("resize_", TORCH_FN(resize_));
    library.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
}

/* The functions of PyTorch's CUDA libraries that launchers use most. The emulated device refuses libraries that need others. */
namespace c10::cuda {

class CUDAErrorLogCapture {
public:
    CUDAErrorLogCapture() noexcept;
};
CUDAErrorLogCapture::CUDAErrorLogCapture() noexcept {}

/* PyTorch's versions differ in the parameters after the line. */
void check(int32_t error, const char *file, const char *function, int64_t line) {
    if (error == cudaSuccess) return;
    cudaGetLastError();
    throw c10::Error({function, file, static_cast<uint32_t>(line)},
                     std::string("CUDA error: ") + cudaGetErrorString(static_cast<cudaError_t>(error)));
}
void c10_cuda_check_implementation(const int32_t error, const char *file, const char *function, const int line, const bool) {
    check(error, file, function, line);
}
void c10_cuda_check_implementation(const int32_t error, const char *file, const char *function, const uint32_t line, const bool) {
    check(error, file, function, line);
}
void c10_cuda_check_implementation(const int32_t error, const char *file, const char *function, const uint32_t line, const bool,
                                   CUDAErrorLogCapture *) {
    check(error, file, function, line);
}

cudaStream_t CUDAStream::stream() const { return nullptr; }
bool CUDAStream::query() const { return true; }
void CUDAStream::synchronize() const {}
CUDAStream getDefaultCUDAStream(DeviceIndex) { return CUDAStream(the_stream); }
CUDAStream getCurrentCUDAStream(DeviceIndex) { return CUDAStream(the_stream); }
CUDAStream getStreamFromPool(const bool, DeviceIndex) { return CUDAStream(the_stream); }
CUDAStream getStreamFromPool(const int, DeviceIndex) { return CUDAStream(the_stream); }
void setCurrentCUDAStream(CUDAStream) {}

DeviceIndex device_count() noexcept { return 1; }
DeviceIndex current_device() { return 0; }
void set_device(DeviceIndex) {}
void set_device(DeviceIndex, const bool) {}
void device_synchronize() {}
cudaError_t GetDevice(DeviceIndex *index) {
    *index = 0;
    return cudaSuccess;
}
cudaError_t SetDevice(DeviceIndex) { return cudaSuccess; }
cudaError_t SetDevice(DeviceIndex, const bool) { return cudaSuccess; }
cudaError_t MaybeSetDevice(DeviceIndex) { return cudaSuccess; }
DeviceIndex ExchangeDevice(DeviceIndex) { return 0; }
DeviceIndex MaybeExchangeDevice(DeviceIndex) { return 0; }

/* PyTorch's allocator for CUDA. Only a tensor that is used on another stream would need it, and there is one stream. */
namespace CUDACachingAllocator {
std::atomic<void *> allocator;
}

} // namespace c10::cuda

namespace at::cuda {

cudaDeviceProp *getCurrentDeviceProperties() { return properties(); }
cudaDeviceProp *getDeviceProperties(c10::DeviceIndex) { return properties(); }
int warp_size() { return properties()->warpSize; }

} // namespace at::cuda

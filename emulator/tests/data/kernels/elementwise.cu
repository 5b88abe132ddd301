// Elementwise kernels, in three formats.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
typedef long long i64;
__device__ inline float load(const float *p) { return *p; }
__device__ inline float load(const __half *p) { return __half2float(*p); }
__device__ inline float load(const __nv_bfloat16 *p) { return __bfloat162float(*p); }
__device__ inline void store(float *p, float v) { *p = v; }
__device__ inline void store(__half *p, float v) { *p = __float2half(v); }
__device__ inline void store(__nv_bfloat16 *p, float v) { *p = __float2bfloat16(v); }

#define EACH(NAME, T, EXPRESSION)                                                          \
  extern "C" __global__ void NAME(const T *x, T *y, i64 n) {                               \
    for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) { \
      float v = load(x + i);                                                               \
      store(y + i, EXPRESSION);                                                            \
    }                                                                                      \
  }
#define IN_THREE_FORMATS(NAME, EXPRESSION) \
  EACH(NAME##_f32, float, EXPRESSION)      \
  EACH(NAME##_f16, __half, EXPRESSION)     \
  EACH(NAME##_bf16, __nv_bfloat16, EXPRESSION)

IN_THREE_FORMATS(relu, fmaxf(v, 0.f))
IN_THREE_FORMATS(gelu, 0.5f * v * (1.f + erff(v * 0.70710678f)))
IN_THREE_FORMATS(gelu_tanh, 0.5f * v * (1.f + tanhf(0.79788456f * (v + 0.044715f * v * v * v))))
EACH(silu_f32, float, v / (1.f + __expf(-v)))
EACH(sigmoid_f32, float, 1.f / (1.f + expf(-v)))
EACH(softplus_f32, float, log1pf(expf(v)))
EACH(trigonometry_f32, float, sinf(v) + 2.f * cosf(v * 0.5f) + atan2f(v, 2.f))
EACH(roots_f32, float, sqrtf(fabsf(v)) + rsqrtf(v * v + 1.f) + cbrtf(v))
EACH(powers_f32, float, powf(fabsf(v) + 0.5f, 1.7f) + exp2f(v) + log10f(fabsf(v) + 1.f))
EACH(rounded_f32, float, floorf(v) + 10.f * ceilf(v) + 100.f * truncf(v) + 1000.f * rintf(v) + 10000.f * roundf(v))

extern "C" __global__ void relu_vec4_f32(const float4 *x, float4 *y, i64 n4) {
  i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (i >= n4) return;
  float4 v = x[i];
  y[i] = make_float4(fmaxf(v.x, 0), fmaxf(v.y, 0), fmaxf(v.z, 0), fmaxf(v.w, 0));
}
// x * y + x, in pairs.
extern "C" __global__ void fma_half2(const __half2 *x, const __half2 *y, __half2 *z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = __hfma2(x[i], y[i], x[i]);
}
extern "C" __global__ void fma_bfloat162(const __nv_bfloat162 *x, const __nv_bfloat162 *y, __nv_bfloat162 *z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = __hfma2(x[i], y[i], x[i]);
}
// max(x + y, 0) - min(x, y), in halves.
extern "C" __global__ void mixed_half(const __half *x, const __half *y, __half *z, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) z[i] = __hsub(__hmax(__hadd(x[i], y[i]), __half(0.f)), __hmin(x[i], y[i]));
}
extern "C" __global__ void functions_f64(const double *x, double *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = sin(x[i]) + cos(x[i] * 1e6) + exp(x[i]) / 3.0 + log(fabs(x[i]) + 1.0) + pow(fabs(x[i]) + 0.5, 1.5) + sqrt(fabs(x[i]));
}
extern "C" __global__ void integers_i64(const i64 *x, i64 *y, i64 d, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] / d + 3 * (x[i] % d) + __mul64hi(x[i], d) + (x[i] >> (i & 63)) + __popcll(x[i]) + __clzll(x[i]);
}
extern "C" __global__ void integers_i32(const int *x, int *y, int d, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] / d + 3 * (x[i] % d) + __mulhi(x[i], d) + (int)__brev(x[i]) + __ffs(x[i]) + __dp4a(x[i], d, 7) + (int)__funnelshift_l(x[i], d, i);
}

// Kernels that work on rows: embedding, normalisation, softmax, reductions, scans.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
typedef long long i64;
__device__ inline float load(const float *p) { return *p; }
__device__ inline float load(const __half *p) { return __half2float(*p); }
__device__ inline float load(const __nv_bfloat16 *p) { return __bfloat162float(*p); }
__device__ inline void store(float *p, float v) { *p = v; }
__device__ inline void store(__half *p, float v) { *p = __float2half(v); }
__device__ inline void store(__nv_bfloat16 *p, float v) { *p = __float2bfloat16(v); }
__device__ float warp_sum(float v) { for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o); return v; }
__device__ float warp_max(float v) { for (int o = 16; o; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o)); return v; }
__device__ float block_sum(float v) {
  __shared__ float s[32];
  int l = threadIdx.x & 31, w = threadIdx.x >> 5;
  v = warp_sum(v);
  __syncthreads();
  if (!l) s[w] = v;
  __syncthreads();
  v = threadIdx.x < (blockDim.x + 31) / 32 ? s[l] : 0.f;
  if (!w) v = warp_sum(v);
  if (!threadIdx.x) s[0] = v;
  __syncthreads();
  return s[0];
}
__device__ float block_max(float v) {
  __shared__ float s[32];
  int l = threadIdx.x & 31, w = threadIdx.x >> 5;
  v = warp_max(v);
  __syncthreads();
  if (!l) s[w] = v;
  __syncthreads();
  v = threadIdx.x < (blockDim.x + 31) / 32 ? s[l] : -__int_as_float(0x7f800000);
  if (!w) v = warp_max(v);
  if (!threadIdx.x) s[0] = v;
  __syncthreads();
  return s[0];
}
#define ROWS(S, T)                                                                                             \
  extern "C" __global__ void embedding_##S(const i64 *idx, const T *w, T *out, int d) {                        \
    i64 r = idx[blockIdx.x];                                                                                   \
    for (int j = threadIdx.x; j < d; j += blockDim.x) out[(i64)blockIdx.x * d + j] = w[r * d + j];             \
  }                                                                                                            \
  extern "C" __global__ void layer_norm_##S(const T *x, const T *g, const T *b, T *y, int d, float eps) {      \
    const T *r = x + (i64)blockIdx.x * d;                                                                      \
    float s = 0;                                                                                               \
    for (int j = threadIdx.x; j < d; j += blockDim.x) s += load(r + j);                                        \
    float m = block_sum(s) / d;                                                                                \
    s = 0;                                                                                                     \
    for (int j = threadIdx.x; j < d; j += blockDim.x) { float t = load(r + j) - m; s += t * t; }               \
    float k = rsqrtf(block_sum(s) / d + eps);                                                                  \
    for (int j = threadIdx.x; j < d; j += blockDim.x)                                                          \
      store(y + (i64)blockIdx.x * d + j, (load(r + j) - m) * k * load(g + j) + load(b + j));                   \
  }                                                                                                            \
  extern "C" __global__ void softmax_##S(const T *x, T *y, int d) {                                            \
    extern __shared__ float e[];                                                                               \
    const T *r = x + (i64)blockIdx.x * d;                                                                      \
    float m = -__int_as_float(0x7f800000);                                                                                       \
    for (int j = threadIdx.x; j < d; j += blockDim.x) m = fmaxf(m, load(r + j));                               \
    m = block_max(m);                                                                                          \
    float s = 0;                                                                                               \
    for (int j = threadIdx.x; j < d; j += blockDim.x) { e[j] = expf(load(r + j) - m); s += e[j]; }             \
    s = block_sum(s);                                                                                          \
    for (int j = threadIdx.x; j < d; j += blockDim.x) store(y + (i64)blockIdx.x * d + j, e[j] / s);            \
  }
ROWS(f32, float)
ROWS(f16, __half)
ROWS(bf16, __nv_bfloat16)

// One pass, one row per thread. The sum is corrected whenever a larger value is found.
extern "C" __global__ void softmax_online_f32(const float *x, float *y, int rows, int d) {
  int r = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  float m = -__int_as_float(0x7f800000), s = 0;
  for (int j = 0; j < d; j++) { float v = x[r * d + j], n = fmaxf(m, v); s = s * __expf(m - n) + __expf(v - n); m = n; }
  for (int j = 0; j < d; j++) y[r * d + j] = __expf(x[r * d + j] - m) / s;
}
// One row per warp.
extern "C" __global__ void softmax_warp_f32(const float *x, float *y, int rows, int d) {
  int r = (blockIdx.x * blockDim.x + threadIdx.x) / 32, l = threadIdx.x % 32;
  if (r >= rows) return;
  float m = -__int_as_float(0x7f800000), s = 0;
  for (int j = l; j < d; j += 32) m = fmaxf(m, x[r * d + j]);
  m = warp_max(m);
  for (int j = l; j < d; j += 32) s += expf(x[r * d + j] - m);
  s = warp_sum(s);
  for (int j = l; j < d; j += 32) y[r * d + j] = expf(x[r * d + j] - m) / s;
}
extern "C" __global__ void log_softmax_f64(const double *x, double *y, int d) {
  if (threadIdx.x) return;
  const double *r = x + blockIdx.x * d;
  double m = r[0], s = 0;
  for (int j = 1; j < d; j++) m = fmax(m, r[j]);
  for (int j = 0; j < d; j++) s += exp(r[j] - m);
  for (int j = 0; j < d; j++) y[blockIdx.x * d + j] = r[j] - m - log(s);
}
extern "C" __global__ void sum_f32(const float *x, float *y, int n) {
  float s = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) s += x[i];
  s = block_sum(s);
  if (!threadIdx.x) atomicAdd(y, s);
}
extern "C" __global__ void sum_f64(const double *x, double *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) atomicAdd(y, x[i]);
}
extern "C" __global__ void dot_f16(const __half2 *x, const __half2 *y, float *z, int n) {
  float s = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) { float2 a = __half22float2(x[i]), b = __half22float2(y[i]); s += a.x * b.x + a.y * b.y; }
  s = block_sum(s);
  if (!threadIdx.x) *z = s;
}
// The position of the largest value of each row, by a packed key.
extern "C" __global__ void argmax_f32(const float *x, int *y, int d) {
  __shared__ unsigned long long best;
  if (!threadIdx.x) best = 0;
  __syncthreads();
  for (int j = threadIdx.x; j < d; j += blockDim.x) {
    unsigned b = __float_as_uint(x[blockIdx.x * d + j]);
    b = b >> 31 ? ~b : b | 0x80000000u;
    atomicMax(&best, (unsigned long long)b << 32 | (unsigned)(~j));
  }
  __syncthreads();
  if (!threadIdx.x) y[blockIdx.x] = ~(unsigned)best;
}
extern "C" __global__ void scan_f32(const float *x, float *y, int n) {
  __shared__ float s[2][256];
  int t = threadIdx.x, at = 0;
  s[0][t] = t < n ? x[blockIdx.x * n + t] : 0;
  __syncthreads();
  for (int o = 1; o < 256; o *= 2) {
    s[1 - at][t] = t >= o ? s[at][t] + s[at][t - o] : s[at][t];
    at = 1 - at;
    __syncthreads();
  }
  if (t < n) y[blockIdx.x * n + t] = s[at][t];
}
extern "C" __global__ void scan_warp_i32(const int *x, int *y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, v = x[i];
  for (int o = 1; o < 32; o *= 2) { int u = __shfl_up_sync(0xffffffffu, v, o); if ((threadIdx.x & 31) >= o) v += u; }
  y[i] = v;
}
// Each block waits for the sum of the block before it.
extern "C" __global__ void scan_chained_i32(const int *x, int *y, volatile int *sums, int n) {
  __shared__ int before;
  __shared__ int s[128];
  int t = threadIdx.x, i = blockIdx.x * 128 + t;
  s[t] = i < n ? x[i] : 0;
  __syncthreads();
  for (int o = 1; o < 128; o *= 2) { int v = t >= o ? s[t - o] : 0; __syncthreads(); s[t] += v; __syncthreads(); }
  if (!t) {
    int b = 0;
    if (blockIdx.x) { int v; while ((v = sums[blockIdx.x - 1]) < 0) {} b = v; }
    sums[blockIdx.x] = b + s[127];
    __threadfence();
    before = b;
  }
  __syncthreads();
  if (i < n) y[i] = s[t] + before;
}

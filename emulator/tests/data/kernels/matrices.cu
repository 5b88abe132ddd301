// Products of matrices, transposition and convolution.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
__device__ inline float load(const float *p) { return *p; }
__device__ inline float load(const __half *p) { return __half2float(*p); }
__device__ inline float load(const __nv_bfloat16 *p) { return __bfloat162float(*p); }
__device__ inline void store(float *p, float v) { *p = v; }
__device__ inline void store(__half *p, float v) { *p = __float2half(v); }
__device__ inline void store(__nv_bfloat16 *p, float v) { *p = __float2bfloat16(v); }
#define PRODUCTS(S, T)                                                                                         \
  extern "C" __global__ void matmul_##S(const T *a, const T *b, T *c, int M, int N, int K) {                   \
    int r = blockIdx.y * blockDim.y + threadIdx.y, q = blockIdx.x * blockDim.x + threadIdx.x;                  \
    if (r >= M || q >= N) return;                                                                              \
    float s = 0;                                                                                               \
    for (int i = 0; i < K; i++) s += load(a + r * K + i) * load(b + i * N + q);                                \
    store(c + r * N + q, s);                                                                                   \
  }                                                                                                            \
  extern "C" __global__ void matmul_tiled_##S(const T *a, const T *b, T *c, int M, int N, int K) {             \
    __shared__ float A[16][16], B[16][17];                                                                     \
    int r = blockIdx.y * 16 + threadIdx.y, q = blockIdx.x * 16 + threadIdx.x;                                  \
    float s = 0;                                                                                               \
    for (int t = 0; t < K; t += 16) {                                                                          \
      A[threadIdx.y][threadIdx.x] = r < M && t + threadIdx.x < K ? load(a + r * K + t + threadIdx.x) : 0.f;    \
      B[threadIdx.y][threadIdx.x] = q < N && t + threadIdx.y < K ? load(b + (t + threadIdx.y) * N + q) : 0.f;  \
      __syncthreads();                                                                                         \
      for (int i = 0; i < 16; i++) s += A[threadIdx.y][i] * B[i][threadIdx.x];                                 \
      __syncthreads();                                                                                         \
    }                                                                                                          \
    if (r < M && q < N) store(c + r * N + q, s);                                                               \
  }                                                                                                            \
  extern "C" __global__ void linear_##S(const T *x, const T *w, const T *b, T *y, int M, int N, int K) {       \
    int r = blockIdx.y, q = blockIdx.x * blockDim.x + threadIdx.x;                                             \
    if (q >= N) return;                                                                                        \
    float s = load(b + q);                                                                                     \
    for (int i = 0; i < K; i++) s += load(x + r * K + i) * load(w + q * K + i);                                \
    store(y + r * N + q, s);                                                                                   \
  }
PRODUCTS(f32, float)
PRODUCTS(f16, __half)
PRODUCTS(bf16, __nv_bfloat16)

extern "C" __global__ void matmul_f64(const double *a, const double *b, double *c, int M, int N, int K) {
  int r = blockIdx.y * blockDim.y + threadIdx.y, q = blockIdx.x * blockDim.x + threadIdx.x;
  if (r >= M || q >= N) return;
  double s = 0;
  for (int i = 0; i < K; i++) s = fma(a[r * K + i], b[i * N + q], s);
  c[r * N + q] = s;
}
// Each thread keeps four results in registers.
extern "C" __global__ void matmul_blocked_f32(const float *a, const float *b, float *c, int M, int N, int K) {
  __shared__ float A[32][17], B[16][33];
  int tx = threadIdx.x, ty = threadIdx.y;
  float s[2][2] = {};
  for (int t = 0; t < K; t += 16) {
    for (int h = 0; h < 2; h++) {
      int r = blockIdx.y * 32 + ty + 16 * h, q = blockIdx.x * 32 + tx + 16 * h;
      A[ty + 16 * h][tx] = r < M && t + tx < K ? a[r * K + t + tx] : 0.f;
      B[ty][tx + 16 * h] = q < N && t + ty < K ? b[(t + ty) * N + q] : 0.f;
    }
    __syncthreads();
    for (int i = 0; i < 16; i++)
      for (int h = 0; h < 2; h++)
        for (int g = 0; g < 2; g++) s[h][g] += A[ty + 16 * h][i] * B[i][tx + 16 * g];
    __syncthreads();
  }
  for (int h = 0; h < 2; h++)
    for (int g = 0; g < 2; g++) {
      int r = blockIdx.y * 32 + ty + 16 * h, q = blockIdx.x * 32 + tx + 16 * g;
      if (r < M && q < N) c[r * N + q] = s[h][g];
    }
}
extern "C" __global__ void transpose_f32(const float *x, float *y, int M, int N) {
  __shared__ float s[32][33];
  for (int j = threadIdx.y; j < 32; j += 8) {
    int r = blockIdx.y * 32 + j, q = blockIdx.x * 32 + threadIdx.x;
    if (r < M && q < N) s[j][threadIdx.x] = x[r * N + q];
  }
  __syncthreads();
  for (int j = threadIdx.y; j < 32; j += 8) {
    int r = blockIdx.x * 32 + j, q = blockIdx.y * 32 + threadIdx.x;
    if (r < N && q < M) y[r * M + q] = s[threadIdx.x][j];
  }
}
__constant__ float filter[5] = {0.0625f, 0.25f, 0.375f, 0.25f, 0.0625f};
extern "C" __global__ void convolution_f32(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float s = 0;
  for (int k = 0; k < 5; k++) { int j = i + k - 2; if (j >= 0 && j < n) s += filter[k] * x[j]; }
  y[i] = s;
}

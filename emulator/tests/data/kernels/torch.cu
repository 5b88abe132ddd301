// Further kernels that tools/device_kernels.py compares with torch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
typedef long long i64;
typedef unsigned long long u64;
#define GLOBAL extern "C" __global__ void
__device__ inline float load(const float *p) { return *p; }
__device__ inline float load(const __half *p) { return __half2float(*p); }
__device__ inline float load(const __nv_bfloat16 *p) { return __bfloat162float(*p); }
__device__ inline void store(float *p, float v) { *p = v; }
__device__ inline void store(__half *p, float v) { *p = __float2half(v); }
__device__ inline void store(__nv_bfloat16 *p, float v) { *p = __float2bfloat16(v); }
__device__ inline float infinity() { return __int_as_float(0x7f800000); }
__device__ inline i64 thread() { return blockIdx.x * (i64)blockDim.x + threadIdx.x; }

// Combines the values of a warp's lanes. Every lane gets the result.
template <typename F> __device__ inline float warp_all(float v, F combine) {
  for (int o = 16; o; o >>= 1) v = combine(v, __shfl_xor_sync(0xffffffffu, v, o));
  return v;
}
__device__ inline float add(float x, float y) { return x + y; }
__device__ inline float larger(float x, float y) { return fmaxf(x, y); }
__device__ inline float times(float x, float y) { return x * y; }

// Rows, one per warp. `v` is an element, and `s` the combined value of those before it.
#define REDUCTION(NAME, T, FIRST, NEXT, COMBINE, RESULT)                           \
  GLOBAL NAME(const T *x, T *y, int d) {                                           \
    const T *r = x + (i64)blockIdx.x * d;                                          \
    float s = FIRST;                                                               \
    for (int j = threadIdx.x; j < d; j += 32) { float v = load(r + j); s = NEXT; } \
    s = warp_all(s, COMBINE);                                                      \
    if (!threadIdx.x) store(y + blockIdx.x, RESULT);                               \
  }
#define IN_FORMAT(S, T)                                                                       \
  REDUCTION(sum_rows_##S, T, 0.f, s + v, add, s)                                              \
  GLOBAL add_##S(const T *x, const T *y, T *z, i64 n) {                                       \
    i64 i = thread();                                                                         \
    if (i < n) store(z + i, load(x + i) + load(y + i));                                       \
  }                                                                                           \
  GLOBAL rms_norm_##S(const T *x, const T *g, T *y, int d, float eps) {                       \
    const T *r = x + (i64)blockIdx.x * d;                                                     \
    float s = 0;                                                                              \
    for (int j = threadIdx.x; j < d; j += 32) { float v = load(r + j); s += v * v; }          \
    float k = rsqrtf(warp_all(s, add) / d + eps);                                             \
    for (int j = threadIdx.x; j < d; j += 32)                                                 \
      store(y + (i64)blockIdx.x * d + j, load(r + j) * k * load(g + j));                      \
  }                                                                                           \
  GLOBAL log_softmax_##S(const T *x, T *y, int d) {                                           \
    const T *r = x + (i64)blockIdx.x * d;                                                     \
    float m = -infinity(), s = 0;                                                             \
    for (int j = threadIdx.x; j < d; j += 32) m = fmaxf(m, load(r + j));                      \
    m = warp_all(m, larger);                                                                  \
    for (int j = threadIdx.x; j < d; j += 32) s += expf(load(r + j) - m);                     \
    s = logf(warp_all(s, add));                                                               \
    for (int j = threadIdx.x; j < d; j += 32) store(y + (i64)blockIdx.x * d + j, load(r + j) - m - s); \
  }
IN_FORMAT(f32, float)
IN_FORMAT(f16, __half)
IN_FORMAT(bf16, __nv_bfloat16)
REDUCTION(mean_rows_f32, float, 0.f, s + v, add, s / d)
REDUCTION(max_rows_f32, float, -infinity(), fmaxf(s, v), larger, s)
REDUCTION(prod_rows_f32, float, 1.f, s * v, times, s)
REDUCTION(norm_rows_f32, float, 0.f, s + v * v, add, sqrtf(s))
GLOBAL logsumexp_rows_f32(const float *x, float *y, int d) {
  const float *r = x + (i64)blockIdx.x * d;
  float m = -infinity(), s = 0;
  for (int j = threadIdx.x; j < d; j += 32) m = fmaxf(m, r[j]);
  m = warp_all(m, larger);
  for (int j = threadIdx.x; j < d; j += 32) s += expf(r[j] - m);
  s = warp_all(s, add);
  if (!threadIdx.x) y[blockIdx.x] = m + logf(s);
}
// Welford's algorithm in each lane. The lanes' means and sums of squares are combined afterwards.
GLOBAL var_rows_f32(const float *x, float *y, int d) {
  float count = 0, mean = 0, squares = 0;
  for (int j = threadIdx.x; j < d; j += 32) {
    float v = x[(i64)blockIdx.x * d + j], from = v - mean;
    count += 1;
    mean += from / count;
    squares += from * (v - mean);
  }
  for (int o = 16; o; o >>= 1) {
    float c = __shfl_down_sync(0xffffffffu, count, o), m = __shfl_down_sync(0xffffffffu, mean, o);
    float s = __shfl_down_sync(0xffffffffu, squares, o), both = count + c, from = m - mean;
    if (both > 0) { mean += from * c / both; squares += s + from * from * count * c / both; }
    count = both;
  }
  if (!threadIdx.x) y[blockIdx.x] = squares / (d - 1);
}
GLOBAL argmax_rows_f32(const float *x, i64 *y, int d) {
  float best = -infinity();
  int at = 0;
  for (int j = threadIdx.x; j < d; j += 32) { float v = x[(i64)blockIdx.x * d + j]; if (v > best) { best = v; at = j; } }
  for (int o = 16; o; o >>= 1) {
    float v = __shfl_xor_sync(0xffffffffu, best, o);
    int j = __shfl_xor_sync(0xffffffffu, at, o);
    if (v > best || (v == best && j < at)) { best = v; at = j; }
  }
  if (!threadIdx.x) y[blockIdx.x] = at;
}
// The sum of all elements, in two launches.
GLOBAL sums_of_blocks(const float *x, float *sums, i64 n) {
  __shared__ float s[256];
  float v = 0;
  for (i64 i = thread(); i < n; i += (i64)gridDim.x * blockDim.x) v += x[i];
  s[threadIdx.x] = v;
  for (int half = 128; half; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) s[threadIdx.x] += s[threadIdx.x + half];
  }
  if (!threadIdx.x) sums[blockIdx.x] = s[0];
}
GLOBAL sum_of_sums(const float *sums, float *y, int blocks) {
  float v = 0;
  for (int i = threadIdx.x; i < blocks; i += 32) v += sums[i];
  v = warp_all(v, add);
  if (!threadIdx.x) *y = v;
}
// One row per warp.
GLOBAL cumsum_i64(const i64 *x, i64 *y, int d) {
  i64 before = 0, row = (i64)blockIdx.x * d;
  for (int first = 0; first < d; first += 32) {
    int j = first + threadIdx.x;
    i64 v = j < d ? x[row + j] : 0;
    for (int o = 1; o < 32; o *= 2) { i64 u = __shfl_up_sync(0xffffffffu, v, o); if (threadIdx.x >= o) v += u; }
    v += before;
    if (j < d) y[row + j] = v;
    before = __shfl_sync(0xffffffffu, v, 31);
  }
}
GLOBAL zeros_i64(i64 *y, i64 n) {
  i64 i = thread();
  if (i < n) y[i] = 0;
}
GLOBAL bincount_i64(const i64 *x, u64 *y, i64 n) {
  i64 i = thread();
  if (i < n) atomicAdd(&y[x[i]], 1ull);
}
// Sorts at most 256 values together with their positions.
GLOBAL sort_f32(const float *x, float *y, i64 *positions, int n) {
  __shared__ float f[256];
  __shared__ int p[256];
  int t = threadIdx.x;
  f[t] = t < n ? x[t] : infinity();
  p[t] = t;
  __syncthreads();
#pragma unroll 1
  for (int k = 2; k <= 256; k *= 2)
#pragma unroll 1
    for (int j = k / 2; j; j /= 2) {
      int o = t ^ j;
      if (o > t) {
        bool after = f[t] > f[o] || (f[t] == f[o] && p[t] > p[o]);
        if (after == !(t & k)) { float v = f[t]; f[t] = f[o]; f[o] = v; int q = p[t]; p[t] = p[o]; p[o] = q; }
      }
      __syncthreads();
    }
  if (t < n) { y[t] = f[t]; positions[t] = p[t]; }
}
GLOBAL gather_f32(const float *x, const i64 *index, float *y, int d, int columns, i64 n) {
  i64 i = thread();
  if (i < n) y[i] = x[i / columns * d + index[i]];
}
GLOBAL tril_f32(const float *x, float *y, int d, i64 n) {
  i64 i = thread();
  if (i < n) y[i] = i % d <= i / d ? x[i] : 0.f;
}
GLOBAL where_f32(const bool *condition, const float *x, const float *y, float *z, i64 n) {
  i64 i = thread();
  if (i < n) z[i] = condition[i] ? x[i] : y[i];
}
GLOBAL flip_rows_f32(const float *x, float *y, int rows, int d) {
  for (int j = threadIdx.x; j < d; j += 32) y[(i64)blockIdx.x * d + j] = x[(i64)(rows - 1 - (int)blockIdx.x) * d + j];
}
GLOBAL bmm_f32(const float *a, const float *b, float *c, int M, int N, int K) {
  __shared__ float A[8][8], B[8][9];
  int tx = threadIdx.x, ty = threadIdx.y, r = blockIdx.y * 8 + ty, q = blockIdx.x * 8 + tx;
  a += (i64)blockIdx.z * M * K, b += (i64)blockIdx.z * K * N, c += (i64)blockIdx.z * M * N;
  float s = 0;
  for (int t = 0; t < K; t += 8) {
    A[ty][tx] = r < M && t + tx < K ? a[r * K + t + tx] : 0.f;
    B[ty][tx] = q < N && t + ty < K ? b[(t + ty) * N + q] : 0.f;
    __syncthreads();
    for (int i = 0; i < 8; i++) s += A[ty][i] * B[i][tx];
    __syncthreads();
  }
  if (r < M && q < N) c[r * N + q] = s;
}
// One image per block in z, one output channel per block in y. The stride is 1.
GLOBAL conv2d_f32(const float *x, const float *w, const float *bias, float *y, int C, int H, int W, int KH, int KW, int pad, int OH, int OW) {
  int i = blockIdx.x * blockDim.x + threadIdx.x, o = blockIdx.y;
  if (i >= OH * OW) return;
  float s = bias ? bias[o] : 0.f;
  for (int c = 0; c < C; c++)
    for (int u = 0; u < KH; u++)
      for (int v = 0; v < KW; v++) {
        int r = i / OW + u - pad, q = i % OW + v - pad;
        if (r >= 0 && r < H && q >= 0 && q < W)
          s += x[(((i64)blockIdx.z * C + c) * H + r) * W + q] * w[((o * C + c) * KH + u) * KW + v];
      }
  y[((i64)blockIdx.z * gridDim.y + o) * OH * OW + i] = s;
}
// The largest of 2 × 2 elements.
GLOBAL max_pool_f32(const float *x, float *y, int H, int W, i64 n) {
  i64 i = thread();
  if (i >= n) return;
  int OH = H / 2, OW = W / 2;
  const float *p = x + (i / (OH * OW) * H + i / OW % OH * 2) * W + i % OW * 2;
  y[i] = fmaxf(fmaxf(p[0], p[1]), fmaxf(p[W], p[W + 1]));
}
// One query per thread; the softmax is computed in one pass. Heads have at most 64 elements.
GLOBAL attention_f32(const float *q, const float *k, const float *v, float *y, int queries, int keys, int d) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= queries) return;
  q += ((i64)blockIdx.y * queries + i) * d, y += ((i64)blockIdx.y * queries + i) * d;
  k += (i64)blockIdx.y * keys * d, v += (i64)blockIdx.y * keys * d;
  float m = -infinity(), sum = 0, out[64];
  for (int e = 0; e < d; e++) out[e] = 0;
  for (int j = 0; j < keys; j++) {
    float s = 0;
    for (int e = 0; e < d; e++) s += q[e] * k[j * d + e];
    s *= rsqrtf((float)d);
    float n = fmaxf(m, s), old = expf(m - n), weight = expf(s - n);
    sum = sum * old + weight;
    for (int e = 0; e < d; e++) out[e] = out[e] * old + weight * v[j * d + e];
    m = n;
  }
  for (int e = 0; e < d; e++) y[e] = out[e] / sum;
}
// Products on tensor cores, of matrices of any size. One warp computes 16 × 8 elements.
__device__ inline unsigned shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ inline void load4(unsigned (&r)[4], const void *p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared(p)) : "memory");
}
__device__ inline void load2(unsigned (&r)[2], const void *p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(shared(p)) : "memory");
}
__device__ inline void load2_transposed(unsigned (&r)[2], const void *p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(shared(p)) : "memory");
}
#define PRODUCTS_ON_TENSOR_CORES(S, T)                                                                             \
  template <bool is_linear> __device__ inline void product(const T *a, const T *b, const T *bias, T *c, int M, int N, int K) { \
    __shared__ __align__(16) T A[16][24], B[16][8], W[8][24];                                                      \
    int lane = threadIdx.x, row = blockIdx.y * 16, column = blockIdx.x * 8;                                        \
    float s[4] = {};                                                                                               \
    for (int k = 0; k < K; k += 16) {                                                                              \
      _Pragma("unroll 1")                                                                                          \
      for (int i = lane; i < 256; i += 32)                                                                         \
        A[i / 16][i % 16] = row + i / 16 < M && k + i % 16 < K ? a[(i64)(row + i / 16) * K + k + i % 16] : T(0.f); \
      _Pragma("unroll 1")                                                                                          \
      for (int i = lane; i < 128; i += 32)                                                                         \
        if (is_linear)                                                                                             \
          W[i / 16][i % 16] = column + i / 16 < N && k + i % 16 < K ? b[(i64)(column + i / 16) * K + k + i % 16] : T(0.f); \
        else                                                                                                       \
          B[i / 8][i % 8] = k + i / 8 < K && column + i % 8 < N ? b[(i64)(k + i / 8) * N + column + i % 8] : T(0.f); \
      __syncwarp();                                                                                                \
      unsigned x[4], y[2];                                                                                         \
      load4(x, &A[lane % 16][lane / 16 * 8]);                                                                      \
      if (is_linear) load2(y, &W[lane % 8][lane / 8 % 2 * 8]);                                                     \
      else load2_transposed(y, &B[lane % 16][0]);                                                                  \
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." #S "." #S ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                   : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])                                                \
                   : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));                            \
      __syncwarp();                                                                                                \
    }                                                                                                              \
    for (int e = 0; e < 4; e++) {                                                                                  \
      int r = row + lane / 4 + e / 2 * 8, q = column + lane % 4 * 2 + e % 2;                                       \
      if (r < M && q < N) store(c + (i64)r * N + q, s[e] + (bias ? load(bias + q) : 0.f));                         \
    }                                                                                                              \
  }                                                                                                                \
  GLOBAL matmul_mma_##S(const T *a, const T *b, T *c, int M, int N, int K) { product<false>(a, b, (const T *)0, c, M, N, K); } \
  GLOBAL linear_mma_##S(const T *x, const T *w, const T *bias, T *y, int M, int N, int K) { product<true>(x, w, bias, y, M, N, K); }
PRODUCTS_ON_TENSOR_CORES(f16, __half)
PRODUCTS_ON_TENSOR_CORES(bf16, __nv_bfloat16)
// c = a × b, for integers from -128 to 127, which are packed into bytes.
GLOBAL matmul_mma_s8(const int *a, const int *b, int *c, int M, int N, int K) {
  int lane = threadIdx.x, g = lane / 4, t = lane % 4, row = blockIdx.y * 16, column = blockIdx.x * 8;
  int s[4] = {};
  for (int k = 0; k < K; k += 32) {
    unsigned x[4] = {}, y[2] = {};
    for (int i = 0; i < 4; i++)
      for (int j = 0; j < 4; j++) {
        int r = row + g + i % 2 * 8, q = k + t * 4 + i / 2 * 16 + j;
        if (r < M && q < K) x[i] |= (a[(i64)r * K + q] & 255u) << 8 * j;
      }
    for (int i = 0; i < 2; i++)
      for (int j = 0; j < 4; j++) {
        int r = k + t * 4 + i * 16 + j, q = column + g;
        if (r < K && q < N) y[i] |= (b[(i64)r * N + q] & 255u) << 8 * j;
      }
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(s[0]), "+r"(s[1]), "+r"(s[2]), "+r"(s[3])
                 : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
  }
  for (int e = 0; e < 4; e++) {
    int r = row + g + e / 2 * 8, q = column + t * 2 + e % 2;
    if (r < M && q < N) c[(i64)r * N + q] = s[e];
  }
}

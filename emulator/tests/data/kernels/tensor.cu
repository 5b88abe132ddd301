// Products of matrices on tensor cores. Tiles are copied to shared memory in the background.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
__device__ inline unsigned shared(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
// Copies 16 bytes, or writes zeros.
__device__ inline void copy16(void *to, const void *from, bool inside) {
  int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void copy4(void *to, const void *from, bool inside) {
  int bytes = inside ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ inline void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ inline void wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
__device__ inline void load4(unsigned (&r)[4], const void *p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared(p)) : "memory");
}
__device__ inline void load4_transposed(unsigned (&r)[4], const void *p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared(p)) : "memory");
}
__device__ inline void load2(unsigned (&r)[2], const void *p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(shared(p)) : "memory");
}
#define MULTIPLY(NAME, SHAPE)                                                                                  \
  __device__ inline void NAME(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {               \
    asm volatile("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"  \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                              \
  }
MULTIPLY(multiply_f16, "m16n8k16.row.col.f32.f16.f16.f32")
MULTIPLY(multiply_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
MULTIPLY(multiply_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")

// c = a × b. A block of four warps computes 64 × 64 elements, in two stages of 32 columns of `a`.
// N and K must be multiples of 8.
extern "C" __global__ void gemm_f16(const __half *a, const __half *b, float *c, int M, int N, int K) {
  __shared__ __align__(16) __half A[2][64][40], B[2][32][72];
  int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  int row = blockIdx.y * 64, column = blockIdx.x * 64;
  float sums[2][4][4] = {};
  auto fetch = [&](int stage, int k) {
    for (int i = thread; i < 256; i += 128) {
      int r = i / 4, q = i % 4 * 8;
      copy16(&A[stage][r][q], a + (size_t)(row + r) * K + k + q, row + r < M && k + q < K);
      r = i / 8, q = i % 8 * 8;
      copy16(&B[stage][r][q], b + (size_t)(k + r) * N + column + q, k + r < K && column + q < N);
    }
    commit();
  };
  fetch(0, 0);
  for (int k = 0, stage = 0; k < K; k += 32, stage ^= 1) {
    fetch(stage ^ 1, k + 32);
    wait<1>();
    __syncthreads();
    for (int depth = 0; depth < 32; depth += 16) {
      unsigned x[2][4], y[2][4];
      for (int i = 0; i < 2; i++) load4(x[i], &A[stage][warp / 2 * 32 + i * 16 + lane % 16][depth + lane / 16 * 8]);
      for (int j = 0; j < 2; j++)
        load4_transposed(y[j], &B[stage][depth + lane % 16][warp % 2 * 32 + j * 16 + lane / 16 * 8]);
      for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) multiply_f16(sums[i][j], x[i], y[j / 2][j % 2 * 2], y[j / 2][j % 2 * 2 + 1]);
    }
    __syncthreads();
  }
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 4; j++)
      for (int e = 0; e < 4; e++) {
        int r = row + warp / 2 * 32 + i * 16 + lane / 4 + e / 2 * 8;
        int q = column + warp % 2 * 32 + j * 8 + lane % 4 * 2 + e % 2;
        if (r < M && q < N) c[(size_t)r * N + q] = sums[i][j][e];
      }
}
// y = x × transposed(w). One warp computes 16 × 8 elements. K must be a multiple of 8.
extern "C" __global__ void linear_bf16(const __nv_bfloat16 *x, const __nv_bfloat16 *w, __nv_bfloat16 *y, int M, int N, int K) {
  __shared__ __align__(16) __nv_bfloat16 X[16][24], W[8][24];
  int lane = threadIdx.x, row = blockIdx.y * 16, column = blockIdx.x * 8;
  float sums[4] = {};
  for (int k = 0; k < K; k += 16) {
    int r = lane / 2, q = lane % 2 * 8;
    copy16(&X[r][q], x + (size_t)(row + r) * K + k + q, row + r < M && k + q < K);
    if (lane < 16) copy16(&W[r][q], w + (size_t)(column + r) * K + k + q, column + r < N && k + q < K);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
    unsigned a[4], b[2];
    load4(a, &X[lane % 16][lane / 16 * 8]);
    load2(b, &W[lane % 8][lane / 8 % 2 * 8]);
    multiply_bf16(sums, a, b[0], b[1]);
    __syncwarp();
  }
  for (int e = 0; e < 4; e++) {
    int r = row + lane / 4 + e / 2 * 8, q = column + lane % 4 * 2 + e % 2;
    if (r < M && q < N) y[(size_t)r * N + q] = __float2bfloat16(sums[e]);
  }
}
__device__ inline unsigned tf32(float v) {
  unsigned r;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
  return r;
}
// c = a × b. One warp computes 16 × 8 elements.
extern "C" __global__ void gemm_tf32(const float *a, const float *b, float *c, int M, int N, int K) {
  __shared__ float A[16][9], B[8][9];
  int lane = threadIdx.x, row = blockIdx.y * 16, column = blockIdx.x * 8;
  float sums[4] = {};
  for (int k = 0; k < K; k += 8) {
    for (int i = lane; i < 128; i += 32)
      copy4(&A[i / 8][i % 8], a + (size_t)(row + i / 8) * K + k + i % 8, row + i / 8 < M && k + i % 8 < K);
    for (int i = lane; i < 64; i += 32)
      copy4(&B[i / 8][i % 8], b + (size_t)(k + i / 8) * N + column + i % 8, k + i / 8 < K && column + i % 8 < N);
    commit();
    wait<0>();
    __syncwarp();
    int g = lane / 4, t = lane % 4;
    unsigned x[4] = {tf32(A[g][t]), tf32(A[g + 8][t]), tf32(A[g][t + 4]), tf32(A[g + 8][t + 4])};
    multiply_tf32(sums, x, tf32(B[t][g]), tf32(B[t + 4][g]));
    __syncwarp();
  }
  for (int e = 0; e < 4; e++) {
    int r = row + lane / 4 + e / 2 * 8, q = column + lane % 4 * 2 + e % 2;
    if (r < M && q < N) c[(size_t)r * N + q] = sums[e];
  }
}
// y = x × transposed(w), for integers. One warp computes 16 × 8 elements. K must be a multiple of 32.
extern "C" __global__ void linear_s8(const signed char *x, const signed char *w, int *y, int M, int N, int K) {
  int lane = threadIdx.x, g = lane / 4, t = lane % 4, row = blockIdx.y * 16, column = blockIdx.x * 8;
  int sums[4] = {};
  auto four = [&](const signed char *p, int r, int rows, int k) {
    return r < rows ? *(const unsigned *)(p + (size_t)r * K + k) : 0u;
  };
  for (int k = 0; k < K; k += 32) {
    unsigned a[4], b[2];
    for (int i = 0; i < 4; i++) a[i] = four(x, row + g + i % 2 * 8, M, k + t * 4 + i / 2 * 16);
    for (int i = 0; i < 2; i++) b[i] = four(w, column + g, N, k + t * 4 + i * 16);
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
  for (int e = 0; e < 4; e++) {
    int r = row + g + e / 2 * 8, q = column + t * 2 + e % 2;
    if (r < M && q < N) y[(size_t)r * N + q] = sums[e];
  }
}

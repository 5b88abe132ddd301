// Products of matrices with `nvcuda::wmma`.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;

// c = a × b, one warp for each 16 × 16 elements, straight from global memory. Sizes are multiples of 16.
extern "C" __global__ void gemm_plain(const __half *a, const __half *b, float *c, int M, int N, int K) {
  int row = blockIdx.y * 16, column = blockIdx.x * 16;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> x;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> y;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (int k = 0; k < K; k += 16) {
    wmma::load_matrix_sync(x, a + row * K + k, K);
    wmma::load_matrix_sync(y, b + k * N + column, N);
    wmma::mma_sync(sum, x, y, sum);
  }
  wmma::store_matrix_sync(c + row * N + column, sum, N, wmma::mem_row_major);
}

// y = relu(alpha x wᵀ + y), in tiles of 64 × 64 that four warps compute from shared memory. The rows are padded. The
// edges of the result go through shared memory.
extern "C" __global__ void linear_tiled(const __half *x, const __half *w, float *y, int M, int N, int K) {
  __shared__ __align__(32) __half X[64][40], W[64][40];
  __shared__ __align__(32) float edge[4][16][20];
  int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = blockIdx.y * 64, column = blockIdx.x * 64;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[4];
  for (auto &sum : sums) wmma::fill_fragment(sum, 0.0f);
  for (int k = 0; k < K; k += 32) {
    for (int i = threadIdx.x; i < 64 * 32; i += 128) {
      int r = i / 32, q = i % 32;
      X[r][q] = row + r < M && k + q < K ? x[(row + r) * K + k + q] : __half(0.0f);
      W[r][q] = column + r < N && k + q < K ? w[(column + r) * K + k + q] : __half(0.0f);
    }
    __syncthreads();
    for (int depth = 0; depth < 32; depth += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
      wmma::load_matrix_sync(a, &X[warp * 16][depth], 40);
      for (int i = 0; i < 4; i++) {
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
        wmma::load_matrix_sync(b, &W[i * 16][depth], 40);
        wmma::mma_sync(sums[i], a, b, sums[i]);
      }
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; i++) {
    for (int e = 0; e < sums[i].num_elements; e++) sums[i].x[e] *= 0.5f;
    wmma::store_matrix_sync(&edge[warp][0][0], sums[i], 20, wmma::mem_row_major);
    __syncwarp();
    for (int e = lane; e < 256; e += 32) {
      int r = row + warp * 16 + e / 16, q = column + i * 16 + e % 16;
      if (r < M && q < N) y[r * N + q] = fmaxf(edge[warp][e / 16][e % 16] + y[r * N + q], 0.0f);
    }
    __syncwarp();
  }
}

// c = a × b with the other shapes and types. `b` and `c` are stored by columns.
template <bool, class T> struct choice { using type = T; };
template <class T> struct choice<true, T> { using type = wmma::precision::tf32; };
template <int M, int N, int K, class T, class S>
__device__ inline void by_columns(const T *a, const T *b, S *c, int m, int n, int k) {
  using element = typename choice<K == 8, T>::type;
  int row = blockIdx.y * M, column = blockIdx.x * N;
  wmma::fragment<wmma::matrix_a, M, N, K, element, wmma::row_major> x;
  wmma::fragment<wmma::matrix_b, M, N, K, element, wmma::col_major> y;
  wmma::fragment<wmma::accumulator, M, N, K, S> sum;
  wmma::fill_fragment(sum, S(0));
  for (int i = 0; i < k; i += K) {
    wmma::load_matrix_sync(x, a + row * k + i, k);
    wmma::load_matrix_sync(y, b + column * k + i, k);
    if constexpr (K == 8) {
      for (int e = 0; e < x.num_elements; e++) x.x[e] = wmma::__float_to_tf32(x.x[e]);
      for (int e = 0; e < y.num_elements; e++) y.x[e] = wmma::__float_to_tf32(y.x[e]);
    }
    wmma::mma_sync(sum, x, y, sum);
  }
  wmma::store_matrix_sync(c + column * m + row, sum, m, wmma::mem_col_major);
}
#define PRODUCT(NAME, M, N, K, T, S)                                                                     \
  extern "C" __global__ void NAME(const T *a, const T *b, S *c, int m, int n, int k) {                   \
    by_columns<M, N, K, T, S>(a, b, c, m, n, k);                                                         \
  }
PRODUCT(by_columns_half, 16, 16, 16, __half, __half)
PRODUCT(by_columns_tall_half, 32, 8, 16, __half, float)
PRODUCT(by_columns_wide_bf16, 8, 32, 16, __nv_bfloat16, float)
PRODUCT(by_columns_tf32, 16, 16, 8, float, float)
PRODUCT(by_columns_tall_s8, 32, 8, 16, signed char, int)
PRODUCT(by_columns_wide_u8, 8, 32, 16, unsigned char, int)

// The warps store their halves of a tile, and each loads the other's without a barrier.
extern "C" __global__ void loads_without_a_barrier(const __half *a, __half *c) {
  __shared__ __align__(32) __half tile[2][16][16];
  int warp = threadIdx.x / 32;
  wmma::fragment<wmma::accumulator, 16, 16, 16, __half> sum;
  wmma::load_matrix_sync(sum, a + warp * 256, 16, wmma::mem_row_major);
  wmma::store_matrix_sync(&tile[warp][0][0], sum, 16, wmma::mem_row_major);
  wmma::load_matrix_sync(sum, &tile[1 - warp][0][0], 16, wmma::mem_row_major);
  wmma::store_matrix_sync(c + warp * 256, sum, 16, wmma::mem_row_major);
}

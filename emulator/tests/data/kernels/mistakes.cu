// Kernels with one mistake each. A comment marks the line of the mistake.
typedef long long i64;
#define GLOBAL extern "C" __global__ void
GLOBAL one_past_the_end(float *y, int n) {
  int i = threadIdx.x;
  if (i <= n) y[i] = i; // mistake: one_past_the_end
}
GLOBAL missing_guard(const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  y[i] = x[i] * 2; // mistake: missing_guard
}
GLOBAL before_the_start(const float *x, float *y, int n) {
  int i = threadIdx.x;
  if (i < n) y[i] = x[i - 1]; // mistake: before_the_start
}
GLOBAL wrong_stride(const float *x, float *y, int n) {
  int i = threadIdx.x;
  if (i < n) y[i] = x[i * 2]; // mistake: wrong_stride
}
GLOBAL swapped_axes(const float *x, float *y, int rows, int columns) {
  int r = blockIdx.x, c = threadIdx.x;
  if (r < rows && c < columns) y[c * rows + r] = x[r * rows + c + rows * rows]; // mistake: swapped_axes
}
GLOBAL misaligned_vector(const float *x, float *y, int n) {
  float4 v = *(const float4 *)(x + threadIdx.x * 4 + 1); // mistake: misaligned_vector
  y[threadIdx.x] = v.x + v.y + v.z + v.w;
}
GLOBAL misaligned_store(char *y) {
  *(int *)(y + threadIdx.x * 6) = 1; // mistake: misaligned_store
}
GLOBAL vector_past_the_end(const float *x, float *y, int n) {
  ((float4 *)y)[threadIdx.x % 4] = ((const float4 *)x)[threadIdx.x]; // mistake: vector_past_the_end
}
GLOBAL uninitialised_shared(float *y) {
  __shared__ float s[64];
  if (threadIdx.x < 32) s[threadIdx.x] = 1;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x]; // mistake: uninitialised_shared
}
GLOBAL missing_barrier(float *y) {
  __shared__ float s[128];
  s[threadIdx.x] = threadIdx.x; // mistake: missing_barrier
  y[threadIdx.x] = s[127 - threadIdx.x];
}
GLOBAL shared_past_the_end(float *y) {
  __shared__ float s[64];
  s[threadIdx.x + 1] = 1; // mistake: shared_past_the_end
  y[threadIdx.x] = s[threadIdx.x + 1];
}
GLOBAL too_little_dynamic_shared(float *y) {
  extern __shared__ float d[];
  d[threadIdx.x] = 1; // mistake: too_little_dynamic_shared
  y[threadIdx.x] = d[threadIdx.x];
}
GLOBAL null_pointer(const float *x, float *y) {
  y[threadIdx.x] = x[threadIdx.x]; // mistake: null_pointer
}
GLOBAL host_pointer(float *y) {
  y[threadIdx.x] = 1; // mistake: host_pointer
}
GLOBAL used_after_free(const float *x, float *y) {
  y[threadIdx.x] = x[threadIdx.x]; // mistake: used_after_free
}
GLOBAL index_from_data(const i64 *index, const float *w, float *y) {
  y[threadIdx.x] = w[index[threadIdx.x]]; // mistake: index_from_data
}
GLOBAL index_overflows(const float *x, float *y, int n) {
  int i = n * 70000;
  y[threadIdx.x] = x[i]; // mistake: index_overflows
}
GLOBAL atomic_past_the_end(int *h, const int *x) {
  atomicAdd(&h[x[threadIdx.x]], 1); // mistake: atomic_past_the_end
}
GLOBAL local_past_the_end(const int *k, int *y) {
  int a[4] = {k[0], k[1], k[2], k[3]};
  a[k[threadIdx.x] & 31] = 7; // mistake: local_past_the_end
  y[threadIdx.x] = a[0] + a[k[1] & 3];
}
GLOBAL divergent_barriers(float *y) {
  __shared__ float s[64];
  if (threadIdx.x % 2) { s[threadIdx.x] = 1; asm volatile("bar.sync 0;" ::: "memory"); s[threadIdx.x] += y[1]; }
  else { s[threadIdx.x] = 2; asm volatile("bar.sync 0;" ::: "memory"); s[threadIdx.x] *= y[2]; } // mistake: divergent_barriers
  y[threadIdx.x] = s[threadIdx.x];
}
GLOBAL barrier_that_nobody_reaches(float *y) {
  if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;" ::: "memory"); // mistake: barrier_that_nobody_reaches
  y[threadIdx.x] = 1;
}
GLOBAL endless(volatile int *flag) {
  while (*flag == 0) {} // mistake: endless
}
GLOBAL traps(int *y) {
  if (y[threadIdx.x] > 5) __trap(); // mistake: traps
  y[threadIdx.x] = 1;
}
extern "C" __device__ void __assertfail(const char *, const char *, unsigned, const char *, size_t) __attribute__((noreturn));
GLOBAL asserts(const int *x) {
  if (x[threadIdx.x] != 1) __assertfail("x[i] == 1", "mistakes.cu", 99, "asserts", 1); // mistake: asserts
}
__constant__ int table[4] = {1, 2, 3, 4};
GLOBAL constant_past_the_end(int *y) {
  y[threadIdx.x] = table[threadIdx.x]; // mistake: constant_past_the_end
}
GLOBAL shuffle_of_the_missing(int *y) {
  int v = threadIdx.x;
  if (v < 16) { v = __shfl_xor_sync(0xffffffffu, v, 1); y[v] = v; } // mistake: shuffle_of_the_missing
  else { asm volatile("bar.sync 2, 64;" ::: "memory"); y[v] = 0; }
}
__device__ void copy_word(int *to, const int *from) {
  unsigned at = (unsigned)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(from) : "memory");
}
#define COMMIT asm volatile("cp.async.commit_group;" ::: "memory")
GLOBAL copy_not_awaited(const int *x, int *y) {
  __shared__ int s[64];
  copy_word(&s[threadIdx.x], x + threadIdx.x);
  COMMIT;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x ^ 1]; // mistake: copy_not_awaited
}
GLOBAL copy_awaited_too_loosely(const int *x, int *y) {
  __shared__ int s[2][32];
  copy_word(&s[0][threadIdx.x], x + threadIdx.x);
  COMMIT;
  copy_word(&s[1][threadIdx.x], x + 32 + threadIdx.x);
  COMMIT;
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  __syncthreads();
  int first = s[0][threadIdx.x];
  y[threadIdx.x] = first + s[1][31 - threadIdx.x]; // mistake: copy_awaited_too_loosely
}
GLOBAL copy_from_past_the_end(const int *x, int *y) {
  __shared__ int s[96];
  unsigned at = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x]);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(at), "l"(x + threadIdx.x) : "memory"); // mistake: copy_from_past_the_end
  asm volatile("cp.async.wait_all;" ::: "memory");
  y[threadIdx.x % 64] = s[threadIdx.x];
}
GLOBAL product_of_half_a_warp(int *y) {
  int a = threadIdx.x, d[4];
  if (threadIdx.x < 16) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %4}, {%4}, {%4, %4, %4, %4};" : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a)); // mistake: product_of_half_a_warp
    y[threadIdx.x] = d[0];
  }
}
GLOBAL misaligned_fragment(int *y) {
  __shared__ __align__(16) int s[64];
  s[threadIdx.x] = s[threadIdx.x + 32] = 1;
  __syncwarp();
  unsigned at = (unsigned)__cvta_generic_to_shared(&s[threadIdx.x % 8]), r;
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(at) : "memory"); // mistake: misaligned_fragment
  y[threadIdx.x] = r;
}

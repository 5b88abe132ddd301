// Histograms, sorting, compaction, locks, calls, printing.
extern "C" __device__ int printf(const char *, ...);
typedef unsigned u32;
typedef unsigned long long u64;
extern "C" __global__ void histogram_i32(const int *x, int *h, int n, int bins) {
  extern __shared__ int s[];
  for (int i = threadIdx.x; i < bins; i += blockDim.x) s[i] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&s[x[i] % bins], 1);
  __syncthreads();
  for (int i = threadIdx.x; i < bins; i += blockDim.x) atomicAdd(&h[i], s[i]);
}
extern "C" __global__ void bitonic_sort_f32(const float *x, float *y, int n) {
  extern __shared__ float f[];
  int t = threadIdx.x;
  f[t] = t < n ? x[t] : __int_as_float(0x7f800000);
  __syncthreads();
  for (u32 k = 2; k <= blockDim.x; k *= 2)
    for (u32 j = k / 2; j; j /= 2) {
      u32 o = t ^ j;
      if (o > t && (f[t] > f[o]) == !(t & k)) { float v = f[t]; f[t] = f[o]; f[o] = v; }
      __syncthreads();
    }
  if (t < n) y[t] = f[t];
}
// Compaction: copies the positive values in order.
extern "C" __global__ void compact_i32(const int *x, int *y, int *count, int n) {
  int i = threadIdx.x, l = i & 31;
  __shared__ int sums[33];
  bool keep = i < n && x[i] > 0;
  u32 votes = __ballot_sync(0xffffffffu, keep);
  if (!l) sums[1 + i / 32] = __popc(votes);
  if (!i) sums[0] = 0;
  __syncthreads();
  if (!i) for (int w = 1; w <= blockDim.x / 32; w++) sums[w] += sums[w - 1];
  __syncthreads();
  if (keep) y[sums[i / 32] + __popc(votes & ((1u << l) - 1))] = x[i];
  if (!i) *count = sums[blockDim.x / 32];
}
// Lanes of one warp compete for a lock.
extern "C" __global__ void locked_i32(int *lock, int *value) {
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      *(volatile int *)value += 1;
      __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}
extern "C" __global__ void atomics_u32(u32 *y) {
  u32 t = blockIdx.x * blockDim.x + threadIdx.x;
  atomicMin(&y[0], t + 5);
  atomicMax(&y[1], t);
  atomicAnd(&y[2], ~(1u << (t & 31)));
  atomicOr(&y[3], 1u << (t & 15));
  atomicXor(&y[4], t);
  atomicInc(&y[5], 9);
  atomicDec(&y[6], 6);
  atomicMax((int *)&y[7], -(int)t);
  atomicAdd((u64 *)&y[8], 0x100000001ull);
  atomicMin((long long *)&y[10], -(long long)t);
}
// A switch, an array in local memory, and a function that is called.
__device__ __noinline__ float polynomial(const float *c, int n, float x) {
  float s = 0;
  for (int i = n - 1; i >= 0; i--) s = s * x + c[i];
  return s;
}
extern "C" __global__ void calls_f32(const int *k, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  float c[8];
  for (int j = 0; j < 8; j++) c[(j * 3 + k[i]) & 7] = j + 1;
  float v = x[i];
  switch (k[i]) {
    case 0: v = polynomial(c, 4, v); break;
    case 1: v = -v; break;
    case 2: v = v * v; break;
    case 3: v = polynomial(c, 8, -v); break;
    case 4: v = v + 7; break;
    case 5: v = 1 / v; break;
    case 6: v = v - 3; break;
    default: v = 42;
  }
  y[i] = v;
}
struct Settings { float scale; int shift; double offset; short table[6]; };
extern "C" __global__ void by_value_f32(const float *x, float *y, Settings s) {
  int i = threadIdx.x;
  y[i] = x[i] * s.scale + s.shift + (float)s.offset + s.table[i % 6];
}
extern "C" __global__ void prints(int n, float x) {
  if (threadIdx.x < 2) printf("thread %d of %u: %5.2f %s %lld%%\n", threadIdx.x, n, x * threadIdx.x, "done", -5000000000ll);
}
__device__ int total = 3;
__device__ int *where = &total;
extern "C" __global__ void globals_i32(int *y) { y[0] = *where + 1; *where = 9; y[1] = total; }
// Compares the results of warp functions with values computed lane by lane.
extern "C" __global__ void warp_functions(u32 *y) {
  u32 t = threadIdx.x, full = 0xffffffffu;
  u32 a = __shfl_sync(full, t * 3, (t + 5) & 31), b = __shfl_down_sync(full, t, 3, 8), c = __shfl_up_sync(full, t, 2, 16);
  u32 m = __match_any_sync(full, t % 5), r = __reduce_add_sync(full, t), x = __reduce_max_sync(full, t ^ 21);
  u32 v = __any_sync(full, t == 7) + 2 * __all_sync(full, t < 32) + 4 * __all_sync(full, t < 31);
  if (t < 10) v += 8 * (__activemask() == 0x3ff);
  y[t * 7] = a; y[t * 7 + 1] = b; y[t * 7 + 2] = c; y[t * 7 + 3] = m; y[t * 7 + 4] = r; y[t * 7 + 5] = x; y[t * 7 + 6] = v;
}
// Producers and consumers wait at a named barrier.
extern "C" __global__ void named_barriers(int *y) {
  __shared__ int s[64];
  int t = threadIdx.x;
  if (t < 64) { s[t] = t * t; asm volatile("bar.arrive 1, 128;" ::: "memory"); }
  else { asm volatile("bar.sync 1, 128;" ::: "memory"); y[t - 64] = s[127 - t]; }
  int c = __syncthreads_count(t & 1), a = __syncthreads_and(t < 128), o = __syncthreads_or(t == 300);
  if (!t) { y[64] = c; y[65] = a; y[66] = o; }
}
// Sum, difference and product of two 128-bit numbers, with carries.
extern "C" __global__ void wide_i128(const u64 *x, u64 *y) {
  unsigned __int128 a = (unsigned __int128)x[1] << 64 | x[0], b = (unsigned __int128)x[3] << 64 | x[2];
  unsigned __int128 s = a + b, d = a - b, p = a * b;
  y[0] = (u64)s; y[1] = (u64)(s >> 64); y[2] = (u64)d; y[3] = (u64)(d >> 64); y[4] = (u64)p; y[5] = (u64)(p >> 64);
}

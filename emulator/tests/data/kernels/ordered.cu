// Kernels whose threads share memory in unusual but correct ways. They must not be reported as races.
#define GLOBAL extern "C" __global__ void
#define T int t = threadIdx.x
#define FENCE asm volatile("membar.cta;" ::: "memory")
__device__ unsigned place(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void copy_word(int *to, const int *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place(to)), "l"(from) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
}
GLOBAL producer_and_consumer(const int *x, int *y) {
  T; __shared__ int s[32];
  for (int i = 0; i < 3; i++) {
    if (t < 32) {
      if (i) asm volatile("bar.sync 2, 64;" ::: "memory");
      s[t] = x[32 * i + t];
      asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 64;" ::: "memory");
      y[32 * i + t - 32] = s[63 - t];
      if (i < 2) asm volatile("bar.arrive 2, 64;" ::: "memory");
    }
  }
}
GLOBAL flag_with_fences(const int *x, int *y) {
  T; __shared__ int data; __shared__ int flag;
  if (!t) flag = 0;
  __syncthreads();
  if (!t) { data = x[5]; FENCE; *(volatile int *)&flag = 1; }
  if (t == 32) { while (*(volatile int *)&flag == 0) {} FENCE; *y = data; }
}
GLOBAL release_and_acquire(const int *x, int *y) {
  T; __shared__ int data; __shared__ int flag;
  if (!t) flag = 0;
  __syncthreads();
  if (t == 40) {
    data = x[5];
    asm volatile("st.release.cta.shared.u32 [%0], 1;" ::"r"(place(&flag)) : "memory");
  }
  if (!t) {
    int v;
    do asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(place(&flag)) : "memory"); while (!v);
    *y = data;
  }
}
GLOBAL last_to_arrive_adds_up(const int *x, int *y) {
  T; __shared__ int s[64]; __shared__ int count;
  if (!t) count = 0;
  __syncthreads();
  s[t] = x[t];
  FENCE;
  if (atomicAdd(&count, 1) == 63) {
    FENCE;
    int sum = 0;
    for (int i = 0; i < 64; i++) sum += s[i];
    *y = sum;
  }
}
GLOBAL lock_with_fences(const int *x, int *y) {
  T; __shared__ int lock; __shared__ int sum;
  if (!t) lock = sum = 0;
  __syncthreads();
  if (t % 32 == 0) {
    while (atomicCAS(&lock, 0, 1) != 0) {}
    FENCE;
    sum += x[t] + 1;
    FENCE;
    atomicExch(&lock, 0);
  }
  __syncthreads();
  if (!t) *y = sum;
}
GLOBAL halves_of_a_warp(const int *x, int *y) {
  T; __shared__ int s[32];
  unsigned half = t < 16 ? 0xffffu : 0xffff0000u;
  s[t] = x[t];
  for (int k = 8; k; k /= 2) {
    __syncwarp(half);
    int v = s[t ^ k];
    __syncwarp(half);
    s[t] += v;
  }
  y[t] = s[t];
}
GLOBAL neighbours_in_a_word(const int *x, int *y) {
  T; __shared__ int s[16];
  ((char *)s)[t] = x[t];
  char own = ((char *)s)[t];
  ((char *)s)[t] = own + 1;
  __syncthreads();
  if (t < 16) y[t] = s[t];
}
GLOBAL all_write_the_same(const int *x, int *y) {
  T; __shared__ int any;
  if (!t) any = 0;
  __syncthreads();
  if (x[t] > 3) any = 1;
  __syncthreads();
  y[t] = any;
}
GLOBAL copies_in_two_buffers(const int *x, int *y) {
  T; __shared__ int s[2][64];
  int sum = 0;
  copy_word(&s[0][t], x + t);
  for (int tile = 0; tile < 4; tile++) {
    if (tile < 3) copy_word(&s[(tile + 1) & 1][t], x + 64 * (tile + 1) + t);
    else asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    __syncthreads();
    sum += s[tile & 1][63 - t];
    __syncthreads();
  }
  y[t] = sum;
}
GLOBAL barrier_that_counts(const int *x, int *y) {
  T; __shared__ int s[64];
  s[t] = x[t];
  int count = __syncthreads_count(x[t] > 5);
  int other = s[t ^ 32];
  if (__syncthreads_or(other > 100)) count++;
  s[t] = count + other;
  y[t] = s[t];
}
GLOBAL some_threads_end_early(const int *x, int *y) {
  T; __shared__ int s[64];
  s[t] = x[t];
  if (t >= 40) return;
  __syncthreads();
  y[t] = s[63 - t];
}
GLOBAL barriers_chained(const int *x, int *y) {
  T; __shared__ int s[96];
  s[t] = x[t];
  // The first warp is ordered before the second, and the second before the third.
  if (t < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
  if (t >= 32) asm volatile("bar.sync 2, 64;" ::: "memory");
  if (t >= 64) y[t] = s[t - 64] + s[t - 32];
  if (t < 32) y[t] = s[t + 32];
}

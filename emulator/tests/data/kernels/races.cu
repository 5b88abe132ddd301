// Kernels with one race in shared memory each. Comments mark the lines of the earlier and of the later access in the
// order in which the emulated device runs threads.
#define GLOBAL extern "C" __global__ void
#define T int t = threadIdx.x
#define FENCE asm volatile("membar.cta;" ::: "memory")
__device__ unsigned place(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void copy_word(int *to, const int *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(place(to)), "l"(from) : "memory");
}
__device__ void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

GLOBAL no_barrier_after_store(const int *x, int *y) {
  T; __shared__ int s[64];
  s[t] = x[t]; // second: no_barrier_after_store
  y[t] = s[63 - t]; // first: no_barrier_after_store
}
GLOBAL no_barrier_before_the_next_tile(const int *x, int *y) {
  T; __shared__ int s[64];
  int sum = 0;
  for (int tile = 0; tile < 3; tile++) {
    s[t] = x[64 * tile + t]; // second: no_barrier_before_the_next_tile
    __syncthreads();
    for (int i = 0; i < 64; i++) sum += s[i ^ t]; // first: no_barrier_before_the_next_tile
  }
  y[t] = sum;
}
GLOBAL tree_without_barriers(const int *x, int *y) {
  T; __shared__ int s[64];
  s[t] = x[t];
  __syncthreads();
  for (int k = 32; k; k /= 2)
    if (t < k)
      s[t] += s[t + k]; // both: tree_without_barriers
  if (!t) *y = s[0];
}
GLOBAL last_warp_without_syncwarp(const int *x, int *y) {
  T; __shared__ int s[64];
  s[t] = x[t];
  __syncthreads();
  if (t < 32) {
    int v = s[t] + s[t + 32];
    s[t] = v; // first: last_warp_without_syncwarp
    if (t < 16) s[t] = v + s[t + 16]; // second: last_warp_without_syncwarp
  }
  __syncthreads();
  if (!t) *y = s[0];
}
GLOBAL volatile_warp_tree(const int *x, int *y) {
  T; __shared__ int s[64];
  volatile int *v = s;
  s[t] = x[t];
  __syncthreads();
  if (t < 32) {
    v[t] += v[t + 32]; // first: volatile_warp_tree
    v[t] += v[t + 16]; // second: volatile_warp_tree
    v[t] += v[t + 8];
  }
  if (!t) *y = v[0];
}
GLOBAL syncwarp_between_warps(const int *x, int *y) {
  T; __shared__ int s[64];
  s[t] = x[t]; // second: syncwarp_between_warps
  __syncwarp();
  y[t] = s[t ^ 32]; // first: syncwarp_between_warps
}
GLOBAL fence_instead_of_barrier(const int *x, int *y) {
  T; __shared__ int s[64];
  s[t] = x[t]; // first: fence_instead_of_barrier
  FENCE;
  y[t] = s[t ^ 1]; // second: fence_instead_of_barrier
}
GLOBAL shuffle_instead_of_barrier(const int *x, int *y) {
  T; __shared__ int s[32];
  s[t] = x[t]; // first: shuffle_instead_of_barrier
  int other = __shfl_xor_sync(0xffffffffu, t, 1);
  y[t] = s[other]; // second: shuffle_instead_of_barrier
}
GLOBAL vote_instead_of_barrier(const int *x, int *y) {
  T; __shared__ int s[32];
  s[t] = x[t]; // first: vote_instead_of_barrier
  if (__any_sync(0xffffffffu, x[t] >= 0)) y[t] = s[31 - t]; // second: vote_instead_of_barrier
}
GLOBAL syncwarp_of_half_a_warp(const int *x, int *y) {
  T; __shared__ int s[32];
  s[t] = x[t]; // first: syncwarp_of_half_a_warp
  __syncwarp(t < 16 ? 0xffffu : 0xffff0000u);
  y[t] = s[t ^ 16]; // second: syncwarp_of_half_a_warp
}
GLOBAL named_barriers_of_other_warps(const int *x, int *y) {
  T; __shared__ int s[128];
  s[t] = x[t]; // first: named_barriers_of_other_warps
  asm volatile("bar.sync %0, 64;" ::"r"(1 + t / 64) : "memory");
  y[t] = s[127 - t]; // second: named_barriers_of_other_warps
}
GLOBAL producer_does_not_wait(const int *x, int *y) {
  T; __shared__ int s[32];
  if (t < 32) {
    s[t] = x[t];
    asm volatile("bar.arrive 1, 64;" ::: "memory");
    s[t] = x[32 + t]; // first: producer_does_not_wait
  } else {
    asm volatile("bar.sync 1, 64;" ::: "memory");
    y[t] = s[t ^ 33]; // second: producer_does_not_wait
  }
}
GLOBAL consumer_only_arrives(const int *x, int *y) {
  T; __shared__ int s[32];
  if (t < 32) {
    s[t] = x[t]; // first: consumer_only_arrives
    asm volatile("bar.sync 1, 64;" ::: "memory");
  } else {
    asm volatile("bar.arrive 1, 64;" ::: "memory");
    y[t] = s[t - 32]; // second: consumer_only_arrives
  }
}
GLOBAL counted_before_zeroed(const int *x, int *y) {
  T; __shared__ int s[64];
  s[t] = 0; // first: counted_before_zeroed
  atomicAdd(&s[(x[t] + 3) % 64], 1); // second: counted_before_zeroed
  __syncthreads();
  y[t] = s[t];
}
GLOBAL read_before_counted(const int *x, int *y) {
  T; __shared__ int s[64];
  s[t] = 0;
  __syncthreads();
  atomicAdd(&s[x[t] % 16], 1); // first: read_before_counted
  y[t] = s[t % 16]; // second: read_before_counted
}
GLOBAL counted_without_atomics(const int *x, int *y) {
  T; __shared__ int s[16];
  if (t < 16) s[t] = 0;
  __syncthreads();
  s[x[t] % 16] += 1; // both: counted_without_atomics
  __syncthreads();
  y[t] = s[t % 16];
}
GLOBAL zeroed_while_counted(const int *x, int *y) {
  T; __shared__ int s[64];
  s[t] = 7;
  __syncthreads();
  atomicMax(&s[x[t] % 16], t + 8); // first: zeroed_while_counted
  if (t == 63) s[0] = 0; // second: zeroed_while_counted
  __syncthreads();
  y[t] = s[t];
}
GLOBAL flag_without_fence(const int *x, int *y) {
  T; __shared__ int data; __shared__ int flag;
  if (!t) flag = 0;
  __syncthreads();
  if (!t) {
    data = x[5]; // first: flag_without_fence
    *(volatile int *)&flag = 1;
  }
  if (t == 32) {
    while (*(volatile int *)&flag == 0) {}
    *y = *(volatile int *)&data; // second: flag_without_fence
  }
}
GLOBAL copy_without_barrier(const int *x, int *y) {
  T; __shared__ int s[64];
  copy_word(&s[t], x + t); // first: copy_without_barrier, in copy_word
  await_copies();
  y[t] = s[t ^ 8]; // second: copy_without_barrier
}
GLOBAL copy_into_a_tile_in_use(const int *x, int *y) {
  T; __shared__ int s[64];
  int sum = 0;
  for (int tile = 0; tile < 2; tile++) {
    copy_word(&s[t], x + 64 * tile + t); // second: copy_into_a_tile_in_use, in copy_word
    await_copies();
    __syncthreads();
    for (int i = 0; i < 64; i++) sum += s[i]; // first: copy_into_a_tile_in_use
  }
  y[t] = sum;
}
GLOBAL double_buffer_of_one(const int *x, int *y) {
  T; __shared__ int s[2][64];
  int sum = 0;
  s[0][t] = x[t];
  __syncthreads();
  for (int tile = 1; tile < 4; tile++) {
    sum += s[0][t ^ 32]; // second: double_buffer_of_one
    s[tile & 2][t] = x[64 * tile + t]; // first: double_buffer_of_one
    __syncthreads();
  }
  y[t] = sum;
}
GLOBAL fragment_without_syncwarp(const int *x, int *y) {
  T; __shared__ __align__(16) int s[32];
  s[t] = x[t]; // first: fragment_without_syncwarp
  unsigned r, at = place(&s[t % 8 * 4]);
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(at) : "memory"); // second: fragment_without_syncwarp
  y[t] = r;
}
GLOBAL transposed_without_barrier(const int *x, int *y) {
  T; __shared__ int s[8][9];
  int r = t / 8, c = t % 8;
  s[r][c] = x[t]; // first: transposed_without_barrier
  y[t] = s[c][r]; // second: transposed_without_barrier
}
GLOBAL scan_in_place(const int *x, int *y) {
  T; __shared__ int s[64];
  s[t] = x[t];
  __syncthreads();
  for (int k = 1; k < 64; k *= 2) {
    if (t >= k)
      s[t] += s[t - k]; // both: scan_in_place
    __syncthreads();
  }
  y[t] = s[t];
}
GLOBAL total_overwritten(const int *x, int *y) {
  T; __shared__ int total;
  if (!t) total = x[1] + 1;
  __syncthreads();
  y[t] = total; // first: total_overwritten
  if (!t) total = x[2] + 100; // second: total_overwritten
  __syncthreads();
  y[64 + t] = total;
}
GLOBAL halves_of_a_word(const int *x, int *y) {
  T; __shared__ int s[32];
  ((short *)s)[t] = x[t]; // first: halves_of_a_word
  if (t < 32) y[t] = s[t]; // second: halves_of_a_word
}
GLOBAL stencil_without_barrier(const int *x, int *y) {
  T; __shared__ int s[66];
  if (!t) s[0] = s[65] = 0;
  s[t + 1] = x[t]; // first: stencil_without_barrier
  if (t) y[t] = s[t] + s[t + 2]; // second: stencil_without_barrier
}
GLOBAL two_values_for_one_place(const int *x, int *y) {
  T; __shared__ int s[32];
  s[t / 2] = t; // both: two_values_for_one_place
  __syncthreads();
  y[t] = s[t / 2];
}
GLOBAL barrier_for_some_before_all_read(const int *x, int *y) {
  T; __shared__ int s[64];
  s[t] = x[t]; // first: barrier_for_some_before_all_read
  if (t < 32) asm volatile("bar.sync 1, 32;" ::: "memory");
  if (t < 32) y[t] = s[t + 32]; // second: barrier_for_some_before_all_read
}
GLOBAL lock_without_fence(const int *x, int *y) {
  T; __shared__ int lock; __shared__ int sum;
  if (!t) lock = sum = 0;
  __syncthreads();
  if (t % 32 == 0) {
    while (atomicCAS(&lock, 0, 1) != 0) {}
    sum += x[t] + 1; // both: lock_without_fence
    atomicExch(&lock, 0);
  }
  __syncthreads();
  if (!t) *y = sum;
}

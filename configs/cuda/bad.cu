// Kernels of ReLU, each with a different mistake, except the last. configs/cuda-demo.toml runs them.

static __device__ long long thread()
{
    return blockIdx.x * (long long)blockDim.x + threadIdx.x;
}

static __device__ float relu(float x)
{
    return x < 0.0f ? 0.0f : x;
}

extern "C" __global__ void wrong_by_nine_percent(const float* input, float* out, long long n)
{
    long long i = thread();
    if (i < n) out[i] = 1.09f * relu(input[i]);
}

// Computes the result in the first call only. Launched with one block, so no other block can see `calls` change.
__device__ int calls;

extern "C" __global__ void stale_after_first_call(const float* input, float* out, long long n)
{
    long long i = thread();
    if (calls == 0 && i < n) out[i] = relu(input[i]);
    __syncthreads();
    if (i == 0) calls = 1;
}

extern "C" __global__ void leaves_a_tail_unwritten(const float* input, float* out, long long n)
{
    long long i = thread();
    if (i < n - 7) out[i] = relu(input[i]);
}

extern "C" __global__ void writes_past_the_end(const float* input, float* out, long long n)
{
    long long i = thread();
    if (i < n) out[i] = relu(input[i]);
    if (i == 0) out[n] = 0.0f;
}

extern "C" __global__ void has_no_guard(const float* input, float* out, long long n)
{
    long long i = thread();
    out[i] = relu(input[i]);
}

extern "C" __global__ void loads_misaligned(const float* input, float* out, long long n)
{
    long long i = 4 * thread();
    if (i + 4 < n) {
        float4 x = *(const float4*)(input + i + 1);
        out[i] = x.x + x.y + x.z + x.w;
    }
}

extern "C" __global__ void writes_into_an_input(float* input, float* out, long long n)
{
    long long i = thread();
    if (i < n) {
        input[i] = relu(input[i]);
        out[i] = input[i];
    }
}

extern "C" __global__ void loops_forever(const volatile float* input, float* out, long long n)
{
    long long i = thread();
    while (input[0] != 12345.0f) { }
    if (i < n) out[i] = relu(input[i]);
}

extern "C" __global__ void traps(const float* input, float* out, long long n)
{
    long long i = thread();
    if (i == 3) __trap();
    if (i < n) out[i] = relu(input[i]);
}

extern "C" __global__ void writes_to_nowhere(const float* input, float* out, long long n)
{
    long long i = thread();
    if (i == 0) *(volatile float*)16 = 1.0f;
    if (i < n) out[i] = relu(input[i]);
}

// The function that `assert` of the CUDA headers calls.
extern "C" __device__ void __assertfail(const char*, const char*, unsigned int, const char*, size_t);

extern "C" __global__ void asserts(const float* input, float* out, long long n)
{
    long long i = thread();
    if (i == 70) __assertfail("i != 70", "bad.cu", 0, "asserts", 1);
    if (i < n) out[i] = relu(input[i]);
}

// Right only in every second call.
__device__ unsigned int turn;

extern "C" __global__ void depends_on_the_call(const float* input, float* out, long long n)
{
    long long i = thread();
    if (i < n) out[i] = relu(input[i]) + (turn % 2 ? 0.25f : 0.0f);
    __syncthreads();
    if (i == 0) atomicAdd(&turn, 1u);
}

// Right as long as each thread stores its element before another thread reads it.
extern "C" __global__ void forgets_a_barrier(const float* input, float* out, long long n)
{
    __shared__ float tile[64];
    long long i = thread();
    int mirrored = blockDim.x - 1 - threadIdx.x;
    tile[threadIdx.x] = i < n ? relu(input[i]) : 0.0f;
    i = blockIdx.x * (long long)blockDim.x + mirrored;
    if (i < n) out[i] = tile[mirrored];
}

// Right if outputs are filled with zeros before a call.
extern "C" __global__ void adds_to_its_output(const float* input, float* out, long long n)
{
    long long i = thread();
    if (i < n) out[i] += relu(input[i]);
}

// The result is right, but the counter begins with a value that nobody wrote.
extern "C" __global__ void counts_in_its_workspace(const float* input, float* out, int* scratch, long long n)
{
    long long i = thread();
    if (i >= n) return;
    atomicAdd(scratch, 1);
    out[i] = relu(input[i]);
}

// Right if there is memory for its workspace.
extern "C" __global__ void wants_a_workspace(const float* input, float* out, float* scratch, long long n)
{
    long long i = thread();
    if (i < n) {
        scratch[i] = relu(input[i]);
        out[i] = scratch[i];
    }
}

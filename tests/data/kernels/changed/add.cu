// Adds in place to the first argument, whose rows may have gaps between them. `add_past` also writes past its end, and
// `change_other` also changes the second argument. configs/cuda/make_ptx.py shows how this file is compiled to add.ptx.
extern "C" __global__ void add(float *x, const float *y, long long rows, long long columns, long long stride, float alpha)
{
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < rows * columns) x[at / columns * stride + at % columns] += alpha * y[at % columns];
}

extern "C" __global__ void add_past(float *x, const float *y, long long rows, long long columns, long long stride, float alpha)
{
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at <= rows * columns) x[at / columns * stride + at % columns] += alpha * y[at % columns];
}

extern "C" __global__ void change_other(float *x, float *y, long long rows, long long columns, long long stride, float alpha)
{
    const long long at = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (at < rows * columns) x[at / columns * stride + at % columns] += alpha * y[at % columns];
    if (at == 0) y[0] = 0;
}

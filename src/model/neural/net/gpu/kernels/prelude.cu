// The data type of the tensors, T, which is computed with as a float. Every kernel, but for those of copies.cu, has the
// inputs, the output, the number of its threads or groups, and then numbers and factors. THREADS, ROWS, BLOCK_WORDS and
// MAX_TENSORS are constants of the Rust code.

typedef unsigned int u32;
typedef unsigned long long u64;

#ifdef BF16
// A bfloat16 is the upper half of a float.
struct T { unsigned short bits; };

__device__ float number(T x) { return __uint_as_float((u32)x.bits << 16); }

// Rounds to the nearest, ties to even.
__device__ T rounded(float x) {
    const u32 bits = __float_as_uint(x);
    T out;
    out.bits = x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return out;
}
#else
typedef float T;

__device__ float number(T x) { return x; }

__device__ T rounded(float x) { return x; }
#endif

// The number of this thread among all threads of the launch.
__device__ u64 place() { return (u64)blockIdx.x * blockDim.x + threadIdx.x; }

// The sum over all threads of a group, in the same order every time; only the first thread has it.
__device__ float sum_of_group(float x) {
    __shared__ float of_warps[32];
    for (int step = 16; step > 0; step /= 2) x += __shfl_down_sync(0xffffffff, x, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x < blockDim.x / 32 ? of_warps[threadIdx.x] : 0.0f;
    if (threadIdx.x < 32) {
        for (int step = 16; step > 0; step /= 2) x += __shfl_down_sync(0xffffffff, x, step);
    }
    return x;
}

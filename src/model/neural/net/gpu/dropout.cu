// Dropout whose mask is computed while it is applied: each value has 16 bits of a ChaCha8 stream, those that the host
// would draw for it. A thread computes one block of the stream, the bits of 32 values.

typedef unsigned int u32;
typedef unsigned long long u64;

#define THREADS 128
#define BLOCK_WORDS 16
// One word more than a block has, so that the threads of a warp write to different banks of the shared memory.
#define PITCH (BLOCK_WORDS + 1)

struct Key {
    u32 words[8];
};

__device__ u32 rotated(u32 x, int bits) { return (x << bits) | (x >> (32 - bits)); }

__device__ void quarter_round(u32* s, int a, int b, int c, int d) {
    s[a] += s[b]; s[d] = rotated(s[d] ^ s[a], 16);
    s[c] += s[d]; s[b] = rotated(s[b] ^ s[c], 12);
    s[a] += s[b]; s[d] = rotated(s[d] ^ s[a], 8);
    s[c] += s[d]; s[b] = rotated(s[b] ^ s[c], 7);
}

// The words of one block of the stream (RFC 8439, 2.3, with 8 rounds, a counter of 64 bits and a nonce of zeros).
__device__ void chacha8(const Key& key, u64 block, u32* out) {
    const u32 start[BLOCK_WORDS] = {
        0x61707865, 0x3320646e, 0x79622d32, 0x6b206574,
        key.words[0], key.words[1], key.words[2], key.words[3],
        key.words[4], key.words[5], key.words[6], key.words[7],
        (u32)block, (u32)(block >> 32), 0, 0,
    };
    u32 s[BLOCK_WORDS];
    for (int n = 0; n < BLOCK_WORDS; n++) s[n] = start[n];
    for (int round = 0; round < 8; round += 2) {
        quarter_round(s, 0, 4, 8, 12); quarter_round(s, 1, 5, 9, 13);
        quarter_round(s, 2, 6, 10, 14); quarter_round(s, 3, 7, 11, 15);
        quarter_round(s, 0, 5, 10, 15); quarter_round(s, 1, 6, 11, 12);
        quarter_round(s, 2, 7, 8, 13); quarter_round(s, 3, 4, 9, 14);
    }
    for (int n = 0; n < BLOCK_WORDS; n++) out[n] = s[n] + start[n];
}

__device__ float multiplied(float x, float factor) { return x * factor; }

// A bfloat16 is the upper half of a float; rounds to the nearest, ties to even.
__device__ unsigned short multiplied(unsigned short x, float factor) {
    const float product = __uint_as_float((u32)x << 16) * factor;
    const u32 bits = __float_as_uint(product);
    if (product != product) return (unsigned short)(bits >> 16 | 0x40);
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// out = x times 0 where a value's bits are below `below`, else times `scale`; the first value's bits are the lower half
// of word `first_word` of the stream.
template <typename T>
__device__ void dropout(u64 len, const T* x, T* out, const Key& key, u64 first_word, u32 below, float scale) {
    __shared__ u32 words[THREADS * PITCH];
    const u64 first_block = first_word / BLOCK_WORDS + (u64)blockIdx.x * THREADS;
    chacha8(key, first_block + threadIdx.x, words + threadIdx.x * PITCH);
    __syncthreads();
    // Where the draws of this group of threads begin, counted from the first value's: negative if earlier draws of the
    // stream have used a part of the first block.
    const long long start = 2 * (long long)(first_block * BLOCK_WORDS - first_word);
    for (u32 n = threadIdx.x; n < 2 * BLOCK_WORDS * THREADS; n += THREADS) {
        const long long value = start + n;
        if (value < 0 || value >= (long long)len) continue;
        const u32 word = words[n / (2 * BLOCK_WORDS) * PITCH + n / 2 % BLOCK_WORDS];
        const u32 drawn = n % 2 ? word >> 16 : word & 0xffff;
        out[value] = multiplied(x[value], drawn < below ? 0.0f : scale);
    }
}

extern "C" __global__ void dropout_f32(
    u64 len, const float* x, float* out, Key key, u64 first_word, u32 below, float scale) {
    dropout(len, x, out, key, first_word, below, scale);
}

extern "C" __global__ void dropout_bf16(
    u64 len, const unsigned short* x, unsigned short* out, Key key, u64 first_word, u32 below, float scale) {
    dropout(len, x, out, key, first_word, below, scale);
}

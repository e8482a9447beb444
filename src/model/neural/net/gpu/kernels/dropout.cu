
// Dropout whose mask is computed while it is applied: each value has 16 bits of a ChaCha8 stream, those that the host
// would draw for it. A thread computes one block of the stream, the bits of 32 values.

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

// out = x times 0 where a value's bits are below `below`, else times `scale`; the first value's bits are the lower half
// of word `first_word` of the stream.
extern "C" __global__ void dropout(
    const T* x, T* out, u64 n, u32 key0, u32 key1, u32 key2, u32 key3, u32 key4, u32 key5, u32 key6, u32 key7,
    u32 len_low, u32 len_high, u32 first_low, u32 first_high, u32 below, float scale) {
    __shared__ u32 words[THREADS * PITCH];
    const Key key = {{key0, key1, key2, key3, key4, key5, key6, key7}};
    const u64 len = (u64)len_high << 32 | len_low, first_word = (u64)first_high << 32 | first_low;
    const u64 first_block = first_word / BLOCK_WORDS + (u64)blockIdx.x * THREADS;
    chacha8(key, first_block + threadIdx.x, words + threadIdx.x * PITCH);
    __syncthreads();
    // Where the draws of this group of threads begin, counted from the first value's: negative if earlier draws of the
    // stream have used a part of the first block.
    const long long start = 2 * (long long)(first_block * BLOCK_WORDS - first_word);
    for (u32 at = threadIdx.x; at < 2 * BLOCK_WORDS * THREADS; at += THREADS) {
        const long long value = start + at;
        if (value < 0 || value >= (long long)len) continue;
        const u32 word = words[at / (2 * BLOCK_WORDS) * PITCH + at / 2 % BLOCK_WORDS];
        const u32 drawn = at % 2 ? word >> 16 : word & 0xffff;
        out[value] = rounded(number(x[value]) * (drawn < below ? 0.0f : scale));
    }
}

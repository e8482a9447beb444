
// The place of a channel's value number `at`, in [image, channel, pixel].
__device__ u64 of_channel(u32 at, u32 channel, u32 channels, u32 pixels) {
    return ((u64)(at / pixels) * channels + channel) * pixels + at % pixels;
}

// A part of a channel, which a group of threads sums: its values number `from` to `to`.
struct Part {
    u32 part, channel, from, to;
};

__device__ Part part_of_group(u32 count, u32 channels, u32 per_part) {
    const u32 part = blockIdx.x / channels, from = part * per_part;
    return {part, blockIdx.x % channels, from, min(from + per_part, count)};
}

// The sum of each part of a channel, [part, channel].
extern "C" __global__ __launch_bounds__(1024) void channel_sums(
    const T* x, T* out, u64 n, u32 count, u32 channels, u32 pixels, u32 per_part) {
    const Part p = part_of_group(count, channels, per_part);
    float sum = 0.0f;
    for (u32 at = p.from + threadIdx.x; at < p.to; at += blockDim.x)
        sum += number(x[of_channel(at, p.channel, channels, pixels)]);
    sum = sum_of_group(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = rounded(sum);
}

// The sum over the parts of [part, ...].
extern "C" __global__ void add_parts(const T* x, T* out, u64 n, u32 parts) {
    const u64 i = place();
    if (i >= n) return;
    float sum = 0.0f;
    for (u32 part = 0; part < parts; part++) sum += number(x[part * n + i]);
    out[i] = rounded(sum);
}

// The mean and the variance of each part of a channel, [part, 2, channel].
extern "C" __global__ __launch_bounds__(1024) void statistics(
    const T* x, T* out, u64 n, u32 count, u32 channels, u32 pixels, u32 per_part) {
    __shared__ float mean;
    const Part p = part_of_group(count, channels, per_part);
    const u32 values = p.to - p.from;
    float sum = 0.0f, squares = 0.0f;
    for (u32 at = p.from + threadIdx.x; at < p.to; at += blockDim.x)
        sum += number(x[of_channel(at, p.channel, channels, pixels)]);
    sum = sum_of_group(sum);
    if (threadIdx.x == 0) mean = sum / values;
    __syncthreads();
    for (u32 at = p.from + threadIdx.x; at < p.to; at += blockDim.x) {
        const float distance = number(x[of_channel(at, p.channel, channels, pixels)]) - mean;
        squares += distance * distance;
    }
    squares = sum_of_group(squares);
    if (threadIdx.x == 0) {
        T* const of_part = out + (u64)p.part * 2 * channels + p.channel;
        of_part[0] = rounded(mean);
        of_part[channels] = rounded(squares / values);
    }
}

// The mean and the variance of each of n channels, from those of its parts.
extern "C" __global__ void merge_statistics(const T* x, T* out, u64 n, u32 parts, u32 count, u32 per_part) {
    const u64 channel = place();
    if (channel >= n) return;
    float sum = 0.0f, squares = 0.0f;
    for (u32 part = 0; part < parts; part++) {
        const u32 values = min(per_part, count - part * per_part);
        sum += values * number(x[part * 2 * n + channel]);
    }
    const float mean = sum / count;
    for (u32 part = 0; part < parts; part++) {
        const u32 values = min(per_part, count - part * per_part);
        const float distance = number(x[part * 2 * n + channel]) - mean;
        squares += values * (number(x[(part * 2 + 1) * n + channel]) + distance * distance);
    }
    out[channel] = rounded(mean);
    out[n + channel] = rounded(squares / count);
}

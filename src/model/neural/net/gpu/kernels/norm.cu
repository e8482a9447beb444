__device__ float inverse_deviation(const T* statistics, u32 channel, u32 channels, float epsilon) {
    return 1.0f / sqrtf(number(statistics[channels + channel]) + epsilon);
}

extern "C" __global__ void normalise(
    const T* x, const T* scale, const T* shift, const T* statistics, T* out, u64 n, u32 count, u32 channels, u32 pixels,
    u32 relu, float epsilon) {
    const u64 i = place();
    if (i >= n) return;
    const u32 channel = i / pixels % channels;
    const float inverse = inverse_deviation(statistics, channel, channels, epsilon);
    const float normed = (number(x[i]) - number(statistics[channel])) * inverse;
    const float y = normed * number(scale[channel]) + number(shift[channel]);
    out[i] = rounded(relu && y < 0.0f ? 0.0f : y);
}

// The gradient before the ReLU.
__device__ float before_relu(u32 relu, T y, T gradient) {
    return relu && !(number(y) > 0.0f) ? 0.0f : number(gradient);
}

// The sums over each part of a channel of the gradient, and of its product with the normalised values, [part, 2, channel].
extern "C" __global__ __launch_bounds__(1024) void norm_sums(
    const T* x, const T* y, const T* gradient, const T* statistics, T* out, u64 n, u32 count, u32 channels, u32 pixels,
    u32 per_part, u32 relu, float epsilon) {
    const Part p = part_of_group(count, channels, per_part);
    const float mean = number(statistics[p.channel]);
    const float inverse = inverse_deviation(statistics, p.channel, channels, epsilon);
    float sum = 0.0f, products = 0.0f;
    for (u32 at = p.from + threadIdx.x; at < p.to; at += blockDim.x) {
        const u64 i = of_channel(at, p.channel, channels, pixels);
        const float g = before_relu(relu, y[i], gradient[i]);
        sum += g;
        products += g * ((number(x[i]) - mean) * inverse);
    }
    sum = sum_of_group(sum);
    products = sum_of_group(products);
    if (threadIdx.x == 0) {
        T* const of_part = out + (u64)p.part * 2 * channels + p.channel;
        of_part[0] = rounded(sum);
        of_part[channels] = rounded(products);
    }
}

extern "C" __global__ void norm_gradient(
    const T* x, const T* y, const T* gradient, const T* statistics, const T* scale, const T* sums, T* out, u64 n,
    u32 count, u32 channels, u32 pixels, u32 relu, u32 is_of_batch, float epsilon) {
    const u64 i = place();
    if (i >= n) return;
    const u32 channel = i / pixels % channels;
    const float inverse = inverse_deviation(statistics, channel, channels, epsilon);
    const float normed = (number(x[i]) - number(statistics[channel])) * inverse;
    float g = before_relu(relu, y[i], gradient[i]);
    if (is_of_batch) g -= (number(sums[channel]) + normed * number(sums[channels + channel])) / count;
    out[i] = rounded(g * inverse * number(scale[channel]));
}


extern "C" __global__ void loss(const T* x, T* out, u64 n) {
    if (place() < n) out[place()] = rounded(0.0f);
}

// NaN is not below zero, and is kept.
extern "C" __global__ void relu(const T* x, T* out, u64 n) {
    const u64 i = place();
    if (i < n) out[i] = number(x[i]) < 0.0f ? rounded(0.0f) : x[i];
}

extern "C" __global__ void relu_gradient(const T* y, const T* gradient, T* out, u64 n) {
    const u64 i = place();
    if (i < n) out[i] = number(y[i]) > 0.0f ? gradient[i] : rounded(0.0f);
}

extern "C" __global__ void moved(const T* running, const T* seen, T* out, u64 n, float kept, float added) {
    const u64 i = place();
    if (i < n) out[i] = rounded(kept * number(running[i]) + added * number(seen[i]));
}

// [first, second, inner] as [second, first, inner].
extern "C" __global__ void swapped(const T* x, T* out, u64 n, u32 first, u32 second, u32 inner) {
    const u64 i = place();
    if (i >= n) return;
    const u64 row = i / inner;
    const u32 to_second = row / first, to_first = row % first;
    out[i] = x[((u64)to_first * second + to_second) * inner + i % inner];
}

// [.., channel, pixel] plus the bias of the channel. The first two inputs are those of the layer.
extern "C" __global__ void add_bias(
    const T* x, const T* weight, const T* bias, const T* product, T* out, u64 n, u32 channels, u32 pixels) {
    const u64 i = place();
    if (i < n) out[i] = rounded(number(product[i]) + number(bias[i / pixels % channels]));
}

// [channel, image, pixel] as [image, channel, pixel], plus the bias of the channel.
extern "C" __global__ void add_bias_and_swap(
    const T* x, const T* weight, const T* bias, const T* product, T* out, u64 n, u32 images, u32 channels, u32 pixels) {
    const u64 i = place();
    if (i >= n) return;
    const u64 plane = i / pixels;
    const u32 image = plane / channels, channel = plane % channels;
    const float value = number(product[((u64)channel * images + image) * pixels + i % pixels]);
    out[i] = rounded(value + number(bias[channel]));
}

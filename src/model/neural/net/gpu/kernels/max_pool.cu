
// The place of the largest of the four values at `first`: the first of equal ones; NaN is larger than every number.
__device__ u64 largest(const T* x, u64 first, u32 width) {
    const u64 window[4] = {first, first + 1, first + width, first + width + 1};
    u64 most = window[0];
    for (int n = 1; n < 4; n++) {
        const float value = number(x[window[n]]);
        if (value > number(x[most]) || value != value) most = window[n];
    }
    return most;
}

// The maxima of windows of 2 x 2 in planes of height x width.
extern "C" __global__ void max_pool(const T* x, T* out, u64 n, u32 height, u32 width) {
    const u64 i = place();
    if (i >= n) return;
    const u64 row = i / (width / 2);
    const u32 column = i % (width / 2), rows = height / 2;
    const u64 first = (row / rows * height + row % rows * 2) * width + 2 * column;
    out[i] = x[largest(x, first, width)];
}

// The gradient of each value of x: that of its window if it is the largest, else zero.
extern "C" __global__ void max_pool_gradient(
    const T* x, const T* gradient, T* out, u64 n, u32 height, u32 width) {
    const u64 i = place();
    if (i >= n) return;
    const u64 row = i / width, plane = row / height;
    const u32 column = i % width / 2, line = row % height / 2, rows = height / 2, columns = width / 2;
    T value = rounded(0.0f);
    if (column < columns && line < rows) {
        const u64 first = (plane * height + line * 2) * width + 2 * column;
        if (largest(x, first, width) == i) value = gradient[(plane * rows + line) * columns + column];
    }
    out[i] = value;
}

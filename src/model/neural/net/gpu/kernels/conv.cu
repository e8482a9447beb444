
// [channel and cell, image and pixel of the output]: the pixels that each cell of the kernel reads, zeros for the padding.
// A thread writes ROWS rows, so that the place of its pixel is computed once for all of them.
extern "C" __global__ void patches(
    const T* x, T* out, u64 n, u32 images, u32 channels, u32 kernel, u32 padding, u32 stride, u32 height, u32 width,
    u32 out_height, u32 out_width) {
    const u64 i = place();
    if (i >= n) return;
    const u32 pixels = out_height * out_width, all = images * pixels;
    const u32 rows = channels * kernel * kernel, first = i / all * ROWS, at = i % all;
    const u32 image = at / pixels, pixel = at % pixels;
    // Before the first row or column, the difference is a number beyond the image.
    const u32 top = pixel / out_width * stride - padding, left = pixel % out_width * stride - padding;
    u32 channel = first / (kernel * kernel), down = first / kernel % kernel, right = first % kernel;
    for (u32 row = first; row < rows && row < first + ROWS; row++) {
        const u32 y = top + down, z = left + right;
        const u64 plane = (u64)image * channels + channel;
        const bool is_inside = y < height && z < width;
        out[(u64)row * all + at] = is_inside ? x[(plane * height + y) * width + z] : rounded(0.0f);
        if (++right < kernel) continue;
        right = 0;
        if (++down < kernel) continue;
        down = 0;
        channel++;
    }
}

// [image, channel, row, column]: the sum of all patches' values that were read from each pixel.
extern "C" __global__ void images_of_patches(
    const T* x, T* out, u64 n, u32 images, u32 channels, u32 kernel, u32 padding, u32 stride, u32 height, u32 width,
    u32 out_height, u32 out_width) {
    const u64 i = place();
    if (i >= n) return;
    const u32 plane = i / (height * width), pixel = i % (height * width);
    const u32 image = plane / channels, channel = plane % channels;
    const u64 all = (u64)images * out_height * out_width;
    float sum = 0.0f;
    for (u32 down = 0; down < kernel; down++) {
        const u32 y = pixel / width + padding - down;
        if (y % stride != 0 || y / stride >= out_height) continue;
        for (u32 right = 0; right < kernel; right++) {
            const u32 z = pixel % width + padding - right;
            if (z % stride != 0 || z / stride >= out_width) continue;
            const u64 row = ((u64)channel * kernel + down) * kernel + right;
            const u64 at = ((u64)image * out_height + y / stride) * out_width + z / stride;
            sum += number(x[row * all + at]);
        }
    }
    out[i] = rounded(sum);
}

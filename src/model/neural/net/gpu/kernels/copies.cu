// Up to MAX_TENSORS tensors that follow each other in another one: where the values of each are, and where they end.
struct Tensors {
    T* values[MAX_TENSORS];
    u64 ends[MAX_TENSORS];
};

// The address of value `i` of all `count` tensors.
__device__ __forceinline__ T* address(const Tensors& tensors, u32 count, u64 i) {
    u32 from = 0, to = count - 1;
    while (from < to) {
        const u32 middle = (from + to) / 2;
        if (i < tensors.ends[middle]) to = middle;
        else from = middle + 1;
    }
    return tensors.values[from] + (i - (from > 0 ? tensors.ends[from - 1] : 0));
}

// Copies the values of all tensors behind each other.
extern "C" __global__ void gather(const Tensors tensors, u32 count, T* all, u64 n) {
    const u64 i = place();
    if (i < n) all[i] = *address(tensors, count, i);
}

// Copies values that are behind each other to the tensors.
extern "C" __global__ void scatter(const Tensors tensors, u32 count, const T* all, u64 n) {
    const u64 i = place();
    if (i < n) *address(tensors, count, i) = all[i];
}

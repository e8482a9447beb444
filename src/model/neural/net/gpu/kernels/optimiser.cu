
// The values and moments of n parameters, [values, first moments, ...], after a step of SGD.
extern "C" __global__ void sgd(
    const T* state, const T* gradients, T* out, u64 n, u32 is_nesterov, float scale, float added, float beta1,
    float rate) {
    const u64 i = place();
    if (i >= n) return;
    const float w = number(state[i]);
    const float g = number(gradients[i]) * scale + added * w;
    const float first = beta1 * number(state[n + i]) + g;
    out[i] = rounded(w - rate * (is_nesterov ? g + beta1 * first : first));
    out[n + i] = rounded(first);
}

// The same after a step of Adam, or of AMSGrad, which also keeps the largest second moments.
extern "C" __global__ void adam(
    const T* state, const T* gradients, T* out, u64 n, u32 is_amsgrad, float scale, float added, float shrink,
    float beta1, float beta2, float size, float root, float epsilon) {
    const u64 i = place();
    if (i >= n) return;
    const float w = number(state[i]);
    const float g = number(gradients[i]) * scale + added * w;
    const float first = beta1 * number(state[n + i]) + (1.0f - beta1) * g;
    const float second = beta2 * number(state[2 * n + i]) + (1.0f - beta2) * g * g;
    float most = second;
    if (is_amsgrad) {
        most = fmaxf(number(state[3 * n + i]), second);
        out[3 * n + i] = rounded(most);
    }
    out[i] = rounded(w * shrink - size * first / (sqrtf(most) * root + epsilon));
    out[n + i] = rounded(first);
    out[2 * n + i] = rounded(second);
}

// The residual add and the RMS norm that follows it, one thread block for each token. Sums run in f32; what libtorch rounds
// between its operations is rounded here too.
//
// Macros: BF16, HIDDEN (a multiple of 8), THREADS.

constexpr int PER_THREAD = (HIDDEN / 8 + THREADS - 1) / THREADS;

// x: [tokens, HIDDEN], gets x + delta where there is a delta; out: its norm times weight.
extern "C" __global__ void __launch_bounds__(THREADS)
    add_norm(Element* x, const Element* delta, const Element* weight, Element* out, float eps) {
    __shared__ float parts[THREADS / 32];
    const u64 row = (u64)blockIdx.x * HIDDEN;
    Eight kept[PER_THREAD];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int at = (i * THREADS + threadIdx.x) * 8;
        if (at >= HIDDEN) break;
        kept[i] = load8(x + row + at);
        if (delta != nullptr) {
            const Eight more = load8(delta + row + at);
#pragma unroll
            for (int j = 0; j < 8; ++j) kept[i].x[j] = rounded(kept[i].x[j] + more.x[j]);
            store8(x + row + at, kept[i]);
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) sum = fmaf(kept[i].x[j], kept[i].x[j], sum);
    }
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; ++i) sum += parts[i];
    const float scale = rsqrtf(sum / HIDDEN + eps);
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int at = (i * THREADS + threadIdx.x) * 8;
        if (at >= HIDDEN) break;
        const Eight factor = load8(weight + at);
#pragma unroll
        for (int j = 0; j < 8; ++j) kept[i].x[j] = rounded(kept[i].x[j] * scale) * factor.x[j];
        store8(out + row + at, kept[i]);
    }
}

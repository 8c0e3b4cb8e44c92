// The residual add and the RMS norm that follows it, with what its backward pass needs, and that backward pass. Sums run in f32;
// what libtorch rounds between its operations forward is rounded here too.
//
// Macros: BF16, HIDDEN (a multiple of 8), THREADS.

constexpr int PER_THREAD = (HIDDEN / 8 + THREADS - 1) / THREADS;
constexpr int WARPS = THREADS / 32;
// Of a multiprocessor: more would have no registers for rows that are on their way.
constexpr int BLOCKS_AT_ONCE = BF16 && PER_THREAD <= 2 ? 2 : 1;

// The sum over the block, in all threads; `parts` is that of no sum whose readers may still be at work.
__device__ __forceinline__ float sum_of_block(float x, float* parts) {
    x = sum_of_warp(x);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) x += parts[i];
    return x;
}

// Blocks take tokens in turn. x, delta: [tokens, HIDDEN], sum: x + delta where there is a delta; out: the norm of the sum times
// weight; scales: [tokens], what the norm multiplies a row by.
extern "C" __global__ void __launch_bounds__(THREADS)
    norm_forward(const Element* x, const Element* delta, const Element* weight, Element* sum, Element* out, float* scales,
                 float eps, int num_tokens) {
    __shared__ float parts[2][WARPS];
    // Of the next token, which is on its way while one is at hand.
    Packed next_xs[PER_THREAD], next_deltas[PER_THREAD];
    const auto fetch = [&](int token) {
        if (token >= num_tokens) return;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int at = (i * THREADS + threadIdx.x) * 8;
            if (at >= HIDDEN) break;
            next_xs[i] = load_packed(x + (u64)token * HIDDEN + at);
            if (delta != nullptr) next_deltas[i] = load_packed(delta + (u64)token * HIDDEN + at);
        }
    };
    fetch(blockIdx.x);
    int turn = 0;
    for (int token = blockIdx.x; token < num_tokens; token += gridDim.x, turn ^= 1) {
        const u64 row = (u64)token * HIDDEN;
        Eight kept[PER_THREAD];
        float squares = 0;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int at = (i * THREADS + threadIdx.x) * 8;
            if (at >= HIDDEN) break;
            kept[i] = unpacked(next_xs[i]);
            if (delta != nullptr) {
                const Eight more = unpacked(next_deltas[i]);
#pragma unroll
                for (int j = 0; j < 8; ++j) kept[i].x[j] = rounded(kept[i].x[j] + more.x[j]);
                store8(sum + row + at, kept[i]);
            }
#pragma unroll
            for (int j = 0; j < 8; ++j) squares = fmaf(kept[i].x[j], kept[i].x[j], squares);
        }
        fetch(token + gridDim.x);
        // Two buffers by turns: a thread is at most one token ahead of those that still read.
        const float scale = rsqrtf(sum_of_block(squares, parts[turn]) / HIDDEN + eps);
        if (threadIdx.x == 0) scales[token] = scale;
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
}

// Blocks take tokens in turn. sum, scales: of the forward pass; grad_out: [tokens, HIDDEN]; grad_sum: what reaches the sum
// beside it, or null; grad: of x and of delta; weight_parts: [blocks, HIDDEN], this block's addend to the weight's gradient.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_AT_ONCE)
    norm_backward(const Element* sum, const Element* weight, const float* scales, const Element* grad_out,
                  const Element* grad_sum, Element* grad, float* weight_parts, int num_tokens) {
    __shared__ float parts[2][WARPS];
    Eight of_weight[PER_THREAD];
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) of_weight[i].x[j] = 0;
    }
    // Of the token at hand, and of the next one, which is on its way meanwhile.
    Packed xs[PER_THREAD], slopes[PER_THREAD], next_xs[PER_THREAD], next_slopes[PER_THREAD];
    float next_scale = 0;
    const auto fetch = [&](int token) {
        if (token >= num_tokens) return;
        next_scale = scales[token];
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int at = (i * THREADS + threadIdx.x) * 8;
            if (at >= HIDDEN) break;
            next_xs[i] = load_packed(sum + (u64)token * HIDDEN + at);
            next_slopes[i] = load_packed(grad_out + (u64)token * HIDDEN + at);
        }
    };
    fetch(blockIdx.x);
    int turn = 0;
    for (int token = blockIdx.x; token < num_tokens; token += gridDim.x, turn ^= 1) {
        const u64 row = (u64)token * HIDDEN;
        const float scale = next_scale;
        Packed besides[PER_THREAD];
        float dot = 0;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int at = (i * THREADS + threadIdx.x) * 8;
            if (at >= HIDDEN) break;
            xs[i] = next_xs[i], slopes[i] = next_slopes[i];
            if (grad_sum != nullptr) besides[i] = load_packed(grad_sum + row + at);
        }
        fetch(token + gridDim.x);
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int at = (i * THREADS + threadIdx.x) * 8;
            if (at >= HIDDEN) break;
            const Eight factor = load8(weight + at), x = unpacked(xs[i]), slope = unpacked(slopes[i]);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                of_weight[i].x[j] = fmaf(slope.x[j], rounded(x.x[j] * scale), of_weight[i].x[j]);
                dot = fmaf(slope.x[j] * factor.x[j], x.x[j], dot);
            }
        }
        // Two buffers by turns: a thread is at most one token ahead of those that still read.
        const float mean = sum_of_block(dot, parts[turn]) * scale * scale / HIDDEN;
#pragma unroll
        for (int i = 0; i < PER_THREAD; ++i) {
            const int at = (i * THREADS + threadIdx.x) * 8;
            if (at >= HIDDEN) break;
            const Eight factor = load8(weight + at), x = unpacked(xs[i]);
            Eight out = unpacked(slopes[i]);
#pragma unroll
            for (int j = 0; j < 8; ++j) out.x[j] = scale * (out.x[j] * factor.x[j] - x.x[j] * mean);
            if (grad_sum != nullptr) {
                const Eight beside = unpacked(besides[i]);
#pragma unroll
                for (int j = 0; j < 8; ++j) out.x[j] += beside.x[j];
            }
            store8(grad + row + at, out);
        }
    }
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const int at = (i * THREADS + threadIdx.x) * 8;
        if (at >= HIDDEN) break;
        float* to = weight_parts + (u64)blockIdx.x * HIDDEN + at;
#pragma unroll
        for (int j = 0; j < 8; ++j) to[j] = of_weight[i].x[j];
    }
}

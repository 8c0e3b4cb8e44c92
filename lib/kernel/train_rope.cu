// The backward pass of splitting the fused projection into heads, their RMS norm (q and k, where the family has one) and their
// rotation. Warps take heads in turn; sums run in f32.
//
// Macros: BF16, HEAD_DIM (64, 128 or 256), NUM_HEADS, NUM_KV_HEADS, THREADS.

constexpr int HALF = HEAD_DIM / 2;
constexpr int PER_LANE = HALF / 32;
constexpr int ALL_HEADS = NUM_HEADS + 2 * NUM_KV_HEADS;
constexpr int WARPS = THREADS / 32;

// qkv: [tokens, ALL_HEADS, HEAD_DIM] of the forward pass; weights: [HEAD_DIM] or null; cos, sin: [tokens, HALF]; grad_q:
// [tokens, NUM_HEADS, HEAD_DIM]; grad_k, grad_v: [tokens, NUM_KV_HEADS, HEAD_DIM]; grad: of qkv; weight_parts: [warps, 2,
// HEAD_DIM], each warp's addend to the gradients of the weights of q and k, where there are weights.
extern "C" __global__ void __launch_bounds__(THREADS)
    rope_backward(const Element* qkv, const Element* q_weight, const Element* k_weight, const float* cos, const float* sin,
                  const Element* grad_q, const Element* grad_k, const Element* grad_v, Element* grad, float* weight_parts,
                  float eps, int num_tokens) {
    const int warp = blockIdx.x * WARPS + threadIdx.x / 32, num_warps = gridDim.x * WARPS;
    const int first = threadIdx.x % 32 * PER_LANE;
    float of_weights[2][2 * PER_LANE];
#pragma unroll
    for (int i = 0; i < 2 * PER_LANE; ++i) of_weights[0][i] = of_weights[1][i] = 0;
    const u64 num_items = (u64)num_tokens * ALL_HEADS;
    for (u64 item = warp; item < num_items; item += num_warps) {
        const u64 token = item / ALL_HEADS;
        const int head = item % ALL_HEADS;
        const bool is_query = head < NUM_HEADS, is_key = !is_query && head < NUM_HEADS + NUM_KV_HEADS;
        const Element* from = is_query ? grad_q + (token * NUM_HEADS + head) * HEAD_DIM
                                       : (is_key ? grad_k : grad_v) +
                                             (token * NUM_KV_HEADS + (head - NUM_HEADS) % NUM_KV_HEADS) * HEAD_DIM;
        Element* to = grad + item * HEAD_DIM;
        float slope[2 * PER_LANE];
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            slope[i] = widen(from[first + i]);
            slope[PER_LANE + i] = widen(from[HALF + first + i]);
        }
        if (is_query || is_key) {
            const Element* weight = is_query ? q_weight : k_weight;
            float x[2 * PER_LANE];
            if (weight != nullptr) {
#pragma unroll
                for (int i = 0; i < PER_LANE; ++i) {
                    x[i] = widen(qkv[item * HEAD_DIM + first + i]);
                    x[PER_LANE + i] = widen(qkv[item * HEAD_DIM + HALF + first + i]);
                }
            }
#pragma unroll
            for (int i = 0; i < PER_LANE; ++i) {
                const float c = rounded(cos[token * HALF + first + i]), s = rounded(sin[token * HALF + first + i]);
                const float a = slope[i], b = slope[PER_LANE + i];
                slope[i] = a * c + b * s;
                slope[PER_LANE + i] = b * c - a * s;
            }
            if (weight != nullptr) {
                float squares = 0;
#pragma unroll
                for (int i = 0; i < 2 * PER_LANE; ++i) squares = fmaf(x[i], x[i], squares);
                const float scale = rsqrtf(sum_of_warp(squares) / HEAD_DIM + eps);
                float dot = 0;
#pragma unroll
                for (int i = 0; i < 2 * PER_LANE; ++i) {
                    const float added = slope[i] * rounded(x[i] * scale);
                    // A run-time index would move the sums to slow memory.
                    if (is_query) of_weights[0][i] += added;
                    if (is_key) of_weights[1][i] += added;
                    slope[i] *= widen(weight[(i < PER_LANE ? 0 : HALF - PER_LANE) + first + i]);
                    dot = fmaf(slope[i], x[i], dot);
                }
                const float mean = sum_of_warp(dot) * scale * scale / HEAD_DIM;
#pragma unroll
                for (int i = 0; i < 2 * PER_LANE; ++i) slope[i] = scale * (slope[i] - x[i] * mean);
            }
        }
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            to[first + i] = narrow(slope[i]);
            to[HALF + first + i] = narrow(slope[PER_LANE + i]);
        }
    }
    if (weight_parts == nullptr) return;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
        float* to = weight_parts + ((u64)warp * 2 + which) * HEAD_DIM;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            to[first + i] = of_weights[which][i];
            to[HALF + first + i] = of_weights[which][PER_LANE + i];
        }
    }
}

// Splits the fused projection: heads of q and k get their RMS norm where the family has one and are rotated; q goes to a
// matrix of its own, k and v into their slots of the cache. A warp takes a head. What libtorch rounds between its operations
// is rounded here too.
//
// Macros: BF16, KV_FP8 (1: the cache is e4m3), HEAD_DIM (64, 128 or 256), NUM_HEADS, NUM_KV_HEADS, THREADS.

#if KV_FP8
typedef unsigned char Stored;

// Cut off at the largest number, infinite ones as NaN.
__device__ __forceinline__ void store2(Stored* first, Stored* second, float a, float b) {
    const float infinity = __int_as_float(0x7f800000), none = __int_as_float(0x7fc00000);
    a = fabsf(a) == infinity ? none : rounded(a), b = fabsf(b) == infinity ? none : rounded(b);
    u16 both;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(b), "f"(a));
    *first = both & 0xff, *second = both >> 8;
}
#else
typedef Element Stored;

__device__ __forceinline__ void store2(Stored* first, Stored* second, float a, float b) {
    *first = narrow(a), *second = narrow(b);
}
#endif

constexpr int HALF = HEAD_DIM / 2;
constexpr int PER_LANE = HALF / 32;
constexpr int ALL_HEADS = NUM_HEADS + 2 * NUM_KV_HEADS;
constexpr int WARPS = THREADS / 32;

// qkv: [tokens, ALL_HEADS, HEAD_DIM]; weights [HEAD_DIM] or null; cos, sin: [tokens, HALF]; slots: [tokens], below 0 keeps
// nothing; q: [tokens, NUM_HEADS, HEAD_DIM]; keys, values: [slots, NUM_KV_HEADS, HEAD_DIM].
extern "C" __global__ void __launch_bounds__(THREADS)
    qk_norm_rope(const Element* qkv, const Element* q_weight, const Element* k_weight, const float* cos, const float* sin,
                 const long long* slots, Element* q, Stored* keys, Stored* values, float eps) {
    const u64 token = blockIdx.x;
    const int head = blockIdx.y * WARPS + threadIdx.x / 32;
    if (head >= ALL_HEADS) return;
    const int first = threadIdx.x % 32 * PER_LANE;
    const Element* from = qkv + (token * ALL_HEADS + head) * HEAD_DIM;
    float a[PER_LANE], b[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
        a[i] = widen(from[first + i]);
        b[i] = widen(from[HALF + first + i]);
    }
    const bool is_query = head < NUM_HEADS, is_key = !is_query && head < NUM_HEADS + NUM_KV_HEADS;
    const Element* weight = is_query ? q_weight : is_key ? k_weight : nullptr;
    if (weight != nullptr) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) sum = fmaf(a[i], a[i], fmaf(b[i], b[i], sum));
        const float scale = rsqrtf(sum_of_warp(sum) / HEAD_DIM + eps);
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            a[i] = rounded(rounded(a[i] * scale) * widen(weight[first + i]));
            b[i] = rounded(rounded(b[i] * scale) * widen(weight[HALF + first + i]));
        }
    }
    if (is_query || is_key) {
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            const float c = rounded(cos[token * HALF + first + i]), s = rounded(sin[token * HALF + first + i]);
            const float turned = rounded(a[i] * c) - rounded(b[i] * s);
            b[i] = rounded(b[i] * c) + rounded(a[i] * s);
            a[i] = turned;
        }
    }
    if (is_query) {
        Element* to = q + (token * NUM_HEADS + head) * HEAD_DIM;
#pragma unroll
        for (int i = 0; i < PER_LANE; ++i) {
            to[first + i] = narrow(a[i]);
            to[HALF + first + i] = narrow(b[i]);
        }
        return;
    }
    const long long slot = slots[token];
    if (slot < 0) return;
    const int kv_head = (head - NUM_HEADS) % NUM_KV_HEADS;
    Stored* to = (is_key ? keys : values) + ((u64)slot * NUM_KV_HEADS + kv_head) * HEAD_DIM;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) store2(to + first + i, to + HALF + first + i, a[i], b[i]);
}

// The two passes over a chunk of logits that the output head needs, each bound by the bytes it moves: `absorb` takes a
// chunk into the running softmax of every row, `slope` replaces it by the gradient of a loss, in place. A thread block
// takes a row.
//
// Macros: THREADS, BF16 (1: the gradient is bf16, packed into the first half of its row; 0: f32).

typedef unsigned int u32;
typedef unsigned short u16;

constexpr u32 ALL_LANES = 0xffffffffu;
constexpr int WARPS = THREADS / 32;
// Elements of a load, and loads of a thread that are on their way at once.
constexpr int WIDTH = 4;
constexpr int LOADS = 4;
constexpr int TILE = THREADS * WIDTH * LOADS;

// The softmax of what was seen so far: the largest logit, sum e^(x - largest), sum e^(x - largest) (x - largest).
struct Softmax {
    float largest, sum, weighted;

    // The same relative to a larger or equal `top`.
    __device__ __forceinline__ void raise(float top) {
        const float shift = largest - top;
        const float keep = __expf(shift);
        weighted = (weighted + sum * shift) * keep;
        sum *= keep;
        largest = top;
    }

    __device__ __forceinline__ void add(Softmax other) {
        const float top = fmaxf(largest, other.largest);
        raise(top);
        other.raise(top);
        sum += other.sum;
        weighted += other.weighted;
    }

    // `x` is not above `largest`.
    __device__ __forceinline__ void take(float x) {
        const float shift = x - largest;
        const float weight = __expf(shift);
        sum += weight;
        weighted += weight * shift;
    }
};

__device__ __forceinline__ Softmax across_warp(Softmax mine) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        Softmax other;
        other.largest = __shfl_xor_sync(ALL_LANES, mine.largest, step);
        other.sum = __shfl_xor_sync(ALL_LANES, mine.sum, step);
        other.weighted = __shfl_xor_sync(ALL_LANES, mine.weighted, step);
        mine.add(other);
    }
    return mine;
}

// `state[row]` is (largest, sum, weighted, logit of the target) of logits * scale; `first` is the id of column 0.
extern "C" __global__ void __launch_bounds__(THREADS)
    absorb(const float* logits, const long long* targets, float4* state, int num_columns, long long first, float scale) {
    const long long row = blockIdx.x;
    const float* from = logits + row * num_columns;
    Softmax mine = {state[row].x, 0, 0};
    const int num_wide = num_columns % WIDTH == 0 ? num_columns : 0;
    for (int base = 0; base < num_wide; base += TILE) {
        float x[LOADS][WIDTH];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = base + (i * THREADS + threadIdx.x) * WIDTH;
            // What lies beyond the end counts nothing once it meets a logit: e^(-1e30 - logit) is 0.
            float4 four = make_float4(-1e30f, -1e30f, -1e30f, -1e30f);
            if (at < num_wide) four = __ldcs(reinterpret_cast<const float4*>(from + at));
            x[i][0] = four.x, x[i][1] = four.y, x[i][2] = four.z, x[i][3] = four.w;
        }
        float top = mine.largest;
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                x[i][j] *= scale;
                top = fmaxf(top, x[i][j]);
            }
        }
        mine.raise(top);
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) mine.take(x[i][j]);
        }
    }
    for (int at = num_wide + threadIdx.x; at < num_columns; at += THREADS) {
        const float x = from[at] * scale;
        mine.raise(fmaxf(mine.largest, x));
        mine.take(x);
    }
    __shared__ Softmax parts[WARPS];
    mine = across_warp(mine);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        Softmax all = parts[0];
#pragma unroll
        for (int i = 1; i < WARPS; ++i) all.add(parts[i]);
        const float4 before = state[row];
        all.add({before.x, before.y, before.z});
        const long long target = targets[row] - first;
        const bool is_here = target >= 0 && target < num_columns;
        state[row] = make_float4(all.largest, all.sum, all.weighted, is_here ? from[target] * scale : before.w);
    }
}

// What the gradient of a row's logits is made of; see `slope`.
struct Row {
    float lse, entropy, dense, picked, slope, scale;
    long long target;

    __device__ __forceinline__ float at(float logit, long long column) const {
        const float log_prob = logit * scale - lse;
        float grad = -__expf(log_prob) * (dense + slope * (log_prob + entropy));
        if (column == target) grad += picked;
        return grad * scale;
    }
};

#if BF16
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#endif

// d loss / d logit = scale ([target] picked - p (dense + slope (log p + H))): of a log-prob the loss's slope is `dense`
// where the softmax is over all ids and `picked` at the target, of the entropy it is `slope`. `rows` holds (lse, H, dense,
// picked, slope) of every row.
extern "C" __global__ void __launch_bounds__(THREADS)
    slope(float* logits, const long long* targets, const float* rows, int num_columns, long long first, float scale) {
    const long long number = blockIdx.x;
    float* from = logits + number * num_columns;
    const float* of_row = rows + number * 5;
    const Row row = {of_row[0], of_row[1], of_row[2], of_row[3], of_row[4], scale, targets[number] - first};
    const int num_wide = num_columns % WIDTH == 0 ? num_columns : 0;
    for (int base = 0; base < num_wide; base += TILE) {
        float4 x[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = base + (i * THREADS + threadIdx.x) * WIDTH;
            if (at < num_wide) x[i] = __ldcs(reinterpret_cast<const float4*>(from + at));
        }
#if BF16
        // The packed gradient of this tile lies over logits that were read in this tile or before it.
        __syncthreads();
#endif
#pragma unroll
        for (int i = 0; i < LOADS; ++i) {
            const int at = base + (i * THREADS + threadIdx.x) * WIDTH;
            if (at < num_wide) {
                const float4 grad =
                    make_float4(row.at(x[i].x, at), row.at(x[i].y, at + 1), row.at(x[i].z, at + 2), row.at(x[i].w, at + 3));
#if BF16
                const uint2 packed = make_uint2(pack(grad.x, grad.y), pack(grad.z, grad.w));
                *reinterpret_cast<uint2*>(reinterpret_cast<u16*>(from) + at) = packed;
#else
                *reinterpret_cast<float4*>(from + at) = grad;
#endif
            }
        }
    }
    // Every thread takes every turn, for the barriers.
    for (int base = num_wide; base < num_columns; base += THREADS) {
        const int at = base + threadIdx.x;
        const float x = at < num_columns ? from[at] : 0;
#if BF16
        __syncthreads();
        if (at < num_columns) reinterpret_cast<u16*>(from)[at] = (u16)pack(row.at(x, at), 0);
#else
        if (at < num_columns) from[at] = row.at(x, at);
#endif
    }
}

// Attention of single tokens over keys and values in blocks, bound by reading those once: a thread block takes one
// token, the query heads that share a key-value head, and SPLIT positions; partial results meet in `combine`. Which
// positions are taken together depends on the token alone, so results do not depend on what else is in the batch.
//
// Macros: HEAD_DIM (LANES * 8), NUM_HEADS, NUM_KV_HEADS, GROUP (query heads of a block; divides NUM_HEADS / NUM_KV_HEADS),
// KV_BLOCK (tokens of a cache block), SPLIT (a multiple of
// it), BF16 (1: bf16, 0: f32), THREADS.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

#if BF16
typedef u16 Element;
#else
typedef float Element;
#endif

// A lane holds 8 neighbouring elements of a head; the lanes of a team hold one token.
constexpr int LANES = HEAD_DIM / 8;
constexpr int TEAMS = THREADS / LANES;
constexpr int UNROLL = 4;
constexpr int TILES = NUM_HEADS / NUM_KV_HEADS / GROUP;
constexpr int RAW = 8 * sizeof(Element) / 16;
#define MINUS_INFINITY __int_as_float(0xff800000)

struct Raw {
    uint4 words[RAW];
};

__device__ __forceinline__ Raw load(const Element* from) {
    Raw raw;
#pragma unroll
    for (int i = 0; i < RAW; ++i) raw.words[i] = __ldg(reinterpret_cast<const uint4*>(from) + i);
    return raw;
}

__device__ __forceinline__ void widen(const Raw& raw, float (&x)[8]) {
#if BF16
    const u32 words[4] = {raw.words[0].x, raw.words[0].y, raw.words[0].z, raw.words[0].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
#else
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        x[4 * i] = __uint_as_float(raw.words[i].x);
        x[4 * i + 1] = __uint_as_float(raw.words[i].y);
        x[4 * i + 2] = __uint_as_float(raw.words[i].z);
        x[4 * i + 3] = __uint_as_float(raw.words[i].w);
    }
#endif
}

// Rounded to nearest even; what goes in is finite or NaN.
__device__ __forceinline__ Element narrow(float x) {
#if BF16
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#else
    return x;
#endif
}

// out, q: [t, NUM_HEADS, HEAD_DIM]; keys, values: [slots, NUM_KV_HEADS, HEAD_DIM]; tables: [sequences, table_len];
// rows, seqs, visible: [items], an item being row `rows[i]` of q, which sees the first `visible[i]` positions of sequence
// `seqs[i]`; partial_sums: [items, NUM_HEADS, splits, HEAD_DIM]; partial_weights: [items, NUM_HEADS, splits, 2], maximum
// and sum. With one split the output is written at once. `scale` includes log2(e).
extern "C" __global__ void __launch_bounds__(THREADS)
paged_attention(Element* out, const Element* q, const Element* keys, const Element* values, const int* tables,
                int table_len, const int* rows, const int* seqs, const int* visible, float scale, float* partial_sums,
                float* partial_weights, int splits) {
    const int item = blockIdx.x, split = blockIdx.z;
    const int kv_head = blockIdx.y / TILES;
    const int head = kv_head * (NUM_HEADS / NUM_KV_HEADS) + (blockIdx.y % TILES) * GROUP;
    const int start = split * SPLIT;
    const int end = min(visible[item], start + SPLIT);
    if (start >= end) return;
    const int team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    __shared__ int blocks[SPLIT / KV_BLOCK];
    const int* table = tables + (u64)seqs[item] * table_len + start / KV_BLOCK;
    for (int i = threadIdx.x; i < (end - start + KV_BLOCK - 1) / KV_BLOCK; i += THREADS) blocks[i] = table[i];
    __syncthreads();
    const u64 row = (u64)rows[item] * NUM_HEADS + head;

    float query[GROUP][8], sums[GROUP][8], largest[GROUP], weight[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        widen(load(q + (row + g) * HEAD_DIM + lane * 8), query[g]);
        largest[g] = MINUS_INFINITY;
        weight[g] = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            query[g][i] *= scale;
            sums[g][i] = 0;
        }
    }

    // What lies beyond the end is read at the last position and does not count.
    Raw raw_keys[UNROLL], raw_values[UNROLL];
    auto fetch = [&](int base) {
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const int at = min(base + u * TEAMS + team, end - 1);
            const u64 slot = (u64)blocks[(at - start) / KV_BLOCK] * KV_BLOCK + at % KV_BLOCK;
            const u64 place = (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM + lane * 8;
            raw_keys[u] = load(keys + place);
            raw_values[u] = load(values + place);
        }
    };
    fetch(start);
    // Every lane makes the same number of turns, so that teams of a warp may shuffle together.
    for (int base = start; base < end; base += TEAMS * UNROLL) {
        Raw these_keys[UNROLL], these_values[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            these_keys[u] = raw_keys[u];
            these_values[u] = raw_values[u];
        }
        // The next turn's memory is on its way while this one computes.
        fetch(base + TEAMS * UNROLL);
        float scores[UNROLL][GROUP];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            float key[8];
            widen(these_keys[u], key);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                float score = 0;
#pragma unroll
                for (int i = 0; i < 8; ++i) score = fmaf(query[g][i], key[i], score);
#pragma unroll
                for (int step = LANES / 2; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
                scores[u][g] = base + u * TEAMS + team < end ? score : MINUS_INFINITY;
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float next = largest[g];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) next = fmaxf(next, scores[u][g]);
            const float base_of_exp = next == MINUS_INFINITY ? 0.f : next;
            const float shrink = exp2f(largest[g] - base_of_exp);
            largest[g] = next;
            weight[g] *= shrink;
#pragma unroll
            for (int i = 0; i < 8; ++i) sums[g][i] *= shrink;
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                scores[u][g] = exp2f(scores[u][g] - base_of_exp);
                weight[g] += scores[u][g];
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            float value[8];
            widen(these_values[u], value);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
#pragma unroll
                for (int i = 0; i < 8; ++i) sums[g][i] = fmaf(scores[u][g], value[i], sums[g][i]);
            }
        }
    }

    __shared__ float team_sums[TEAMS][GROUP][HEAD_DIM];
    __shared__ float team_largest[TEAMS][GROUP], team_weight[TEAMS][GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
#pragma unroll
        for (int i = 0; i < 8; ++i) team_sums[team][g][lane * 8 + i] = sums[g][i];
        if (lane == 0) {
            team_largest[team][g] = largest[g];
            team_weight[team][g] = weight[g];
        }
    }
    __syncthreads();
    for (int place = threadIdx.x; place < GROUP * HEAD_DIM; place += THREADS) {
        const int g = place / HEAD_DIM, dim = place % HEAD_DIM;
        float most = MINUS_INFINITY;
        for (int t = 0; t < TEAMS; ++t) most = fmaxf(most, team_largest[t][g]);
        float sum = 0, total = 0;
        for (int t = 0; t < TEAMS; ++t) {
            const float share = exp2f(team_largest[t][g] - most);
            sum = fmaf(share, team_sums[t][g][dim], sum);
            total = fmaf(share, team_weight[t][g], total);
        }
        if (splits == 1) {
            out[(row + g) * HEAD_DIM + dim] = narrow(sum / total);
        } else {
            const u64 part = ((u64)item * NUM_HEADS + head + g) * splits + split;
            partial_sums[part * HEAD_DIM + dim] = sum;
            if (dim == 0) {
                partial_weights[part * 2] = most;
                partial_weights[part * 2 + 1] = total;
            }
        }
    }
}

// One block of HEAD_DIM threads for each item and query head.
extern "C" __global__ void combine(Element* out, const int* rows, const int* visible, const float* partial_sums,
                                   const float* partial_weights, int splits) {
    const int item = blockIdx.x, head = blockIdx.y, dim = threadIdx.x;
    const int used = (visible[item] + SPLIT - 1) / SPLIT;
    const u64 first = ((u64)item * NUM_HEADS + head) * splits;
    float most = MINUS_INFINITY;
    for (int s = 0; s < used; ++s) most = fmaxf(most, partial_weights[(first + s) * 2]);
    float sum = 0, total = 0;
    for (int s = 0; s < used; ++s) {
        const float share = exp2f(partial_weights[(first + s) * 2] - most);
        sum = fmaf(share, partial_sums[(first + s) * HEAD_DIM + dim], sum);
        total = fmaf(share, partial_weights[(first + s) * 2 + 1], total);
    }
    out[((u64)rows[item] * NUM_HEADS + head) * HEAD_DIM + dim] = narrow(sum / total);
}

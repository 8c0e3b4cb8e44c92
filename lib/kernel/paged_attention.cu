// Attention of single tokens over keys and values in blocks, bound by reading those once: a thread block takes one
// token, the query heads that share a key-value head, and SPLIT positions; partial results meet in `combine`. Which
// positions are taken together depends on the token alone, so results do not depend on what else is in the batch.
//
// Macros: HEAD_DIM (a multiple of 8), NUM_HEADS, NUM_KV_HEADS, GROUP (query heads of a block, at most 8; divides
// NUM_HEADS / NUM_KV_HEADS), KV_BLOCK (tokens of a cache block), SPLIT (a multiple of it), BF16 (1: bf16, 0: f32), KV_FP8 (1: keys
// and values are e4m3), THREADS.

#if KV_FP8
typedef unsigned char Stored;
typedef uint2 Piece;

// Two e4m3 numbers, each in the upper byte of a half, as bf16: exponent and mantissa fall into place but for the bias, which a
// product makes good, subnormal numbers too.
__device__ __forceinline__ u32 to_bf16(u32 halves) {
    const u32 bits = (halves & 0x80008000u) | ((halves & 0x7f007f00u) >> 4);
    u32 both;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(both) : "r"(bits), "r"(0x7b807b80u), "r"(0x80008000u));
    return both;
}

__device__ __forceinline__ uint4 unpack(const uint2& piece) {
    return make_uint4(to_bf16(__byte_perm(piece.x, 0, 0x1404)), to_bf16(__byte_perm(piece.x, 0, 0x3424)),
                      to_bf16(__byte_perm(piece.y, 0, 0x1404)), to_bf16(__byte_perm(piece.y, 0, 0x3424)));
}
#else
typedef Element Stored;
#endif

// Products of bf16 run on the tensor cores, others one by one.
#define TENSOR_CORES (BF16 && HEAD_DIM % 64 == 0)
#define MINUS_INFINITY __int_as_float(0xff800000)
constexpr int TILES = NUM_HEADS / NUM_KV_HEADS / GROUP;

// What a thread block works on.
struct Work {
    const Element* q;
    const Stored *keys, *values;
    const int* blocks;
    u64 row;
    int kv_head, start, end;
    float scale;

    // The first element of a position's head. What lies beyond the end is the last position, and does not count.
    __device__ __forceinline__ u64 place(int at) const {
        at = min(at, end - 1);
        const u64 slot = (u64)blocks[(at - start) / KV_BLOCK] * KV_BLOCK + at % KV_BLOCK;
        return (slot * NUM_KV_HEADS + kv_head) * HEAD_DIM;
    }
};

#if TENSOR_CORES

constexpr int PARTS = THREADS / 32;
// A warp takes 16 positions, or twice as many of short heads, while the next ones are on their way.
constexpr int UNROLL = HEAD_DIM == 64 ? 2 : 1;
constexpr bool HAS_ROOM_AHEAD = HEAD_DIM <= 128;

__device__ __forceinline__ uint4 load(const Element* from) { return __ldg(reinterpret_cast<const uint4*>(from)); }

#if KV_FP8
__device__ __forceinline__ Piece load_piece(const Stored* from) { return __ldg(reinterpret_cast<const Piece*>(from)); }
#else
typedef uint4 Piece;
__device__ __forceinline__ Piece load_piece(const Stored* from) { return load(from); }
__device__ __forceinline__ uint4 unpack(const Piece& piece) { return piece; }
#endif

// c += a b, for a of 16 x 16 and b of 16 x 8. A lane (g = lane / 4, c = lane % 4) holds of a the rows g and g + 8, of b the
// column g, each at k = 2c, 2c + 1 and 2c + 8, 2c + 9; of c the rows g and g + 8 at columns 2c and 2c + 1.
__device__ __forceinline__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

// Keys and values of a turn, loaded as they lie in memory: which of a head's dimensions stand where in a product is free
// as long as both factors agree. Of keys a lane holds position g of every 8, dimensions 8c .. 8c + 7 of every 32; of values
// positions 2c, 2c + 1, 2c + 8, 2c + 9 of every 16, dimensions 8g .. 8g + 7 of every 64.
struct Turn {
    Piece keys[2 * UNROLL][HEAD_DIM / 32];
    Piece values[UNROLL][4][HEAD_DIM / 64];

    __device__ __forceinline__ void fetch(const Work& work, int base, int g, int c) {
#pragma unroll
        for (int t = 0; t < 2 * UNROLL; ++t) {
            const Stored* from = work.keys + work.place(base + t * 8 + g) + c * 8;
#pragma unroll
            for (int b = 0; b < HEAD_DIM / 32; ++b) keys[t][b] = load_piece(from + b * 32);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const Stored* from = work.values + work.place(base + u * 16 + (i / 2) * 8 + 2 * c + i % 2) + g * 8;
#pragma unroll
                for (int b = 0; b < HEAD_DIM / 64; ++b) values[u][i][b] = load_piece(from + b * 64);
            }
        }
    }
};

// One warp's positions: weighted sums, largest score and sum of weights of every head.
__device__ __forceinline__ void attend(const Work& work, float (&sums)[GROUP][HEAD_DIM], float (&largests)[GROUP],
                                       float (&weights)[GROUP]) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    uint4 query[HEAD_DIM / 32];
#pragma unroll
    for (int b = 0; b < HEAD_DIM / 32; ++b) {
        query[b] = make_uint4(0, 0, 0, 0);
        if (g < GROUP) query[b] = load(work.q + (work.row + g) * HEAD_DIM + b * 32 + c * 8);
    }
    // Rows of a product are dimensions here, columns heads.
    float out[HEAD_DIM / 64][4][4] = {};
    float largest = MINUS_INFINITY, weight = 0;
    const int stride = PARTS * UNROLL * 16;
    int base = work.start + (threadIdx.x / 32) * UNROLL * 16;
    Turn next;
    if (HAS_ROOM_AHEAD && base < work.end) next.fetch(work, base, g, c);
    for (; base < work.end; base += stride) {
        Turn turn;
        if (HAS_ROOM_AHEAD) {
            turn = next;
            if (base + stride < work.end) next.fetch(work, base + stride, g, c);
        } else {
            turn.fetch(work, base, g, c);
        }
        // Head g at positions 2c and 2c + 1 of every 8.
        float scores[2 * UNROLL][2];
        float most = largest;
#pragma unroll
        for (int t = 0; t < 2 * UNROLL; ++t) {
            float product[4] = {};
#pragma unroll
            for (int b = 0; b < HEAD_DIM / 32; ++b) {
                const uint4 key = unpack(turn.keys[t][b]);
                multiply(product, query[b].x, 0, query[b].y, 0, key.x, key.y);
                multiply(product, query[b].z, 0, query[b].w, 0, key.z, key.w);
            }
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const bool counts = base + t * 8 + 2 * c + i < work.end;
                scores[t][i] = counts ? product[i] * work.scale : MINUS_INFINITY;
                most = fmaxf(most, scores[t][i]);
            }
        }
        // The first position of a turn counts, so that this is a number.
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 1));
        most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 2));
        const float shrink = exp2f(largest - most);
        largest = most;
        weight *= shrink;
        if (__any_sync(ALL_LANES, shrink != 1.f)) {
            const float even = __shfl_sync(ALL_LANES, shrink, 8 * c), odd = __shfl_sync(ALL_LANES, shrink, 8 * c + 4);
#pragma unroll
            for (int b = 0; b < HEAD_DIM / 64; ++b) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    out[b][j][0] *= even;
                    out[b][j][1] *= odd;
                    out[b][j][2] *= even;
                    out[b][j][3] *= odd;
                }
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            u32 shares[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float first = exp2f(scores[2 * u + h][0] - most), second = exp2f(scores[2 * u + h][1] - most);
                weight += first + second;
                shares[h] = pack(first, second);
            }
#pragma unroll
            for (int b = 0; b < HEAD_DIM / 64; ++b) {
                u32 v[4][4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const uint4 value = unpack(turn.values[u][i][b]);
                    v[i][0] = value.x, v[i][1] = value.y, v[i][2] = value.z, v[i][3] = value.w;
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    // Dimensions 2j and 2j + 1 of neighbouring positions, side by side.
                    multiply(out[b][j], __byte_perm(v[0][j], v[1][j], 0x5410), __byte_perm(v[0][j], v[1][j], 0x7632),
                             __byte_perm(v[2][j], v[3][j], 0x5410), __byte_perm(v[2][j], v[3][j], 0x7632), shares[0],
                             shares[1]);
                }
            }
        }
    }
    weight += __shfl_xor_sync(ALL_LANES, weight, 1);
    weight += __shfl_xor_sync(ALL_LANES, weight, 2);
    if (c == 0 && g < GROUP) {
        largests[g] = largest;
        weights[g] = weight;
    }
#pragma unroll
    for (int b = 0; b < HEAD_DIM / 64; ++b) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int head = 2 * c + i % 2, dim = b * 64 + g * 8 + 2 * j + i / 2;
                if (head < GROUP) sums[head][dim] = out[b][j][i];
            }
        }
    }
}

__device__ __forceinline__ int part() { return threadIdx.x / 32; }

#else

// A lane holds 8 neighbouring elements of a head; the lanes of a team hold one token.
constexpr int LANES = HEAD_DIM / 8;
constexpr int PARTS = THREADS / LANES;
constexpr int UNROLL = 4;
constexpr int RAW = 8 * sizeof(Element) / 16;

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
    const u32* words = reinterpret_cast<const u32*>(raw.words);
#if BF16
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
#else
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(words[i]);
#endif
}

#if KV_FP8
typedef Piece RawStored;

__device__ __forceinline__ RawStored load_stored(const Stored* from) { return __ldg(reinterpret_cast<const Piece*>(from)); }

__device__ __forceinline__ void widen(const RawStored& raw, float (&x)[8]) {
    const uint4 pairs = unpack(raw);
    const u32 words[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        x[2 * i] = __uint_as_float(words[i] << 16);
        x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}
#else
typedef Raw RawStored;

__device__ __forceinline__ RawStored load_stored(const Stored* from) { return load(from); }
#endif

__device__ __forceinline__ int part() { return threadIdx.x / LANES; }

// One team's positions.
__device__ __forceinline__ void attend(const Work& work, float (&all_sums)[GROUP][HEAD_DIM], float (&largests)[GROUP],
                                       float (&weights)[GROUP]) {
    const int lane = threadIdx.x % LANES;
    float query[GROUP][8], sums[GROUP][8], largest[GROUP], weight[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
        widen(load(work.q + (work.row + g) * HEAD_DIM + lane * 8), query[g]);
        largest[g] = MINUS_INFINITY;
        weight[g] = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            query[g][i] *= work.scale;
            sums[g][i] = 0;
        }
    }
    // Every lane makes the same number of turns, so that teams of a warp may shuffle together.
    for (int base = work.start; base < work.end; base += PARTS * UNROLL) {
        RawStored keys[UNROLL], values[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            const u64 place = work.place(base + u * PARTS + part()) + lane * 8;
            keys[u] = load_stored(work.keys + place);
            values[u] = load_stored(work.values + place);
        }
        float scores[UNROLL][GROUP];
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            float key[8];
            widen(keys[u], key);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
                float score = 0;
#pragma unroll
                for (int i = 0; i < 8; ++i) score = fmaf(query[g][i], key[i], score);
#pragma unroll
                for (int step = LANES / 2; step > 0; step /= 2) score += __shfl_xor_sync(ALL_LANES, score, step);
                scores[u][g] = base + u * PARTS + part() < work.end ? score : MINUS_INFINITY;
            }
        }
#pragma unroll
        for (int g = 0; g < GROUP; ++g) {
            float most = largest[g];
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) most = fmaxf(most, scores[u][g]);
            // A team that has seen no position yet has no largest score.
            const float origin = most == MINUS_INFINITY ? 0.f : most;
            const float shrink = exp2f(largest[g] - origin);
            largest[g] = most;
            weight[g] *= shrink;
#pragma unroll
            for (int i = 0; i < 8; ++i) sums[g][i] *= shrink;
#pragma unroll
            for (int u = 0; u < UNROLL; ++u) {
                scores[u][g] = exp2f(scores[u][g] - origin);
                weight[g] += scores[u][g];
            }
        }
#pragma unroll
        for (int u = 0; u < UNROLL; ++u) {
            float value[8];
            widen(values[u], value);
#pragma unroll
            for (int g = 0; g < GROUP; ++g) {
#pragma unroll
                for (int i = 0; i < 8; ++i) sums[g][i] = fmaf(scores[u][g], value[i], sums[g][i]);
            }
        }
    }
#pragma unroll
    for (int g = 0; g < GROUP; ++g) {
#pragma unroll
        for (int i = 0; i < 8; ++i) all_sums[g][lane * 8 + i] = sums[g][i];
        if (lane == 0) {
            largests[g] = largest[g];
            weights[g] = weight[g];
        }
    }
}

#endif

// out, q: [t, NUM_HEADS, HEAD_DIM]; keys, values: [slots, NUM_KV_HEADS, HEAD_DIM]; tables: [sequences, table_len];
// rows, seqs, visible: [items], an item being row `rows[i]` of q, which sees the first `visible[i]` positions of sequence
// `seqs[i]`; partial_sums: [items, NUM_HEADS, splits, HEAD_DIM]; partial_weights: [items, NUM_HEADS, splits, 2], maximum
// and sum. With one split the output is written at once. `scale` includes log2(e).
extern "C" __global__ void __launch_bounds__(THREADS)
paged_attention(Element* out, const Element* q, const Stored* keys, const Stored* values, const int* tables,
                int table_len, const int* rows, const int* seqs, const int* visible, float scale, float* partial_sums,
                float* partial_weights, int splits) {
    __shared__ int blocks[SPLIT / KV_BLOCK];
    __shared__ float sums[PARTS][GROUP][HEAD_DIM], largest[PARTS][GROUP], weight[PARTS][GROUP];
    const int item = blockIdx.x, split = blockIdx.z;
    const int kv_head = blockIdx.y / TILES;
    const int head = kv_head * (NUM_HEADS / NUM_KV_HEADS) + (blockIdx.y % TILES) * GROUP;
    const int start = split * SPLIT, end = min(visible[item], start + SPLIT);
    if (start >= end) return;
    const int* table = tables + (u64)seqs[item] * table_len + start / KV_BLOCK;
    for (int i = threadIdx.x; i < (end - start + KV_BLOCK - 1) / KV_BLOCK; i += THREADS) blocks[i] = table[i];
    __syncthreads();
    const u64 row = (u64)rows[item] * NUM_HEADS + head;
    attend(Work{q, keys, values, blocks, row, kv_head, start, end, scale}, sums[part()], largest[part()], weight[part()]);
    __syncthreads();
    for (int place = threadIdx.x; place < GROUP * HEAD_DIM; place += THREADS) {
        const int g = place / HEAD_DIM, dim = place % HEAD_DIM;
        float most = MINUS_INFINITY;
        for (int p = 0; p < PARTS; ++p) most = fmaxf(most, largest[p][g]);
        float sum = 0, total = 0;
        for (int p = 0; p < PARTS; ++p) {
            const float share = exp2f(largest[p][g] - most);
            sum = fmaf(share, sums[p][g][dim], sum);
            total = fmaf(share, weight[p][g], total);
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

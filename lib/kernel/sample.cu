// Draws a token from every row of logits, with its log-prob under the distribution drawn from: softmax(logits / temperature)
// cut to top-k, then top-p of what is left, then min-p. A thread block takes a row. Sums of weights are taken in an order, or
// in integers, that depends on the row alone, so the same row and the same uniform number give the same token.
//
// Macros: THREADS. Ids of equal logits at the edge of a cut stay in together.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 ALL_LANES = 0xffffffffu;
constexpr int WARPS = THREADS / 32;
// Ids that a warp takes at a time.
constexpr int RUN = 128;
// Runs that the block remembers; longer rows are taken in larger runs.
constexpr int MOST_RUNS = 2048;
// Weights are at most 1; as integers their sums are exact in any order.
constexpr float FIXED = 1099511627776.f;  // 2^40

// Larger numbers have larger keys.
__device__ __forceinline__ u32 key_of(float x) {
    const u32 bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Best {
    float value;
    int id;

    // The larger; of equals the first.
    __device__ __forceinline__ void take(Best other) {
        if (other.value > value || (other.value == value && other.id < id)) *this = other;
    }
};

struct Shared {
    float sums[MOST_RUNS];
    double scan[WARPS];
    Best best[WARPS];
    u64 bins[256];
    u64 total;
    int bad, chosen;
    double before;
    u32 prefix;
};

// Every thread gets the sum over the block.
__device__ double sum_of_block(double x, Shared& shared) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared.scan[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0;
    for (int w = 0; w < WARPS; ++w) x += shared.scan[w];
    return x;
}

struct Row {
    const float* logits;
    int num;
    float largest, inverse;
    // Of ids with a smaller key nothing is drawn.
    u32 least;

    __device__ __forceinline__ float weight_of(float x) const {
        return key_of(x) >= least ? expf((x - largest) * inverse) : 0.f;
    }

    __device__ __forceinline__ float weight(int id) const { return weight_of(logits[id]); }

    // Four neighbours from a multiple of 4 on; minus infinity beyond the end.
    __device__ __forceinline__ float4 four(int id) const {
        if (num % 4 == 0) return *reinterpret_cast<const float4*>(logits + id);
        const float none = __int_as_float(0xff800000);
        return make_float4(logits[id], id + 1 < num ? logits[id + 1] : none, id + 2 < num ? logits[id + 2] : none,
                           id + 3 < num ? logits[id + 3] : none);
    }
};

// The largest key of which ids with that key or a larger one have at least `target` of the sum of `of_id`, among ids with
// keys from row.least on; digit by digit from the top.
template <typename Value>
__device__ u32 edge(const Row& row, u64 target, Shared& shared, Value of_id) {
    u32 prefix = 0;
    u64 above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        __syncthreads();
        for (int i = threadIdx.x; i < 256; i += THREADS) shared.bins[i] = 0;
        __syncthreads();
        for (int id = threadIdx.x; id < row.num; id += THREADS) {
            const u32 key = key_of(row.logits[id]);
            const bool is_here = key >= row.least && (shift == 24 || key >> (shift + 8) == prefix >> (shift + 8));
            if (is_here) atomicAdd(&shared.bins[key >> shift & 255], of_id(id));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 255;
            u64 sum = above;
            for (; digit > 0 && sum + shared.bins[digit] < target; --digit) sum += shared.bins[digit];
            shared.prefix = prefix | (u32)digit << shift;
            shared.total = sum;
        }
        __syncthreads();
        prefix = shared.prefix;
        above = shared.total;
    }
    return prefix;
}

// logits: [rows, num]; params: [rows, 4] of 1 / temperature (0: the most likely token, with the log-prob of the plain softmax), top-k (0:
// all), top-p, min-p; uniforms: [rows] in [0, 1). Out: tokens [rows], -1 where a logit is NaN or plus infinity; log_probs.
extern "C" __global__ void __launch_bounds__(THREADS)
    sample(const float* logits, int num, const float4* params, const double* uniforms, int* tokens, float* log_probs) {
    __shared__ Shared shared;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float4 param = params[blockIdx.x];
    const bool is_greedy = param.x == 0;
    Row row = {logits + (u64)blockIdx.x * num, num, 0, is_greedy ? 1.f : param.x, 0};

    // The largest logit.
    Best best = {__int_as_float(0xff800000), 0x7fffffff};
    bool is_bad = false;
#pragma unroll 4
    for (int id = threadIdx.x * 4; id < num; id += THREADS * 4) {
        const float4 four = row.four(id);
        const float values[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            is_bad |= !(values[i] < __int_as_float(0x7f800000));
            best.take({values[i], id + i});
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        best.take({__shfl_xor_sync(ALL_LANES, best.value, step), __shfl_xor_sync(ALL_LANES, best.id, step)});
    }
    if (threadIdx.x == 0) shared.bad = 0;
    __syncthreads();
    if (lane == 0) shared.best[warp] = best;
    if (is_bad) shared.bad = 1;
    __syncthreads();
    for (int w = 0; w < WARPS; ++w) best.take(shared.best[w]);
    if (shared.bad || best.value == __int_as_float(0xff800000)) {
        if (threadIdx.x == 0) tokens[blockIdx.x] = -1, log_probs[blockIdx.x] = 0;
        return;
    }
    row.largest = best.value;

    // What the cuts leave.
    if (!is_greedy) {
        const int top_k = (int)param.y;
        const auto fixed = [&](int id) { return (u64)(expf((row.logits[id] - row.largest) * row.inverse) * FIXED); };
        if (top_k > 0 && top_k < num) {
            row.least = edge(row, (u64)top_k, shared, [](int) { return (u64)1; });
        }
        u32 least = row.least;
        if (param.z < 1) {
            double mass = 0;
            for (int id = threadIdx.x; id < num; id += THREADS) {
                if (key_of(row.logits[id]) >= row.least) mass += (double)fixed(id);
            }
            const u64 target = (u64)ceil((double)param.z * sum_of_block(mass, shared));
            least = edge(row, target, shared, fixed);
        }
        if (param.w > 0) {
            // exp((x - largest) inverse) >= min_p.
            const u32 floor = key_of(row.largest + logf(param.w) / row.inverse);
            least = max(least, min(floor, key_of(row.largest)));
        }
        row.least = least;
    }

    // Sums of runs of neighbours, then the run and the id at which the running sum passes the target.
    const int run = ((num + MOST_RUNS - 1) / MOST_RUNS + RUN - 1) / RUN * RUN, num_runs = (num + run - 1) / run;
#pragma unroll 4
    for (int r = warp; r < num_runs; r += WARPS) {
        float sum = 0;
        for (int id = r * run + lane * 4; id < min(num, (r + 1) * run); id += RUN) {
            const float4 four = row.four(id);
            sum += row.weight_of(four.x) + row.weight_of(four.y) + row.weight_of(four.z) + row.weight_of(four.w);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
        if (lane == 0) shared.sums[r] = sum;
    }
    __syncthreads();
    double mine = 0;
    for (int r = threadIdx.x; r < num_runs; r += THREADS) mine += shared.sums[r];
    const double total = sum_of_block(mine, shared);
    if (is_greedy) {
        if (threadIdx.x == 0) tokens[blockIdx.x] = best.id, log_probs[blockIdx.x] = (float)-log(total);
        return;
    }
    if (warp != 0) return;
    const double target = uniforms[blockIdx.x] * total;
    // The first warp goes on alone: 32 runs at a time.
    double before = 0;
    int found = -1;
    for (int first = 0; first < num_runs && found < 0; first += 32) {
        const double sum = first + lane < num_runs ? shared.sums[first + lane] : 0;
        double upto = sum;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const double other = __shfl_up_sync(ALL_LANES, upto, step);
            if (lane >= step) upto += other;
        }
        const u32 past = __ballot_sync(ALL_LANES, sum > 0 && before + upto > target);
        if (past) {
            const int at = __ffs(past) - 1;
            found = first + at;
            before += __shfl_sync(ALL_LANES, upto - sum, at);
        } else {
            // Rounding at the end falls on the last run that has any weight.
            const u32 any = __ballot_sync(ALL_LANES, sum > 0);
            if (any) shared.chosen = first + 31 - __clz(any);
            before += __shfl_sync(ALL_LANES, upto, 31);
        }
    }
    __syncwarp();
    const bool is_past = found >= 0;
    if (!is_past) found = shared.chosen;
    int token = -1, last = -1;
    for (int first = found * run; first < min(num, (found + 1) * run) && token < 0; first += 32) {
        const float weight = first + lane < min(num, (found + 1) * run) ? row.weight(first + lane) : 0.f;
        double upto = weight;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const double other = __shfl_up_sync(ALL_LANES, upto, step);
            if (lane >= step) upto += other;
        }
        const u32 past = __ballot_sync(ALL_LANES, is_past && weight > 0 && before + upto > target);
        const u32 any = __ballot_sync(ALL_LANES, weight > 0);
        if (any) last = first + 31 - __clz(any);
        if (past) token = first + __ffs(past) - 1;
        before += __shfl_sync(ALL_LANES, upto, 31);
    }
    if (token < 0) token = last;
    if (lane == 0) {
        tokens[blockIdx.x] = token;
        log_probs[blockIdx.x] = (float)(((double)row.logits[token] - row.largest) * row.inverse - log(total));
    }
}

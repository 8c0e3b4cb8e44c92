// Sums of rows that lie apart, each with its own list of them. Sums run in f32, in the order of the list.
//
// Macros: BF16, THREADS.

// rows: [any, width], width a multiple of 8; list r has the ids offsets[r]..offsets[r + 1], or without offsets per_list of them;
// weights: one for each id, or null; out: [lists, width].
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_rows(const Element* rows, const long long* offsets, const long long* ids, const float* weights, Element* out,
             int per_list, int width) {
    const int at = (blockIdx.y * THREADS + threadIdx.x) * 8;
    if (at >= width) return;
    const u64 list = blockIdx.x;
    const u64 begin = offsets == nullptr ? list * per_list : offsets[list];
    const u64 end = offsets == nullptr ? begin + per_list : offsets[list + 1];
    Eight sum;
#pragma unroll
    for (int j = 0; j < 8; ++j) sum.x[j] = 0;
#pragma unroll 4
    for (u64 i = begin; i < end; ++i) {
        const Eight row = load8(rows + (u64)ids[i] * width + at);
        const float weight = weights == nullptr ? 1 : weights[i];
#pragma unroll
        for (int j = 0; j < 8; ++j) sum.x[j] = fmaf(row.x[j], weight, sum.x[j]);
    }
    store8(out + list * width + at, sum);
}

// The AdamW update and the sum of squares of gradients, over plain memory. Macros: BF16 (of the weights), THREADS.

struct Rates {
    float grad_scale, decay, beta1, rest1, beta2, rest2, step_size, inverse_root, eps;
};

__device__ __forceinline__ float updated(float grad, float& first, float& second, float master, const Rates& rates) {
    grad *= rates.grad_scale;
    first = rates.beta1 * first + rates.rest1 * grad;
    second = rates.beta2 * second + rates.rest2 * grad * grad;
    return master * rates.decay - rates.step_size * first / (sqrtf(second) * rates.inverse_root + rates.eps);
}

// All of count elements; param may be null, where master itself is the weights. Four at a time where is_aligned says that every
// address is a multiple of 16.
extern "C" __global__ void __launch_bounds__(THREADS)
    adamw(Element* param, const float* grad, float* master, float* first, float* second, long long count, int is_aligned,
          float grad_scale, float decay, float beta1, float rest1, float beta2, float rest2, float step_size,
          float inverse_root, float eps) {
    const Rates rates = {grad_scale, decay, beta1, rest1, beta2, rest2, step_size, inverse_root, eps};
    const u64 start = (u64)blockIdx.x * THREADS + threadIdx.x, step = (u64)gridDim.x * THREADS;
    const u64 num_fours = is_aligned ? count / 4 : 0;
    for (u64 i = start; i < num_fours; i += step) {
        const float4 g = reinterpret_cast<const float4*>(grad)[i];
        float4 w = reinterpret_cast<float4*>(master)[i], m = reinterpret_cast<float4*>(first)[i],
               v = reinterpret_cast<float4*>(second)[i];
        w.x = updated(g.x, m.x, v.x, w.x, rates);
        w.y = updated(g.y, m.y, v.y, w.y, rates);
        w.z = updated(g.z, m.z, v.z, w.z, rates);
        w.w = updated(g.w, m.w, v.w, w.w, rates);
        reinterpret_cast<float4*>(master)[i] = w;
        reinterpret_cast<float4*>(first)[i] = m;
        reinterpret_cast<float4*>(second)[i] = v;
        if (param != nullptr) {
#if BF16
            reinterpret_cast<uint2*>(param)[i] = make_uint2((u32)narrow(w.x) | (u32)narrow(w.y) << 16,
                                                            (u32)narrow(w.z) | (u32)narrow(w.w) << 16);
#else
            reinterpret_cast<float4*>(param)[i] = w;
#endif
        }
    }
    for (u64 i = num_fours * 4 + start; i < count; i += step) {
        const float w = updated(grad[i], first[i], second[i], master[i], rates);
        master[i] = w;
        if (param != nullptr) param[i] = narrow(w);
    }
}

// parts: [blocks], the sum of the squares that each block saw.
extern "C" __global__ void __launch_bounds__(THREADS)
    sum_of_squares(const float* values, long long count, int is_aligned, double* parts) {
    __shared__ double sums[THREADS / 32];
    const u64 start = (u64)blockIdx.x * THREADS + threadIdx.x, step = (u64)gridDim.x * THREADS;
    const u64 num_fours = is_aligned ? count / 4 : 0;
    double sum = 0;
    u64 i = start;
    for (; i + 3 * step < num_fours; i += 4 * step) {
        float4 four[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) four[j] = reinterpret_cast<const float4*>(values)[i + j * step];
        float part = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            part += four[j].x * four[j].x + four[j].y * four[j].y + four[j].z * four[j].z + four[j].w * four[j].w;
        }
        sum += part;
    }
    for (; i < num_fours; i += step) {
        const float4 four = reinterpret_cast<const float4*>(values)[i];
        sum += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
    }
    for (u64 i = num_fours * 4 + start; i < count; i += step) sum += values[i] * values[i];
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, lane);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0;
#pragma unroll
        for (int i = 0; i < THREADS / 32; ++i) sum += sums[i];
        parts[blockIdx.x] = sum;
    }
}

// The gate of the MLP: silu(gate) * up. What libtorch rounds between its operations is rounded here too.
//
// Macros: BF16, THREADS.

// gate_up: [tokens, 2 * width], gate first; out: [tokens, width], width a multiple of 8.
extern "C" __global__ void __launch_bounds__(THREADS) silu_mul(const Element* gate_up, Element* out, int width) {
    const int at = (blockIdx.y * THREADS + threadIdx.x) * 8;
    if (at >= width) return;
    const Element* row = gate_up + (u64)blockIdx.x * 2 * width;
    Eight gate = load8(row + at);
    const Eight up = load8(row + width + at);
#pragma unroll
    for (int j = 0; j < 8; ++j) gate.x[j] = rounded(gate.x[j] / (1 + expf(-gate.x[j]))) * up.x[j];
    store8(out + (u64)blockIdx.x * width + at, gate);
}

// Gradients of gate and up, [tokens, 2 * width], from that of silu(gate) * up, [tokens, width].
extern "C" __global__ void __launch_bounds__(THREADS)
    silu_mul_backward(const Element* gate_up, const Element* grad_out, Element* grad, int width) {
    const int at = (blockIdx.y * THREADS + threadIdx.x) * 8;
    if (at >= width) return;
    const u64 row = (u64)blockIdx.x * 2 * width;
    Eight gate = load8(gate_up + row + at), up = load8(gate_up + row + width + at);
    const Eight slope = load8(grad_out + (u64)blockIdx.x * width + at);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        const float sigmoid = 1 / (1 + expf(-gate.x[j])), silu = gate.x[j] * sigmoid;
        gate.x[j] = slope.x[j] * up.x[j] * (sigmoid + silu * (1 - sigmoid));
        up.x[j] = slope.x[j] * silu;
    }
    store8(grad + row + at, gate);
    store8(grad + row + width + at, up);
}

// The same for rows of pairs of a token and an expert, one block each, where slope is the gradient of silu(gate) * up as if the
// pair's weight were 1: grad gets the gradients of gate and up, act silu(gate) * up times the weight, and grad_weight [rows] the
// gradient of the weight.
extern "C" __global__ void __launch_bounds__(THREADS)
    expert_gate_backward(const Element* gate_up, const Element* slope, const float* weight, Element* grad, Element* act,
                         float* grad_weight, int width) {
    __shared__ float parts[THREADS / 32];
    const u64 row = blockIdx.x;
    const float factor = weight[row];
    float sum = 0;
    for (int at = threadIdx.x * 8; at < width; at += THREADS * 8) {
        Eight gate = load8(gate_up + row * 2 * width + at), up = load8(gate_up + row * 2 * width + width + at);
        const Eight own = load8(slope + row * width + at);
        Eight out;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float sigmoid = 1 / (1 + expf(-gate.x[j])), silu = gate.x[j] * sigmoid;
            const float product = rounded(silu) * up.x[j];
            sum = fmaf(own.x[j], rounded(product), sum);
            out.x[j] = product * factor;
            const float weighted = own.x[j] * factor;
            gate.x[j] = weighted * up.x[j] * (sigmoid + silu * (1 - sigmoid));
            up.x[j] = weighted * silu;
        }
        store8(grad + row * 2 * width + at, gate);
        store8(grad + row * 2 * width + width + at, up);
        store8(act + row * width + at, out);
    }
    sum = sum_of_warp(sum);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        sum = 0;
#pragma unroll
        for (int i = 0; i < THREADS / 32; ++i) sum += parts[i];
        grad_weight[row] = sum;
    }
}

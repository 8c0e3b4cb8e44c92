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

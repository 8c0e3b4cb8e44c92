// A matrix as it is behind symmetric groups of four-bit codes.
//
// Macros: BF16, WARPS.

// The smallest positive bf16 number that is at least x, no subnormal one, or the largest.
__device__ __forceinline__ float rounded_up(float x) {
    const u32 bits = __float_as_uint(x);
    u32 near = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    near = min(max(near, 0x80u), 0x7f7fu);
    if (__uint_as_float(near << 16) < x) near = min(near + 1, 0x7f7fu);
    return __uint_as_float(near << 16);
}

__device__ __forceinline__ float to_bf16(float x) {
    const u32 bits = __float_as_uint(x);
    return __uint_as_float(((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16) << 16);
}

// from, to: [groups, size]; one warp for each group.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    fake_int4(const Element* from, Element* to, long long groups, int size) {
    const u64 group = (u64)blockIdx.x * WARPS + threadIdx.x / 32;
    if (group >= groups) return;
    const int lane = threadIdx.x % 32;
    from += group * size, to += group * size;
    float largest = 0;
    for (int i = lane; i < size; i += 32) largest = fmaxf(largest, fabsf(widen(from[i])));
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(ALL_LANES, largest, step));
    const float scale = rounded_up(2 * largest / 15);
    for (int i = lane; i < size; i += 32) {
        // Halves away from zero; below it everything is code 0.
        const float x = widen(from[i]) / scale + 8, whole = floorf(x);
        const float code = fminf(fmaxf(whole + (x - whole >= 0.5f ? 1 : 0), 0), 15);
        to[i] = narrow(to_bf16(scale * (code - 8)));
    }
}

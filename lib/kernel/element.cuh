// Numbers of the kernels: bf16 or f32 in memory, f32 in registers. Macro: BF16 (1: bf16, 0: f32).

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;

#if BF16
typedef u16 Element;
#else
typedef float Element;
#endif

constexpr u32 ALL_LANES = 0xffffffffu;

__device__ __forceinline__ float widen(Element x) {
#if BF16
    return __uint_as_float((u32)x << 16);
#else
    return x;
#endif
}

// Rounded to nearest even.
__device__ __forceinline__ Element narrow(float x) {
#if BF16
    const u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#else
    return x;
#endif
}

// As libtorch leaves it between two operations.
__device__ __forceinline__ float rounded(float x) { return widen(narrow(x)); }

// Eight neighbours, at an address that is a multiple of their size.
struct Eight {
    float x[8];
};

// The same as they lie in memory, in half the registers for bf16.
#if BF16
typedef uint4 Packed;
#else
typedef Eight Packed;
#endif

__device__ __forceinline__ Eight unpacked(const Packed& packed) {
    Eight eight;
#if BF16
    const u32 pairs[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        eight.x[2 * i] = __uint_as_float(pairs[i] << 16);
        eight.x[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
    }
#else
    eight = packed;
#endif
    return eight;
}

__device__ __forceinline__ Packed load_packed(const Element* from) {
#if BF16
    return *reinterpret_cast<const uint4*>(from);
#else
    Packed eight;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const float4 four = reinterpret_cast<const float4*>(from)[i];
        eight.x[4 * i] = four.x, eight.x[4 * i + 1] = four.y, eight.x[4 * i + 2] = four.z, eight.x[4 * i + 3] = four.w;
    }
    return eight;
#endif
}

__device__ __forceinline__ Eight load8(const Element* from) { return unpacked(load_packed(from)); }

__device__ __forceinline__ void store8(Element* to, const Eight& eight) {
#if BF16
    u32 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = (u32)narrow(eight.x[2 * i]) | (u32)narrow(eight.x[2 * i + 1]) << 16;
    *reinterpret_cast<uint4*>(to) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
#else
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        reinterpret_cast<float4*>(to)[i] =
            make_float4(eight.x[4 * i], eight.x[4 * i + 1], eight.x[4 * i + 2], eight.x[4 * i + 3]);
    }
#endif
}

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

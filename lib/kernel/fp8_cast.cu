// A matrix as fp8 codes with scales, once along its rows and once, transposed, along its columns, in one pass over it.
//
// Macros: BF16, E5M2 (1: e5m2, 0: e4m3), SCALING (0: given scales, 1: lines of 128, 2: blocks of 128 x 128).

constexpr int SIDE = 128;
constexpr int THREADS = 256;
// A column of a tile in shared memory, a word apart from a whole number of banks.
constexpr int COLUMN = SIDE + 4;
constexpr float LARGEST = E5M2 ? 57344.0f : 448.0f;

// Four codes, the first in the low byte: rounded to nearest even, cut off at the largest, infinite ones as NaN.
__device__ __forceinline__ u32 codes_of(const float (&x)[4]) {
    float y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) y[i] = fabsf(x[i]) == __int_as_float(0x7f800000) ? __int_as_float(0x7fc00000) : x[i];
    u16 low, high;
#if E5M2
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(y[1]), "f"(y[0]));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(y[3]), "f"(y[2]));
#else
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(y[1]), "f"(y[0]));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(y[3]), "f"(y[2]));
#endif
    return (u32)low | (u32)high << 16;
}

// x / scale, rounded as a division: the residual of the first quotient corrects it. Where that is too small to be a number, so is
// the code.
__device__ __forceinline__ float quotient(float x, float scale, float inverse) {
    const float first = x * inverse;
    return fmaf(fmaf(-first, scale, x), inverse, first);
}

// One of eight neighbours as they lie in memory, where they take half the registers.
__device__ __forceinline__ float at(const Packed& packed, int j) {
#if BF16
    const u32 pairs[4] = {packed.x, packed.y, packed.z, packed.w};
    return __uint_as_float(j % 2 ? pairs[j / 2] & 0xffff0000u : pairs[j / 2] << 16);
#else
    return packed.x[j];
#endif
}

// What a code is times, from the largest magnitude of its values.
__device__ __forceinline__ float scale_of(float largest) {
    const float scale = largest / LARGEST;
    return scale >= 1.17549435e-38f && scale < __int_as_float(0x7f800000) ? scale : 1.0f;
}

// x: [batch, rows, columns], columns a multiple of 8. codes: [batch, padded, columns], or null; turned: [batch, columns,
// padded], or null; padded a multiple of 16, at least rows, what is behind the rows is zeros. Given scales: one for row r at
// r * row_step of row_scales, one for column c at c * column_step of column_scales, each matrix of the batch behind the one
// before. Otherwise scales are written: of lines to row_scales [columns / 128, padded] and column_scales [padded / 128,
// columns]; of blocks to row_scales [padded / 128, row_step] and column_scales [columns / 128, column_step]. largest, or null,
// becomes the largest magnitude if that is larger than what is there; it holds a float that is not negative.
extern "C" __global__ void __launch_bounds__(THREADS, BF16 ? 3 : 1)
    fp8_cast(const Element* x, unsigned char* codes, unsigned char* turned, float* row_scales, float* column_scales,
             int* largest, int rows, int columns, int padded, int row_step, int column_step) {
    __shared__ u32 tile[SIDE * COLUMN / 4];
    __shared__ float of_columns[THREADS / 32][SIDE];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int left = blockIdx.x * SIDE, top = blockIdx.y * SIDE;
    // Each thread has eight rows of eight columns.
    const int local_row = warp * 16 + lane / 16 * 8, local_column = lane % 16 * 8;
    const int row = top + local_row, column = left + local_column;
    const u64 matrix = blockIdx.z;
    x += matrix * rows * columns;
    Packed v[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        v[i] = Packed{};
        if (row + i < rows && column < columns) v[i] = load_packed(x + (u64)(row + i) * columns + column);
    }

    float row_scale[8], column_scale[8];
#if SCALING == 0
    const u64 first_row = matrix * rows * row_step, first_column = matrix * columns * column_step;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        row_scale[i] = codes && row + i < rows ? row_scales[first_row + (u64)(row + i) * row_step] : 1;
        column_scale[i] = turned && column < columns ? column_scales[first_column + (u64)(column + i) * column_step] : 1;
    }
    if (largest) {
        float most = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < 8; ++j) most = fmaxf(most, fabsf(at(v[i], j)));
#pragma unroll
        for (int step = 16; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, step));
        if (lane == 0) of_columns[warp][0] = most;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int other = 1; other < THREADS / 32; ++other) most = fmaxf(most, of_columns[other][0]);
            // Floats that are not negative order as their bits do.
            atomicMax(largest, __float_as_int(most));
        }
    }
#else
    float most_of_row[8], most_of_column[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) most_of_row[i] = 0, most_of_column[i] = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            most_of_row[i] = fmaxf(most_of_row[i], fabsf(at(v[i], j)));
            most_of_column[j] = fmaxf(most_of_column[j], fabsf(at(v[i], j)));
        }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int step = 8; step > 0; step /= 2)
            most_of_row[i] = fmaxf(most_of_row[i], __shfl_xor_sync(ALL_LANES, most_of_row[i], step));
        most_of_column[i] = fmaxf(most_of_column[i], __shfl_xor_sync(ALL_LANES, most_of_column[i], 16));
    }
#if SCALING == 1
    if (lane < 16)
#pragma unroll
        for (int j = 0; j < 8; ++j) of_columns[warp][local_column + j] = most_of_column[j];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        row_scale[i] = scale_of(most_of_row[i]);
        float most = 0;
#pragma unroll
        for (int other = 0; other < THREADS / 32; ++other) most = fmaxf(most, of_columns[other][local_column + i]);
        column_scale[i] = scale_of(most);
        if (codes && lane % 16 == 0 && row + i < padded) row_scales[(u64)blockIdx.x * padded + row + i] = row_scale[i];
        if (turned && warp == 0 && lane < 16 && column < columns)
            column_scales[(u64)blockIdx.y * columns + column + i] = column_scale[i];
    }
#else
    float most = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) most = fmaxf(most, most_of_row[i]);
    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, 16));
    if (lane == 0) of_columns[warp][0] = most;
    __syncthreads();
#pragma unroll
    for (int other = 0; other < THREADS / 32; ++other) most = fmaxf(most, of_columns[other][0]);
    const float scale = scale_of(most);
#pragma unroll
    for (int i = 0; i < 8; ++i) row_scale[i] = scale, column_scale[i] = scale;
    if (threadIdx.x == 0) {
        if (codes) row_scales[(u64)blockIdx.y * row_step + blockIdx.x] = scale;
        if (turned) column_scales[(u64)blockIdx.x * column_step + blockIdx.y] = scale;
    }
#endif
#endif

    if (codes) {
        codes += matrix * padded * columns;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float low[4], high[4];
            const float scale = row_scale[i], inverse = 1 / scale;
#pragma unroll
            for (int j = 0; j < 4; ++j)
                low[j] = quotient(at(v[i], j), scale, inverse), high[j] = quotient(at(v[i], j + 4), scale, inverse);
            if (row + i < padded && column < columns)
                *reinterpret_cast<uint2*>(codes + (u64)(row + i) * columns + column) =
                    make_uint2(codes_of(low), codes_of(high));
        }
    }
    if (!turned) return;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        float low[4], high[4];
        const float scale = column_scale[j], inverse = 1 / scale;
#pragma unroll
        for (int i = 0; i < 4; ++i)
            low[i] = quotient(at(v[i], j), scale, inverse), high[i] = quotient(at(v[i + 4], j), scale, inverse);
        u32* to = tile + ((local_column + j) * COLUMN + local_row) / 4;
        to[0] = codes_of(low), to[1] = codes_of(high);
    }
    __syncthreads();
    turned += matrix * padded * columns;
    for (int at = warp; at < SIDE && left + at < columns; at += THREADS / 32)
        if (top + lane * 4 < padded)
            *reinterpret_cast<u32*>(turned + (u64)(left + at) * padded + top + lane * 4) = tile[at * COLUMN / 4 + lane];
}

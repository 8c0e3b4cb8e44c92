// What the first layer of a decode step reads, from a few numbers for each sequence: a thread block takes one.
//
// Macros: BF16, HIDDEN (a multiple of 8), HALF (of head_dim), KV_BLOCK (tokens of a cache block), THREADS.

// tokens: [rows], the token or -1 - r for the token that the step before sampled in its row r (`sampled`); positions: [rows],
// below 0 where the row is empty; tables: [rows, table_len]; embed: [vocabulary, HIDDEN]; inv_freq: [HALF].
// Out: x [rows, HIDDEN], cos and sin [rows, HALF], slots [rows] (-1 of empty rows), visible [rows] (0 of those).
extern "C" __global__ void __launch_bounds__(THREADS)
    decode_inputs(const int* tokens, const int* positions, const int* sampled, const int* tables, int table_len,
                  const Element* embed, const float* inv_freq, Element* x, float* cos, float* sin, long long* slots,
                  int* visible) {
    const u64 row = blockIdx.x;
    const int position = positions[row];
    int token = tokens[row];
    if (token < 0) token = sampled[-1 - token];
    // A row whose logits were no numbers has no token; the host ends its sequence.
    if (position < 0 || token < 0) token = 0;
    for (int at = threadIdx.x * 8; at < HIDDEN; at += THREADS * 8) {
        store8(x + row * HIDDEN + at, load8(embed + (u64)token * HIDDEN + at));
    }
    for (int i = threadIdx.x; i < HALF; i += THREADS) {
        const float angle = (float)position * inv_freq[i];
        cos[row * HALF + i] = cosf(angle);
        sin[row * HALF + i] = sinf(angle);
    }
    if (threadIdx.x == 0) {
        const bool is_empty = position < 0;
        const int* table = tables + row * table_len;
        slots[row] = is_empty ? -1 : (long long)table[position / KV_BLOCK] * KV_BLOCK + position % KV_BLOCK;
        visible[row] = is_empty ? 0 : position + 1;
    }
}

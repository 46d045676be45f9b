// KDA over one sequence of one head, sixteen bytes at a time: forward, and a backward that computes each chunk again from its state.
//
// Names and equations are those of kernels/kda.py, with T v - T K S solved as (I + diag(b) N) R = diag(b) (v - K S) row by row.
// Inputs are what the block's product gives, before SiLU and sigmoid. Row i reads rows up to i only.

#pragma once
#include "blocks.h"

constexpr int CHUNK = 16;
constexpr float DECAY_FLOOR = -5.f;

// Where one head's columns of a window lie: bytes are `stride` (q, k, v, beta) or `d` (decay, out) floats apart.
struct Reads {
    const float *q, *k, *v, *beta, *decay;
    long stride, d;
};
struct Writes {
    float *q, *k, *v, *beta, *decay;
};

// SiLU of x; its slope there goes to `slope`.
static inline v16 silu16(v16 x, float* slope) {
    v16 s = sigmoid16(x), y = x * s;
    store(slope, s + y * (1.f - s));
    return y;
}

template <int C>
struct Chunk {
    static constexpr int K = 16 * C, HELD = C > 1 ? 16 / C : 8;  // HELD: rows a substitution keeps in registers
    float unit_q[CHUNK][K], unit_k[CHUNK][K];                                     // q carries K^-1/2
    float query[CHUNK][K], key[CHUNK][K], key_in[CHUNK][K], key_in_t[K][CHUNK];  // q e^c, k e^c, k e^-c
    float grow[CHUNK][K];                                                         // e^c
    float attend[CHUNK][CHUNK], inner[CHUNK][CHUNK];                              // lower, strictly lower
    float value[CHUNK][K], residue[CHUNK][K];                                     // v - K S with rows above taken off; b times it
    float slope_q[CHUNK][K], slope_k[CHUNK][K], slope_v[CHUNK][K], slope_decay[CHUNK][K];  // of SiLU, and of the decay in its logit
    float scale_q[CHUNK], scale_k[CHUNK], beta[CHUNK];

    // Bytes from `rows` on leave no trace.
    void read(const Reads& in, int rows) {
        const float root = 1.f / std::sqrt((float)K);
        v16 summed[C];
        for (int c = 0; c < C; c++) summed[c] = v16{};
        std::memset(beta, 0, sizeof beta);
        for (int i = 0; i < rows; i++) beta[i] = in.beta[i * in.stride];
        v16 open = sigmoid16(load(beta));
        store(beta, open);
        for (int i = rows; i < CHUNK; i++) beta[i] = 0;
        for (int i = 0; i < CHUNK; i++) {
            if (i >= rows) {
                for (float* row : {unit_q[i], unit_k[i], query[i], key[i], key_in[i], value[i]}) std::memset(row, 0, 4 * K);
                for (int c = 0; c < C; c++) store(grow[i] + 16 * c, exp16(summed[c]));
                scale_q[i] = scale_k[i] = 0;
                continue;
            }
            v16 q[C], k[C], qq{}, kk{};
            for (int c = 0; c < C; c++) {
                q[c] = silu16(load(in.q + i * in.stride + 16 * c), slope_q[i] + 16 * c);
                k[c] = silu16(load(in.k + i * in.stride + 16 * c), slope_k[i] + 16 * c);
                store(value[i] + 16 * c, silu16(load(in.v + i * in.stride + 16 * c), slope_v[i] + 16 * c));
                qq += q[c] * q[c];
                kk += k[c] * k[c];
            }
            scale_q[i] = root / std::sqrt(total(qq) + 1e-6f);
            scale_k[i] = 1.f / std::sqrt(total(kk) + 1e-6f);
            for (int c = 0; c < C; c++) {
                v16 open = sigmoid16(load(in.decay + i * in.d + 16 * c)), log_decay = DECAY_FLOOR * open;
                store(slope_decay[i] + 16 * c, log_decay * (1.f - open));
                summed[c] += log_decay;
                v16 e = exp16(summed[c]);
                q[c] *= scale_q[i];
                k[c] *= scale_k[i];
                store(unit_q[i] + 16 * c, q[c]);
                store(unit_k[i] + 16 * c, k[c]);
                store(query[i] + 16 * c, q[c] * e);
                store(key[i] + 16 * c, k[c] * e);
                store(key_in[i] + 16 * c, k[c] / e);
                store(grow[i] + 16 * c, e);
            }
        }
    }

    static void lower(float square[CHUNK][CHUNK], int diagonal) {
        for (int i = 0; i < CHUNK; i++)
            for (int j = i + diagonal; j < CHUNK; j++) square[i][j] = 0;
    }

    void solve(const float* state) {
        transpose<CHUNK, C>(key_in[0], K, key_in_t[0], CHUNK);
        mul<CHUNK, K, 1>(query[0], K, 1, key_in_t[0], CHUNK, attend[0], CHUNK);
        mul<CHUNK, K, 1>(key[0], K, 1, key_in_t[0], CHUNK, inner[0], CHUNK);
        lower(attend, 1);
        lower(inner, 0);
        mul<CHUNK, K, C, -1, true>(key[0], K, 1, state, K, value[0], K);
        for (int first = 0; first < CHUNK; first += HELD) {  // forward substitution
            v16 x[HELD][C];
#pragma GCC unroll 16
            for (int i = 0; i < HELD; i++)
                for (int c = 0; c < C; c++) x[i][c] = load(value[first + i] + 16 * c);
            for (int j = 0; j < first; j++)
#pragma GCC unroll 16
                for (int i = 0; i < HELD; i++)
                    for (int c = 0; c < C; c++) x[i][c] -= inner[first + i][j] * load(residue[j] + 16 * c);
#pragma GCC unroll 16
            for (int j = 0; j < HELD; j++)
                for (int c = 0; c < C; c++) {
                    v16 row = x[j][c] * beta[first + j];
                    store(value[first + j] + 16 * c, x[j][c]);
                    store(residue[first + j] + 16 * c, row);
#pragma GCC unroll 16
                    for (int i = j + 1; i < HELD; i++) x[i][c] -= inner[first + i][first + j] * row;
                }
        }
    }

    void answer(const float* state, float* out) const {
        mul<CHUNK, K, C>(query[0], K, 1, state, K, out, K);
        mul<CHUNK, CHUNK, C, 1, true>(attend[0], CHUNK, 1, residue[0], K, out, K);
    }

    // next = diag(e^(c of the last row)) (state + key_in^T residue)
    void carry(const float* state, float* next) const {
        if (next != state) std::memcpy(next, state, 4 * K * K);
        mul<K, CHUNK, C, 1, true>(key_in[0], 1, K, residue[0], K, next, K);
        for (int k = 0; k < K; k++)
            for (int c = 0; c < C; c++) store(next + k * K + 16 * c, load(next + k * K + 16 * c) * grow[CHUNK - 1][k]);
    }
};

static inline int rows_of(long chunk, long end) {
    long left = end - chunk * CHUNK;
    return left < 0 ? 0 : left > CHUNK ? CHUNK : (int)left;
}

// out [length, K] (bytes d floats apart) with unit RMS, its scale [length] (bytes `heads` floats apart), zero from `end` on. entry
// [chunks, K, K]: the state each chunk starts from, kept for the backward; null where none follows. state [K, K] moves in place.
template <int C>
static void forward_head(Reads in, long length, long end, float* state, float* entry, float* out, float* scale, long heads) {
    constexpr int K = 16 * C;
    Chunk<C> t;
    float answer[CHUNK][K];
    for (long g = 0; g * CHUNK < length; g++) {
        const int rows = rows_of(g, end), all_rows = rows_of(g, length);
        if (entry) std::memcpy(entry + g * K * K, state, 4 * K * K);
        if (rows) {
            t.read(in, rows);
            t.solve(state);
            t.answer(state, answer[0]);
            t.carry(state, state);
        }
        for (int i = 0; i < all_rows; i++) {
            float s = i < rows ? 1.f / std::sqrt(dot(answer[i], answer[i], K) / K + 1e-5f) : 0;
            scale[i * heads] = s;
            for (int c = 0; c < C; c++) store(out + i * in.d + 16 * c, i < rows ? load(answer[i] + 16 * c) * s : v16{});
        }
        in.q += CHUNK * in.stride; in.k += CHUNK * in.stride; in.v += CHUNK * in.stride; in.beta += CHUNK * in.stride;
        in.decay += CHUNK * in.d; out += CHUNK * in.d; scale += CHUNK * heads;
    }
}

// Gradients of one chunk's inputs, and of the state before it in place of that of the state behind it. d_out [rows, K].
template <int C>
static void backward_chunk(Chunk<C>& t, const Reads& in, const Writes& to, int rows, const float* state, float* d_state, const float* d_out) {
    constexpr int K = 16 * C;
    float d_residue[CHUNK][K], d_value[CHUNK][K], turned[K][CHUNK], d_attend[CHUNK][CHUNK], d_inner[CHUNK][CHUNK];
    float state_t[K][K], d_sum_t[K][K], d_query[CHUNK][K], d_key[CHUNK][K], d_key_in[CHUNK][K];
    v16 d_carry[C];

    for (int k = 0; k < K; k++)
        for (int c = 0; c < C; c++) store(d_state + k * K + 16 * c, load(d_state + k * K + 16 * c) * t.grow[CHUNK - 1][k]);
    mul<CHUNK, CHUNK, C>(t.attend[0], 1, CHUNK, d_out, K, d_residue[0], K);
    mul<CHUNK, K, C, 1, true>(t.key_in[0], K, 1, d_state, K, d_residue[0], K);

    float d_beta[CHUNK];
    constexpr int HELD = Chunk<C>::HELD;
    for (int first = CHUNK - HELD; first >= 0; first -= HELD) {  // back substitution
        v16 x[HELD][C];
#pragma GCC unroll 16
        for (int i = 0; i < HELD; i++)
            for (int c = 0; c < C; c++) x[i][c] = load(d_residue[first + i] + 16 * c);
        for (int j = CHUNK - 1; j >= first + HELD; j--)
#pragma GCC unroll 16
            for (int i = 0; i < HELD; i++)
                for (int c = 0; c < C; c++) x[i][c] -= t.inner[j][first + i] * load(d_value[j] + 16 * c);
#pragma GCC unroll 16
        for (int j = HELD - 1; j >= 0; j--) {
            v16 along{};
            for (int c = 0; c < C; c++) {
                v16 row = x[j][c] * t.beta[first + j];
                along += x[j][c] * load(t.value[first + j] + 16 * c);
                store(d_value[first + j] + 16 * c, row);
#pragma GCC unroll 16
                for (int i = 0; i < j; i++) x[i][c] -= t.inner[first + j][first + i] * row;
            }
            d_beta[first + j] = total(along);
        }
    }

    transpose<CHUNK, C>(t.residue[0], K, turned[0], CHUNK);
    mul<CHUNK, K, 1>(d_out, K, 1, turned[0], CHUNK, d_attend[0], CHUNK);
    mul<CHUNK, K, 1, -1>(d_value[0], K, 1, turned[0], CHUNK, d_inner[0], CHUNK);
    Chunk<C>::lower(d_attend, 1);
    Chunk<C>::lower(d_inner, 0);
    transpose<K, C>(state, K, state_t[0], K);
    transpose<K, C>(d_state, K, d_sum_t[0], K);

    mul<CHUNK, K, C>(d_out, K, 1, state_t[0], K, d_query[0], K);
    mul<CHUNK, CHUNK, C, 1, true>(d_attend[0], CHUNK, 1, t.key_in[0], K, d_query[0], K);
    mul<CHUNK, K, C, -1>(d_value[0], K, 1, state_t[0], K, d_key[0], K);
    mul<CHUNK, CHUNK, C, 1, true>(d_inner[0], CHUNK, 1, t.key_in[0], K, d_key[0], K);
    mul<CHUNK, K, C>(t.residue[0], K, 1, d_sum_t[0], K, d_key_in[0], K);
    for (int c = 0; c < C; c++) {  // <S_next, dS_next>, from its two parts
        v16 sum{};
        for (int v = 0; v < K; v++) sum += load(state_t[v] + 16 * c) * load(d_sum_t[v] + 16 * c);
        for (int i = 0; i < CHUNK; i++) sum += load(t.key_in[i] + 16 * c) * load(d_key_in[i] + 16 * c);
        d_carry[c] = sum;
    }
    mul<CHUNK, CHUNK, C, 1, true>(d_attend[0], 1, CHUNK, t.query[0], K, d_key_in[0], K);
    mul<CHUNK, CHUNK, C, 1, true>(d_inner[0], 1, CHUNK, t.key[0], K, d_key_in[0], K);

    mul<K, CHUNK, C, 1, true>(t.query[0], 1, K, d_out, K, d_state, K);
    mul<K, CHUNK, C, -1, true>(t.key[0], 1, K, d_value[0], K, d_state, K);

    for (int i = rows - 1; i >= 0; i--) {
        v16 along_q{}, along_k{}, d_q[C], d_k[C];
        for (int c = 0; c < C; c++) {
            v16 grow = load(t.grow[i] + 16 * c), dq = load(d_query[i] + 16 * c), dk = load(d_key[i] + 16 * c), din = load(d_key_in[i] + 16 * c);
            d_carry[c] += dq * load(t.query[i] + 16 * c) + dk * load(t.key[i] + 16 * c) - din * load(t.key_in[i] + 16 * c);
            store(to.decay + i * in.d + 16 * c, d_carry[c] * load(t.slope_decay[i] + 16 * c));
            d_q[c] = dq * grow;
            d_k[c] = dk * grow + din / grow;
            along_q += d_q[c] * load(t.unit_q[i] + 16 * c);
            along_k += d_k[c] * load(t.unit_k[i] + 16 * c);
        }
        float q = total(along_q) * K, k = total(along_k);
        for (int c = 0; c < C; c++) {
            const long at = i * in.stride + 16 * c;
            store(to.q + at, (d_q[c] - load(t.unit_q[i] + 16 * c) * q) * t.scale_q[i] * load(t.slope_q[i] + 16 * c));
            store(to.k + at, (d_k[c] - load(t.unit_k[i] + 16 * c) * k) * t.scale_k[i] * load(t.slope_k[i] + 16 * c));
            store(to.v + at, load(d_value[i] + 16 * c) * load(t.slope_v[i] + 16 * c));
        }
        to.beta[i * in.stride] = d_beta[i] * t.beta[i] * (1.f - t.beta[i]);
    }
}

// Gradients of everything `forward_head` read; out and scale are what it wrote. d_state [K, K]: of the final state, then of the first.
template <int C>
static void backward_head(Reads in, Writes to, long length, long end, const float* entry, const float* out, const float* scale, long heads,
                          const float* d_attended, float* d_state) {
    constexpr int K = 16 * C;
    Chunk<C> t;
    float d_out[CHUNK][K];
    for (long g = (length - 1) / CHUNK; g >= 0; g--) {
        const int rows = rows_of(g, end), all_rows = rows_of(g, length);
        const long at = g * CHUNK * in.stride, at_d = g * CHUNK * in.d;
        Reads part{in.q + at, in.k + at, in.v + at, in.beta + at, in.decay + at_d, in.stride, in.d};
        Writes there{to.q + at, to.k + at, to.v + at, to.beta + at, to.decay + at_d};
        for (int i = rows; i < all_rows; i++) {
            for (float* p : {there.q, there.k, there.v}) std::memset(p + i * in.stride, 0, 4 * K);
            std::memset(there.decay + i * in.d, 0, 4 * K);
            there.beta[i * in.stride] = 0;
        }
        if (!rows) continue;
        std::memset(d_out, 0, sizeof d_out);
        for (int i = 0; i < rows; i++) {
            const float *o = out + at_d + i * in.d, *d_o = d_attended + at_d + i * in.d;
            float along = dot(o, d_o, K) / K, s = scale[(g * CHUNK + i) * heads];
            for (int c = 0; c < K; c += 16) store(d_out[i] + c, (load(d_o + c) - load(o + c) * along) * s);
        }
        const float* state = entry + g * K * K;
        t.read(part, rows);
        t.solve(state);
        backward_chunk<C>(t, part, there, rows, state, d_state, d_out[0]);
    }
}

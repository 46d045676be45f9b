// Products of small matrices that stay in the nearest cache, and the transposition they need. Sizes are known when this is compiled.

#pragma once
#include "vec.h"
#include <utility>

// Y[ROWS, 16 C] (+)= A B with A[m][k] at a + m am + k ak, B [INNER, 16 C] at b + k bk. SIGN -1 subtracts. Sums run over k in order.
template <int ROWS, int INNER, int C, int SIGN = 1, bool ADD = false>
static inline __attribute__((always_inline)) void mul(const float* a, long am, long ak, const float* b, long bk, float* y, long ym) {
    constexpr int R = ROWS < 16 / C ? ROWS : 16 / C;
    for (int m = 0; m < ROWS; m += R) {
        v16 acc[R][C];
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) acc[r][c] = ADD ? load(y + (m + r) * ym + 16 * c) : v16{};
        for (int k = 0; k < INNER; k++) {
            v16 row[C];
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) row[c] = load(b + k * bk + 16 * c);
#pragma GCC unroll 16
            for (int r = 0; r < R; r++) {
                v16 x = all(a[(m + r) * am + k * ak]);
#pragma GCC unroll 4
                for (int c = 0; c < C; c++) acc[r][c] = SIGN > 0 ? acc[r][c] + x * row[c] : acc[r][c] - x * row[c];
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int c = 0; c < C; c++) store(y + (m + r) * ym + 16 * c, acc[r][c]);
    }
}

template <int S, int... I>
static inline v16 interleave(v16 a, v16 b, bool high, std::integer_sequence<int, I...>) {
    return high ? __builtin_shufflevector(a, b, ((I & S) ? 16 + I : I + S)...) : __builtin_shufflevector(a, b, ((I & S) ? 16 + I - S : I)...);
}

template <int S>
static inline void exchange(v16* x) {
    constexpr auto lanes = std::make_integer_sequence<int, 16>{};
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        if (i & S) continue;
        v16 a = x[i], b = x[i + S];
        x[i] = interleave<S>(a, b, false, lanes);
        x[i + S] = interleave<S>(a, b, true, lanes);
    }
}

// to[16 C columns][ROWS] = from[ROWS][16 C]^T; ROWS is a multiple of 16.
template <int ROWS, int C>
static inline void transpose(const float* from, long ldf, float* to, long ldt) {
    for (int m = 0; m < ROWS; m += 16)
        for (int c = 0; c < C; c++) {
            v16 x[16];
            for (int i = 0; i < 16; i++) x[i] = load(from + (m + i) * ldf + 16 * c);
            exchange<1>(x); exchange<2>(x); exchange<4>(x); exchange<8>(x);
            for (int i = 0; i < 16; i++) store(to + (16 * c + i) * ldt + m, x[i]);
        }
}

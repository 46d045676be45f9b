// Products of rows with weights laid out in panels of sixteen outputs, and what is done to whole rows.

#pragma once
#include "vec.h"

static void sigmoid_in(float* x, long n) { for (long i = 0; i < n; i += 16) store(x + i, sigmoid16(load(x + i))); }
static void silu_in(float* x, long n) { for (long i = 0; i < n; i += 16) { v16 y = load(x + i); store(x + i, y * sigmoid16(y)); } }

// y = x / sqrt(mean(x^2) + eps). Returns the factor.
static float rms(const float* x, float* y, long n, float eps) {
    float scale = 1.f / std::sqrt(dot(x, x, n) / n + eps);
    for (long i = 0; i < n; i += 16) store(y + i, load(x + i) * scale);
    return scale;
}

// Its gradient from y and the factor, added to what stands at dx, or in place of it: (dy - y <y, dy> / n) scale.
static void rms_backward(const float* y, const float* dy, float scale, long n, float* dx, bool add) {
    const float along = dot(y, dy, n) / n;
    for (long i = 0; i < n; i += 16) {
        v16 d = (load(dy + i) - load(y + i) * along) * scale;
        store(dx + i, add ? load(dx + i) + d : d);
    }
}

// Y[R, 16 C] = A[R, K] W + from; W: C panels of [K][16]. from: where sums start, `step` floats a row; null starts at 0.
template <int R, int C>
static inline void tile(const float* A, long lda, const float* W, long K, float* Y, long ldy, const float* from, long step) {
    v16 acc[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) acc[r][c] = from ? load(from + r * step + 16 * c) : v16{};
    for (long k = 0; k < K; k++) {
        v16 b[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) b[c] = load(W + (c * K + k) * 16);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            v16 a = all(A[r * lda + k]);
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) acc[r][c] += a * b[c];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) store(Y + r * ldy + 16 * c, acc[r][c]);
}

template <int R>
static __attribute__((noinline)) void stripe(const float* A, long lda, const float* W, long K, long P, float* Y, long ldy, const float* from, long step) {
    constexpr int C = R >= 3 ? 4 : 8;
    long p = 0;
    for (; p + C <= P; p += C) tile<R, C>(A, lda, W + p * K * 16, K, Y + 16 * p, ldy, from ? from + 16 * p : nullptr, step);
    for (; p < P; p++) tile<R, 1>(A, lda, W + p * K * 16, K, Y + 16 * p, ldy, from ? from + 16 * p : nullptr, step);
}

typedef void (*Tile)(const float*, long, const float*, long, float*, long, const float*, long);
template <int C>
static Tile tile_of(long rows) {
    static const Tile by_rows[8] = {tile<1, C>, tile<2, C>, tile<3, C>, tile<4, C>, tile<5, C>, tile<6, C>, tile<7, C>, tile<8, C>};
    return by_rows[rows - 1];
}

// Y[M, 16 P] = A[M, K] W + from, ldy floats between rows of Y. Three panels of W stay in the cache while all rows pass.
static __attribute__((noinline)) void product(const float* A, long lda, long M, const float* W, long K, long P, float* Y, long ldy,
                                              const float* from = nullptr, long step = 0) {
    switch (M) {
        case 1: stripe<1>(A, lda, W, K, P, Y, ldy, from, step); return;
        case 2: stripe<2>(A, lda, W, K, P, Y, ldy, from, step); return;
        case 3: stripe<3>(A, lda, W, K, P, Y, ldy, from, step); return;
        case 4: stripe<4>(A, lda, W, K, P, Y, ldy, from, step); return;
    }
    for (long p = 0; p < P; p += 3) {
        const long width = P - p < 3 ? P - p : 3;
        for (long m = 0; m < M; m += 8) {
            const long rows = M - m < 8 ? M - m : 8;
            Tile t = width == 3 ? tile_of<3>(rows) : width == 2 ? tile_of<2>(rows) : tile_of<1>(rows);
            t(A + m * lda, lda, W + p * K * 16, K, Y + m * ldy + 16 * p, ldy, from ? from + m * step + 16 * p : nullptr, step);
        }
    }
}

template <int C>
static inline void gram_tile(const float* A, long lda, const float* X, long ldx, long M, float* Y, long ldy) {
    v16 acc[8][C];
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) acc[r][c] = load(Y + r * ldy + 16 * c);
    for (long m = 0; m < M; m++) {
        v16 x[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) x[c] = load(X + m * ldx + 16 * c);
#pragma GCC unroll 8
        for (int r = 0; r < 8; r++) {
            v16 a = all(A[m * lda + r]);
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) acc[r][c] += a * x[c];
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) store(Y + r * ldy + 16 * c, acc[r][c]);
}

// Y[R, 16 P] += A[M, R]^T X[M, 16 P]; R is a multiple of 8. The gradient of a weight.
static __attribute__((noinline)) void gram(const float* A, long lda, const float* X, long ldx, long M, long R, long P, float* Y, long ldy) {
    for (long p = 0; p < P; p += 3)
        for (long r = 0; r < R; r += 8) {
            const long width = P - p < 3 ? P - p : 3;
            auto t = width == 3 ? gram_tile<3> : width == 2 ? gram_tile<2> : gram_tile<1>;
            t(A + r, lda, X + 16 * p, ldx, M, Y + r * ldy + 16 * p, ldy);
        }
}

// Vectors of 16 floats (the compiler splits them where registers are narrower) and what is done with them.
// Every sum runs in one order, whatever stands around the row.

#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t i16 __attribute__((vector_size(64)));

static inline v16 load(const float* p) { v16 x; std::memcpy(&x, p, 64); return x; }
static inline void store(float* p, v16 x) { std::memcpy(p, &x, 64); }
static inline v16 all(float x) { return x - v16{}; }  // adding 0 would be work: it makes -0 a 0

// x where it is above (below) the limit, else the limit; what is not a number stays that.
static inline v16 most(v16 x, float limit) {
#ifdef __AVX512F__
    return (v16)_mm512_max_ps((__m512)all(limit), (__m512)x);
#else
    return x < all(limit) ? all(limit) : x;
#endif
}
static inline v16 least(v16 x, float limit) {
#ifdef __AVX512F__
    return (v16)_mm512_min_ps((__m512)all(limit), (__m512)x);
#else
    return x > all(limit) ? all(limit) : x;
#endif
}

// Of numbers; what is not a number stays that, unlike with std::fmin and std::fmax.
static inline float at_most(float x, float limit) { return x > limit ? limit : x; }
static inline float at_least(float x, float limit) { return x < limit ? limit : x; }

// Halves are added to halves: 16 numbers in four steps.
static inline float total(v16 x) {
    x += __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
    x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
    x += __builtin_shufflevector(x, x, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3);
    return x[0] + x[1];
}

// e^x within 1.5 units of the last place: 2^whole times a polynomial in what is left, |r| <= ln(2) / 2 (fitted, 3e-9 of the value).
static inline v16 exp16(v16 x) {
    x = least(most(x, -87.f), 88.f);
#ifdef __AVX512F__
    v16 whole = (v16)_mm512_roundscale_ps((__m512)(x * 1.44269504088896341f), 0);
#else
    const float magic = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer
    v16 shifted = x * 1.44269504088896341f + magic, whole = shifted - magic;
#endif
    v16 r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    v16 p = all(1.381461275741458e-3f);
    p = p * r + 8.368710055947304e-3f; p = p * r + 4.166838899254799e-2f; p = p * r + 0.1666652113199234f; p = p * r + 0.4999999403953552f;
    p = p * r + 1.f; p = p * r + 1.f;
#ifdef __AVX512F__
    return (v16)_mm512_scalef_ps((__m512)p, (__m512)whole);
#else
    i16 bits, base;
    v16 magics = all(magic), scale;
    std::memcpy(&bits, &shifted, 64);
    std::memcpy(&base, &magics, 64);
    bits = (bits - base + 127) << 23;
    std::memcpy(&scale, &bits, 64);
    return p * scale;
#endif
}

static inline v16 sigmoid16(v16 x) { return 1.f / (1.f + exp16(-x)); }

static inline float dot(const float* a, const float* b, long n) {
    v16 s{};
    for (long i = 0; i < n; i += 16) s += load(a + i) * load(b + i);
    return total(s);
}

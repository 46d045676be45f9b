// Vectors of 16 floats (the compiler splits them where registers are narrower) and what is done with them.
// Every sum runs in one order, whatever stands around the row.

#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

typedef float v16 __attribute__((vector_size(64)));
typedef int32_t i16 __attribute__((vector_size(64)));

static inline v16 load(const float* p) { v16 x; std::memcpy(&x, p, 64); return x; }
static inline void store(float* p, v16 x) { std::memcpy(p, &x, 64); }
static inline v16 all(float x) { return v16{} + x; }

// Halves are added to halves: 16 numbers in four steps.
static inline float total(v16 x) {
    x += __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15);
    x += __builtin_shufflevector(x, x, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7, 4, 5, 6, 7);
    x += __builtin_shufflevector(x, x, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3);
    return x[0] + x[1];
}

static inline v16 exp16(v16 x) {
    const float magic = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer
    x = x < all(-87.f) ? all(-87.f) : x;
    x = x > all(88.f) ? all(88.f) : x;
    v16 shifted = x * 1.44269504088896341f + magic;
    v16 whole = shifted - magic;
    v16 r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    v16 p = all(1.f / 5040);
    p = p * r + 1.f / 720; p = p * r + 1.f / 120; p = p * r + 1.f / 24; p = p * r + 1.f / 6; p = p * r + .5f; p = p * r + 1.f; p = p * r + 1.f;
    i16 bits, base;
    v16 magics = all(magic);
    std::memcpy(&bits, &shifted, 64);
    std::memcpy(&base, &magics, 64);
    bits = (bits - base + 127) << 23;
    v16 scale;
    std::memcpy(&scale, &bits, 64);
    return p * scale;
}

static inline v16 sigmoid16(v16 x) { return 1.f / (1.f + exp16(-x)); }

static inline float dot(const float* a, const float* b, long n) {
    v16 s{};
    for (long i = 0; i < n; i += 16) s += load(a + i) * load(b + i);
    return total(s);
}

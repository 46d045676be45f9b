// The n-gram tables: which row of each of the three orders a byte reads (policy/engram.py), and reading it.

#pragma once
#include "shape.h"
#include <cstring>

constexpr int ORDERS = 3;
constexpr float KEY_EPS = 1e-5f;  // of the key's RMS

// Rows of the stacked tables for the last of four bytes; s.rows is a power of two.
static void hashed(const Shape& s, const int64_t* bytes, int64_t* rows) {
    for (int order = 2; order <= 4; order++) {
        uint64_t digest = 14695981039346656037ull;
        for (int j = 4 - order; j < 4; j++) digest = (digest ^ (uint64_t)bytes[j]) * 1099511628211ull;
        rows[order - 2] = (int64_t)(digest & (uint64_t)(s.rows - 1)) + (order - 2) * s.rows;
    }
}

// The rows behind one another, zero up to s.memory.
static void gathered(const Shape& s, const float* table, const int64_t* rows, float* to) {
    for (int o = 0; o < ORDERS; o++) std::memcpy(to + o * s.dim, table + rows[o] * s.dim, 4 * s.dim);
    std::memset(to + ORDERS * s.dim, 0, 4 * (s.memory - ORDERS * s.dim));
}

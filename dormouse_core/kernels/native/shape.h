// The widths of a policy and where its parts lie in the rows of its two products. policy/native.py fills it.

#pragma once
#include <cstdint>

struct Shape {  // policy/native.py fills it, field by field in this order
    int64_t d, heads, width, iterations, experts, top_k, rank, ffn, shared, readout, dim, rows, control;
    // Columns of the input product. Those of the controller need not start a vector, and a vector of them reaches into the shared ones.
    int64_t at_decay, at_gate, at_beta, at_control, at_shared, at_code, x_in;
    int64_t at_dense, at_shared_out, at_mixed, x_out;                          // columns of the output product's input
    int64_t code, rank_pad, memory;                                           // padded widths
    float norm_eps, lam_max;
};

constexpr long VOCABULARY = 256;
constexpr long BLOCK = 256;  // rows of a window taken through a function's parts together, so that what one wrote is near for the next

static long align(long n) { return (n + 15) / 16 * 16; }

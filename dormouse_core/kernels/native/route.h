// The router's choice for one byte: the k best of score + bias (the lower number where they are equal; what is not a number before all),
// gates that sum to 1.

#pragma once
#include <cstdint>

static void route(const float* score, const float* bias, long experts, long k, int32_t* chosen, float* gate) {
    float sum = 0;
    for (long a = 0; a < k; a++) {
        int32_t best = -1;
        for (long e = 0; e < experts; e++) {
            bool taken = false;
            for (long c = 0; c < a; c++) taken |= chosen[c] == e;
            if (taken) continue;
            const float s = score[e] + bias[e], most = best < 0 ? s : score[best] + bias[best];
            if (best < 0 || s > most || (s != s && most == most)) best = (int32_t)e;
        }
        chosen[a] = best;
        sum += score[best];
    }
    for (long a = 0; a < k; a++) gate[a] = score[chosen[a]] / sum;
}

// One sampled byte a row from its logits: inverse CDF in float64 at a uniform named by (seed, step, byte).
//
// Definition: rollouts/sampling.py and seeding.py, whose uniforms these are bit for bit. Log-probs are rounded once to float and the
// CDF is that of the rounded ones, as there; only the order of sums differs. A row is drawn by itself, so its batch changes nothing.
// Not a number, plus infinity, or no mass at all: byte 0 with the log-prob it has, which is what the definition does.

#include "vec.h"

constexpr int VOCABULARY = 256, BLOCK = 8, BLOCKS = VOCABULARY / BLOCK;

typedef float f8 __attribute__((vector_size(32)));
typedef double d8 __attribute__((vector_size(64)));
typedef int64_t l8 __attribute__((vector_size(64)));

static inline d8 wide(const float* p) { f8 x; std::memcpy(&x, p, 32); return __builtin_convertvector(x, d8); }
static inline d8 all_wide(double x) { return d8{} + x; }

// exp of x <= 0 to the last bits of a double, subnormals included; 0 at minus infinity.
static inline d8 exp_wide(d8 x) {
    const double magic = 6755399441055744.;  // 1.5 * 2^52: adding it rounds to an integer
    x = x < all_wide(-746.) ? all_wide(-746.) : x;
    d8 shifted = x * 1.4426950408889634074 + magic;
    d8 whole = shifted - magic;
    d8 r = x - whole * 6.93147180369123816490e-01 - whole * 1.90821492927058770002e-10;
    d8 p = all_wide(1. / 479001600);
    p = p * r + 1. / 39916800; p = p * r + 1. / 3628800; p = p * r + 1. / 362880; p = p * r + 1. / 40320; p = p * r + 1. / 5040;
    p = p * r + 1. / 720; p = p * r + 1. / 120; p = p * r + 1. / 24; p = p * r + 1. / 6; p = p * r + .5; p = p * r + 1.; p = p * r + 1.;
    l8 power, base;
    d8 magics = all_wide(magic);
    std::memcpy(&power, &shifted, 64);
    std::memcpy(&base, &magics, 64);
    power -= base;
    l8 half = power >> 1;  // a power of two below the smallest normal double is reached in two steps
    l8 low = (half + 1023) << 52, high = (power - half + 1023) << 52;
    d8 scale_low, scale_high;
    std::memcpy(&scale_low, &low, 64);
    std::memcpy(&scale_high, &high, 64);
    return p * scale_low * scale_high;
}

static inline double sum_of(const double* p) { return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7])); }

// Philox4x32-10 at counter (step, byte, 0, 0) under the seed: 53 bits of the first two words.
static inline double uniform_at(uint64_t seed, uint32_t step, uint32_t byte) {
    uint32_t c0 = step, c1 = byte, c2 = 0, c3 = 0, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t even = (uint64_t)c0 * 0xD2511F53u, odd = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(odd >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(even >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)odd;
        c3 = (uint32_t)even;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (double)(((uint64_t)c0 << 21) ^ (c1 >> 11)) * 0x1p-53;
}

struct Row {
    float x[VOCABULARY];      // logits at temperature over the support, then log-probs
    double prob[VOCABULARY];  // their exponentials
};

// Fills a row from its logits and returns its entropy. support: 0, or minus infinity where the policy may not write.
static double distribution(const float* logits, const float* support, float temperature, Row& row) {
    v16 most = all(-INFINITY), sum{};
    for (int i = 0; i < VOCABULARY; i += 16) {
        v16 x = load(logits + i);
        if (temperature != 1.f) x = x / temperature;
        x += load(support + i);
        store(row.x + i, x);
        most = x > most ? x : most;
    }
    float maximum = most[0];
    for (int i = 1; i < 16; i++) maximum = most[i] > maximum ? most[i] : maximum;
    for (int i = 0; i < VOCABULARY; i += 16) sum += exp16(load(row.x + i) - maximum);
    const double top = maximum, log_sum = std::log((double)total(sum));
    d8 entropy{};
    for (int i = 0; i < VOCABULARY; i += 8) {
        f8 rounded = __builtin_convertvector((wide(row.x + i) - top) - log_sum, f8);
        std::memcpy(row.x + i, &rounded, 32);
        d8 log_prob = __builtin_convertvector(rounded, d8), prob = exp_wide(log_prob);
        std::memcpy(row.prob + i, &prob, 64);
        entropy -= prob * (log_prob < all_wide(-1e30) ? all_wide(-1e30) : log_prob);
    }
    double parts[8];
    std::memcpy(parts, &entropy, 64);
    return sum_of(parts);
}

static int likeliest(const double* prob) {
    int best = 0;
    for (int i = 1; i < VOCABULARY; i++) if (prob[i] > prob[best]) best = i;
    return best;
}

// The first byte whose running sum passes the share `at` of the whole.
static int drawn(const double* prob, double at) {
    double before[BLOCKS + 1];
    before[0] = 0;
    for (int b = 0; b < BLOCKS; b++) before[b + 1] = before[b] + sum_of(prob + b * BLOCK);
    const double whole = before[BLOCKS];
    if (!(whole > 0)) return 0;
    const double point = std::fmin(at * whole, std::nextafter(whole, 0.));
    int b = 0;
    while (before[b + 1] <= point) b++;
    double running = before[b];
    int last = b * BLOCK;  // the block has mass; a byte without any is not drawn, whatever rounding does inside the block
    for (int i = b * BLOCK; i < (b + 1) * BLOCK; i++) {
        if (!(prob[i] > 0)) continue;
        last = i;
        running += prob[i];
        if (running > point) break;
    }
    return last;
}

extern "C" void uniforms(int64_t n, const int64_t* seed, const int64_t* step, const int64_t* byte, double* out) {
    for (int64_t i = 0; i < n; i++) out[i] = uniform_at((uint64_t)seed[i], (uint32_t)step[i], (uint32_t)byte[i]);
}

// logits [n, 256]; temperature 0 takes the likeliest byte at temperature 1; avoid is a byte that gets no mass, or -1. Writes a byte,
// its log-prob (that of the policy, not of the distribution without `avoid`) and the policy's entropy a row.
// Returns n, or the first row whose temperature or avoid is out of its range.
extern "C" int64_t draw(int64_t n, const float* logits, const float* support, const double* temperature, const int64_t* seed,
                        const int64_t* step, const int64_t* byte, const int64_t* avoid, uint8_t* chosen, float* log_prob, float* entropy) {
    Row row;
    for (int64_t i = 0; i < n; i++) {
        if (!(temperature[i] >= 0) || avoid[i] < -1 || avoid[i] >= VOCABULARY) return i;
        const bool greedy = temperature[i] == 0;
        entropy[i] = (float)distribution(logits + i * VOCABULARY, support, greedy ? 1.f : (float)temperature[i], row);
        if (avoid[i] >= 0) row.prob[avoid[i]] = 0;
        const int at = greedy ? likeliest(row.prob) : drawn(row.prob, uniform_at((uint64_t)seed[i], (uint32_t)step[i], (uint32_t)byte[i]));
        chosen[i] = (uint8_t)at;
        log_prob[i] = row.x[at];
    }
    return n;
}

// One byte for N sequences: the whole decode step of a policy with fixed depth, fp32 weights and narrow experts.
//
// Equations: docs/policy.md. Every sum runs in an order that depends on the weights' shapes alone, so a row's bits are the same in
// any batch, also a batch of one. Vectors are the compiler's own (16 floats; it splits them where registers are narrower).
// Layout of weights and activations: policy/native.py, the only caller. All widths are multiples of 16 (padded there).

#include "memory.h"
#include "products.h"
#include "route.h"
#include "shape.h"

// One head of one sequence. q, k unit (q scaled), v, alpha in (0, 1); S [K, K] moves in place.
template <int C>
static inline void head(const float* q, const float* k, const float* v, const float* alpha, float beta, float* S, float* out) {
    constexpr int K = 16 * C;
    v16 read_k[C], read_q[C];
    for (int c = 0; c < C; c++) read_k[c] = read_q[c] = v16{};
    for (int i = 0; i < K; i++) {
        v16 ka = all(k[i] * alpha[i]), qa = all(q[i] * alpha[i]);
        for (int c = 0; c < C; c++) {
            v16 s = load(S + i * K + 16 * c);
            read_k[c] += ka * s;
            read_q[c] += qa * s;
        }
    }
    float qk = dot(q, k, K);
    v16 delta[C];
    for (int c = 0; c < C; c++) {
        delta[c] = (load(v + 16 * c) - read_k[c]) * beta;
        store(out + 16 * c, read_q[c] + qk * delta[c]);
    }
    for (int i = 0; i < K; i++) {
        v16 a = all(alpha[i]), ki = all(k[i]);
        for (int c = 0; c < C; c++) {
            float* s = S + i * K + 16 * c;
            store(s, load(s) * a + ki * delta[c]);
        }
    }
}

struct Weights {
    const float *embedding, *table, *steps, *w_memory, *w_start, *w_in, *w_decay, *b_decay, *w_out, *shared_v, *shared_u, *up_v, *down_u,
        *readout_u, *readout_v, *head, *bias;
};

struct Work {
    float *memory, *key_value, *h, *norm, *start, *in, *decay, *out, *joined, *inner, *small, *sum, *gate, *packed, *mixed;
    int32_t* chosen;
    long size;
    Work(const Shape& s, long n, float* base) {
        long at = 0;
        auto take = [&](long floats) { float* p = base ? base + at : nullptr; at += align(floats); return p; };
        memory = take(n * s.memory); key_value = take(n * 2 * s.d); h = take(n * s.d); norm = take(n * s.d); start = take(n * s.control);
        in = take(n * s.x_in); decay = take(n * s.d); out = take(n * s.d); joined = take(n * s.x_out); inner = take(n * s.ffn);
        small = take(n * align(s.shared)); sum = take(n * s.d); gate = take(n * s.top_k); packed = take(n * s.rank_pad);
        mixed = take(n * s.rank_pad); chosen = (int32_t*)take(n * s.top_k);
        size = at;
    }
};

static void read_memory(const Shape& s, const Weights& w, const Work& b, long n, const int64_t* ids, int64_t* tail) {
    for (long i = 0; i < n; i++) {
        int64_t *t = tail + 3 * i, rows[ORDERS];
        int64_t bytes[4] = {t[0], t[1], t[2], ids[i]};
        hashed(s, bytes, rows);
        gathered(s, w.table, rows, b.memory + i * s.memory);
        t[0] = bytes[1]; t[1] = bytes[2]; t[2] = bytes[3];
    }
    product(b.memory, s.memory, n, w.w_memory, s.memory, s.d / 8, b.key_value, 2 * s.d);
    for (long i = 0; i < n; i++) rms(b.key_value + 2 * i * s.d, b.key_value + 2 * i * s.d, s.d, KEY_EPS);
}

static void attend(const Shape& s, const Work& b, long n, float* state) {
    for (long i = 0; i < n; i++)
        for (long j = 0; j < s.heads; j++) {
            float* q = b.in + i * s.x_in + j * s.width;
            float *k = q + s.d, *v = k + s.d, *out = b.out + i * s.d + j * s.width;
            float q_scale = 1.f / std::sqrt(dot(q, q, s.width) + 1e-6f) / std::sqrt((float)s.width);
            float k_scale = 1.f / std::sqrt(dot(k, k, s.width) + 1e-6f);
            for (long c = 0; c < s.width; c += 16) { store(q + c, load(q + c) * q_scale); store(k + c, load(k + c) * k_scale); }
            const float* alpha = b.decay + i * s.d + j * s.width;
            float beta = b.in[i * s.x_in + s.at_beta + j];
            float* S = state + (i * s.heads + j) * s.width * s.width;
            if (s.width == 16) head<1>(q, k, v, alpha, beta, S, out);
            else if (s.width == 32) head<2>(q, k, v, alpha, beta, S, out);
            else head<4>(q, k, v, alpha, beta, S, out);
            rms(out, out, s.width, 1e-5f);
        }
}

// The chosen experts of every row, an expert at a time, into the joined input.
static void mix(const Shape& s, const Weights& w, const Work& b, long n) {
    for (long i = 0; i < n; i++) std::memset(b.joined + i * s.x_out + s.at_mixed, 0, 4 * s.code);
    for (long e = 0; e < s.experts; e++) {
        long m = 0;
        for (long slot = 0; slot < n * s.top_k; slot++) {
            if (b.chosen[slot] != e) continue;
            float* to = b.packed + m++ * s.rank_pad;
            std::memcpy(to, b.in + slot / s.top_k * s.x_in + s.at_code + e * s.rank, 4 * s.rank);
        }
        if (!m) continue;
        product(b.packed, s.rank_pad, m, w.up_v + e * s.rank * s.ffn, s.rank, s.ffn / 16, b.inner, s.ffn);
        silu_in(b.inner, m * s.ffn);
        product(b.inner, s.ffn, m, w.down_u + e * s.ffn * s.rank_pad, s.ffn, s.rank_pad / 16, b.mixed, s.rank_pad);
        m = 0;
        for (long slot = 0; slot < n * s.top_k; slot++) {
            if (b.chosen[slot] != e) continue;
            long i = slot / s.top_k;
            float gate = b.gate[slot] * b.in[i * s.x_in + s.at_control + 2];
            float *to = b.joined + i * s.x_out + s.at_mixed + e * s.rank, *from = b.mixed + m++ * s.rank_pad;
            for (long r = 0; r < s.rank; r++) to[r] = from[r] * gate;
        }
    }
}

static void iterate(const Shape& s, const Weights& w, const Work& b, long n, long iteration, float* state) {
    const float* step = w.steps + iteration * s.d;
    for (long i = 0; i < n; i++) {
        float* h = b.h + i * s.d;
        for (long c = 0; c < s.d; c += 16) store(h + c, load(h + c) + load(step + c));
        rms(h, b.norm + i * s.d, s.d, s.norm_eps);
    }
    product(b.norm, s.d, n, w.w_in, s.d, s.x_in / 16, b.in, s.x_in);
    product(b.in + s.at_decay, s.x_in, n, w.w_decay, s.width, s.d / 16, b.decay, s.d, w.b_decay);
    for (long i = 0; i < n; i++) {
        float *in = b.in + i * s.x_in, *decay = b.decay + i * s.d, *control = in + s.at_control, *start = b.start + i * s.control;
        silu_in(in, 3 * s.d);
        for (long c = 0; c < s.control; c += 16) store(control + c, load(control + c) + load(start + c));
        sigmoid_in(in + s.at_gate, s.at_shared - s.at_gate);
        for (long c = 0; c < s.d; c += 16) store(decay + c, exp16(-5.f * sigmoid16(load(decay + c))));
    }
    attend(s, b, n, state);
    for (long i = 0; i < n; i++)
        route(b.in + i * s.x_in + s.at_control + 3, w.bias, s.experts, s.top_k, b.chosen + i * s.top_k, b.gate + i * s.top_k);
    product(b.in + s.at_shared, s.x_in, n, w.shared_v, s.shared, s.ffn / 16, b.inner, s.ffn);
    silu_in(b.inner, n * s.ffn);
    product(b.inner, s.ffn, n, w.shared_u, s.ffn, align(s.shared) / 16, b.small, align(s.shared));
    float root = std::sqrt((float)s.d);
    for (long i = 0; i < n; i++) {
        const float *in = b.in + i * s.x_in, *key = b.key_value + 2 * i * s.d, *norm = b.norm + i * s.d, *gate = in + s.at_gate;
        float *joined = b.joined + i * s.x_out, *out = b.out + i * s.d, *h = b.h + i * s.d;
        float attention = in[s.at_control], lam = at_most(in[s.at_control + 1], s.lam_max), expert = in[s.at_control + 2];
        float agreed = dot(key, norm, s.d) / root;
        float signed_root = std::copysign(std::sqrt(at_least(std::fabs(agreed), 1e-6f)), agreed);
        float weight = sigmoid16(all(agreed == 0 ? 0 : signed_root))[0] * lam;
        for (long c = 0; c < s.d; c += 16) {
            store(joined + c, load(out + c) * load(gate + c) * attention);
            store(joined + s.at_dense + c, load(norm + c) * (1 - lam));
            store(h + c, load(h + c) + load(key + s.d + c) * weight);
        }
        for (long c = 0; c < align(s.shared); c += 16) store(joined + s.at_shared_out + c, load(b.small + i * align(s.shared) + c) * expert);
    }
    mix(s, w, b, n);
    product(b.joined, s.x_out, n, w.w_out, s.x_out, s.d / 16, b.out, s.d);
    for (long i = 0; i < n * s.d; i += 16) {
        v16 h = load(b.h + i) + load(b.out + i);
        store(b.h + i, h);
        store(b.sum + i, iteration ? load(b.sum + i) + h : h);
    }
}

extern "C" int64_t work_size(const Shape* s, int64_t n) { return Work(*s, n, nullptr).size; }

// ids [n], state [T, stride / (H K K), H, K, K] and tail [n, 3] move; hidden [n, d] and logits [n, 256] are written.
// Returns n, or the first row whose id is no byte; nothing has moved then.
extern "C" int64_t decode(const Shape* shape, const Weights* weights, int64_t n, const int64_t* ids, float* state, int64_t stride, int64_t* tail,
                       float* work, float* hidden, float* logits) {
    const Shape& s = *shape;
    const Weights& w = *weights;
    for (long i = 0; i < n; i++) if (ids[i] < 0 || ids[i] > 255) return i;
    Work b(s, n, work);
    read_memory(s, w, b, n, ids, tail);
    for (long i = 0; i < n; i++) {
        std::memcpy(b.h + i * s.d, w.embedding + ids[i] * s.d, 4 * s.d);
        rms(b.h + i * s.d, b.norm + i * s.d, s.d, s.norm_eps);
    }
    product(b.norm, s.d, n, w.w_start, s.d, s.control / 16, b.start, s.control);
    for (long t = 0; t < s.iterations; t++) iterate(s, w, b, n, t, state + t * stride);
    for (long i = 0; i < n * s.d; i += 16) store(b.sum + i, load(b.sum + i) / (float)s.iterations);
    product(b.sum, s.d, n, w.readout_u, s.d, align(s.readout) / 16, b.in, s.x_in);
    product(b.in, s.x_in, n, w.readout_v, align(s.readout), s.d / 16, hidden, s.d);
    for (long i = 0; i < n; i++) rms(hidden + i * s.d, b.norm + i * s.d, s.d, s.norm_eps);
    product(b.norm, s.d, n, w.head, s.d, VOCABULARY / 16, logits, VOCABULARY);
    return n;
}

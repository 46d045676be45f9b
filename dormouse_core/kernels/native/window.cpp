// One iteration over a window and the gradients of it: fp32, fixed depth, narrow experts.
//
// Equations: docs/policy.md; who lays out the weights: policy/native_window.py, the only caller. A sequence is taken BLOCK bytes at a time
// through all of the iteration, so that what one step wrote is still near when the next reads it; backwards the same from its end.
// A row's results depend on no other row but through the recurrence of its own sequence.

#include "products.h"
#include "recurrence.h"
#include "route.h"
#include "shape.h"

constexpr long MOST_EXPERTS = 1024;

struct Weights {  // panels, but for b_decay, bias and step; *_back are the transposes
    const float *step, *w_in, *w_decay, *b_decay, *w_out, *shared_v, *shared_u, *up, *down, *bias;
    const float *w_in_back, *w_decay_back, *w_out_back, *shared_v_back, *shared_u_back, *up_back, *down_back;
};

// Rows of all bytes where a backward follows, else of one block: norm [d] and its scale, read [x_in] and decay [d] before SiLU and sigmoid,
// attended [d] and its scales [H], inner [ffn], shared [shared pad], mixed [k, rank], joined [x_out].
struct Kept {
    float *norm, *scale, *read, *decay, *attended, *out_scale, *inner, *shared, *mixed, *joined;
    Kept at(const Shape& s, long i) const {
        return {norm + i * s.d, scale + i, read + i * s.x_in, decay + i * s.d, attended + i * s.d, out_scale + i * s.heads, inner + i * s.ffn,
                shared + i * align(s.shared), mixed + i * s.top_k * s.rank, joined + i * s.x_out};
    }
};

// What an iteration reads beside its weights; rows of N bytes.
struct Given {
    const float *h, *start, *key, *value;
    Given at(const Shape& s, long i) const { return {h + i * s.d, start + i * s.control, key + i * s.d, value + i * s.d}; }
};

// The router's choice; rows of N bytes.
struct Choice {
    int32_t* index;
    float* gate;
    Choice at(const Shape& s, long i) const { return {index + i * s.top_k, gate + i * s.top_k}; }
};

struct Gradients {  // by rows: of h (in place of that of the result), of start, key and value (added to); of weights (added to)
    float *h, *start, *key, *value;
    float *step, *w_in, *w_decay, *b_decay, *w_out, *shared_v, *shared_u, *up, *down;
    Gradients at(const Shape& s, long i) const {
        Gradients g = *this;
        g.h += i * s.d; g.start += i * s.control; g.key += i * s.d; g.value += i * s.d;
        return g;
    }
};

// --- one block's parts

// c = h + step; norm = RMS(c), and the factor that made it.
static void enter(const Shape& s, const Weights& w, long n, const Given& in, const Kept& k) {
    for (long i = 0; i < n; i++) {
        const float* row = in.h + i * s.d;
        v16 square{};
        for (long c = 0; c < s.d; c += 16) { v16 x = load(row + c) + load(w.step + c); square += x * x; }
        float f = k.scale[i] = 1.f / std::sqrt(total(square) / s.d + s.norm_eps);
        for (long c = 0; c < s.d; c += 16) store(k.norm + i * s.d + c, (load(row + c) + load(w.step + c)) * f);
    }
}

static void enter_backward(const Shape& s, long n, const Kept& k, const float* d_norm, const Gradients& to) {
    for (long i = 0; i < n; i++) {
        float* d_h = to.h + i * s.d;
        rms_backward(k.norm + i * s.d, d_norm + i * s.d, k.scale[i], s.d, d_h, true);
        for (long c = 0; c < s.d; c += 16) store(to.step + c, load(to.step + c) + load(d_h + c));
    }
}

static Reads reads_of(const Shape& s, const Kept& k, long head) {
    const float* q = k.read + head * s.width;
    return {q, q + s.d, q + 2 * s.d, k.read + s.at_beta + head, k.decay + head * s.width, s.x_in, s.d};
}

// The sequence's states [H, K, K] move; entry [H, chunks, K, K] from this block's first chunk, or null.
static void attend(const Shape& s, long n, long end, const Kept& k, float* state, float* entry, long chunks) {
    auto run = s.width == 16 ? forward_head<1> : s.width == 32 ? forward_head<2> : forward_head<4>;
    const long square = s.width * s.width;
    for (long j = 0; j < s.heads; j++)
        run(reads_of(s, k, j), n, end, state + j * square, entry ? entry + j * chunks * square : nullptr, k.attended + j * s.width,
            k.out_scale + j, s.heads);
}

static void attend_backward(const Shape& s, long n, long end, const Kept& k, const float* entry, long chunks, const float* d_attended,
                            float* d_state, float* d_read, float* d_decay) {
    auto run = s.width == 16 ? backward_head<1> : s.width == 32 ? backward_head<2> : backward_head<4>;
    const long square = s.width * s.width;
    for (long j = 0; j < s.heads; j++) {
        float* q = d_read + j * s.width;
        run(reads_of(s, k, j), {q, q + s.d, q + 2 * s.d, d_read + s.at_beta + j, d_decay + j * s.width}, n, end, entry + j * chunks * square,
            k.attended + j * s.width, k.out_scale + j, s.heads, d_attended + j * s.width, d_state + j * square);
    }
}

// y = SiLU(x); dy -> dx in place.
static void silu_backward(long size, const float* x, float* y, float* dy) {
    for (long i = 0; i < size; i += 16) {
        v16 at = load(x + i), open = sigmoid16(at), value = at * open;
        store(y + i, value);
        store(dy + i, load(dy + i) * (open + value * (1.f - open)));
    }
}

// Scalars of one row, from the columns of the controller and the memory's key.
struct Row {
    float attention, memory, expert, lam, agreed, open;  // open: how far the memory's gate opens
    float score[MOST_EXPERTS];
};

static void control(const Shape& s, const float* read, const float* start, const float* key, const float* norm, Row& row) {
    float open[MOST_EXPERTS + 16];
    for (long c = 0; c < s.control; c += 16) store(open + c, sigmoid16(load(read + s.at_control + c) + load(start + c)));
    row.attention = open[0];
    row.memory = open[1];
    row.expert = open[2];
    row.lam = at_most(row.memory, s.lam_max);
    row.agreed = dot(key, norm, s.d) / std::sqrt((float)s.d);
    float root = std::copysign(std::sqrt(at_least(std::fabs(row.agreed), 1e-6f)), row.agreed);
    row.open = sigmoid16(all(row.agreed == 0 ? 0 : root))[0];
    std::memcpy(row.score, open + 3, 4 * s.experts);
}

// The block's assignments to each expert: f(expert, count, slots), a slot being row * k + rank of the choice.
template <class F>
static void by_expert(const Shape& s, long n, const int32_t* index, F&& f) {
    long slots[BLOCK];
    for (long e = 0; e < s.experts; e++) {
        long m = 0;  // a row chooses an expert once: never more than BLOCK
        for (long slot = 0; slot < n * s.top_k; slot++)
            if (index[slot] == e) slots[m++] = slot;
        if (m) f(e, m, slots);
    }
}

struct Scratch {
    float *active, *expert, *code, *inner, *answer, *d_joined, *d_norm, *d_attended, *d_shared, *d_inner, *d_read, *d_decay, *d_code;
    long size;
    Scratch(const Shape& s, float* base) {
        long at = 0;
        auto take = [&](long floats) { float* p = base ? base + at : nullptr; at += align(floats); return p; };
        code = take(BLOCK * s.rank_pad); answer = take(BLOCK * s.rank_pad); d_read = take(BLOCK * s.x_in);
        if (base) std::memset(base, 0, 4 * at);  // padding columns of these stay 0
        active = take(BLOCK * s.ffn); expert = take(BLOCK); inner = take(BLOCK * s.ffn); d_joined = take(BLOCK * s.x_out);
        d_norm = take(BLOCK * s.d); d_attended = take(BLOCK * s.d); d_shared = take(BLOCK * align(s.shared));
        d_inner = take(BLOCK * s.ffn); d_decay = take(BLOCK * s.d); d_code = take(BLOCK * s.rank_pad);
        size = at;
    }
};

static void gather_codes(const Shape& s, const float* read, long e, long m, const long* slots, float* code) {
    for (long i = 0; i < m; i++) std::memcpy(code + i * s.rank_pad, read + slots[i] / s.top_k * s.x_in + s.at_code + e * s.rank, 4 * s.rank);
}

// Everything between attention and the output product: the choice, next = c + what memory adds, joined.
static void join(const Shape& s, const Weights& w, long n, const Given& in, const Kept& k, const Choice& choice, float* next,
                 const Scratch& b) {
    const long small = align(s.shared);
    Row row;
    for (long i = 0; i < n; i++) {
        const float *read = k.read + i * s.x_in, *norm = k.norm + i * s.d;
        control(s, read, in.start + i * s.control, in.key + i * s.d, norm, row);
        b.expert[i] = row.expert;
        route(row.score, w.bias, s.experts, s.top_k, choice.index + i * s.top_k, choice.gate + i * s.top_k);
        const float weight = row.open * row.lam;
        float* to = k.joined + i * s.x_out;
        for (long c = 0; c < s.d; c += 16) {
            store(next + i * s.d + c, load(in.h + i * s.d + c) + load(w.step + c) + load(in.value + i * s.d + c) * weight);
            store(to + c, load(k.attended + i * s.d + c) * sigmoid16(load(read + s.at_gate + c)) * row.attention);
            store(to + s.at_dense + c, load(norm + c) * (1.f - row.lam));
        }
        for (long c = 0; c < small; c += 16) store(to + s.at_shared_out + c, load(k.shared + i * small + c) * row.expert);
        std::memset(to + s.at_mixed, 0, 4 * s.code);
    }
    by_expert(s, n, choice.index, [&](long e, long m, const long* slots) {
        gather_codes(s, k.read, e, m, slots, b.code);
        product(b.code, s.rank_pad, m, w.up + e * s.rank * s.ffn, s.rank, s.ffn / 16, b.inner, s.ffn);
        silu_in(b.inner, m * s.ffn);
        product(b.inner, s.ffn, m, w.down + e * s.ffn * s.rank_pad, s.ffn, s.rank_pad / 16, b.answer, s.rank_pad);
        for (long i = 0; i < m; i++) {
            const long slot = slots[i], at = slot / s.top_k;
            float gate = choice.gate[slot] * b.expert[at], *to = k.joined + at * s.x_out + s.at_mixed + e * s.rank;
            std::memcpy(k.mixed + slot * s.rank, b.answer + i * s.rank_pad, 4 * s.rank);
            for (long r = 0; r < s.rank; r++) to[r] = b.answer[i * s.rank_pad + r] * gate;
        }
    });
}

// From the gradients of next (to.h) and joined: those of key, value, start, norm, attended and shared, and of read's columns gate,
// controller and code.
static void join_backward(const Shape& s, const Weights& w, long n, const Given& in, const Kept& k, const Choice& choice, const Gradients& to,
                          const Scratch& b) {
    const long small = align(s.shared);
    const float root = std::sqrt((float)s.d);
    Row row;
    float d_score[MOST_EXPERTS], d_gate[MOST_EXPERTS];
    for (long i = 0; i < n; i++) {
        const float *read = k.read + i * s.x_in, *norm = k.norm + i * s.d, *key = in.key + i * s.d, *value = in.value + i * s.d;
        const float *d_next = to.h + i * s.d, *d_joined = b.d_joined + i * s.x_out, *shared = k.shared + i * small;
        float* d_read = b.d_read + i * s.x_in;
        control(s, read, in.start + i * s.control, key, norm, row);
        b.expert[i] = row.expert;
        const float weight = row.open * row.lam;
        v16 memory{}, dense{}, attention{}, experts{};
        for (long c = 0; c < s.d; c += 16) {
            v16 gate = sigmoid16(load(read + s.at_gate + c)), out = load(k.attended + i * s.d + c), d = load(d_joined + c), opened = d * gate;
            attention += opened * out;
            store(b.d_attended + i * s.d + c, opened * row.attention);
            store(d_read + s.at_gate + c, d * out * row.attention * gate * (1.f - gate));
            memory += load(d_next + c) * load(value + c);
            store(to.value + i * s.d + c, load(to.value + i * s.d + c) + load(d_next + c) * weight);
            dense += load(d_joined + s.at_dense + c) * load(norm + c);
        }
        float d_weight = total(memory), d_lam = d_weight * row.open - total(dense), size = std::fabs(row.agreed);
        float d_agreed = size < 1e-6f ? 0 : d_weight * row.lam * row.open * (1.f - row.open) * .5f / std::sqrt(size) / root;
        for (long c = 0; c < s.d; c += 16) {
            store(to.key + i * s.d + c, load(to.key + i * s.d + c) + load(norm + c) * d_agreed);
            store(b.d_norm + i * s.d + c, load(key + c) * d_agreed + load(d_joined + s.at_dense + c) * (1.f - row.lam));
        }
        for (long c = 0; c < small; c += 16) {
            experts += load(d_joined + s.at_shared_out + c) * load(shared + c);
            store(b.d_shared + i * small + c, load(d_joined + s.at_shared_out + c) * row.expert);
        }
        float d_expert = total(experts), sum = 0, along = 0;
        for (long a = 0; a < s.top_k; a++) {
            const long slot = i * s.top_k + a;
            const float *m = k.mixed + slot * s.rank, *d = d_joined + s.at_mixed + choice.index[slot] * s.rank;
            float inside = 0;
            for (long r = 0; r < s.rank; r++) inside += d[r] * m[r];
            d_expert += inside * choice.gate[slot];
            d_gate[a] = inside * row.expert;
            along += d_gate[a] * choice.gate[slot];
            sum += row.score[choice.index[slot]];
        }
        std::memset(d_score, 0, 4 * s.experts);
        for (long a = 0; a < s.top_k; a++) d_score[choice.index[i * s.top_k + a]] += (d_gate[a] - along) / sum;
        float *d_control = d_read + s.at_control, *d_start = to.start + i * s.control;
        std::memset(d_control, 0, 4 * s.control);  // and the first of the shared columns, which are written after these
        d_control[0] = total(attention) * row.attention * (1.f - row.attention);
        d_control[1] = row.memory > s.lam_max ? 0 : d_lam * row.memory * (1.f - row.memory);
        d_control[2] = d_expert * row.expert * (1.f - row.expert);
        for (long e = 0; e < s.experts; e++) d_control[3 + e] = d_score[e] * row.score[e] * (1.f - row.score[e]);
        for (long c = 0; c < s.control; c += 16) store(d_start + c, load(d_start + c) + load(d_control + c));
        std::memset(d_read + s.at_code, 0, 4 * s.code);
    }
    const long rank = (s.rank + 7) / 8 * 8;
    by_expert(s, n, choice.index, [&](long e, long m, const long* slots) {
        gather_codes(s, k.read, e, m, slots, b.code);
        for (long i = 0; i < m; i++) {
            const float gate = choice.gate[slots[i]] * b.expert[slots[i] / s.top_k];
            const float* d = b.d_joined + slots[i] / s.top_k * s.x_out + s.at_mixed + e * s.rank;
            for (long r = 0; r < s.rank; r++) b.answer[i * s.rank_pad + r] = d[r] * gate;
        }
        product(b.code, s.rank_pad, m, w.up + e * s.rank * s.ffn, s.rank, s.ffn / 16, b.inner, s.ffn);
        product(b.answer, s.rank_pad, m, w.down_back + e * s.rank * s.ffn, s.rank, s.ffn / 16, b.d_inner, s.ffn);
        silu_backward(m * s.ffn, b.inner, b.inner, b.d_inner);
        product(b.d_inner, s.ffn, m, w.up_back + e * s.ffn * s.rank_pad, s.ffn, s.rank_pad / 16, b.d_code, s.rank_pad);
        gram(b.answer, s.rank_pad, b.inner, s.ffn, m, rank, s.ffn / 16, to.down + e * rank * s.ffn, s.ffn);
        gram(b.code, s.rank_pad, b.d_inner, s.ffn, m, rank, s.ffn / 16, to.up + e * rank * s.ffn, s.ffn);
        for (long i = 0; i < m; i++)
            std::memcpy(b.d_read + slots[i] / s.top_k * s.x_in + s.at_code + e * s.rank, b.d_code + i * s.rank_pad, 4 * s.rank);
    });
}

// --- the iteration

static void forward_block(const Shape& s, const Weights& w, long n, long end, const Given& in, const Kept& k, const Choice& choice,
                          float* state, float* entry, long chunks, float* next, const Scratch& b) {
    const long small = align(s.shared);
    enter(s, w, n, in, k);
    product(k.norm, s.d, n, w.w_in, s.d, s.x_in / 16, k.read, s.x_in);
    product(k.read + s.at_decay, s.x_in, n, w.w_decay, s.width, s.d / 16, k.decay, s.d, w.b_decay);
    attend(s, n, end, k, state, entry, chunks);
    product(k.read + s.at_shared, s.x_in, n, w.shared_v, s.shared, s.ffn / 16, k.inner, s.ffn);
    for (long i = 0; i < n * s.ffn; i += 16) { v16 x = load(k.inner + i); store(b.active + i, x * sigmoid16(x)); }
    product(b.active, s.ffn, n, w.shared_u, s.ffn, small / 16, k.shared, small);
    join(s, w, n, in, k, choice, next, b);
    product(k.joined, s.x_out, n, w.w_out, s.x_out, s.d / 16, next, s.d, next, s.d);
}

static void backward_block(const Shape& s, const Weights& w, long n, long end, const Given& in, const Kept& k, const Choice& choice,
                           const float* entry, long chunks, float* d_state, const Gradients& to, const Scratch& b) {
    const long small = align(s.shared), panels = s.d / 16;
    product(to.h, s.d, n, w.w_out_back, s.d, s.x_out / 16, b.d_joined, s.x_out);
    gram(k.joined, s.x_out, to.h, s.d, n, s.x_out, panels, to.w_out, s.d);
    join_backward(s, w, n, in, k, choice, to, b);
    product(b.d_shared, small, n, w.shared_u_back, s.shared, s.ffn / 16, b.d_inner, s.ffn);
    silu_backward(n * s.ffn, k.inner, b.active, b.d_inner);
    product(b.d_inner, s.ffn, n, w.shared_v_back, s.ffn, small / 16, b.d_read + s.at_shared, s.x_in);
    gram(b.d_shared, small, b.active, s.ffn, n, small, s.ffn / 16, to.shared_u, s.ffn);
    gram(k.read + s.at_shared, s.x_in, b.d_inner, s.ffn, n, small, s.ffn / 16, to.shared_v, s.ffn);
    attend_backward(s, n, end, k, entry, chunks, b.d_attended, d_state, b.d_read, b.d_decay);
    product(b.d_decay, s.d, n, w.w_decay_back, s.d, s.width / 16, b.d_read + s.at_decay, s.x_in);
    gram(k.read + s.at_decay, s.x_in, b.d_decay, s.d, n, s.width, panels, to.w_decay, s.d);
    for (long i = 0; i < n; i++)
        for (long c = 0; c < s.d; c += 16) store(to.b_decay + c, load(to.b_decay + c) + load(b.d_decay + i * s.d + c));
    product(b.d_read, s.x_in, n, w.w_in_back, s.x_in, panels, b.d_norm, s.d, b.d_norm, s.d);
    gram(b.d_read, s.x_in, k.norm, s.d, n, s.x_in, panels, to.w_in, s.d);
    enter_backward(s, n, k, b.d_norm, to);
}

extern "C" int64_t scratch_size(const Shape* s) { return Scratch(*s, nullptr).size; }

static long chunks_of(long length) { return (length + CHUNK - 1) / CHUNK; }

// Bytes of row r that count.
static long end_of(const int64_t* ends, long r, long length) { return ends && ends[r] < length ? ends[r] : length; }

// batch rows of length bytes, `ends` [B] or null (all whole). state [B, H, K, K] moves; entry [B, H, chunks, K, K], the states chunks start
// from, or null where no backward follows: then `kept` has room for one block. next [N, d] is the result.
extern "C" void iterate(const Shape* shape, const Weights* w, const Given* in, const Kept* kept, const Choice* choice, int64_t batch,
                        int64_t length, const int64_t* ends, float* state, float* entry, float* next, float* scratch) {
    const Shape& s = *shape;
    const Scratch b(s, scratch);
    const long chunks = chunks_of(length), square = s.width * s.width;
    for (long r = 0; r < batch; r++)
        for (long first = 0; first < length; first += BLOCK) {
            const long i = r * length + first, n = length - first < BLOCK ? length - first : BLOCK;
            forward_block(s, *w, n, end_of(ends, r, length) - first, in->at(s, i), kept->at(s, entry ? i : 0), choice->at(s, i),
                          state + r * s.heads * square, entry ? entry + (r * s.heads * chunks + first / CHUNK) * square : nullptr, chunks,
                          next + i * s.d, b);
        }
}

// d_state [B, H, K, K]: of the final state, then of the first. Gradients of weights are added to.
extern "C" void iterate_backward(const Shape* shape, const Weights* w, const Given* in, const Kept* kept, const Choice* choice, int64_t batch,
                                 int64_t length, const int64_t* ends, const float* entry, float* d_state, const Gradients* to, float* scratch) {
    const Shape& s = *shape;
    const Scratch b(s, scratch);
    const long chunks = chunks_of(length), square = s.width * s.width;
    for (long r = 0; r < batch; r++)
        for (long first = (length - 1) / BLOCK * BLOCK; first >= 0; first -= BLOCK) {
            const long i = r * length + first, n = length - first < BLOCK ? length - first : BLOCK;
            backward_block(s, *w, n, end_of(ends, r, length) - first, in->at(s, i), kept->at(s, i), choice->at(s, i),
                           entry + (r * s.heads * chunks + first / CHUNK) * square, chunks, d_state + r * s.heads * square, to->at(s, i), b);
        }
}

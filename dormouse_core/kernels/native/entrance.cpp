// What bytes bring into the loop, and the gradients of it: their embedding h, the controller's half that reads it, and what the n-gram
// tables say about them (key with unit RMS, value); fp32.
//
// Who lays out the weights: policy/native_entrance.py, the only caller. A byte's results depend on the three bytes before it alone.

#include "memory.h"
#include "products.h"
#include "shape.h"

struct Weights {  // embedding and table as they are; the others panels, *_back the transposes
    const float *embedding, *table, *start, *key, *value, *start_back, *key_back, *value_back;
};

struct Kept {  // rows of all bytes: rows of the tables [3], norm [d] = RMS(h) and its scale, read [memory], the key's scale
    int64_t* rows;
    float *norm, *scale, *read, *key_scale;
    Kept at(const Shape& s, long i) const { return {rows + i * ORDERS, norm + i * s.d, scale + i, read + i * s.memory, key_scale + i}; }
};

// bytes [batch, 3 + length], three of context first. Returns batch * length, or the first place of what is no byte.
extern "C" int64_t enter(const Shape* shape, const Weights* w, const int64_t* bytes, int64_t batch, int64_t length, const Kept* kept, float* h,
                         float* start, float* key, float* value) {
    const Shape& s = *shape;
    const long all_rows = batch * length;
    for (long i = 0; i < all_rows; i++) {
        const int64_t *at = bytes + i / length * (length + ORDERS) + i % length, byte = at[ORDERS];
        if (byte < 0 || byte >= VOCABULARY) return i;
        const Kept k = kept->at(s, i);
        hashed(s, at, k.rows);
        gathered(s, w->table, k.rows, k.read);
        std::memcpy(h + i * s.d, w->embedding + byte * s.d, 4 * s.d);
        *k.scale = rms(h + i * s.d, k.norm, s.d, s.norm_eps);
    }
    for (long first = 0; first < all_rows; first += BLOCK) {
        const long n = all_rows - first < BLOCK ? all_rows - first : BLOCK;
        const Kept k = kept->at(s, first);
        product(k.norm, s.d, n, w->start, s.d, s.control / 16, start + first * s.control, s.control);
        product(k.read, s.memory, n, w->value, ORDERS * s.dim, s.d / 16, value + first * s.d, s.d);
        product(k.read, s.memory, n, w->key, ORDERS * s.dim, s.d / 16, key + first * s.d, s.d);
        for (long i = 0; i < n; i++) k.key_scale[i] = rms(key + (first + i) * s.d, key + (first + i) * s.d, s.d, KEY_EPS);
    }
    return all_rows;
}

struct Gradients {  // given, by rows: of h and key (changed), start, value; of weights, which are added to
    float *h, *start, *key, *value;
    float *embedding, *table, *w_start, *w_key, *w_value;
};

// scratch [BLOCK, d + memory].
extern "C" void enter_backward(const Shape* shape, const Weights* w, const int64_t* bytes, int64_t batch, int64_t length, const Kept* kept,
                               const float* key, const Gradients* to, float* scratch) {
    const Shape& s = *shape;
    const long all_rows = batch * length, panels = s.d / 16;
    float *d_norm = scratch, *d_read = scratch + BLOCK * s.d;
    for (long first = 0; first < all_rows; first += BLOCK) {
        const long n = all_rows - first < BLOCK ? all_rows - first : BLOCK;
        const Kept k = kept->at(s, first);
        float *d_h = to->h + first * s.d, *d_key = to->key + first * s.d, *d_value = to->value + first * s.d;
        const float* d_start = to->start + first * s.control;
        for (long i = 0; i < n; i++) rms_backward(key + (first + i) * s.d, d_key + i * s.d, k.key_scale[i], s.d, d_key + i * s.d, false);
        product(d_key, s.d, n, w->key_back, s.d, s.memory / 16, d_read, s.memory);
        product(d_value, s.d, n, w->value_back, s.d, s.memory / 16, d_read, s.memory, d_read, s.memory);
        product(d_start, s.control, n, w->start_back, s.control, panels, d_norm, s.d);
        gram(d_key, s.d, k.read, s.memory, n, s.d, s.memory / 16, to->w_key, s.memory);
        gram(d_value, s.d, k.read, s.memory, n, s.d, s.memory / 16, to->w_value, s.memory);
        gram(d_start, s.control, k.norm, s.d, n, s.control, panels, to->w_start, s.d);
        for (long i = 0; i < n; i++) {
            const long row = first + i;
            rms_backward(k.norm + i * s.d, d_norm + i * s.d, k.scale[i], s.d, d_h + i * s.d, true);
            float* e = to->embedding + bytes[row / length * (length + ORDERS) + row % length + ORDERS] * s.d;
            for (long c = 0; c < s.d; c += 16) store(e + c, load(e + c) + load(d_h + i * s.d + c));
            for (int o = 0; o < ORDERS; o++)
                for (long c = 0; c < s.dim; c++) to->table[k.rows[i * ORDERS + o] * s.dim + c] += d_read[i * s.memory + o * s.dim + c];
        }
    }
}

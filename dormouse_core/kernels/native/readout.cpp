// The readout and the head over a window, and the gradients of both: hidden = V' U^T mean, logits = W RMS(hidden); fp32.
//
// Who lays out the weights: policy/native_readout.py, the only caller. BLOCK rows are taken through all of it together. A row's results
// depend on no other row.

#include "products.h"
#include "shape.h"

struct Weights {  // panels; *_back are the transposes
    const float *u, *v, *head, *u_back, *v_back, *head_back;
};

struct Kept {  // rows of all bytes: code [readout pad], norm [d] = RMS(hidden) and its scale
    float *code, *norm, *scale;
    Kept at(const Shape& s, long i) const { return {code + i * align(s.readout), norm + i * s.d, scale + i}; }
};

extern "C" void read_out(const Shape* shape, const Weights* w, const float* mean, int64_t rows, const Kept* kept, float* hidden,
                         float* logits) {
    const Shape& s = *shape;
    const long rank = align(s.readout);
    for (long first = 0; first < rows; first += BLOCK) {
        const long n = rows - first < BLOCK ? rows - first : BLOCK;
        const Kept k = kept->at(s, first);
        float* h = hidden + first * s.d;
        product(mean + first * s.d, s.d, n, w->u, s.d, rank / 16, k.code, rank);
        product(k.code, rank, n, w->v, s.readout, s.d / 16, h, s.d);
        for (long i = 0; i < n; i++) k.scale[i] = rms(h + i * s.d, k.norm + i * s.d, s.d, s.norm_eps);
        product(k.norm, s.d, n, w->head, s.d, VOCABULARY / 16, logits + first * VOCABULARY, VOCABULARY);
    }
}

struct Gradients {  // of mean, by rows; of hidden: given, and then what the head adds; of weights, which are added to
    float *mean, *hidden, *u, *v, *head;
};

// d_code [BLOCK, readout pad] is scratch.
extern "C" void read_out_backward(const Shape* shape, const Weights* w, const float* mean, int64_t rows, const Kept* kept,
                                  const float* d_logits, const Gradients* to, float* d_code) {
    const Shape& s = *shape;
    const long rank = align(s.readout), panels = s.d / 16;
    for (long first = 0; first < rows; first += BLOCK) {
        const long n = rows - first < BLOCK ? rows - first : BLOCK;
        const Kept k = kept->at(s, first);
        const float *given = d_logits + first * VOCABULARY, *x = mean + first * s.d;
        float *d_mean = to->mean + first * s.d, *d_hidden = to->hidden + first * s.d;
        product(given, VOCABULARY, n, w->head_back, VOCABULARY, panels, d_mean, s.d);
        gram(given, VOCABULARY, k.norm, s.d, n, VOCABULARY, panels, to->head, s.d);
        for (long i = 0; i < n; i++) rms_backward(k.norm + i * s.d, d_mean + i * s.d, k.scale[i], s.d, d_hidden + i * s.d, true);
        product(d_hidden, s.d, n, w->v_back, s.d, rank / 16, d_code, rank);
        gram(d_hidden, s.d, k.code, rank, n, s.d, rank / 16, to->v, rank);
        product(d_code, rank, n, w->u_back, s.readout, panels, d_mean, s.d);
        gram(d_code, rank, x, s.d, n, rank, panels, to->u, s.d);
    }
}

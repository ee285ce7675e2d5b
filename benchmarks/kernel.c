// The encoder of ddf.labelmaps for one map of classes that the model knows, to compare numba with a C compiler.
// Built and called by kernel_in_c.py.
#include <math.h>
#include <stdint.h>
#include <string.h>

enum { PAD = 16, HISTORY = 16, CANDIDATES = 5, OTHER = 5, OUTSIDE = 6, RELATIVE = 7, RUNS = 6, GAPS = 64, NEXT = 6, FINE = 23 };
enum { ONE = 1 << 22, LIMIT = 12 * 256 - 1 };

typedef struct {
    int pixels, hidden, width2, shown, run_values, class_values, row_bins, classes, hash_bits, positions;
    const int64_t *offsets, *shifts, *settings, *steps;
    const int16_t *pairs, *runs, *class_rows, *rows, *bias, *flat, *flat_classes, *stretch;
    const float *second, *second_bias, *third, *third_bias;
    const int32_t *squash;
    const uint8_t *net_bins, *coarse, *fine;
    uint32_t *ranks, *flat_counters, *local;
    int64_t *weights, *escapes;
} Model;

typedef struct { uint64_t low, range, pending; int cache; uint8_t *out; } Coder;

static void shift(Coder *c) {
    if (c->low < 0xFF000000u || c->low >> 32) {
        uint8_t carry = c->low >> 32;
        if (c->cache >= 0) *c->out++ = c->cache + carry;
        for (; c->pending; c->pending--) *c->out++ = 0xFF + carry;
        c->cache = (c->low >> 24) & 0xFF;
    } else
        c->pending++;
    c->low = (c->low << 8) & 0xFFFFFFFFu;
}
static inline void normalize(Coder *c) { while (c->range < 1u << 24) c->range <<= 8, shift(c); }
static inline void code_bit(Coder *c, int bit, uint64_t p) {
    uint64_t bound = c->range * p >> 22;
    if (bit) c->range = bound; else c->range -= bound, c->low += bound;
    normalize(c);
}
static inline int64_t stretch(const int16_t *t, int64_t p) {
    return p < ONE >> 6 ? t[4096 + (p >> 4)] : p > ONE - (ONE >> 6) ? -t[4096 + ((ONE - p) >> 4)] : t[p >> 10];
}
static inline uint32_t updated(uint32_t counter, int bit, const int64_t *steps, int limit) {
    int64_t n = counter & 1023, p = counter >> 10;
    p += ((((int64_t)bit << 22) - p) * steps[n]) >> 16;
    p = p < 16 ? 16 : p > ONE - 16 ? ONE - 16 : p;
    return p << 10 | (n + (n < limit));
}
static inline uint64_t hash(uint64_t a, uint64_t b, int bits) {
    return ((a * 0x9E3779B97F4A7C15u ^ b * 0xD6E8FEB86659FD93u) * 0xFF51AFD7ED558CCDu) >> (64 - bits);
}
static inline int least(int a, int b) { return a < b ? a : b; }

static void escape(Model *m, Coder *c, int symbol, int left, const int *excluded, int count) {
    int64_t *row = m->escapes + left * m->classes, weights[256], total = 0, start = 0, sum = 0;
    memcpy(weights, row, m->classes * sizeof *row);
    for (int i = 0; i < count; i++) weights[excluded[i]] = 0;
    for (int i = 0; i < m->classes; i++) total += weights[i], start += i < symbol ? weights[i] : 0;
    uint64_t unit = c->range / total;
    c->low += start * unit;
    c->range = unit * weights[symbol];
    normalize(c);
    row[symbol] += m->settings[4];
    for (int i = 0; i < m->classes; i++) sum += row[i];
    if (sum > 1 << 15) for (int i = 0; i < m->classes; i++) row[i] = (row[i] + 1) >> 1;
}

// Encode symbols (height, width); sym … up_right have room for (height + HISTORY) · (width + 2 · PAD) entries.
int64_t encode(Model *m, const uint16_t *map, int height, int width, uint16_t *sym, uint8_t *left, uint8_t *right,
               uint8_t *up, uint8_t *up_left, uint8_t *up_right, uint8_t *out) {
    int stride = width + 2 * PAD, K = m->classes;
    Coder c = {0, 0xFFFFFFFFu, 0, -1, out};
    code_bit(&c, 0, 1 << 14);              // not upsampled
    code_bit(&c, 1, ONE - (1 << 17));      // all labels are classes of the model
    uint8_t index[256];
    memset(index, 255, sizeof index);
    int near[256], candidates[8] = {0};
    for (int i = 0; i < m->pixels; i++) near[i] = m->offsets[2 * i] * stride + m->offsets[2 * i + 1];
    for (int i = 0; i < HISTORY * stride; i++) sym[i] = K, left[i] = right[i] = up[i] = up_left[i] = up_right[i] = 1;
    int16_t first[512];
    float second[512], logits[8];
    for (int y = 0; y < height; y++) {
        int64_t at = (int64_t)(y + HISTORY) * stride;
        for (int x = 0; x < PAD; x++) sym[at + x] = sym[at - stride + PAD];
        int row_bin = (int64_t)y * m->row_bins / height, run = 255;
        at += PAD;
        for (int x = 0; x < width; x++, at++) {
            int w = sym[at - 1], s = map[(int64_t)y * width + x];
            int64_t ab = at - stride;
            if (run >= 2 && sym[ab + 2] == w && left[ab + 2] >= 5 && sym[ab - stride + 1] == w && left[ab - stride + 1] >= 3 && w != K) {
                const uint8_t *q = m->coarse, *f = m->fine;
                int64_t far = at - 4 * stride + 8, farther = at - 8 * stride + 8;
                int a = q[run], b = q[right[ab]], d = q[up[ab]], e = q[up_left[ab - 1]], g = q[up_right[ab + 1]], h = q[left[ab]];
                int i = sym[far] == w ? q[left[far]] : 0, j = sym[farther] == w ? q[left[farther]] : 0;
                const int16_t *t = m->flat, *o = m->flat + 2112;
                int64_t score = m->flat_classes[w * m->row_bins + row_bin] + t[a << 6 | b << 3 | d] + t[512 + (e << 6 | g << 3 | a)]
                    + t[1024 + (h << 6 | d << 3 | g)] + t[1536 + (b << 6 | g << 3 | h)] + t[2048 + (i << 3 | j)] + o[f[run]]
                    + o[FINE + f[right[ab]]] + o[2 * FINE + f[up[ab]]] + o[3 * FINE + f[up_left[ab - 1]]]
                    + o[4 * FINE + f[up_right[ab + 1]]] + o[5 * FINE + f[left[ab]]];
                int64_t bin = (score + 48 * 64) >> 6;
                bin = bin < 0 ? 0 : bin > 63 ? 63 : bin;
                uint32_t counter = m->flat_counters[bin];
                int hit = s == w;
                code_bit(&c, hit, counter >> 10);
                m->flat_counters[bin] = updated(counter, hit, m->steps, m->settings[2]);
                if (!hit) escape(m, &c, s, w, &w, 1);
            } else {
                int count = 0;
                uint8_t relative[256];
                for (int j = 0; j < m->pixels; j++) {
                    int v = sym[at + near[j]], k = index[v];
                    if (k == 255) {
                        if (v == K) k = OUTSIDE;
                        else if (count < CANDIDATES) { k = index[v] = count; candidates[count++] = v; }
                        else k = OTHER;
                    }
                    relative[j] = k;
                }
                int runs[RUNS] = {m->net_bins[run], m->net_bins[right[ab]], m->net_bins[left[ab]], m->net_bins[up[ab]],
                                  m->net_bins[up_left[ab - 1]], m->net_bins[up_right[ab + 1]]};
                int n1 = m->hidden, n2 = m->width2;
                memcpy(first, m->bias, n1 * sizeof *first);
#define ADD(table, row) do { const int16_t *r_ = (table) + (int64_t)(row) * n1; for (int q = 0; q < n1; q++) first[q] += r_[q]; } while (0)
                for (int j = 0; j < m->pixels / 2; j++) ADD(m->pairs, j * 49 + relative[2 * j] * RELATIVE + relative[2 * j + 1]);
                for (int j = 0; j < RUNS; j++) ADD(m->runs, j * m->run_values + runs[j]);
                for (int j = 0; j < m->shown; j++) ADD(m->class_rows, j * m->class_values + (j < count ? candidates[j] : m->class_values - 1));
                if (m->positions) ADD(m->rows, row_bin);
                memcpy(second, m->second_bias, n2 * sizeof *second);
                for (int q = 0; q < n1; q++) {
                    int v = first[q] >> m->shifts[0];
                    if (v <= 0) continue;
                    float a = least(v, 255);
                    const float *r = m->second + q * n2;
                    for (int o = 0; o < n2; o++) second[o] += a * r[o];
                }
                memcpy(logits, m->third_bias, sizeof logits);
                for (int q = 0; q < n2; q++) {
                    int v = (int32_t)second[q] >> m->shifts[1];
                    float a = v < 0 ? 0 : least(v, 255);
                    for (int o = 0; o < 8; o++) logits[o] += a * m->third[q * 8 + o];
                }
                int order[8], n = 0;
                int64_t sorted[9];
                for (int k = 0; k <= CANDIDATES; k++)
                    if (k < count || (k == OTHER && count < K)) {
                        int64_t value = logits[k];
                        int i = n++;
                        for (; i > 0 && sorted[i - 1] < value; i--) sorted[i] = sorted[i - 1], order[i] = order[i - 1];
                        sorted[i] = value, order[i] = k;
                    }
                for (int i = 0; i < n; i++) sorted[i] >>= m->shifts[2];
                for (int i = n; i < CANDIDATES + 3; i++) sorted[i] = sorted[n - 1] - (1 << 14);
                int target = index[s] != 255 ? index[s] : OTHER, chosen = OTHER;
                for (int k = 0; k < count; k++) index[candidates[k]] = 255;
                uint64_t B = 65537, north = sym[ab], around = ((w * B + north) * B + sym[ab - 1]) * B + sym[ab + 1];
                uint64_t beyond = (sym[at - 2] * B + sym[ab - stride]) * B + sym[ab + 2];
                uint64_t lengths = (uint64_t)runs[0] << 16 | runs[1] << 8 | runs[2];
                for (int r = 0; r < n; r++) {
                    int k = order[r];
                    if (r == n - 1) { chosen = k; break; }
                    int d = least(r, 2), gap = least((sorted[r] - sorted[r + 1]) >> 5, GAPS - 1);
                    int after = least((sorted[r + 1] - sorted[r + 2]) >> 8, NEXT - 1);
                    uint32_t *s0 = m->ranks + (d * GAPS + gap) * NEXT + after, c0 = *s0;
                    uint64_t option = k < OTHER ? candidates[k] : K;
                    uint32_t *s1 = m->local + hash(around, beyond * B + option, m->hash_bits);
                    uint32_t *s2 = m->local + (1u << m->hash_bits) + hash((w * B + north) * B + option, lengths + 1, m->hash_bits);
                    uint32_t c1 = *s1 ? *s1 : (c0 & ~1023u) | 1, c2 = *s2 ? *s2 : (c0 & ~1023u) | 1;
                    int64_t in[4] = {stretch(m->stretch, c0 >> 10), stretch(m->stretch, c1 >> 10), stretch(m->stretch, c2 >> 10), 256};
                    int u = c1 & 1023, v = c2 & 1023;
                    u = u < 2 ? 0 : u < 5 ? 1 : u < 20 ? 2 : 3, v = v < 2 ? 0 : v < 5 ? 1 : v < 20 ? 2 : 3;
                    int64_t *weights = m->weights + ((d * 4 + u) * 4 + v) * 4, total = 0;
                    for (int i = 0; i < 4; i++) total += weights[i] * in[i];
                    total >>= 16;
                    total = total < -LIMIT ? -LIMIT : total > LIMIT ? LIMIT : total;
                    int64_t p = m->squash[total + LIMIT];
                    int hit = k == target;
                    code_bit(&c, hit, p);
                    int64_t error = (((int64_t)hit << 22) - p) * m->settings[3];
                    for (int i = 0; i < 4; i++) weights[i] += (in[i] * error + (1 << 29)) >> 30;
                    *s0 = updated(c0, hit, m->steps, m->settings[0]);
                    *s1 = updated(c1, hit, m->steps, m->settings[1]);
                    *s2 = updated(c2, hit, m->steps, m->settings[1]);
                    if (hit) { chosen = k; break; }
                }
                if (chosen == OTHER) escape(m, &c, s, w, candidates, count);
            }
            sym[at] = s;
            run = s == w ? least(run + 1, 255) : 1;
        }
        int64_t row = (int64_t)(y + HISTORY) * stride, above = row - stride;
        for (int x = 0; x < PAD; x++) sym[row + x] = sym[row + PAD], sym[row + PAD + width + x] = sym[row + PAD + width - 1];
        left[row] = right[row + stride - 1] = 255;
        for (int x = 1; x < stride; x++) left[row + x] = sym[row + x] == sym[row + x - 1] ? least(left[row + x - 1] + 1, 255) : 1;
        for (int x = stride - 2; x >= 0; x--) right[row + x] = sym[row + x] == sym[row + x + 1] ? least(right[row + x + 1] + 1, 255) : 1;
        for (int x = 0; x < stride; x++) {
            if (!y) { up[row + x] = up_left[row + x] = up_right[row + x] = 255; continue; }
            int edge = x == 0 || x == stride - 1;
            up[row + x] = sym[row + x] == sym[above + x] ? least(up[above + x] + 1, 255) : 1;
            up_left[row + x] = edge ? up[row + x] : sym[row + x] == sym[above + x - 1] ? least(up_left[above + x - 1] + 1, 255) : 1;
            up_right[row + x] = edge ? up[row + x] : sym[row + x] == sym[above + x + 1] ? least(up_right[above + x + 1] + 1, 255) : 1;
        }
        if (!y) for (int i = 0; i < HISTORY; i++) memcpy(sym + (int64_t)i * stride, sym + row, stride * 2), memcpy(left + (int64_t)i * stride, left + row, stride);
    }
    uint64_t high = c.low + c.range;
    int zeros = 32;
    uint64_t point;
    for (;; zeros -= 8) {
        uint64_t unit = 1ull << zeros;
        point = (c.low + unit - 1) & ~(unit - 1);
        if (point < high) break;
    }
    c.low = point;
    for (int i = 0; i < 5; i++) shift(&c);
    while (c.out > out && !c.out[-1]) c.out--;
    return c.out - out;
}


/* ---------------------------------------------------------------------------------------------- layers */

typedef struct {
    const matrix *matrix;
    int16_t operand; /* what it is multiplied by: x, h, or the result of a factor */
    int16_t gate;    /* what it adds to; 0 in a factor */
} term;

/* Some terms and biases that make the pre-activations of gates, or the output of a linear layer. */
typedef struct {
    const term *terms;  /* first the right factors of low-rank matrices, then the others */
    const float *bias;  /* for each gate, padded to whole panels */
    int32_t inputs, hidden, outputs; /* the widths of x, of h and of a gate */
    int16_t factors, count; /* of terms: right factors, and all */
    int16_t gates;
    uint16_t coded; /* the operands that meet codes, a bit for each */
} block;

/* What is free of the scratch memory. */
typedef struct {
    float *floats;
    int16_t *codes;
    uint32_t *prefix;
} scratch;

enum { X, H, FACTORS };

static operand read_vector(const float *values, int32_t count, int is_coded, scratch *free)
{
    operand o = {values, NULL, NULL, 0.0f};
//@ codes
    if (is_coded) {
        const int32_t filled = (count + 31) / 32 * 32;
        quantise(&o, count, free->codes, free->prefix);
        free->codes += filled;
        free->prefix += filled / 8 + 1;
    }
//@
    (void)count, (void)is_coded, (void)free;
    return o;
}

//@ factors linear
/* Writes as much of a band as there is in a vector of `count`. */
static void write_band(const float *sums, int32_t panel, int32_t count, float *to)
{
    const int32_t left = count - panel * ROWS;
    memcpy(to + panel * ROWS, sums, (size_t)(left < BAND ? left : BAND) * sizeof *to);
}

//@
/* Reads x and h, and computes the factors. */
static void read_operands(const block *b, const float *x, const float *h, operand *o, scratch *free)
{
    o[X] = read_vector(x, b->inputs, b->coded & 1 << X, free);
    if (h) o[H] = read_vector(h, b->hidden, b->coded & 1 << H, free);
//@ factors
    for (int k = 0; k < b->factors; ++k) {
        const term *t = &b->terms[k];
        float *to = free->floats;
        free->floats += panels(t->matrix->rows) * ROWS;
        for (int32_t p = 0; p < panels(t->matrix->rows); p += TOGETHER) {
            float sums[BAND] = {0};
            multiply(t->matrix, p, &o[t->operand], sums);
            write_band(sums, p, t->matrix->rows, to);
        }
        o[FACTORS + k] = read_vector(to, t->matrix->rows, b->coded & 1 << (FACTORS + k), free);
    }
//@
}

/* The pre-activations of a band of units, (gates, BAND). */
static void add_terms(const block *b, int32_t panel, const operand *o, float *sums)
{
    const int32_t count = panels(b->outputs), there = count - panel < TOGETHER ? count - panel : TOGETHER;
    for (int gate = 0; gate < b->gates; ++gate)
        memcpy(sums + gate * BAND, b->bias + (gate * count + panel) * ROWS, (size_t)there * ROWS * sizeof *sums);
    for (int k = b->factors; k < b->count; ++k) {
        const term *t = &b->terms[k];
        multiply(t->matrix, panel, &o[t->operand], sums + t->gate * BAND);
    }
}
//@ linear

static void linear(const block *b, const float *x, float *to, scratch free)
{
    operand o[OPERANDS];
    read_operands(b, x, NULL, o, &free);
    for (int32_t p = 0; p < panels(b->outputs); p += TOGETHER) {
        float sums[BAND] = {0};
        add_terms(b, p, o, sums);
        write_band(sums, p, b->outputs, to);
    }
}
//@
//@ lstm gru

static void open_gates(float *a, int is_hard)
{
    if (is_hard)
        for (int r = 0; r < BAND; ++r) a[r] = a[r] >= 0.0f ? 1.0f : a[r] < 0.0f ? 0.0f : a[r];
    else
        EACH_UNIT (u) store(a + u * LANES, sigmoids(load(a + u * LANES)));
}
//@
//@ lstm

/* One step; gates i, f, g, o. hard: 1 for the input and forget gates, 2 for the output gate too.
   c and `to` have room for whole panels. */
static void lstm(const block *b, const float *x, const float *h, float *c, float *to, int hard, scratch free)
{
    operand o[OPERANDS];
    read_operands(b, x, h, o, &free);
    for (int32_t p = 0; p < panels(b->outputs); p += TOGETHER, c += BAND, to += BAND) {
        float a[4 * BAND] = {0};
        add_terms(b, p, o, a);
        open_gates(a, hard >= 1);
        open_gates(a + BAND, hard >= 1);
        open_gates(a + 3 * BAND, hard >= 2);
        EACH_UNIT (u) {
            const float *const i = a + u * LANES, *const f = i + BAND, *const g = f + BAND, *const out = g + BAND;
            if (p * ROWS + u * LANES >= b->outputs) break;
            floats cell = add_product(load(f), load(c + u * LANES), load(i) * tanhs(load(g)));
            cell = (cell + 1e-24f) - 1e-24f; /* so that it never becomes a denormal number, which would be slow */
            store(c + u * LANES, cell);
            store(to + u * LANES, load(out) * tanhs(cell));
        }
    }
}
//@
//@ gru

/* One step; gates r, z, and n from x and from h. hard: 1 for r and z. h and `to` have room for whole panels. */
static void gru(const block *b, const float *x, const float *h, float *to, int hard, scratch free)
{
    operand o[OPERANDS];
    read_operands(b, x, h, o, &free);
    for (int32_t p = 0; p < panels(b->outputs); p += TOGETHER, h += BAND, to += BAND) {
        float a[4 * BAND] = {0};
        add_terms(b, p, o, a);
        open_gates(a, hard >= 1);
        open_gates(a + BAND, hard >= 1);
        EACH_UNIT (u) {
            const float *const r = a + u * LANES, *const z = r + BAND, *const n_x = z + BAND, *const n_h = n_x + BAND;
            if (p * ROWS + u * LANES >= b->outputs) break;
            const floats n = tanhs(add_product(load(r), load(n_h), load(n_x)));
            store(to + u * LANES, add_product(load(z), load(h + u * LANES) - n, n));
        }
    }
}
//@
//@ embedding
//@ codes

INLINE void lookup_codes(int bits, const matrix *m, int32_t row, float *to)
{
    const int32_t place = row % ROWS, panel = row / ROWS;
    const uint32_t *at = (const uint32_t *)m->data + (size_t)panel * (size_t)m->panel + place / LANES * LANES;
    float scale = m->factor * (m->scales ? m->scales[row] : 1.0f);
    for (int32_t k = 0; k < m->columns; ++k) {
        const words w = field(bits, at + k / CHUNK(bits) * WORDS(bits) * ROWS, k % CHUNK(bits) / 4);
        uint32_t four[LANES];
        memcpy(four, &w, sizeof four);
        const uint32_t code = (four[place % LANES] ^ (bits == 8 ? SIGN : 0)) >> 8 * (k % 4) & ((1u << bits) - 1);
//@ groups
        if (m->groups && k % m->span == 0) {
            const int32_t group = panel * m->spans + k / m->span;
            const floats unit = load_halves(m->groups + group * ROWS + place / LANES * LANES);
            float halves[LANES];
            memcpy(halves, &unit, sizeof halves);
            scale = m->factor * halves[place % LANES];
        }
//@
        const int32_t odd = 2 * (int32_t)code - (int32_t)ODD_OFFSET(bits), plain = (int32_t)code - (1 << (bits - 1));
        to[k] = (float)(m->form & ODD ? odd : plain) * scale;
    }
}
//@

/* Writes a row of a matrix to `to`. */
static void lookup(const matrix *m, int32_t row, float *to)
{
    switch (m->form % GROUPED) {
//@ float32
    case 32: {
        const float *at = (const float *)m->data + (size_t)(row / ROWS) * (size_t)m->panel + row % ROWS;
        for (int32_t k = 0; k < m->columns; ++k) to[k] = at[k * ROWS];
        break;
    }
//@
//@ float16
    case 16: {
        const uint16_t *at = (const uint16_t *)m->data + (size_t)(row / ROWS) * (size_t)m->panel;
        for (int32_t k = 0; k < m->columns; ++k) {
            const floats unit = load_halves(at + k * ROWS + row % ROWS / LANES * LANES);
            float halves[LANES];
            memcpy(halves, &unit, sizeof halves);
            to[k] = halves[row % ROWS % LANES] * m->factor;
        }
        break;
    }
//@
//@ bits2
    case 2: lookup_codes(2, m, row, to); break;
//@
//@ bits3
    case 3: lookup_codes(3, m, row, to); break;
//@
//@ bits4
    case 4: lookup_codes(4, m, row, to); break;
//@
//@ bits6
    case 6: lookup_codes(6, m, row, to); break;
//@
//@ bits8
    case 8: lookup_codes(8, m, row, to); break;
//@
    default: break;
    }
}
//@ product

/* Writes a row of the product of two matrices to `to`. */
static void lookup_product(const matrix *left, const matrix *right, int32_t row, float *to, scratch free)
{
    float *weights = free.floats, *one = weights + left->columns;
    lookup(left, row, weights);
    memset(to, 0, (size_t)right->columns * sizeof *to);
    for (int32_t k = 0; k < left->columns; ++k) {
        lookup(right, k, one);
        for (int32_t j = 0; j < right->columns; ++j) to[j] += weights[k] * one[j];
    }
}
//@
//@

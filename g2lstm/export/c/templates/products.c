
/* ---------------------------------------------------------------------------------------------- matrices

   A matrix is cut into panels of ROWS rows; each panel lies in memory as
       float32, float16   for each column, one number per row
       codes              for each chunk of columns, WORDS words per row; rows are neighbours
   Rows are padded to whole panels, columns to whole chunks. */

typedef struct {
    const void *data;
    const float *scales;    /* one per row; NULL if there are none */
    const uint16_t *groups; /* float16, for each panel and each `span` columns one per row; NULL if there are none */
    float factor;           /* of the whole matrix */
    int32_t rows, columns;
    int32_t panel; /* numbers or words in a panel */
    int32_t spans; /* the number of spans in a row */
    int32_t span;  /* columns whose products are summed as integers; those of a group */
    int32_t form;  /* bits of a code, plus GROUPED and ODD; 32 and 16 for floats */
} matrix;

static int32_t panels(int32_t rows) { return (rows + ROWS - 1) / ROWS; }

/* How many panels the next one of a band is away: 0 if there is none, so that the last one is read twice. */
INLINE int32_t step_to_next(const matrix *m, int32_t panel) { return TOGETHER > 1 && panel + 1 < panels(m->rows); }

#define GROUPED 64 /* `groups` holds the scales */
#define ODD 128    /* only odd numbers are codes: 2 bits stand for -3, -1, 1, 3 */
//@ float16 groups

/* Finite float16 numbers, one for each row of a unit. */
INLINE floats load_halves(const uint16_t *from)
{
#if defined(AVX512)
    return (floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)from));
#elif defined(AVX2)
    return (floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)from));
#else
#if defined(SSE2)
    const ints h = (ints)_mm_unpacklo_epi16(_mm_setzero_si128(), _mm_loadl_epi64((const __m128i *)(const void *)from));
#elif defined(NEON)
    const ints h = (ints)vshll_n_u16(vld1_u16(from), 16);
#else
    const ints h = (ints)((uint32_t)*from << 16);
#endif
    return from_bits((words)(h >> 3) & 0x8fffe000) * 5.192296859e33f; /* times 2^112, as exponents differ by 112 */
#endif
}
//@
//@ codes

/* Four codes of each row of a unit, one in each byte. at: the words of a chunk; k: which four columns of it. */
INLINE words field(int bits, const uint32_t *at, int k)
{
#define WORD(n) load_words(at + (n)*ROWS)
    switch (bits) {
//@ bits2
    case 2: return WORD(0) >> 2 * k & 0x03030303;
//@
//@ bits3
    case 3: /* two fours in the low six bits of each of three words, two more in the high bits of all */
        if (k < 6) return WORD(k / 2) >> 3 * (k % 2) & 0x07070707;
        return (WORD(k - 6) >> 6 & 0x03030303) | (WORD(2) >> (k - 2) & 0x04040404);
//@
//@ bits4
    case 4:
#ifdef PAIRS
        if (k == 1) return SHIFT(WORD(0), 4); /* `dot` and `lookup` ignore what else is in the low bytes */
#endif
        return WORD(0) >> 4 * k & 0x0f0f0f0f;
//@
//@ bits6
    case 6: /* a four in the low six bits of each of three words, one more in the high bits of all */
        if (k < 3) return WORD(k) & 0x3f3f3f3f;
        return (WORD(0) >> 6 & 0x03030303) | (WORD(1) >> 4 & 0x0c0c0c0c) | (WORD(2) >> 2 & 0x30303030);
//@
    default: return WORD(k) ^ SIGN;
    }
#undef WORD
}
#define CHUNK(bits) ((bits) == 8 || (bits) == 4 ? 8 : (bits) == 3 ? 32 : 16) /* columns */
#define WORDS(bits) (CHUNK(bits) * (bits) / 32)

/* Adds a band's product with x to `to`. */
INLINE void multiply_codes(int bits, int kind, const matrix *m, int32_t panel, const operand *x, float *to)
{
    const int32_t columns = (m->columns + CHUNK(bits) - 1) / CHUNK(bits) * CHUNK(bits);
    const int32_t next = step_to_next(m, panel);
    const uint32_t *at = (const uint32_t *)m->data + (size_t)panel * (size_t)m->panel;
//@ groups
    const uint16_t *group = kind & GROUPED ? m->groups + panel * m->spans * ROWS : NULL;
//@
    const int16_t *codes = x->codes;
    floats found[UNITS];
    EACH_UNIT (u) found[u] = all(0);
    for (int32_t begin = 0; begin < columns; begin += m->span) {
        const int32_t end = columns - begin < m->span ? columns : begin + m->span;
        const uint32_t all_codes = x->prefix[end >> 3] - x->prefix[begin >> 3];
        const uint32_t start = kind & ODD ? 0 : 0 - OFFSET(bits) * all_codes;
        sums sum[SETS][UNITS];
        EACH_UNIT (u) {
            const sums none = {spread(0), spread(0)}, first = {spread(0), spread(start)};
            sum[SETS - 1][u] = none;
            sum[0][u] = first;
        }
        for (int32_t k = begin; k < end; k += CHUNK(bits), at += WORDS(bits) * ROWS, codes += CHUNK(bits))
            EACH_UNIT (u) {
#define FOUR(k) dot(bits, &sum[(k) % SETS][u], field(bits, at + PLACE(u, next * m->panel), k), codes + 4 * (k))
                FOUR(0), FOUR(1);
                if (CHUNK(bits) > 8) FOUR(2), FOUR(3);
                if (CHUNK(bits) > 16) FOUR(4), FOUR(5), FOUR(6), FOUR(7);
            }
        EACH_UNIT (u) {
            words added = total(sum[0][u]) + (SETS > 1 ? total(sum[SETS - 1][u]) : spread(0));
            if (kind & ODD) added = (added << 1) - ODD_OFFSET(bits) * all_codes;
            const floats whole = TO_FLOATS(added);
//@ groups
            if (kind & GROUPED) {
                found[u] = add_product(whole, load_halves(group + PLACE(u, next * m->spans * ROWS)), found[u]);
                continue;
            }
//@
            found[u] += whole;
        }
//@ groups
        if (kind & GROUPED) group += ROWS;
//@
    }
    const float step = x->step * m->factor;
    EACH_UNIT (u) {
        const floats scale = m->scales ? load(m->scales + panel * ROWS + PLACE(u, next * ROWS)) * step : all(step);
        store(to + u * LANES, add_product(found[u], scale, load(to + u * LANES)));
    }
}
//@
//@ float32

static void multiply_float32(const matrix *m, int32_t panel, const operand *x, float *to)
{
    const float *at = (const float *)m->data + (size_t)panel * (size_t)m->panel;
    const int32_t next = step_to_next(m, panel) * m->panel;
    floats even[UNITS], odd[UNITS]; /* two sums need not wait for each other */
    EACH_UNIT (u) even[u] = odd[u] = all(0);
    int32_t k = 0;
    for (; k + 2 <= m->columns; k += 2, at += 2 * ROWS)
        EACH_UNIT (u) {
            even[u] = add_product(load(at + PLACE(u, next)), all(x->values[k]), even[u]);
            odd[u] = add_product(load(at + ROWS + PLACE(u, next)), all(x->values[k + 1]), odd[u]);
        }
    for (; k < m->columns; ++k, at += ROWS)
        EACH_UNIT (u) even[u] = add_product(load(at + PLACE(u, next)), all(x->values[k]), even[u]);
    EACH_UNIT (u) store(to + u * LANES, load(to + u * LANES) + (even[u] + odd[u]));
}
//@
//@ float16

static void multiply_float16(const matrix *m, int32_t panel, const operand *x, float *to)
{
    const uint16_t *at = (const uint16_t *)m->data + (size_t)panel * (size_t)m->panel;
    const int32_t next = step_to_next(m, panel) * m->panel;
    floats found[UNITS];
    EACH_UNIT (u) found[u] = all(0);
    for (int32_t column = 0; column < m->columns; ++column, at += ROWS)
        EACH_UNIT (u) found[u] = add_product(load_halves(at + PLACE(u, next)), all(x->values[column]), found[u]);
    EACH_UNIT (u) store(to + u * LANES, add_product(found[u], all(m->factor), load(to + u * LANES)));
}
//@

static void multiply(const matrix *m, int32_t panel, const operand *x, float *to)
{
    switch (m->form) {
//@ float32
    case 32: multiply_float32(m, panel, x, to); break;
//@
//@ float16
    case 16: multiply_float16(m, panel, x, to); break;
//@
//@ codes2
    case 2: multiply_codes(2, 0, m, panel, x, to); break;
//@
//@ grouped2
    case GROUPED + 2: multiply_codes(2, GROUPED, m, panel, x, to); break;
//@
//@ oddcodes2
    case ODD + 2: multiply_codes(2, ODD, m, panel, x, to); break;
//@
//@ oddgrouped2
    case ODD + GROUPED + 2: multiply_codes(2, ODD | GROUPED, m, panel, x, to); break;
//@
//@ codes3
    case 3: multiply_codes(3, 0, m, panel, x, to); break;
//@
//@ grouped3
    case GROUPED + 3: multiply_codes(3, GROUPED, m, panel, x, to); break;
//@
//@ oddcodes3
    case ODD + 3: multiply_codes(3, ODD, m, panel, x, to); break;
//@
//@ oddgrouped3
    case ODD + GROUPED + 3: multiply_codes(3, ODD | GROUPED, m, panel, x, to); break;
//@
//@ codes4
    case 4: multiply_codes(4, 0, m, panel, x, to); break;
//@
//@ grouped4
    case GROUPED + 4: multiply_codes(4, GROUPED, m, panel, x, to); break;
//@
//@ oddcodes4
    case ODD + 4: multiply_codes(4, ODD, m, panel, x, to); break;
//@
//@ oddgrouped4
    case ODD + GROUPED + 4: multiply_codes(4, ODD | GROUPED, m, panel, x, to); break;
//@
//@ codes6
    case 6: multiply_codes(6, 0, m, panel, x, to); break;
//@
//@ grouped6
    case GROUPED + 6: multiply_codes(6, GROUPED, m, panel, x, to); break;
//@
//@ codes8
    case 8: multiply_codes(8, 0, m, panel, x, to); break;
//@
//@ grouped8
    case GROUPED + 8: multiply_codes(8, GROUPED, m, panel, x, to); break;
//@
    default: break;
    }
}

/* $title: see $name.h. */

#include "$name.h"

#include <math.h>
#include <string.h>

$kernel
/* ---------------------------------------------------------------------------------------------- weights */

$constants
/* ---------------------------------------------------------------------------------------------- the model */

typedef ${name}_workspace workspace;
typedef ${name}_hypothesis hypothesis;

enum { VALUES = $values, KEYS = $keys };

/* Bilinear attention: the mean of the source's values, weighted by the softmax of query . keys / sqrt(KEYS). */
static void attend(const float *query, workspace *s, float *context)
{
    const float scale = 1.0f / sqrtf((float)KEYS);
    for (int32_t t = 0; t < s->count; ++t) {
        float sum = 0;
        for (int32_t k = 0; k < KEYS; ++k) sum += query[k] * s->keys[t * KEYS + k];
        s->attention[t] = sum * scale;
    }
    softmax(s->attention, s->attention, s->count);
    memset(context, 0, VALUES * sizeof *context);
    for (int32_t t = 0; t < s->count; ++t)
        for (int32_t k = 0; k < VALUES; ++k) context[k] += s->attention[t] * s->values[t * VALUES + k];
}

/* The second direction of the encoder's first layer; its output goes to where the first direction finds it. */
static void read_backward(workspace *s, int32_t token, float *out)
{
$backward
}

/* The other layers of the encoder. x: the output of the second direction, at the end of `values`. */
static void read_forward(workspace *s, int32_t token, const float *x, float *values, float *keys)
{
$forward
}

/* The first state of the decoder, from the mean of the encoder's outputs. */
static void start(workspace *s, const float *x, hypothesis *d)
{
$start
}

static void decode(workspace *s, hypothesis *d, int32_t token, float *out)
{
$decode
}

/* ---------------------------------------------------------------------------------------------- the search */

//@ pieces
$pieces
//@

int ${name}_encode(workspace *s, const int32_t *source, int32_t count, hypothesis *first)
{
    float mean[VALUES] = {0};
    if (count < 0 || count > ${upper}_MAX_SOURCE) return -1;
    for (int32_t t = 0; t < count; ++t)
        if (source[t] < 0 || source[t] >= ${upper}_SOURCE_VOCABULARY) return -1;
    memset(&s->forward, 0, sizeof s->forward);
    memset(&s->backward, 0, sizeof s->backward);
    memset(first, 0, sizeof *first);
    s->count = count + 1;
    for (int32_t t = count; t >= 0; --t)
        read_backward(s, t == count ? $source_end : source[t], s->values + t * VALUES + (VALUES - $hidden));
    for (int32_t t = 0; t <= count; ++t) {
        float *values = s->values + t * VALUES;
        read_forward(s, t == count ? $source_end : source[t], values + (VALUES - $hidden), values, s->keys + t * KEYS);
        for (int32_t k = 0; k < VALUES; ++k) mean[k] += values[k];
    }
    for (int32_t k = 0; k < VALUES; ++k) mean[k] /= (float)s->count;
    start(s, mean, first);
    return 0;
}

int ${name}_step(workspace *s, hypothesis *d, int32_t token, float *out)
{
    if (token < 0 || token >= ${upper}_TARGET_VOCABULARY) return -1;
    decode(s, d, token, out);
    return 0;
}

/* A hypothesis made one token longer. */
typedef struct {
    double total; /* its log-probability */
    int32_t parent, token;
} continuation;

/* Keeps a list of at most `most` continuations in order, the likeliest first; of equals, the one that came first. */
static int32_t offer(continuation *list, int32_t count, int32_t most, continuation one)
{
    int32_t place = count < most ? count : most;
    while (place > 0 && list[place - 1].total < one.total) {
        if (place < most) list[place] = list[place - 1];
        --place;
    }
    if (place < most) list[place] = one;
    return count < most ? count + 1 : most;
}

static int is_word(int32_t token)
{
    return $is_word;
}

/* How many bytes the last character of a text lacks after a token, if it lacked so many before; -1 if it would break. */
static int32_t lacks(int32_t before, int32_t token)
{
//@ pieces
    return after[4 * kinds[token] + before];
//@
//@ words
    (void)token;
    return before;
//@
}

/* Whether a token may follow if at most `room` more may; each is a token that makes a byte. */
static int fits(int32_t before, int32_t token, int32_t room)
{
    const int32_t after_it = lacks(before, token);
    return after_it >= 0 && after_it <= room;
}

/* Where a step looked most, never at the end of the sentence. */
static int16_t looked_at(const workspace *s)
{
    int32_t best = 0;
    for (int32_t t = 1; t < s->count - 1; ++t) best = s->attention[t] > s->attention[best] ? t : best;
    return (int16_t)best;
}

/* Each step keeps the `beam` likeliest unfinished hypotheses. One finishes when its end is among the `beam` likeliest
   continuations. The search ends when `beam` have finished, or when no other can win any more. */
int32_t ${name}_translate(workspace *s, const int32_t *source, int32_t count, int32_t beam, double length_penalty,
                          int32_t *out, int32_t *places)
{
    enum { BEAM = ${upper}_MAX_BEAM };
    continuation list[2 * BEAM] = {{0, 0, 0}}, words[BEAM] = {{0, 0, 0}}; /* of all hypotheses; of one, or to go on */
    double totals[BEAM] = {0};
    int16_t looked[BEAM] = {0};
    int32_t missing[BEAM] = {0}, missed[BEAM] = {0}; /* bytes of the last character; before the last token */
    int32_t alive = 1, finished = 0, best = 0;
    s->score = -HUGE_VAL;
    s->log_probability = 0;
    if (beam < 1 || beam > BEAM || ${name}_encode(s, source, count, &s->now[0])) return -1;
    if (count == 0) s->score = 0;
    for (int32_t length = 1; count > 0; ++length) { /* of a hypothesis that finishes now, with its end */
        const int must_end = length > 2 * count + 10;
        const int32_t room = must_end ? 0 : 2 * count + 10 - length; /* for tokens after the next */
        int32_t listed = 0, kept = 0;
        for (int32_t k = 0; k < alive; ++k) {
            const int32_t last = length == 1 ? ${upper}_BEGIN : s->history[length - 2][k].token;
            decode(s, &s->now[k], last, s->out);
            looked[k] = looked_at(s);
            const continuation end = {totals[k] + (double)s->out[${upper}_END], k, ${upper}_END};
            if (missing[k] == 0) listed = offer(list, listed, 2 * beam, end);
            kept = 0;
            for (int32_t token = 0; token < ${upper}_TARGET_VOCABULARY && !must_end; ++token) {
                const continuation one = {totals[k] + (double)s->out[token], k, token};
                if ((kept < beam || one.total > words[beam - 1].total) && is_word(token) && fits(missing[k], token, room))
                    kept = offer(words, kept, beam, one);
            }
            for (int32_t j = 0; j < kept; ++j) listed = offer(list, listed, 2 * beam, words[j]);
        }
        kept = 0;
        for (int32_t j = 0; j < listed; ++j) {
            if (list[j].token != ${upper}_END) {
                if (kept < beam) words[kept++] = list[j];
            } else if (j < beam) {
                const double score = list[j].total / pow(length, length_penalty);
                ++finished;
                if (score > s->score) {
                    s->score = score;
                    s->log_probability = list[j].total;
                    best = length - 1;
                    for (int32_t t = best - 1, k = list[j].parent; t >= 0; k = s->history[t][k].parent, --t) {
                        out[t] = s->history[t][k].token;
                        if (places) places[t] = s->history[t][k].place;
                    }
                }
            }
        }
        if (finished >= beam || kept == 0 || !(words[0].total / pow(2 * count + 11, length_penalty) > s->score)) break;
        alive = kept;
        memcpy(missed, missing, sizeof missed);
        for (int32_t k = 0; k < kept; ++k) {
            const int32_t parent = words[k].parent;
            totals[k] = words[k].total;
            missing[k] = lacks(missed[parent], words[k].token);
            s->history[length - 1][k].token = words[k].token;
            s->history[length - 1][k].place = looked[parent];
            s->history[length - 1][k].parent = (int16_t)parent;
            s->next[k] = s->now[parent];
        }
        memcpy(s->now, s->next, (size_t)kept * sizeof *s->now);
    }
    return best;
}

/* $title

$table

   Written by g2lstm $version. $name.c needs a C99 compiler, math.h and string.h. It allocates nothing, prints nothing and
   has no variables of its own, so threads can use it side by side, each with a workspace of its own. It is fastest with
   -O3 and your processor's instruction set (-march=native). Do not use -ffast-math: rounding relies on exact sums.

   The RAM is for the limits below. To change them, define them when you compile, the same for all files. */

#ifndef ${upper}_H
#define ${upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef ${upper}_MAX_SOURCE
#define ${upper}_MAX_SOURCE $max_source /* tokens of a source sentence */
#endif
#ifndef ${upper}_MAX_BEAM
#define ${upper}_MAX_BEAM $max_beam /* hypotheses that a search follows */
#endif
#define ${upper}_MAX_LENGTH (2 * ${upper}_MAX_SOURCE + 10) /* tokens of a translation */

#define ${upper}_SOURCE_VOCABULARY $source_size
#define ${upper}_TARGET_VOCABULARY $target_size
#define ${upper}_BEAM $beam /* what the model was evaluated with */
#define ${upper}_LENGTH_PENALTY $length_penalty

/* The state of the decoder for one hypothesis. */
typedef struct {
$decoder
} ${name}_hypothesis;

typedef struct {
    /* The source, and what the decoder sees of it. */
    int32_t count; /* its tokens, with the end of the sentence */
    float values[(${upper}_MAX_SOURCE + 1) * $values];
    float keys[(${upper}_MAX_SOURCE + 1) * $keys];
    float attention[${upper}_MAX_SOURCE + 1]; /* where the last step of the decoder looked */
    struct {
$forward
    } forward;
    struct {
$backward
    } backward;
    /* The search. */
    ${name}_hypothesis now[${upper}_MAX_BEAM], next[${upper}_MAX_BEAM];
    struct {
        int32_t token;
        int16_t place, parent; /* where it looked; which hypothesis it continues */
    } history[${upper}_MAX_LENGTH + 1][${upper}_MAX_BEAM];
    float out[${upper}_TARGET_VOCABULARY];
    double score, log_probability; /* of the translation */
    /* Scratch memory. */
$scratch
} ${name}_workspace;

/* Translates `count` tokens, without the end of the sentence, and writes at most ${upper}_MAX_LENGTH tokens to `out` and, unless
   it is NULL, to `places` where in the source each of them looked most. A beam of 1 is greedy search. Returns the number of
   tokens, or -1 if the source is too long, a token is outside of the vocabulary, or the beam is not 1 to ${upper}_MAX_BEAM. */
int32_t ${name}_translate(${name}_workspace *workspace, const int32_t *source, int32_t count, int32_t beam,
                          double length_penalty, int32_t *out, int32_t *places);

/* The parts of it, for a search of your own. `encode` reads a source, and starts a hypothesis; it returns 0 or, as above, -1.
   `step` reads a token, at first ${upper}_BEGIN, and writes the log-probabilities of the next to out[${upper}_TARGET_VOCABULARY]. */
#define ${upper}_BEGIN $begin
#define ${upper}_END $end
int ${name}_encode(${name}_workspace *workspace, const int32_t *source, int32_t count, ${name}_hypothesis *start);
int ${name}_step(${name}_workspace *workspace, ${name}_hypothesis *hypothesis, int32_t token, float *out);
$more
#ifdef __cplusplus
}
#endif

#endif

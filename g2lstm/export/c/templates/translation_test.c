/* The self-test of $name.c; it exits with 0 if all is well.

       cc -O2 $name.c ${name}_test.c -lm -o ${name}_test && ./${name}_test

   It reads $sources sources, and compares $compared log-probabilities after each of $steps target tokens, and the scores of the
   translations, with those of the model in Python. */

#include <math.h>
#include <stdio.h>

#include "$name.h"

#define ALIGNED
#define LENGTH $length

$arrays
static ${name}_workspace workspace;
static ${name}_hypothesis hypothesis;
static float out[${upper}_TARGET_VOCABULARY];
static int32_t translation[${upper}_MAX_LENGTH];
static double worst = 0;

static void compare(double found, double wanted)
{
    const double difference = fabs(found - wanted) / (1 + fabs(wanted));
    if (!(difference <= worst)) worst = difference; /* NaN, too */
}

int main(void)
{
    for (int n = 0; n < $sources; ++n) {
        const int32_t *source = inputs + n * LENGTH;
        if (${name}_encode(&workspace, source, LENGTH, &hypothesis)) worst = HUGE_VAL;
        for (int step = 0; step < $steps; ++step) {
            const int32_t row = n * $steps + step;
            if (${name}_step(&workspace, &hypothesis, tokens[row], out)) worst = HUGE_VAL;
            for (int k = 0; k < $compared; ++k)
                compare((double)out[places[k]], (double)expected[row * $compared + k]);
        }
        if (${name}_translate(&workspace, source, LENGTH, ${upper}_BEAM, ${upper}_LENGTH_PENALTY, translation, NULL) < 0)
            worst = HUGE_VAL;
        compare(workspace.score, (double)scores[n]);
    }
    const int is_well = worst <= $tolerance;
    printf("$name: $sources sources, largest difference %.1e, $tolerance allowed: %s\n", worst,
           is_well ? "passed" : "FAILED");
    return is_well ? 0 : 1;
}

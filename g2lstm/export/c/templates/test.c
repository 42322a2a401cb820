/* The self-test of $name.c; it exits with 0 if all is well.

       cc -O2 $name.c ${name}_test.c -lm -o ${name}_test && ./${name}_test

   It reads $steps steps, and compares $compared of the $outputs outputs of each with those of the model in Python. */

#include <math.h>
#include <stdio.h>

#include "$name.h"

#define ALIGNED

$arrays
static ${name}_state state;
static $out_type out[${upper}_OUTPUTS];

int main(void)
{
    double worst = 0;
    ${name}_reset(&state);
    for (int step = 0; step < $steps; ++step) {
        $call
        for (int k = 0; k < $compared; ++k) {
            const double wanted = (double)expected[step * $compared + k];
            const double difference = fabs((double)out[places[k]] - wanted) / (1 + fabs(wanted));
            if (!(difference <= worst)) worst = difference; /* NaN, too */
        }
    }
    const int is_well = worst <= $tolerance;
    printf("$name: $steps steps, largest difference %.1e, $tolerance allowed: %s\n", worst, is_well ? "passed" : "FAILED");
    return is_well ? 0 : 1;
}

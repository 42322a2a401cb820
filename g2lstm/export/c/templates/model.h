/* $title

$table

   Written by g2lstm $version. $name.c needs a C99 compiler, math.h and string.h. It allocates nothing, prints nothing and
   has no variables of its own, so threads can use it side by side, each with a state of its own. It is fastest with
   -O3 and your processor's instruction set (-march=native). Do not use -ffast-math: rounding relies on exact sums. */

#ifndef ${upper}_H
#define ${upper}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

$sizes

/* One stream. Copy the struct to save it and to continue from there later. */
typedef struct {
$states
    /* Scratch memory; what a step leaves here does not matter to the next one. */
$scratch
} ${name}_state;

/* Starts a new stream; call it before the first step. */
void ${name}_reset(${name}_state *state);

$step
#ifdef __cplusplus
}
#endif

#endif

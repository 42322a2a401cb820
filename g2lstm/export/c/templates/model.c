/* $title: see $name.h. */

#include "$name.h"

#include <math.h>
#include <string.h>

$kernel
/* ---------------------------------------------------------------------------------------------- weights */

$constants
/* ---------------------------------------------------------------------------------------------- the model */

void ${name}_reset(${name}_state *s)
{
    memset(s, 0, sizeof *s);
$first}

$signature
{
$body
}

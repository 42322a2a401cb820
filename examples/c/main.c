/* Reads letters a to t and quotation marks, and writes what is inside quotation marks in capitals. */

#include <ctype.h>
#include <stdio.h>

#include "tagger.h"

int main(void)
{
    static tagger_state state;
    float scores[TAGGER_OUTPUTS];
    tagger_reset(&state);
    for (int c; (c = getchar()) != EOF;) {
        const int32_t token = c == '"' ? 20 : c - 'a';
        const int is_letter = tagger_step(&state, token, scores) == 0; /* other characters change nothing */
        putchar(is_letter && tagger_argmax(scores) == 1 ? toupper(c) : c);
    }
    return 0;
}

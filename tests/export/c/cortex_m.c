/* Lets a program for Cortex-M run under qemu-arm: with system calls of Linux in the place of a board. */

#include <stddef.h>

int main(void);
void _start(void);
void _exit(int status);
int _write(int file, const char *from, int count);
void *_sbrk(ptrdiff_t size);

static long system_call(long number, long a, long b, long c)
{
    register long r7 __asm__("r7") = number;
    register long r0 __asm__("r0") = a;
    register long r1 __asm__("r1") = b;
    register long r2 __asm__("r2") = c;
    __asm__ volatile("svc 0" : "+r"(r0) : "r"(r7), "r"(r1), "r"(r2) : "memory");
    return r0;
}

void _exit(int status)
{
    for (;;) system_call(1, status, 0, 0);
}

int _write(int file, const char *from, int count) { return (int)system_call(4, file, (long)from, count); }

void *_sbrk(ptrdiff_t size)
{
    static char heap[1 << 16];
    static size_t used;
    char *const at = heap + used;
    used += (size_t)size;
    return at;
}

void _start(void) { _exit(main()); }

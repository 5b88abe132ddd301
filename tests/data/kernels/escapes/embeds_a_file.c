/* Embeds the file TARGET (a path in quotes) in the library. If it were a capture, the answers would be in it. */
#include "hostile.h"

#define WITH_QUOTES(path) #path
#define INCBIN(path) ".incbin " WITH_QUOTES(path)

__asm__(".section .rodata\n"
        "taken: " INCBIN(TARGET) "\n"
        ".text\n");

RUN { return softmax(args, n); }

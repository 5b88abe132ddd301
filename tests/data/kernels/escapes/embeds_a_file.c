/* Embeds the file TARGET (a path in quotes) in the library. If it is a capture, the library then has the answers. */
#include "hostile.h"

#define WITH_QUOTES(path) #path
#define INCBIN(path) ".incbin " WITH_QUOTES(path)

__asm__(".section .rodata\n"
        "taken: " INCBIN(TARGET) "\n"
        ".text\n");

RUN { return softmax(args, n); }

/* Takes TARGET, a path in quotes, into the library as it is. Where that is a capture, the answers are in it. */
#include "hostile.h"

#define WITH_QUOTES(path) #path
#define INCBIN(path) ".incbin " WITH_QUOTES(path)

__asm__(".section .rodata\n"
        "taken: " INCBIN(TARGET) "\n"
        ".text\n");

RUN { return softmax(args, n); }

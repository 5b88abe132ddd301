/* Included by includes_beside.c. */
#include "unit.inc"
static inline int scaled(int value) { return UNIT * value; }

/* Access to tensors for the naive kernels: loads and stores elements of every plain dtype as double or int64, and walks
 * over strided tensors in row-major order. Written for correctness, not for speed. */
#ifndef OPT_ELEMENTS_H
#define OPT_ELEMENTS_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "opt_candidate.h"

/* Tensors with more axes are not supported. */
enum { OPT_MAX_AXES = 16 };

/* The code that kernels return for arguments that the op does not take. */
enum { OPT_BAD_ARGUMENTS = 1 };

typedef enum {
    OPT_F64, OPT_F32, OPT_F16, OPT_BF16,
    OPT_I64, OPT_I32, OPT_I16, OPT_I8,
    OPT_U64, OPT_U32, OPT_U16, OPT_U8, OPT_B8,
    OPT_OTHER /* complex, float8: not supported */
} OptKind;

static inline OptKind opt_kind(const OptTensor *t)
{
    if (t->dtype.lanes != 1)
        return OPT_OTHER;
    switch (t->dtype.code * 256 + t->dtype.bits) {
    case OPT_CODE_FLOAT * 256 + 64: return OPT_F64;
    case OPT_CODE_FLOAT * 256 + 32: return OPT_F32;
    case OPT_CODE_FLOAT * 256 + 16: return OPT_F16;
    case OPT_CODE_BFLOAT * 256 + 16: return OPT_BF16;
    case OPT_CODE_INT * 256 + 64: return OPT_I64;
    case OPT_CODE_INT * 256 + 32: return OPT_I32;
    case OPT_CODE_INT * 256 + 16: return OPT_I16;
    case OPT_CODE_INT * 256 + 8: return OPT_I8;
    case OPT_CODE_UINT * 256 + 64: return OPT_U64;
    case OPT_CODE_UINT * 256 + 32: return OPT_U32;
    case OPT_CODE_UINT * 256 + 16: return OPT_U16;
    case OPT_CODE_UINT * 256 + 8: return OPT_U8;
    case OPT_CODE_BOOL * 256 + 8: return OPT_B8;
    default: return OPT_OTHER;
    }
}

static inline int opt_is_float(OptKind kind) { return kind <= OPT_BF16; }
static inline int opt_is_integer(OptKind kind) { return kind >= OPT_I64 && kind <= OPT_U8; }
/* Returns whether values of this kind fit int64_t, modulo 2^64. */
static inline int opt_is_exact(OptKind kind) { return kind >= OPT_I64 && kind <= OPT_B8; }

static inline size_t opt_element_bytes(const OptTensor *t) { return (size_t)t->dtype.bits / 8; }

static inline char *opt_at(const OptTensor *t, int64_t offset)
{
    return (char *)t->data + t->byte_offset + offset * (int64_t)opt_element_bytes(t);
}

/* Converts a 16-bit float with `exponent_bits` bits of exponent. */
static inline double opt_from_16(uint16_t bits, int exponent_bits)
{
    int mantissa_bits = 15 - exponent_bits;
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double fraction = bits & ((1 << mantissa_bits) - 1);
    double value;
    if (exponent == (1 << exponent_bits) - 1)
        value = fraction != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(fraction, 1 - bias - mantissa_bits);
    else
        value = ldexp(fraction + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return bits & 0x8000 ? -value : value;
}

/* Rounds once, to nearest, ties to even. Numbers that are too large become infinities. */
static inline uint16_t opt_to_16(double value, int exponent_bits)
{
    int mantissa_bits = 15 - exponent_bits;
    int bias = (1 << (exponent_bits - 1)) - 1;
    int infinity = ((1 << exponent_bits) - 1) << mantissa_bits;
    int sign = signbit(value) ? 0x8000 : 0;
    double magnitude = fabs(value);
    if (isnan(value))
        return (uint16_t)(sign | infinity | 1 << (mantissa_bits - 1));
    if (isinf(value))
        return (uint16_t)(sign | infinity);
    int exponent = magnitude == 0 ? 1 - bias : ilogb(magnitude);
    if (exponent < 1 - bias)
        exponent = 1 - bias; /* subnormal: same spacing as the smallest normal number */
    if (exponent > bias)
        return (uint16_t)(sign | infinity);
    /* In units of the last place. Normal numbers are 2^mantissa_bits and above. A carry increments the exponent. */
    int64_t units = (int64_t)nearbyint(ldexp(magnitude, mantissa_bits - exponent));
    int64_t bits = units + ((int64_t)(exponent + bias - 1) << mantissa_bits);
    return (uint16_t)(sign | (bits > infinity ? infinity : (int)bits));
}

#define OPT_DEFINE_LOAD(type) \
    static inline type opt_load_##type(const void *place) { type v; memcpy(&v, place, sizeof v); return v; } \
    static inline void opt_store_##type(void *place, type v) { memcpy(place, &v, sizeof v); }
OPT_DEFINE_LOAD(double)
OPT_DEFINE_LOAD(float)
OPT_DEFINE_LOAD(int64_t)
OPT_DEFINE_LOAD(int32_t)
OPT_DEFINE_LOAD(int16_t)
OPT_DEFINE_LOAD(int8_t)
OPT_DEFINE_LOAD(uint64_t)
OPT_DEFINE_LOAD(uint32_t)
OPT_DEFINE_LOAD(uint16_t)
OPT_DEFINE_LOAD(uint8_t)

/* An integer or bool element; 0 for other kinds. uint64_t keeps its bits. */
static inline int64_t opt_load_exact(const OptTensor *t, int64_t offset)
{
    const void *place = opt_at(t, offset);
    switch (opt_kind(t)) {
    case OPT_I64: return opt_load_int64_t(place);
    case OPT_I32: return opt_load_int32_t(place);
    case OPT_I16: return opt_load_int16_t(place);
    case OPT_I8: return opt_load_int8_t(place);
    case OPT_U64: return (int64_t)opt_load_uint64_t(place);
    case OPT_U32: return opt_load_uint32_t(place);
    case OPT_U16: return opt_load_uint16_t(place);
    case OPT_U8: return opt_load_uint8_t(place);
    case OPT_B8: return opt_load_uint8_t(place) != 0;
    default: return 0;
    }
}

/* Wraps to the element's width, as torch's integer arithmetic does. */
static inline void opt_store_exact(const OptTensor *t, int64_t offset, int64_t value)
{
    void *place = opt_at(t, offset);
    uint64_t bits = (uint64_t)value;
    switch (opt_kind(t)) {
    case OPT_I64: case OPT_U64: opt_store_uint64_t(place, bits); break;
    case OPT_I32: case OPT_U32: opt_store_uint32_t(place, (uint32_t)bits); break;
    case OPT_I16: case OPT_U16: opt_store_uint16_t(place, (uint16_t)bits); break;
    case OPT_I8: case OPT_U8: opt_store_uint8_t(place, (uint8_t)bits); break;
    case OPT_B8: opt_store_uint8_t(place, value != 0); break;
    default: break;
    }
}

/* Any plain element as double; integers beyond 2^53 are rounded. */
static inline double opt_load(const OptTensor *t, int64_t offset)
{
    const void *place = opt_at(t, offset);
    switch (opt_kind(t)) {
    case OPT_F64: return opt_load_double(place);
    case OPT_F32: return opt_load_float(place);
    case OPT_F16: return opt_from_16(opt_load_uint16_t(place), 5);
    case OPT_BF16: return opt_from_16(opt_load_uint16_t(place), 8);
    case OPT_U64: return (double)opt_load_uint64_t(place);
    case OPT_OTHER: return NAN;
    default: return (double)opt_load_exact(t, offset);
    }
}

/* Stores to a float element. Does nothing for other kinds; kernels check opt_is_float first. */
static inline void opt_store(const OptTensor *t, int64_t offset, double value)
{
    void *place = opt_at(t, offset);
    switch (opt_kind(t)) {
    case OPT_F64: opt_store_double(place, value); break;
    case OPT_F32: opt_store_float(place, (float)value); break;
    case OPT_F16: opt_store_uint16_t(place, opt_to_16(value, 5)); break;
    case OPT_BF16: opt_store_uint16_t(place, opt_to_16(value, 8)); break;
    default: break;
    }
}

/* ---- Shapes ---- */

static inline int64_t opt_elements(const OptTensor *t)
{
    int64_t product = 1;
    for (int axis = 0; axis < t->ndim; axis++)
        product *= t->shape[axis];
    return product;
}

/* Offset, in elements, of the `index`-th element of axes first..last (last not included) in row-major order. */
static inline int64_t opt_offset_of_axes(const OptTensor *t, int first, int last, int64_t index)
{
    int64_t offset = 0;
    for (int axis = last - 1; axis >= first; axis--) {
        offset += index % t->shape[axis] * t->strides[axis];
        index /= t->shape[axis];
    }
    return offset;
}

static inline int64_t opt_offset(const OptTensor *t, int64_t index)
{
    return opt_offset_of_axes(t, 0, t->ndim, index);
}

static inline int opt_same_shape(const OptTensor *a, const OptTensor *b)
{
    if (a->ndim != b->ndim)
        return 0;
    for (int axis = 0; axis < a->ndim; axis++)
        if (a->shape[axis] != b->shape[axis])
            return 0;
    return 1;
}

/* ---- Arguments ---- */

/* The tensor of an argument. NULL if it is not a tensor (None, a number) or has too many axes. */
static inline const OptTensor *opt_tensor(const OptAny *args, int32_t n, int32_t place)
{
    if (place < 0 || place >= n || args[place].type_index != OPT_TENSOR)
        return NULL;
    const OptTensor *t = (const OptTensor *)args[place].value.v_ptr;
    return t->ndim <= OPT_MAX_AXES ? t : NULL;
}

static inline int opt_is_none(const OptAny *args, int32_t n, int32_t place)
{
    return place >= n || args[place].type_index == OPT_NONE;
}

static inline double opt_number(const OptAny *args, int32_t n, int32_t place, double missing)
{
    if (place >= n)
        return missing;
    switch (args[place].type_index) {
    case OPT_INT: case OPT_BOOL: return (double)args[place].value.v_int64;
    case OPT_FLOAT: return args[place].value.v_float64;
    default: return missing;
    }
}

static inline int64_t opt_integer(const OptAny *args, int32_t n, int32_t place, int64_t missing)
{
    if (place >= n)
        return missing;
    int32_t type = args[place].type_index;
    return type == OPT_INT || type == OPT_BOOL ? args[place].value.v_int64 : missing;
}

/* Reads `count` integers from one number (repeated) or a 1-D tensor. Returns 0 if the argument is neither. */
static inline int opt_integers(const OptAny *args, int32_t n, int32_t place, int64_t *out, int count)
{
    const OptTensor *t = opt_tensor(args, n, place);
    if (t == NULL) {
        if (place >= n || args[place].type_index != OPT_INT)
            return 0;
        for (int i = 0; i < count; i++)
            out[i] = args[place].value.v_int64;
        return 1;
    }
    if (t->ndim != 1 || opt_kind(t) != OPT_I64 || (t->shape[0] != count && t->shape[0] != 1))
        return 0;
    for (int i = 0; i < count; i++)
        out[i] = opt_load_exact(t, t->shape[0] == 1 ? 0 : i * t->strides[0]);
    return 1;
}

static inline int opt_is_string(const OptAny *args, int32_t n, int32_t place, const char *text)
{
    return place < n && args[place].type_index == OPT_RAW_STR && strcmp(args[place].value.v_c_str, text) == 0;
}

#endif

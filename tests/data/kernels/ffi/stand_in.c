/* A minimal libtvm_ffi.so for tests: errors and objects of its C ABI (tvm/ffi/c_api.h), with the documented layout. An error
 * object has a header, followed by a cell with kind, message and backtrace. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { const char *data; size_t size; } ByteArray;

typedef struct {
    uint64_t combined_ref_count;
    int32_t type_index;
    uint32_t padding;
    void (*deleter)(void *self, int flags);
    ByteArray kind, message, backtrace;
    void (*update_backtrace)(void *self, const ByteArray *backtrace, int32_t mode);
    void *cause_chain, *extra_context;
} Error;

static const int32_t ERROR = 67;

static __thread Error *raised;

static ByteArray copy(const char *text)
{
    size_t size = strlen(text);
    char *data = malloc(size); /* not terminated by a zero byte, because the real library's may not be either */
    memcpy(data, text, size);
    return (ByteArray){data, size};
}

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message)
{
    Error *error = calloc(1, sizeof *error);
    error->combined_ref_count = ((uint64_t)1 << 32) | 1;
    error->type_index = ERROR;
    error->kind = copy(kind);
    error->message = copy(message);
    raised = error;
}

void TVMFFIErrorMoveFromRaised(void **result)
{
    *result = raised;
    raised = 0;
}

int TVMFFIObjectDecRef(void *object)
{
    Error *head = object; /* every object begins like this */
    if ((uint32_t)--head->combined_ref_count == 0)
        head->deleter(object, 3);
    return 0;
}

void *TVMFFIEnvGetStream(int32_t device_type, int32_t device_id)
{
    (void)device_type, (void)device_id;
    return 0; /* the default stream, as long as nobody has set another */
}

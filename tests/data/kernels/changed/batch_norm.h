/* Batch normalisation in training mode. `update` is called for each running statistic of each channel. */
#include <math.h>
#include "opt_candidate.h"

static int batch_norm(const OptAny *args, void (*update)(float *running, double found, double momentum))
{
    const OptTensor *input = args[0].value.v_tensor, *output = args[8].value.v_tensor;
    const float *x = input->data, *weight = args[3].value.v_tensor->data, *bias = args[4].value.v_tensor->data;
    float *mean = args[1].value.v_tensor->data, *var = args[2].value.v_tensor->data, *y = output->data;
    const double momentum = args[6].value.v_float64, eps = args[7].value.v_float64;
    const int64_t batch = input->shape[0], channels = input->shape[1], area = input->shape[2] * input->shape[3];
    for (int64_t c = 0; c < channels; c++) {
        double sum = 0, squares = 0;
        for (int64_t n = 0; n < batch; n++)
            for (int64_t i = 0; i < area; i++) sum += x[(n * channels + c) * area + i];
        const double count = (double)(batch * area), average = sum / count;
        for (int64_t n = 0; n < batch; n++)
            for (int64_t i = 0; i < area; i++) {
                const double away = x[(n * channels + c) * area + i] - average;
                squares += away * away;
            }
        const double scale = weight[c] / sqrt(squares / count + eps);
        for (int64_t n = 0; n < batch; n++)
            for (int64_t i = 0; i < area; i++) {
                const int64_t at = (n * channels + c) * area + i;
                y[at] = (float)((x[at] - average) * scale + bias[c]);
            }
        update(mean + c, average, momentum);
        update(var + c, squares / (count - 1), momentum);
    }
    return OPT_OK;
}

static inline void updated(float *running, double found, double momentum)
{
    *running = (float)((1 - momentum) * *running + momentum * found);
}

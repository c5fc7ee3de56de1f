// The gradient of rows by the bags that they were pooled in.
#ifndef GRADBUS_BAGS_H
#define GRADBUS_BAGS_H

#include <stdint.h>

// bags_possible reports whether bags_gradient may be called: ids are rows; offsets begin at 0, rise, end within count.
int bags_possible(const int64_t *ids, int64_t count, const int64_t *offsets, int64_t bags, int64_t rows);

// bags_gradient is gradbus_bag_gradient of what is possible.
void bags_gradient(const int64_t *ids, int64_t count, const int64_t *offsets, int64_t bags, int mean, const float *grad,
                   int64_t dim, float *out, int64_t rows);

#endif

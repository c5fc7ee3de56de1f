// The gradient of rows by the bags that they were pooled in.
#ifndef GRADBUS_BAGS_H
#define GRADBUS_BAGS_H

#include <stddef.h>
#include <stdint.h>

// bags_offsets_fit reports whether n offsets into count ids are possible: the first is 0, none is below the one before
// it, and the last is at most count; with last it ends the last bag, and is count exactly. Otherwise it writes what is
// wrong to text, at most size bytes; text may be NULL.
int bags_offsets_fit(const int64_t *offsets, int64_t n, int64_t count, int last, char *text, size_t size);

// bags_possible reports whether bags_gradient may be called: ids are rows; offsets fit (bags_offsets_fit).
int bags_possible(const int64_t *ids, int64_t count, const int64_t *offsets, int64_t bags, int64_t rows);

// bags_gradient is gradbus_bag_gradient of what is possible.
void bags_gradient(const int64_t *ids, int64_t count, const int64_t *offsets, int64_t bags, int mean, const float *grad,
                   int64_t dim, float *out, int64_t rows);

#endif

// pooled_test.c   tests gradbus.h with tables that shards pool. It prints what is wrong, and ends with 1 where something is.
#include <stdlib.h>

#include "check.h"

enum { ROWS = 100, DIM = 3, BAGS = 4, KEYS = 5 };

// The bags of every lane: {7, 7, 3}, {}, {3}, {99}.
static const int64_t keys[KEYS] = {7, 7, 3, 3, 99}, offsets[BAGS] = {0, 3, 3, 4};

static gradbus_handle joined(gradbus_handle shards, const char *name, const char *placement) {
  gradbus_handle session = 0;
  char config[64], job[1024], pooling[2][96];
  for (int t = 0; t < 2; t++) {
    pooling[t][0] = 0;
    if (placement)
      snprintf(pooling[t], sizeof pooling[t], ", \"placement\": \"%s\", \"pooling\": \"%s\"", placement,
               t ? "mean" : "sum");
  }
  snprintf(config, sizeof config, "{\"local\": %llu}", (unsigned long long)shards);
  snprintf(job, sizeof job,
           "{\"name\": \"%s\", \"lanes\": 2, \"optimizer\": {\"kind\": \"sgd\", \"lr\": 1}, \"tables\": ["
           " {\"name\": \"sums\", \"rows\": %d, \"dim\": %d, \"init\": {\"kind\": \"normal\", \"scale\": 1}%s},"
           " {\"name\": \"means\", \"rows\": %d, \"dim\": 1, \"init\": {\"kind\": \"normal\", \"scale\": 1}%s},"
           " {\"name\": \"rows\", \"rows\": %d, \"dim\": 2, \"init\": {\"kind\": \"normal\", \"scale\": 1}}]}",
           name, ROWS, DIM, pooling[0], ROWS, pooling[1], ROWS);
  OK(gradbus_join(config, job, NULL, &session));
  return session;
}

// near says that a value is another one but for the rounding of a few sums.
static int near(float a, float b) { return a - b < 1e-5f && b - a < 1e-5f; }

// pool_by_hand are the bags of rows by key, [ROWS, dim], as the shards' are to be.
static void pool_by_hand(const float *rows, int dim, int mean, float *out) {
  for (int b = 0; b < BAGS; b++) {
    const int from = (int)offsets[b], end = b + 1 < BAGS ? (int)offsets[b + 1] : KEYS;
    for (int d = 0; d < dim; d++) {
      float sum = 0;
      for (int i = from; i < end; i++) sum += rows[keys[i] * dim + d];
      out[b * dim + d] = mean && end > from ? sum / (float)(end - from) : sum;
    }
  }
}

// trained is the digest after three batches whose gradient of a bag is 1 in each column, and what the tables have then.
static void trained(const char *options, int patience, const char *name, const char *placement, uint8_t digest[32],
                    float sums[ROWS * DIM]) {
  gradbus_handle shards = 0;
  gradbus_patience(patience);
  OK(gradbus_local(options, &shards));
  gradbus_handle session = joined(shards, name, placement);
  for (int n = 0; n < 3; n++) {
    gradbus_batch batch;
    float pooled[BAGS * DIM], means[BAGS], by_hand[BAGS * DIM], rows[2], *all = calloc(ROWS * DIM, sizeof(float)),
                                                                         ones[BAGS * DIM];
    int64_t ids[1], unique[1];
    for (int i = 0; i < BAGS * DIM; i++) ones[i] = 1, pooled[i] = 99;
    OK(gradbus_begin(session, &batch));
    gradbus_ask asks[3] = {{.table = 2, .count = 1, .keys = keys, .ids = ids, .unique = unique, .rows = rows},
                           {.table = 0, .count = KEYS, .keys = keys, .rows = pooled, .bags = BAGS, .offsets = offsets},
                           {.table = 1, .count = KEYS, .keys = keys, .rows = means, .bags = BAGS, .offsets = offsets}};
    OK(gradbus_distinct(session, asks, 1));
    OK(gradbus_lookup(session, -1, asks, 3));  // rows and bags by one call
    OK(gradbus_table(session, 0, 0, ROWS, all));
    pool_by_hand(all, DIM, 0, by_hand);
    for (int i = 0; i < BAGS * DIM; i++)
      CHECK(near(pooled[i], by_hand[i]), "sum %d is %g, want %g", i, pooled[i], by_hand[i]);
    OK(gradbus_table(session, 1, 0, ROWS, all));
    pool_by_hand(all, 1, 1, by_hand);
    for (int i = 0; i < BAGS; i++) CHECK(near(means[i], by_hand[i]), "mean %d is %g, want %g", i, means[i], by_hand[i]);
    gradbus_rows pieces[4] = {{.table = 0, .count = KEYS, .keys = keys, .grad = ones, .bags = BAGS, .offsets = offsets},
                              {.table = 1, .count = KEYS, .keys = keys, .grad = ones, .bags = BAGS, .offsets = offsets},
                              {.table = 0, .count = 2, .keys = keys + 2, .grad = ones, .bags = 2},  // each a bag
                              {.table = 2, .count = 1, .keys = unique, .grad = ones}};
    gradbus_lane_step steps[2] = {{.lane = 0, .samples = 1, .rows = pieces, .pieces = 4},
                                  {.lane = 1, .samples = n != 2}};
    OK(gradbus_commit(session, steps, 2));
    free(all);
  }
  OK(gradbus_finish(session));
  OK(gradbus_table(session, 0, 0, ROWS, sums));
  OK(gradbus_digest(session, digest));
  OK(gradbus_leave(session, NULL));
  OK(gradbus_local_close(shards));
  gradbus_patience(-1);
}

static void trains(void) {
  uint8_t digests[4][32];
  float sums[ROWS * DIM], first[ROWS * DIM];
  trained(NULL, -1, "columns", "columns", digests[0], first);
  trained("{\"shards\": 2}", 0, "columns-two", "columns", digests[1], sums);  // every wait is interrupted at once
  trained(NULL, -1, "tables", "tables", digests[2], sums);
  trained("{\"shards\": 3}", -1, "tables-three", "tables", digests[3], sums);
  for (int i = 1; i < 4; i++)
    CHECK(!memcmp(digests[0], digests[i], 32), "digest %d is %x, want %x", i, digests[i][0], digests[0][0]);
  // What the rows began with, and what bags have taken of them: half of their gradients while both lanes have samples, all in the last batch.
  gradbus_handle shards = 0;
  OK(gradbus_local(NULL, &shards));
  gradbus_handle session = joined(shards, "columns", "columns");
  float begun[ROWS * DIM];
  OK(gradbus_table(session, 0, 0, ROWS, begun));
  for (int k = 0; k < ROWS; k++) {
    const float uses = k == 7 ? 2 : k == 3 ? 4 : k == 99 ? 1 : 0;  // 7, 7, 3 and 3 and 99, and again 3 and 3
    for (int d = 0; d < DIM; d++) {
      const float want = begun[k * DIM + d] - uses * 2;
      CHECK(near(first[k * DIM + d], want), "row %d is %g, want %g", k, first[k * DIM + d], want);
    }
  }
  OK(gradbus_leave(session, NULL));
  OK(gradbus_local_close(shards));
}

static void refuses(void) {
  gradbus_handle shards = 0;
  OK(gradbus_local(NULL, &shards));
  gradbus_handle session = joined(shards, "refuses", "tables");
  int64_t some[3] = {1, -5, 2}, ids[3], unique[3] = {1, 2, 3}, falls[2] = {0, 4}, late[2] = {1, 1};
  float rows[3 * DIM];
  gradbus_ask ask = {.table = 0, .count = 3, .keys = some, .ids = ids, .unique = unique, .rows = rows};
  GIVES(GRADBUS_ARGUMENT, "\"sums\" is pooled by its shards (placement tables): want keys with bags and offsets",
        gradbus_distinct(session, &ask, 1));
  GIVES(GRADBUS_ARGUMENT, "ask 0: not possible: table \"sums\" is pooled by its shards",
        gradbus_lookup(session, -1, &ask, 1));
  ask.bags = 3;
  GIVES(GRADBUS_ARGUMENT, "table \"sums\": key number 1 is -5: want 0 to 99", gradbus_lookup(session, -1, &ask, 1));
  some[1] = 4, ask.bags = 2;
  GIVES(GRADBUS_ARGUMENT, "2 bags of 3 keys without offsets", gradbus_lookup(session, -1, &ask, 1));
  ask.offsets = falls;
  GIVES(GRADBUS_ARGUMENT, "offset 4 of bag 1: want", gradbus_lookup(session, -1, &ask, 1));
  ask.offsets = late;
  GIVES(GRADBUS_ARGUMENT, "offset 1 of bag 0: want 0 for the first", gradbus_lookup(session, -1, &ask, 1));
  falls[1] = 1, ask.offsets = falls, ask.rows = NULL;
  GIVES(GRADBUS_ARGUMENT, "rows: 6 elements", gradbus_lookup(session, -1, &ask, 1));
  ask.rows = rows, ask.bags = -1;
  GIVES(GRADBUS_ARGUMENT, "offsets: -1 elements", gradbus_lookup(session, -1, &ask, 1));
  ask.table = 2, ask.bags = 2;
  GIVES(GRADBUS_ARGUMENT, "\"rows\" is not pooled by its shards: want no bags and offsets, or a placement",
        gradbus_lookup(session, -1, &ask, 1));

  gradbus_batch batch;
  OK(gradbus_begin(session, &batch));
  gradbus_rows piece = {.table = 0, .count = 3, .keys = some, .grad = rows};
  gradbus_lane_step steps[2] = {{.lane = 0, .samples = 1, .rows = &piece, .pieces = 1}, {.lane = 1}};
  GIVES(GRADBUS_ARGUMENT, "lane 0: piece 0 of rows: not possible: table \"sums\" is pooled by its shards",
        gradbus_commit(session, steps, 2));
  piece.bags = 2, piece.offsets = late;
  GIVES(GRADBUS_ARGUMENT, "offset 1 of bag 0", gradbus_commit(session, steps, 2));
  piece.offsets = falls, piece.grad = NULL;
  GIVES(GRADBUS_ARGUMENT, "grad: 6 elements", gradbus_commit(session, steps, 2));
  piece.grad = rows, piece.table = 2;
  GIVES(GRADBUS_ARGUMENT, "\"rows\" is not pooled by its shards", gradbus_commit(session, steps, 2));
  piece.table = 1;
  OK(gradbus_commit(session, steps, 2));  // nothing of that has changed anything
  OK(gradbus_leave(session, NULL));
  OK(gradbus_local_close(shards));
}

int main(void) {
  trains();
  refuses();
  return wrong;
}

//go:build ignore

// example.c: who gives which film how many stars? Factors of users and films live on shards; this program learns them.
//
//   cc -o example capi/example.c -Ibuild/capi build/capi/libgradbus.so -Wl,-rpath,$PWD/build/capi -lm
//   ./example                               shards within this process
//   bin/ps & ./example nats://127.0.0.1:4222
#include <gradbus.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { USERS = 2000, FILMS = 500, DIM = 8, BATCH = 512, BATCHES = 200 };

#define DO(call)                                \
  do {                                          \
    if (call) {                                 \
      fprintf(stderr, "%s\n", gradbus_error()); \
      exit(1);                                  \
    }                                           \
  } while (0)

static const char *job =
    "{\"name\": \"films\", \"lanes\": 1, \"optimizer\": {\"kind\": \"adagrad\", \"lr\": 0.3},"
    " \"parameters\": [{\"name\": \"mean\", \"shape\": [1]}],"
    " \"tables\": [{\"name\": \"users\", \"rows\": 2000, \"dim\": 8, \"init\": {\"kind\": \"normal\", \"scale\": 0.3}},"
    "              {\"name\": \"films\", \"rows\": 500, \"dim\": 8, \"init\": {\"kind\": \"normal\", "
    "               \"scale\": 0.3}}]}";

// stars is what a user would give a film: who likes its genre gives more.
static float stars(int64_t user, int64_t film) { return user % 5 == film % 5 ? 5 : 1 + (float)((user + film) % 3); }

// learn computes one batch: errors of its samples, and their gradients by distinct row. It gives the sum of squared
// errors.
static double learn(const gradbus_ask *users, const gradbus_ask *films, float mean, float *user_grad, float *film_grad,
                    float *mean_grad) {
  double loss = 0;
  for (int n = 0; n < BATCH; n++) {
    float *u = users->rows + users->ids[n] * DIM, *du = user_grad + users->ids[n] * DIM;
    float *f = films->rows + films->ids[n] * DIM, *df = film_grad + films->ids[n] * DIM;
    float e = mean - stars(users->keys[n], films->keys[n]);
    for (int d = 0; d < DIM; d++) e += u[d] * f[d];
    for (int d = 0; d < DIM; d++) du[d] += e * f[d], df[d] += e * u[d];
    *mean_grad += e;
    loss += e * e;
  }
  return loss;
}

int main(int n, char **args) {
  char config[256];
  gradbus_handle shards = 0, session;
  if (n > 1) {
    snprintf(config, sizeof config, "{\"server\": \"%s\"}", args[1]);
  } else {
    DO(gradbus_local(NULL, &shards));
    snprintf(config, sizeof config, "{\"local\": %llu}", (unsigned long long)shards);
  }
  DO(gradbus_join(config, job, NULL, &session));

  static int64_t keys[2][BATCH], ids[2][BATCH], unique[2][BATCH];
  static float rows[2][BATCH * DIM];
  double squares = 0;
  for (int b = 0; b < BATCHES; b++) {
    gradbus_batch batch;
    float mean, mean_grad = 0, grad[2][BATCH * DIM] = {{0}}, *dense[1] = {&mean};
    const float *dense_grad[1] = {&mean_grad};
    DO(gradbus_begin(session, &batch));
    for (int i = 0; i < BATCH; i++) keys[0][i] = rand() % USERS, keys[1][i] = rand() % FILMS;
    gradbus_ask asks[2];
    for (int t = 0; t < 2; t++) {
      asks[t] = (gradbus_ask){
          .table = t, .count = BATCH, .keys = keys[t], .ids = ids[t], .unique = unique[t], .rows = rows[t]};
    }
    DO(gradbus_distinct(session, asks, 2));
    DO(gradbus_lookup(session, -1, asks, 2));
    DO(gradbus_dense(session, dense));
    double loss = learn(&asks[0], &asks[1], mean, grad[0], grad[1], &mean_grad);
    gradbus_rows pieces[2];
    for (int t = 0; t < 2; t++) {
      pieces[t] = (gradbus_rows){.table = t, .count = asks[t].distinct, .keys = unique[t], .grad = grad[t]};
    }
    gradbus_lane_step step = {batch.first_lane, BATCH, loss, pieces, 2, dense_grad};
    DO(gradbus_commit(session, &step, 1));
    squares += loss;
    if (b % 50 == 49) printf("batch %d: RMSE %.3f\n", b + 1, sqrt(squares / (50 * BATCH))), squares = 0;
  }
  DO(gradbus_leave(session, NULL));
  if (shards) DO(gradbus_local_close(shards));
}

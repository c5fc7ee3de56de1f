// session_test.c CASE   tests gradbus.h as a program in C meets it. It prints what is wrong, and ends with 1 where something is.
#include <dirent.h>
#include <errno.h>
#include <gradbus.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

enum { ROWS = 1000, DIM = 3, WIDE = 5 };

static gradbus_handle shards_of(const char *options) {
  gradbus_handle h = 0;
  OK(gradbus_local(options, &h));
  return h;
}

// write_job writes the manifest of a job whose rows all begin at 0 and whose learning rate is 1.
static void write_job(char *job, size_t size, const char *name, int trainers, int seed) {
  snprintf(
      job, size,
      "{\"name\": \"%s\", \"trainers\": %d, \"lanes\": %d, \"seed\": %d, \"optimizer\": {\"kind\": \"sgd\", \"lr\": 1},"
      " \"parameters\": [{\"name\": \"w\", \"shape\": [%d]}],"
      " \"tables\": [{\"name\": \"rows\", \"rows\": %d, \"dim\": %d, \"init\": {\"kind\": \"zeros\"}},"
      "              {\"name\": \"drawn\", \"rows\": %d, \"dim\": 1, \"init\": {\"kind\": \"normal\", \"scale\": 1}}]}",
      name, trainers, 2 * trainers, seed, WIDE, ROWS, DIM, ROWS);
}

// joining begins to join a job.
static int joining(gradbus_handle shards, const char *name, int trainers, int seed, const float *start,
                   gradbus_handle *session) {
  char config[64], job[1024];
  snprintf(config, sizeof config, "{\"local\": %llu}", (unsigned long long)shards);
  write_job(job, sizeof job, name, trainers, seed);
  const float *dense[1] = {start};
  return gradbus_join(config, job, start ? dense : NULL, session);
}

// resumed joins the job again, at the newest version in a folder.
static gradbus_handle resumed(gradbus_handle shards, const char *name, const char *folder) {
  char config[128], job[1024];
  snprintf(config, sizeof config, "{\"local\": %llu, \"resume\": true, \"checkpoint_dir\": \"%s\"}",
           (unsigned long long)shards, folder);
  write_job(job, sizeof job, name, 1, 1);
  gradbus_handle h = 0;
  OK(gradbus_join(config, job, NULL, &h));
  return h;
}

static gradbus_handle joined(gradbus_handle shards, const char *name, int trainers) {
  gradbus_handle h = 0;
  OK(joining(shards, name, trainers, 1, NULL, &h));
  return h;
}

static gradbus_rows rows_of(int32_t table, int64_t count, const int64_t *keys, const float *grad) {
  return (gradbus_rows){.table = table, .count = count, .keys = keys, .grad = grad};
}

static void *room(size_t count, size_t bytes) {
  return count ? calloc(count, bytes) : NULL;
}  // exactly: ASan looks at both ends

// batch is one of a session: every row of rows loses 1, a row of drawn what it is, and w takes gradient.
typedef struct {
  gradbus_batch at;
  float w[WIDE];
} batch;

static batch begin(gradbus_handle session) {
  batch b;
  float *dense[1] = {b.w};
  OK(gradbus_begin(session, &b.at));
  OK(gradbus_dense(session, dense));
  return b;
}

static void commit(gradbus_handle session, const batch *b) {
  int64_t all[ROWS], twice[4] = {7, 3, 7, 999}, ids[4], unique[4];
  for (int i = 0; i < ROWS; i++) all[i] = i;
  gradbus_ask ask = {.table = 1, .count = 4, .keys = twice, .ids = ids, .unique = unique};
  OK(gradbus_distinct(session, &ask, 1));
  CHECK(ask.distinct == 3 && unique[0] == 3 && unique[1] == 7 && unique[2] == 999 && ids[0] == 1 && ids[1] == 0 &&
            ids[2] == 1 && ids[3] == 2,
        "%lld distinct", (long long)ask.distinct);
  ask.rows = room(ask.distinct, sizeof(float));
  OK(gradbus_lookup(session, (int64_t)b->at.number, &ask, 1));
  int lanes = b->at.lanes;
  float *ones = room(ROWS * DIM, sizeof(float)), *w = room(WIDE, sizeof(float)), again[4];
  for (int i = 0; i < ROWS * DIM; i++) ones[i] = 1;
  for (int i = 0; i < WIDE; i++) w[i] = (float)i;
  for (int i = 0; i < 4; i++) again[i] = ask.rows[ids[i]];
  const float *dense[1] = {w};
  gradbus_lane_step *steps = room(lanes, sizeof *steps);
  gradbus_rows rows[4] = {rows_of(0, ROWS / 2, all, ones), rows_of(1, 3, unique, ask.rows),
                          rows_of(0, ROWS / 2, all + ROWS / 2, ones), rows_of(1, 4, twice, again)};
  for (int l = 0; l < lanes; l++)
    steps[l] = (gradbus_lane_step){
        .lane = b->at.first_lane + l, .samples = 1, .loss = 0.5, .rows = rows, .pieces = l ? 4 : 3, .dense = dense};
  if (lanes > 1 && b->at.number % 3 == 2)
    steps[lanes - 1] = (gradbus_lane_step){.lane = b->at.first_lane + lanes - 1};  // absent
  OK(gradbus_commit(session, steps, lanes));
  free(ones), free(w), free(steps), free(ask.rows);
}

// trained is the digest after some batches on so many shards.
static void trained(const char *options, int patience, const char *name, uint8_t digest[32]) {
  gradbus_patience(patience);
  gradbus_handle shards = shards_of(options), session = joined(shards, name, 1);
  for (int i = 0; i < 5; i++) {
    batch b = begin(session);
    CHECK(b.at.number == (uint64_t)i && b.at.first_lane == 0 && b.at.lanes == 2, "batch %d", (int)b.at.number);
    CHECK(b.w[0] == 0 && b.w[4] == -4.0f * (float)i, "w %g", b.w[4]);
    commit(session, &b);
  }
  float w[WIDE], rows[2 * DIM];
  float *dense[1] = {w};
  begin(session);  // and gives it back
  OK(gradbus_finish(session));
  OK(gradbus_dense(session, dense));
  CHECK(w[1] == -5, "w %g", w[1]);
  OK(gradbus_table(session, 0, ROWS - 2, 2, rows));
  CHECK(rows[0] == -5 && rows[2 * DIM - 1] == -5, "rows %g", rows[0]);
  OK(gradbus_digest(session, digest));
  OK(gradbus_leave(session, NULL));
  OK(gradbus_local_close(shards));
  gradbus_patience(-1);
}

static void case_trains(void) {
  uint8_t digests[3][32];
  trained(NULL, -1, "one", digests[0]);
  trained("{\"shards\": 3}", -1, "two", digests[1]);
  trained("{\"shards\": 2}", 0, "three", digests[2]);  // every wait is interrupted at once
  CHECK(!memcmp(digests[0], digests[1], 32) && !memcmp(digests[0], digests[2], 32), "digests %x %x %x", digests[0][0],
        digests[1][0], digests[2][0]);
}

static void case_saves(void) {
  gradbus_handle shards = shards_of(NULL), session = joined(shards, "saved", 1), model = 0;
  batch b = begin(session);
  commit(session, &b);
  uint64_t decided = 0;
  OK(gradbus_finish(session));
  OK(gradbus_scale_lr(session, 0, 0.5f, &decided));
  uint64_t version = 0;
  OK(gradbus_checkpoint(session, "versions", "mine", 4, &version));
  OK(gradbus_checkpoint(session, NULL, NULL, 0, NULL));
  CHECK(version == 1, "version %d", (int)version);
  GIVES(GRADBUS_FILE, "is in use", gradbus_checkpoint(session, "others", NULL, 0, &version));
  begin(session);
  GIVES(GRADBUS_ORDER, "batch 1 is under way", gradbus_checkpoint(session, NULL, NULL, 0, &version));
  OK(gradbus_finish(session));
  CHECK(decided >= 1, "batch %d", (int)decided);
  char *text = NULL;
  OK(gradbus_job(session, &text));
  CHECK(strstr(text, "\"member\":\"t0\"") && strstr(text, "\"lr\":1"), "%s", text);
  gradbus_free(text);
  OK(gradbus_stats(session, &text));
  CHECK(strstr(text, "\"batches\":1"), "%s", text);
  gradbus_free(text);
  int64_t seen = 7, shape[1] = {1};
  gradbus_tensor more = {"steps", "I64", shape, 1, &seen, sizeof seen}, bad[4] = {more, more, more, more};
  bad[0].dtype = "C64", bad[1].bytes = 7, bad[2].name = "w", bad[3].name = "\xff";
  const char *says[4] = {"dtype \"C64\", want BF16", "7 bytes of tensor \"steps\", which has 8", "\"w\" is there twice",
                         "want a name in UTF-8"};
  for (int i = 0; i < 4; i++)
    GIVES(GRADBUS_FILE, says[i], gradbus_save(session, "model.safetensors", &bad[i], 1, NULL));
  bad[0] = (gradbus_tensor){"steps", NULL, shape, 1, &seen, sizeof seen};
  GIVES(GRADBUS_ARGUMENT, "dtype is NULL", gradbus_save(session, "model.safetensors", bad, 1, NULL));
  GIVES(GRADBUS_ARGUMENT, "tensors: 1 elements", gradbus_save(session, "model.safetensors", NULL, 1, NULL));
  GIVES(GRADBUS_ARGUMENT, "metadata: ", gradbus_save(session, "model.safetensors", NULL, 0, "{\"k\": 1}"));
  OK(gradbus_save(session, "model.safetensors", &more, 1, "{\"k\": \"v\"}"));
  OK(gradbus_leave(session, NULL));
  void *program = NULL;
  int64_t bytes = 0;
  session = resumed(shards, "saved", "versions");
  OK(gradbus_program(session, &program, &bytes));
  CHECK(bytes == 4 && !memcmp(program, "mine", 4), "%d bytes", (int)bytes);
  gradbus_free(program);
  OK(gradbus_job(session, &text));
  CHECK(strstr(text, "\"version\":1"), "%s", text);
  gradbus_free(text);
  OK(gradbus_leave(session, NULL));
  OK(gradbus_local_close(shards));
  OK(gradbus_open("model.safetensors", &model));
  OK(gradbus_model_job(model, &text));
  CHECK(strstr(text, "\"version\":1") && strstr(text, "\"metadata\":{\"format\":\"gradbus model 1\",\"k\":\"v\"}"),
        "%s", text);
  gradbus_free(text);
  int64_t keys[3] = {5, 0, 5};
  gradbus_ask ask = {.table = 0, .count = 3, .keys = keys, .rows = room(3 * DIM, sizeof(float))};
  OK(gradbus_model_lookup(model, &ask, 1));
  CHECK(ask.rows[0] == -1 && ask.rows[3 * DIM - 1] == -1, "rows %g", ask.rows[0]);
  float w[WIDE];
  OK(gradbus_model_param(model, "w", w));
  CHECK(w[3] == -3, "w %g", w[3]);
  keys[1] = ROWS;
  GIVES(GRADBUS_ARGUMENT, "key number 1 is 1000", gradbus_model_lookup(model, &ask, 1));
  GIVES(GRADBUS_ARGUMENT, "no parameter \"v\"", gradbus_model_param(model, "v", w));
  OK(gradbus_model_close(model));
  GIVES(GRADBUS_CLOSED, "gone", gradbus_model_close(model));
  free(ask.rows);
}

// canceled waits until a call is under way, and cancels it.
static void *cancel_soon(void *session) {
  for (;;) {
    gradbus_handle h = *(volatile gradbus_handle *)session;
    struct timespec pause = {.tv_nsec = 20000000};
    nanosleep(&pause, NULL);
    if (h) return gradbus_cancel(h, NULL) == GRADBUS_OK ? session : NULL;
  }
}

static void case_cancels(void) {
  gradbus_handle shards = shards_of(NULL), both[2] = {0, 0}, alone = 0;
  pthread_t other;
  pthread_create(&other, NULL, cancel_soon, &alone);
  GIVES(GRADBUS_CANCELED, "gradbus_cancel", joining(shards, "alone", 2, 1, NULL, &alone));
  pthread_join(other, NULL);
  GIVES(GRADBUS_CLOSED, "gone", gradbus_leave(alone, NULL));

  gradbus_patience(0);  // the other one joins meanwhile, on this thread
  CHECK(joining(shards, "pair", 2, 1, NULL, &both[0]) == GRADBUS_AGAIN, "joined alone");
  GIVES(GRADBUS_ORDER, "has not joined", gradbus_finish(both[0]));
  GIVES(GRADBUS_ORDER, "gradbus_resume first", joining(shards, "pair", 2, 1, NULL, &both[1]));
  CHECK(gradbus_cancel(both[0], NULL) == GRADBUS_OK && done(GRADBUS_AGAIN) == GRADBUS_CANCELED, "not canceled");
  gradbus_patience(-1);
  OK(gradbus_local_close(shards));
}

typedef struct {
  gradbus_handle shards, session;
  const char *name;
  int trainers, batches, code;
} life;

static void *join_life(void *of) {
  life *l = of;
  l->code = done(joining(l->shards, l->name, l->trainers, 1, NULL, &l->session));
  return NULL;
}

// A trainer that waits for another is canceled, and the other one hears it.
static void case_cancels_a_batch(void) {
  gradbus_handle shards = shards_of(NULL);
  life lives[2] = {{.shards = shards, .name = "pair", .trainers = 2},
                   {.shards = shards, .name = "pair", .trainers = 2}};
  pthread_t threads[2], other;
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, join_life, &lives[i]);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  CHECK(lives[0].code == 0 && lives[1].code == 0, "codes %d %d", lives[0].code, lives[1].code);
  char *text = NULL;
  OK(gradbus_job(lives[0].session, &text));
  const char *who = strstr(text, "\"member\":\"t1\"") ? "trainer t1" : "trainer t0";  // whoever came first is t0
  gradbus_free(text);
  batch b = begin(lives[0].session), c = begin(lives[1].session);
  commit(lives[0].session, &b);
  OK(gradbus_begin(lives[0].session, &b.at));  // which does not wait for the other one
  CHECK(b.at.number == 1, "batch %d", (int)b.at.number);
  gradbus_patience(10);
  pthread_create(&other, NULL, cancel_soon, &lives[0].session);
  float *dense[1] = {b.w};
  GIVES(GRADBUS_CANCELED, "gradbus_cancel", gradbus_dense(lives[0].session, dense));  // which does
  pthread_join(other, NULL);
  GIVES(GRADBUS_CANCELED, "gradbus_cancel", gradbus_finish(lives[0].session));
  OK(gradbus_leave(lives[0].session, NULL));
  while (1) {
    int64_t key = 1;
    float row[DIM];
    gradbus_ask ask = {.table = 0, .count = 1, .keys = &key, .unique = &key, .distinct = 1, .rows = row};
    int code = done(gradbus_lookup(lives[1].session, -1, &ask, 1));
    if (code == GRADBUS_OK) continue;  // it has not heard of it yet
    CHECK(code == GRADBUS_JOB && strstr(gradbus_error(), who) && strstr(gradbus_error(), "gradbus_cancel"), "code %d",
          code);
    break;
  }
  (void)c;
  done(gradbus_leave(lives[1].session, NULL));
  gradbus_patience(-1);
  OK(gradbus_local_close(shards));
}

static void case_refuses(void) {
  gradbus_handle shards = shards_of("{\"shards\": 2}"), session = joined(shards, "codes", 1), h = 0;
  int64_t keys[3] = {1, -5, 2}, ids[3], unique[3];
  float rows[3 * DIM];
  gradbus_ask ask = {.table = 0, .count = 3, .keys = keys, .ids = ids, .unique = unique, .rows = rows};
  GIVES(GRADBUS_ARGUMENT, "table \"rows\": key number 1 is -5: want 0 to 999", gradbus_distinct(session, &ask, 1));
  keys[1] = ROWS;
  GIVES(GRADBUS_ARGUMENT, "key number 1 is 1000", gradbus_distinct(session, &ask, 1));
  ask.table = 2;
  GIVES(GRADBUS_ARGUMENT, "table 2: the job has 2", gradbus_distinct(session, &ask, 1));
  GIVES(GRADBUS_ARGUMENT, "asks: 1 elements", gradbus_distinct(session, NULL, 1));
  OK(gradbus_distinct(session, NULL, 0));
  ask = (gradbus_ask){.table = 0, .unique = keys, .distinct = 3, .rows = rows};
  GIVES(GRADBUS_ARGUMENT, "ascending", gradbus_lookup(session, -1, &ask, 1));
  ask.distinct = -1;
  GIVES(GRADBUS_ARGUMENT, "-1 elements", gradbus_lookup(session, -1, &ask, 1));
  ask.distinct = INT64_MAX;  // as where nobody has called gradbus_distinct
  GIVES(GRADBUS_ARGUMENT, "unique: 9223372036854775807 elements", gradbus_lookup(session, -1, &ask, 1));
  ask.distinct = 1, ask.rows = NULL;
  GIVES(GRADBUS_ARGUMENT, "rows: 3 elements", gradbus_lookup(session, -1, &ask, 1));
  ask.rows = rows;
  GIVES(GRADBUS_VERSION, "version 9 is asked for, and the job is at 0", gradbus_lookup(session, 9, &ask, 1));
  OK(gradbus_lookup(session, 0, &ask, 1));
  gradbus_lane_step steps[2] = {{.lane = 0}, {.lane = 1}};
  GIVES(GRADBUS_ORDER, "want gradbus_begin", gradbus_commit(session, steps, 2));
  GIVES(GRADBUS_ORDER, "no call of this thread", gradbus_resume());
  batch b = begin(session);
  GIVES(GRADBUS_ORDER, "is under way", gradbus_begin(session, &b.at));
  int32_t further = 0;
  GIVES(GRADBUS_ORDER, "settle: batch 0 is under way", gradbus_settle(session, &further));
  GIVES(GRADBUS_ORDER, "hand over: want \"elastic\"", gradbus_hand_over(session));
  GIVES(GRADBUS_ARGUMENT, "the batch has 2", gradbus_commit(session, steps, 1));
  steps[1].lane = 0;
  GIVES(GRADBUS_ARGUMENT, "want lane 1", gradbus_commit(session, steps, 2));
  gradbus_rows piece = rows_of(0, 1, keys, NULL);
  steps[1] = (gradbus_lane_step){.lane = 1, .rows = &piece, .pieces = 1};
  GIVES(GRADBUS_ARGUMENT, "0 samples", gradbus_commit(session, steps, 2));
  steps[1] = (gradbus_lane_step){.lane = 1, .samples = 1, .rows = &piece, .pieces = 1};
  GIVES(GRADBUS_ARGUMENT, "grad: 3 elements", gradbus_commit(session, steps, 2));
  piece = rows_of(0, 1, &keys[1], rows);
  GIVES(GRADBUS_ARGUMENT, "lane 1: piece 0 of rows: table \"rows\": key number 0 is 1000",
        gradbus_commit(session, steps, 2));
  commit(session, &b);  // nothing of that has changed anything
  GIVES(GRADBUS_ARGUMENT, "1001 rows", gradbus_table(session, 0, 0, ROWS + 1, NULL));
  GIVES(GRADBUS_ARGUMENT, "path is NULL", gradbus_save(session, NULL, NULL, 0, NULL));
  GIVES(GRADBUS_FILE, "/nowhere", gradbus_save(session, "/nowhere/at/all", NULL, 0, NULL));
  GIVES(GRADBUS_FILE, "/tmp", gradbus_save(session, "/tmp", NULL, 0, NULL));  // a folder
  GIVES(GRADBUS_ARGUMENT, "coalesce of 0 pieces", gradbus_coalesce(session, NULL, 0, NULL, NULL, NULL));
  GIVES(GRADBUS_ARGUMENT, "begin at 1000", gradbus_check_offsets(&keys[1], 1, 0, 0));
  GIVES(GRADBUS_ARGUMENT, "no NULL", gradbus_bag_gradient(keys, 1, NULL, 1, 0, NULL, 1, rows, 1));

  GIVES(GRADBUS_ARGUMENT, "want one that this library gave", gradbus_leave(1, NULL));
  GIVES(GRADBUS_ARGUMENT, "for this kind of call", gradbus_leave(shards, NULL));
  GIVES(GRADBUS_CONFIG, "unknown field", gradbus_local("{\"shard\": 1}", &h));
  GIVES(GRADBUS_CONFIG, "shards 65", gradbus_local("{\"shards\": 65}", &h));
  GIVES(GRADBUS_CONFIG, "\"told\" is called \"elastic\" now", gradbus_join("{\"told\": true}", "{}", NULL, &h));
  GIVES(GRADBUS_CONFIG, "no such", gradbus_local("{\"backend\": \"no such\"}", &h));
  GIVES(GRADBUS_CONFIG, "trainers: 3: want 1 to 2",
        gradbus_join(NULL, "{\"name\": \"a\", \"lanes\": 2, \"trainers\": 3}", NULL, &h));
  GIVES(GRADBUS_ARGUMENT, "job is NULL", gradbus_join(NULL, NULL, NULL, &h));
  GIVES(GRADBUS_ORDER, "have not left: 1", gradbus_local_close(shards));
  GIVES(GRADBUS_JOB, "registered with seed 1, and this trainer has 2", joining(shards, "codes", 1, 2, NULL, &h));
  OK(gradbus_leave(session, "a reason"));
  GIVES(GRADBUS_CLOSED, "gone", gradbus_leave(session, NULL));
  OK(gradbus_local_close(shards));
  GIVES(
      GRADBUS_SERVER, "127.0.0.1:1",
      gradbus_join("{\"server\": \"nats://127.0.0.1:1\"}",
                   "{\"name\": \"a\", \"optimizer\": {\"lr\": 1}, \"parameters\": [{\"name\": \"w\", \"shape\": [1]}]}",
                   NULL, &h));
  GIVES(GRADBUS_FILE, "/nowhere", gradbus_open("/nowhere", &h));
}

static atomic_int training;

// look reads rows while batches go on: those of one lookup are of one version.
static void *look(void *of) {
  life *l = of;
  int64_t keys[ROWS];
  for (int i = 0; i < ROWS; i++) keys[i] = i;
  gradbus_patience(l->trainers);
  for (float last = 0; training;) {
    gradbus_ask ask = {.table = 0, .unique = keys, .distinct = ROWS, .rows = room(ROWS * DIM, sizeof(float))};
    OK(gradbus_lookup(l->session, -1, &ask, 1));
    for (int i = 1; i < ROWS * DIM; i++)
      CHECK(ask.rows[i] == ask.rows[0], "value %d is %g, and the first %g", i, ask.rows[i], ask.rows[0]);
    CHECK(ask.rows[0] <= last, "%g after %g", ask.rows[0], last);
    last = ask.rows[0];
    free(ask.rows);
  }
  return NULL;
}

static void *train(void *of) {
  life *l = of;
  for (int i = 0; i < l->batches; i++) {
    batch b = begin(l->session);
    commit(l->session, &b);
  }
  OK(gradbus_finish(l->session));
  return NULL;
}

// Two sessions train, and four threads look at each.
static void case_threads(void) {
  gradbus_handle shards = shards_of("{\"shards\": 2}");
  life lives[2] = {{.session = joined(shards, "left", 1), .batches = 40},
                   {.session = joined(shards, "right", 1), .batches = 40}};
  life lookers[8];
  pthread_t trainers[2], others[8];
  training = 1;
  for (int i = 0; i < 8; i++) {
    lookers[i] = (life){.session = lives[i % 2].session, .trainers = i % 3 - 1};  // patience -1, 0 or 1
    pthread_create(&others[i], NULL, look, &lookers[i]);
  }
  for (int i = 0; i < 2; i++) pthread_create(&trainers[i], NULL, train, &lives[i]);
  for (int i = 0; i < 2; i++) pthread_join(trainers[i], NULL);
  training = 0;
  for (int i = 0; i < 8; i++) pthread_join(others[i], NULL);
  for (int i = 0; i < 2; i++) OK(gradbus_leave(lives[i].session, NULL));
  OK(gradbus_local_close(shards));
}

static void case_forks(void) {
  gradbus_handle shards = shards_of(NULL), session = joined(shards, "parent", 1), h;
  batch b = begin(session);
  pid_t child = fork();
  if (!child) {
    gradbus_patience(1000);
    GIVES(GRADBUS_FORKED, "spawned", gradbus_local(NULL, &h));
    GIVES(GRADBUS_FORKED, "spawned", gradbus_begin(session, &b.at));
    GIVES(GRADBUS_FORKED, "spawned", gradbus_resume());
    GIVES(GRADBUS_FORKED, "spawned", gradbus_cancel(session, NULL));
    GIVES(GRADBUS_FORKED, "spawned", gradbus_leave(session, NULL));
    CHECK(gradbus_version()[0], "no version");
    fflush(stdout);
    execl("/proc/self/exe", "spawned", "trains", NULL);  // which may use it
    _exit(1);
  }
  int status = -1;
  CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the child's status is %d", status);
  commit(session, &b);
  OK(gradbus_leave(session, NULL));
  OK(gradbus_local_close(shards));
}

static atomic_int caught;
static void catch_signal(int signal) { caught = signal; }

// The host's handlers are its own, before and after, and a pipe that nobody reads ends nothing.
static void case_signals(void) {
  gradbus_handle shards = shards_of(NULL), session = joined(shards, "signals", 1);
  struct sigaction before, after, mine = {.sa_handler = catch_signal, .sa_flags = SA_ONSTACK};
  CHECK(sigaction(SIGINT, NULL, &before) == 0 && before.sa_handler == SIG_DFL, "SIGINT has a handler");
  CHECK(sigaction(SIGTERM, NULL, &before) == 0 && before.sa_handler == SIG_DFL, "SIGTERM has a handler");
  for (int i = 0; i < 3; i++) {
    int signals[3] = {SIGINT, SIGTERM, SIGUSR1};
    caught = 0;
    CHECK(sigaction(signals[i], &mine, NULL) == 0, "%s", strerror(errno));
    batch b = begin(session);
    kill(getpid(), signals[i]);
    commit(session, &b);
    CHECK(caught == signals[i], "caught %d of %d", caught, signals[i]);
    CHECK(sigaction(signals[i], NULL, &after) == 0 && after.sa_handler == catch_signal, "another handler of %d",
          signals[i]);
  }
  OK(gradbus_leave(session, NULL));
  OK(gradbus_local_close(shards));
}

// What a small batch costs: BATCHES of them, in microseconds, without and with patience. It is a measurement, and no test.
static void case_costs(void) {
  enum { KEYS = 64, BATCHES = 5000 };
  for (int patience = -1; patience < 200; patience += 101) {
    gradbus_patience(patience);
    gradbus_handle shards = shards_of(NULL), session = 0;
    char config[64];
    snprintf(config, sizeof config, "{\"local\": %llu}", (unsigned long long)shards);
    OK(gradbus_join(
        config,
        "{\"name\": \"costs\", \"lanes\": 1, \"optimizer\": {\"lr\": 1}, \"parameters\": [{\"name\": \"w\", \"shape\": "
        "[5]}],"
        " \"tables\": [{\"name\": \"rows\", \"rows\": 1000, \"dim\": 16, \"init\": {\"kind\": \"zeros\"}}]}",
        NULL, &session));
    int64_t keys[KEYS], ids[KEYS], unique[KEYS];
    float rows[KEYS * 16], w[WIDE] = {0}, *dense[1] = {w};
    const float *given[1] = {w};
    struct timespec from, to;
    for (int i = 0; i < KEYS; i++) keys[i] = i * 7919 % 1000;
    for (int b = -100; b < BATCHES; b++) {
      if (!b) clock_gettime(CLOCK_MONOTONIC, &from);
      gradbus_batch batch;
      gradbus_ask ask = {.table = 0, .count = KEYS, .keys = keys, .ids = ids, .unique = unique, .rows = rows};
      OK(gradbus_begin(session, &batch));
      OK(gradbus_distinct(session, &ask, 1));
      OK(gradbus_lookup(session, -1, &ask, 1));
      OK(gradbus_dense(session, dense));
      gradbus_rows piece = rows_of(0, ask.distinct, unique, rows);
      gradbus_lane_step step = {0, 1, 0, &piece, 1, given};
      OK(gradbus_commit(session, &step, 1));
    }
    clock_gettime(CLOCK_MONOTONIC, &to);
    printf("patience %d: %.1f us a batch\n", patience,
           (1e6 * (to.tv_sec - from.tv_sec) + 1e-3 * (to.tv_nsec - from.tv_nsec)) / BATCHES);
    OK(gradbus_leave(session, NULL));
    OK(gradbus_local_close(shards));
  }
}

// slack_of is the timer slack of a thread of this process in ns, or -1 where only the super-user may ask.
static long slack_of(const char *thread) {
  char path[512], text[32] = "";
  snprintf(path, sizeof path, "/proc/%s/timerslack_ns", thread);
  FILE *f = fopen(path, "r");
  if (!f) return -1;
  if (!fgets(text, sizeof text, f)) text[0] = 0;
  fclose(f);
  return text[0] ? atol(text) : -1;
}

// Go's threads wake seldom; the program's own keep the timer slack that they had.
static void case_wakes(void) {
  CHECK(slack_of("self") < 1000000, "%ld ns", slack_of("self"));
  DIR *threads = opendir("/proc/self/task");
  CHECK(threads != NULL, "errno %d", errno);
  for (struct dirent *e; threads && (e = readdir(threads));) {
    if (e->d_name[0] == '.' || atol(e->d_name) == getpid()) continue;
    long ns = slack_of(e->d_name);
    CHECK(ns == 1000000 || ns == -1, "thread %s: %ld ns", e->d_name, ns);
  }
  if (threads) closedir(threads);
}

// elastic trains a job of 4 lanes to 4 batches by a server, with so many trainers, of which t1 hands its lanes over in the
// middle of batch 1.
static const char *server;

static gradbus_handle elastic(const char *name, int trainers, const char *member) {
  char config[256], job[512];
  snprintf(config, sizeof config, "{\"server\": \"%s\", \"elastic\": true, \"id\": \"%s\"}", server, member);
  snprintf(job, sizeof job,
           "{\"name\": \"%s\", \"trainers\": %d, \"lanes\": 4, \"optimizer\": {\"kind\": \"sgd\", \"lr\": 1},"
           " \"tables\": [{\"name\": \"rows\", \"rows\": 10, \"dim\": 1, \"init\": {\"kind\": \"zeros\"}}]}",
           name, trainers);
  gradbus_handle h = 0;
  OK(gradbus_join(config, job, NULL, &h));
  return h;
}

// give commits lanes of a batch: row l of lane l gets a gradient of its own.
static void give(gradbus_handle session, const gradbus_batch *b) {
  int64_t keys[4];
  float grads[4], row;
  gradbus_rows rows[4];
  gradbus_lane_step steps[4];
  for (int i = 0; i < b->lanes; i++) {
    keys[i] = b->first_lane + i;
    grads[i] = (float)(1 + keys[i]) / (float)(3 + b->number);
    rows[i] = rows_of(0, 1, &keys[i], &grads[i]);
    steps[i] = (gradbus_lane_step){.lane = b->first_lane + i, .samples = 1, .rows = &rows[i], .pieces = 1};
    int64_t id, unique;
    gradbus_ask ask = {.table = 0, .count = 1, .keys = &keys[i], .ids = &id, .unique = &unique, .rows = &row};
    OK(gradbus_distinct(session, &ask, 1));
    OK(gradbus_lookup(session, -1, &ask, 1));
  }
  OK(gradbus_commit(session, steps, b->lanes));
}

static void *hands_over(void *unused) {
  gradbus_handle session = elastic("two", 2, "t1");
  gradbus_batch b;
  OK(gradbus_begin(session, &b));
  give(session, &b);
  OK(gradbus_begin(session, &b));
  CHECK(b.number == 1 && b.first_lane == 2 && b.lanes == 2, "batch %d, lane %d", (int)b.number, b.first_lane);
  OK(gradbus_hand_over(session));
  return unused;
}

static void to_the_end(const char *name, int trainers, int want_further, uint8_t digest[32]) {
  gradbus_handle session = elastic(name, trainers, "t0");
  int32_t further = 0, all = 0;
  gradbus_batch b;
  for (uint64_t next = 0; next < 4;) {
    OK(gradbus_begin(session, &b));
    CHECK(b.number == next, "batch %d, want %d", (int)b.number, (int)next);
    give(session, &b);
    OK(gradbus_settle(session, &further));
    if (further) {
      GIVES(GRADBUS_ORDER, "want gradbus_begin", gradbus_finish(session));
      all++;
    }
    next += !further;
  }
  CHECK(!want_further == !all, "%d further lanes", all);
  OK(gradbus_digest(session, digest));
  OK(gradbus_finish(session));
  OK(gradbus_leave(session, NULL));
}

static void case_elastic(void) {
  uint8_t one[32], two[32];
  gradbus_patience(5);
  to_the_end("one", 1, 0, one);
  pthread_t other;
  pthread_create(&other, NULL, hands_over, NULL);
  to_the_end("two", 2, 1, two);
  pthread_join(other, NULL);
  CHECK(!memcmp(one, two, 32), "digests %x %x", one[0], two[0]);
}

int main(int n, char **args) {
  struct {
    const char *name;
    void (*run)(void);
  } cases[] = {{"trains", case_trains},   {"saves", case_saves},
               {"cancels", case_cancels}, {"cancels-a-batch", case_cancels_a_batch},
               {"refuses", case_refuses}, {"threads", case_threads},
               {"forks", case_forks},     {"signals", case_signals},
               {"costs", case_costs},     {"wakes", case_wakes},
               {"elastic", case_elastic}};
  if (n == 3) server = args[2], n = 2;
  int ran = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if (n == 2 && !strcmp(args[1], cases[i].name)) cases[i].run(), ran = 1;
  if (!ran) printf("no such case\n");
  return wrong || !ran;
}

//go:build cgo

// The functions of gradbus.h. Each looks at the process before it enters Go: a forked child has Go's memory and none of
// its threads, and would hang there. What belongs to a thread lives here, too: Go does not know the caller's threads.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include <unistd.h>

#include "_cgo_export.h"
#include "bags.h"

static pid_t home;
static pthread_key_t key;

// Go's threads take the timer slack of the thread that loads the library, since Go starts between these two: its
// monitor then wakes seldom (package internal/timerslack says why). That thread has its own back when it is loaded.
#ifdef __linux__
enum { slack_ns = 1000000 };
static int slack_before;

__attribute__((constructor(101))) static void ease_timers(void) {
  slack_before = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
  if (slack_before > 0 && slack_before < slack_ns) prctl(PR_SET_TIMERSLACK, (unsigned long)slack_ns, 0, 0, 0);
}

__attribute__((constructor)) static void restore_timers(void) {
  if (slack_before > 0 && slack_before < slack_ns) prctl(PR_SET_TIMERSLACK, (unsigned long)slack_before, 0, 0, 0);
}
#endif

// The library is loaded at run time, when there is room for little more than a pointer in each thread.
static _Thread_local gradbus_thread *known;
static gradbus_thread nobody = {.patience = -1};  // of threads for whom there is no memory

static void end_thread(void *t) {
  known = NULL;  // the thread's later destructors may still call
  free(t);
}

static void leave_home(void) { home = -1; }  // also where a child in a pid namespace of its own has the parent's number

__attribute__((constructor)) static void remember_process(void) {
  home = getpid();
  pthread_key_create(&key, end_thread);
  pthread_atfork(NULL, NULL, leave_home);
}

static gradbus_thread *self(void) {
  if (known) return known;
  gradbus_thread *t = calloc(1, sizeof *t);
  if (!t || pthread_setspecific(key, t)) {
    free(t);
    return &nobody;
  }
  t->patience = -1;
  return known = t;
}

static int32_t forked(void) {
  strcpy(self()->text,
         "this process was forked from the one that loaded gradbus: want a spawned one "
         "(multiprocessing: spawn or forkserver)");
  return GRADBUS_FORKED;
}

#define CALL(call) return getpid() == home ? (call) : forked()

const char *gradbus_error(void) { return self()->text; }
const char *gradbus_version(void) { return GRADBUS_RELEASE; }
void gradbus_free(void *p) { free(p); }
void gradbus_patience(int32_t ms) { self()->patience = ms; }
int32_t gradbus_resume(void) { CALL(go_resume(self())); }
int32_t gradbus_cancel(gradbus_handle session, const char *reason) {
  CALL(go_cancel(self(), session, (char *)reason));
}
int32_t gradbus_local(const char *options, gradbus_handle *shards) { CALL(go_local(self(), (char *)options, shards)); }
int32_t gradbus_local_close(gradbus_handle shards) { CALL(go_local_close(self(), shards)); }
int32_t gradbus_join(const char *config, const char *job, const float *const *dense_start, gradbus_handle *session) {
  CALL(go_join(self(), (char *)config, (char *)job, (float **)dense_start, session));
}
int32_t gradbus_begin(gradbus_handle session, gradbus_batch *batch) { CALL(go_begin(self(), session, batch)); }
int32_t gradbus_dense(gradbus_handle session, float *const *dense) { CALL(go_dense(self(), session, (float **)dense)); }
int32_t gradbus_distinct(gradbus_handle session, gradbus_ask *asks, int32_t n) {
  CALL(go_distinct(self(), session, asks, n));
}
int32_t gradbus_lookup(gradbus_handle session, int64_t version, gradbus_ask *asks, int32_t n) {
  CALL(go_lookup(self(), session, version, asks, n));
}
int32_t gradbus_commit(gradbus_handle session, const gradbus_lane_step *lanes, int32_t n) {
  CALL(go_commit(self(), session, (gradbus_lane_step *)lanes, n));
}
int32_t gradbus_coalesce(gradbus_handle session, const gradbus_rows *pieces, int32_t n, int64_t *keys, float *grad,
                         int64_t *distinct) {
  CALL(go_coalesce(self(), session, (gradbus_rows *)pieces, n, keys, grad, distinct));
}
int32_t gradbus_settle(gradbus_handle session, int32_t *further) { CALL(go_settle(self(), session, further)); }
int32_t gradbus_hand_over(gradbus_handle session) { CALL(go_hand_over(self(), session)); }
int32_t gradbus_finish(gradbus_handle session) { CALL(go_finish(self(), session)); }
int32_t gradbus_leave(gradbus_handle session, const char *reason) { CALL(go_leave(self(), session, (char *)reason)); }
int32_t gradbus_job(gradbus_handle session, char **json) { CALL(go_job(self(), session, json)); }
int32_t gradbus_stats(gradbus_handle session, char **json) { CALL(go_stats(self(), session, json)); }
int32_t gradbus_digest(gradbus_handle session, uint8_t digest[32]) { CALL(go_digest(self(), session, digest)); }
int32_t gradbus_scale_lr(gradbus_handle session, uint64_t from, float scale, uint64_t *decided) {
  CALL(go_scale_lr(self(), session, from, scale, decided));
}
int32_t gradbus_checkpoint(gradbus_handle session, const char *folder, const void *program, int64_t bytes,
                           uint64_t *version) {
  CALL(go_checkpoint(self(), session, (char *)folder, (void *)program, bytes, version));
}
int32_t gradbus_program(gradbus_handle session, void **program, int64_t *bytes) {
  CALL(go_program(self(), session, program, bytes));
}
int32_t gradbus_table(gradbus_handle session, int32_t table, uint64_t first, int64_t count, float *rows) {
  CALL(go_table(self(), session, table, first, count, rows));
}
int32_t gradbus_save(gradbus_handle session, const char *path, const gradbus_tensor *tensors, int32_t n,
                     const char *metadata) {
  CALL(go_save(self(), session, (char *)path, (gradbus_tensor *)tensors, n, (char *)metadata));
}
int32_t gradbus_open(const char *path, gradbus_handle *model) { CALL(go_open(self(), (char *)path, model)); }
int32_t gradbus_model_job(gradbus_handle model, char **json) { CALL(go_model_job(self(), model, json)); }
int32_t gradbus_model_lookup(gradbus_handle model, gradbus_ask *asks, int32_t n) {
  CALL(go_model_lookup(self(), model, asks, n));
}
int32_t gradbus_model_param(gradbus_handle model, const char *name, float *values) {
  CALL(go_model_param(self(), model, (char *)name, values));
}
int32_t gradbus_model_close(gradbus_handle model) { CALL(go_model_close(self(), model)); }
int32_t gradbus_bag_gradient(const int64_t *ids, int64_t count, const int64_t *offsets, int64_t bags, int32_t mean,
                             const float *grad, int64_t dim, float *out, int64_t rows) {
  const int missing = (count > 0 && !ids) || (bags > 0 && !grad) || (rows > 0 && !out);
  if (dim < 1 || missing || !bags_possible(ids, count, offsets, bags, rows)) {
    strcpy(self()->text,
           "gradient of bags: want dim from 1 on, ids below rows, offsets that begin at 0, rise, and are no more than "
           "ids, and no NULL");
    return GRADBUS_ARGUMENT;
  }
  bags_gradient(ids, count, offsets, bags, mean != 0, grad, dim, out, rows);
  return GRADBUS_OK;
}
int32_t gradbus_check_offsets(const int64_t *offsets, int64_t n, int64_t count, int32_t last) {
  gradbus_thread *t = self();
  if (n < 0 || count < 0 || (n > 0 && !offsets)) {
    strcpy(t->text, "offsets: want counts that are not negative, and no NULL");
    return GRADBUS_ARGUMENT;
  }
  return bags_offsets_fit(offsets, n, count, last != 0, t->text, sizeof t->text) ? GRADBUS_OK : GRADBUS_ARGUMENT;
}

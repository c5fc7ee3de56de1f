/* gradbus.h: a trainer's session in a gradbus job, for programs in C and for those that call C.
 *
 *   gradbus_handle shards, session;
 *   gradbus_local(NULL, &shards);                              a job within this process; without it, join a server:
 *   gradbus_join("{\"local\": ...}", job, NULL, &session);      or "{\"server\": \"nats://host:4222\"}"
 *   for (;;) {
 *     gradbus_begin(session, &batch);                          which batch, which lanes
 *     gradbus_distinct(session, asks, n);                      distinct keys of what the lanes use
 *     gradbus_lookup(session, -1, asks, n);                    their rows
 *     gradbus_dense(session, dense);                           dense parameters
 *     ...                                                      forward and backward pass of each lane
 *     gradbus_commit(session, lanes, batch.lanes);             gradients
 *   }
 *   gradbus_finish(session);
 *   gradbus_leave(session, NULL);
 *
 * Memory. All memory is the caller's but for the strings of gradbus_error and gradbus_version. A call reads and writes
 * what it is given until it returns something other than GRADBUS_AGAIN, and never afterwards; while it gives
 * GRADBUS_AGAIN the memory stays in use. What a call writes is of use only after GRADBUS_OK, but where it says
 * otherwise. Arrays are row-major and contiguous. A pointer to n elements may be NULL where n is 0.
 *
 * Threads. Any thread may make any call. The calls of one session that train (begin, dense, commit, finish, digest,
 * table, save, leave) are made one at a time: a second one meanwhile is GRADBUS_ORDER. gradbus_lookup may be called
 * from any number of threads and waits for its turn; gradbus_distinct, _job, _stats and _cancel never wait. Sessions do
 * not hinder each other.
 *
 * Processes. A process that was forked from one that has loaded the library gets GRADBUS_FORKED from every call; its
 * parent goes on. One that was spawned (exec) loads the library for itself. The library starts threads, installs no
 * handler for SIGINT, chains to the handlers that it finds for other signals, prints nothing, and does not end the
 * process.
 */
#ifndef GRADBUS_SESSION_H
#define GRADBUS_SESSION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Shards, a session or a model. 0 is none. One that is gone is refused (GRADBUS_CLOSED), and so is an invented one
 * (GRADBUS_ARGUMENT). */
typedef uint64_t gradbus_handle;

enum gradbus_code {
  GRADBUS_OK = 0,
  GRADBUS_AGAIN = 1,    /* the call goes on: gradbus_resume waits for it; its memory stays in use */
  GRADBUS_ARGUMENT = 2, /* a shape, key, name, pointer or handle is not possible; nothing has changed */
  GRADBUS_ORDER = 3,    /* not now, such as commit before begin, or while another call of the session is under way;
                         * nothing has changed */
  GRADBUS_CONFIG = 4,   /* the options or the manifest; the text has the field, its value and what would be right */
  GRADBUS_SERVER = 5,   /* no server is there, or it was lost; a session has ended */
  GRADBUS_JOB = 6,      /* the job refused this trainer, or failed: the text names who and why; the session has ended */
  GRADBUS_VERSION = 7,  /* the job is at another version than that which was asked for; the session goes on */
  GRADBUS_CANCELED = 8, /* by gradbus_cancel; the session has ended */
  GRADBUS_CLOSED = 9,   /* the handle is gone */
  GRADBUS_FORKED = 10,  /* this process was forked from the one that loaded the library */
  GRADBUS_FILE = 11,    /* a file cannot be read or written, or is no saved model */
  GRADBUS_INTERNAL = 12, /* a fault of the library; a session has ended */
  GRADBUS_REWOUND = 13   /* what is under way counts for nothing, since the job goes on from an earlier version, or
                          * another trainer computes these lanes: gradbus_begin gives the batch to compute. Only of
                          * "elastic" sessions (gradbus_join) */
};

/* Why the calling thread's last call gave something other than GRADBUS_OK and GRADBUS_AGAIN: one line, UTF-8, at most 2
 * KiB. It is the library's, and valid until the thread's next call or its end. Never NULL. */
const char *gradbus_error(void);

/* The version of the library, for ever valid. */
const char *gradbus_version(void);

/* How long calls of this thread wait before they give GRADBUS_AGAIN, in milliseconds; below 0, the default, as long as
 * it takes. A caller that has to look at signals now and then sets it. Only calls that say "Waits" are concerned. */
void gradbus_patience(int32_t ms);

/* Waits on for the calling thread's call that gave GRADBUS_AGAIN, and gives what that gives. Until then every other
 * call of this thread that waits is GRADBUS_ORDER. */
int32_t gradbus_resume(void);

/* Ends a session from any thread: what waits on it gives GRADBUS_CANCELED, and so does every later call that waits but
 * gradbus_leave. reason NULL: the other trainers hear that this one has left, and compute its lanes if "elastic"; else
 * the job stops, which is no failure. Else the job fails for the others with this text, as by gradbus_leave.
 * The first reason counts. Does not wait: a call that gave GRADBUS_AGAIN still wants its gradbus_resume. */
int32_t gradbus_cancel(gradbus_handle session, const char *reason);

/* Shards within this process, for sessions of this process. options is NULL or JSON, all of it optional:
 *   {"shards": 1, "memory_mib": 0, "checkpoint_dir": "/path", "checkpoint_keep": 2,
 *    "backend": "auto", "threads": 1, "library": "/path", "log": "/path"}
 * shards: how many each job is cut into, 1 to 64. memory_mib: MiB that jobs may hold; 0 is three quarters of the
 * machine's memory. checkpoint_dir, checkpoint_keep: where gradbus_checkpoint writes versions of jobs, and how many stay.
 * backend, threads: what computes, as the flags of ./bin/ps say; for
 * cuda, library is the path of build/libgradbus.so, since this library has no CUDA; where it is left out, the variable
 * GRADBUS_KERNEL_LIBRARY counts, as it was when this library was loaded. log: a file to which warnings are appended.
 * A value that is not finite ends the training of such a session alone (GRADBUS_JOB): gradbus_lookup, gradbus_table,
 * gradbus_digest and gradbus_save go on to give the version before. */
int32_t gradbus_local(const char *options, gradbus_handle *shards);

/* Ends the shards. Their sessions are to have left before (GRADBUS_ORDER). */
int32_t gradbus_local_close(gradbus_handle shards);

/* Waits until all trainers of a job have joined. config is JSON:
 *   {"local": HANDLE, "resume": false, "checkpoint_dir": "/path"}  of gradbus_local
 *   {"server": "nats://host:4222", "id": "t0", "token_file": "/path", "creds": "/path", "tls_ca": "/path",
 *    "tls_cert": "/path", "tls_key": "/path", "route": "direct", "reconnect_timeout": 30, "from": "/path",
 *    "resume": false, "elastic": false,
 *    "backend": "auto", "threads": 1, "library": "/path", "log": "/path"}
 * all optional: server is nats://127.0.0.1:4222, id the next free one. reconnect_timeout: seconds that a lost server
 * may take to come back before the session ends (GRADBUS_SERVER). from: a file of gradbus_save, with whose values the
 * job begins; then dense_start is NULL, tensors have the names and shapes of the job's, and every trainer reads the
 * whole file (GRADBUS_FILE, GRADBUS_CONFIG). resume: the job goes on from its newest durable version, and all of its
 * trainers say so (GRADBUS_JOB where a trainer does not, or there is none); gradbus_dense then gives the parameters of
 * that version, dense_start and from are what the job had when it began, and of dense_start the values may be others.
 * checkpoint_dir: the folder to resume from, as of gradbus_checkpoint.
 * elastic: the program computes whatever lanes gradbus_begin gives. Without it the policy of the job is "fail". The
 * file of from of an elastic program stays where it is, since the job may begin again. With "registered" the program is
 * elastic where the job is registered so. A program that says true, and no policy in its manifest, computes its own
 * lanes where the job is registered with the policy "fail".
 * The others are as above, and what the flags of ./bin/trainer of these names are. job is the manifest, JSON: name,
 * trainers, lanes, seed, optimizer {kind, lr, ...}, parameters [{name, shape, init {kind, scale}, optimizer}], tables
 * [{name, rows, dim, init {kind, scale}, optimizer, partitions}], settings {name: value} and whatever else
 * docs/protocol.md names; what is left out has its default, and the init of a parameter is zeros. A name with -- is
 * refused (GRADBUS_CONFIG) but with "derived": true in config, of a job whose name its caller derives from another's.
 * Manifests of all trainers are equal.
 *
 * dense_start has a pointer for each parameter of the manifest, in its order, to the values that the job begins with;
 * NULL where the manifest draws them. All trainers give equal values, or are refused (GRADBUS_JOB).
 *
 * *session is written before the call waits, so that gradbus_cancel can end it; it may be used for anything else after
 * GRADBUS_OK. */
int32_t gradbus_join(const char *config, const char *job, const float *const *dense_start, gradbus_handle *session);

/* The manifest with all defaults, and what this trainer is, as JSON: {"job": {...}, "member": "t0", "run": "...",
 * "shards": 1, "first_lane": 0, "lanes": 1, "version": 0, "lr_scale": 1, "goes_back": false, "elastic": false}. version
 * is how many batches are complete, more than 0 at first where the job was resumed; lr_scale is what gradbus_scale_lr
 * has multiplied rates by; goes_back says that a job whose policy is not fail goes on from its newest durable version
 * when a trainer is lost. *json is the caller's, to be given to gradbus_free. */
int32_t gradbus_job(gradbus_handle session, char **json);

/* Frees what gradbus_job, _model_job and _stats gave. NULL is nothing. */
void gradbus_free(void *p);

typedef struct {
  uint64_t number;    /* of the batch, from 0; in sync it is computed on that version */
  int32_t first_lane; /* of those to be computed, which the job assigns */
  int32_t lanes;
} gradbus_batch;

/* The next batch, at once: results of the ones before may still be under way. Follows gradbus_join or gradbus_commit.
 * Waits only for another thread that looks up. Nothing may be written to *batch where the call fails.
 *
 * If "elastic" it waits until all that was committed is complete. Where another trainer was lost meanwhile, it gives
 * further lanes of the batch that was committed last: the number is that of before, and lanes are others, and perhaps
 * more or fewer. Where the job goes on from another version, since servers were lost, it waits until it does, for as long
 * as reconnect_timeout says, and gives the batch that is computed on that version: an earlier one as a rule. So a
 * program fetches its data by (number, lane). */
int32_t gradbus_begin(gradbus_handle session, gradbus_batch *batch);

/* Waits. The dense parameters that the batch under way is computed on, as soon as the job's consistency lets it begin;
 * where none is under way, those that all batches have made that were committed. dense has a pointer for each parameter
 * of the manifest, NULL where it is not wanted. After gradbus_lookup they are there: a batch pays one round trip. */
int32_t gradbus_dense(gradbus_handle session, float *const *dense);

typedef struct {
  int32_t table; /* number in the manifest */
  int64_t count;
  const int64_t *keys;    /* [count], in any order, and as often as one likes */
  int64_t *ids;           /* out [count]: keys[i] is unique[ids[i]], and its row is rows[ids[i]] */
  int64_t *unique;        /* out [count], of which distinct are written: the distinct keys, ascending */
  int64_t distinct;       /* out */
  float *rows;            /* out [distinct, dim] of gradbus_lookup; [bags, dim] of a table that shards pool */
  int64_t bags;           /* of a table that shards pool; 0 of others */
  const int64_t *offsets; /* [bags], where each bag begins among keys: from 0 on and rising; NULL: bags of one key each,
                           * and of other tables */
} gradbus_ask;

/* Shards pool a table whose manifest has a placement, "tables" (whole on one shard) or "columns" (each shard has some
 * columns of every row), and with that a pooling, "sum" or "mean". Its asks are bags: table, count, keys, bags and
 * offsets in, rows out; distinct is 0, and ids and unique are not looked at. They go to gradbus_lookup as they are, in
 * one request with the others: gradbus_distinct refuses them. Its gradients are those of the bags. */

/* Fills ids, unique and distinct of each of n asks. A key that is negative or not below the table's rows is
 * GRADBUS_ARGUMENT; the text names table, place and key. From any thread at any time. */
int32_t gradbus_distinct(gradbus_handle session, gradbus_ask *asks, int32_t n);

/* Waits. Fills rows of each of n asks, for its distinct keys in unique; keys, count and ids are not looked at. An ask
 * for bags gets their pooled rows, zeros of an empty bag. GRADBUS_ARGUMENT where a table's asks are of the other kind.
 * One request to each shard, where it is no more than 16 MiB. From any thread.
 *
 * version -1 is that of the batch under way, or the newest complete one: the request leaves right behind what was
 * committed, and rows and results are waited for at once. In bounded the batch under way may lack some batches, as its
 * dense parameters do. Another version is GRADBUS_VERSION where the job is not at it when all that was committed is
 * complete; the request leaves then. */
int32_t gradbus_lookup(gradbus_handle session, int64_t version, gradbus_ask *asks, int32_t n);

/* The gradient of rows by that of the bags that they were pooled in: out [rows, dim] gets, for each id i of bag b,
 * grad[b], and with mean != 0 grad[b] times the reciprocal of the bag's ids, fused; sums begin at 0 and go in the order
 * of ids. ids [count] are numbers of rows, as of gradbus_distinct; offsets [bags] say where each bag begins, from 0 on
 * and rising, NULL being bags of one id; grad is [bags, dim]. What does not fit is GRADBUS_ARGUMENT, with nothing
 * written. Touches no session. From any thread at any time, and in a forked process, too. */
int32_t gradbus_bag_gradient(const int64_t *ids, int64_t count, const int64_t *offsets, int64_t bags, int32_t mean,
                             const float *grad, int64_t dim, float *out, int64_t rows);

/* Checks offsets [n], where bags begin among count ids, before anything indexes memory by them: the first is 0, none is
 * below the one before it, and the last is at most count. last != 0: there is one more than bags, where the last bag
 * ends, and it is count. No id is without a bag. GRADBUS_ARGUMENT otherwise; the text says what is wrong. Touches no
 * session. From any thread at any time, and in a forked process, too. */
int32_t gradbus_check_offsets(const int64_t *offsets, int64_t n, int64_t count, int32_t last);

typedef struct {
  int32_t table;
  int64_t count;
  const int64_t *keys; /* [count], best distinct and ascending, as unique is; else equal ones are added up in order. A
                         * table with "per_row" counts them: there each use of a row is one key with its gradient */
  const float *grad;   /* [count, dim]; [bags, dim] of a table that shards pool */
  int64_t bags;        /* these and offsets as in gradbus_ask; then keys are in any order */
  const int64_t *offsets;
} gradbus_rows;

typedef struct {
  int32_t lane;
  int32_t samples;          /* by which the lane weighs; 0: the lane is absent from the batch, has no rows, and dense is
                             * not looked at */
  double loss;              /* summed over the samples, for progress */
  const gradbus_rows *rows; /* [pieces], any number for each table; added up in this order */
  int32_t pieces;
  const float *const *dense; /* gradient of each parameter of the manifest, summed over the samples; a NULL entry, or
                              * NULL, is zeros */
} gradbus_lane_step;

/* Adds up n pieces of rows of one table as gradbus_commit adds up those of a lane, with the same bits: so a program can
 * look at the gradient of a lane, and clip it. keys [sum of counts] and grad [sum of counts, dim] have room; *distinct
 * of each are written, keys ascending. Of a table that shards pool they are then bags of one key each. From any thread
 * at any time. */
int32_t gradbus_coalesce(gradbus_handle session, const gradbus_rows *pieces, int32_t n, int64_t *keys, float *grad,
                         int64_t *distinct);

/* Waits (for room on the way, and for the batch before where neither gradbus_lookup nor _dense has). Hands over the
 * gradients of all lanes of gradbus_begin, ascending. The update divides their sum by the sum of samples.
 * gradbus_lookup, _dense and _finish wait for what comes of it. */
int32_t gradbus_commit(gradbus_handle session, const gradbus_lane_step *lanes, int32_t n);

/* Waits until all that was committed is complete; *further is 0 then. If "elastic" it is 1 where a trainer was lost
 * meanwhile, and gradbus_begin is to give lanes of the batch that was committed last. What is read before that is of
 * the version that the batch is computed on. After GRADBUS_REWOUND it waits until the job goes on, at a version that
 * gradbus_job says. GRADBUS_ORDER while a batch is under way. */
int32_t gradbus_settle(gradbus_handle session, int32_t *further);

/* Waits. Is gradbus_leave in the middle of the training: the other trainers compute the lanes of this one from now on,
 * or a new one that joins. GRADBUS_ORDER of one that is not "elastic", or where the policy of the job is "fail". */
int32_t gradbus_hand_over(gradbus_handle session);

/* Waits until all that was committed is complete. A batch that was begun and not committed is given back. The other
 * trainers then need nothing of this one until a further gradbus_begin. */
int32_t gradbus_finish(gradbus_handle session);

/* Waits. SHA-256 over all weights of the newest complete version, 32 bytes: equal weights have equal digests, whatever
 * the number of trainers and shards. */
int32_t gradbus_digest(gradbus_handle session, uint8_t digest[32]);

/* Waits. From a batch on, learning rates are scale times those of the manifest; from_batch 0 is soon. *decided, where
 * it is not NULL, is the batch. GRADBUS_JOB: the job refuses, and the session goes on. */
int32_t gradbus_scale_lr(gradbus_handle session, uint64_t from_batch, float scale, uint64_t *decided);

/* Waits. Makes the newest complete version durable, so that a job can resume from it: on the disk with the state of
 * optimizers. *version, where it is not NULL, is how many batches it has had. folder is where a session of gradbus_local
 * writes, of which one without checkpoint_dir has one for ever; NULL is the folder that is in use, and that of the ps.
 * program are bytes of the caller's that belong to the version, at most 64 MiB, of a session of gradbus_local alone.
 * GRADBUS_ORDER while a batch is under way and before the first; GRADBUS_FILE where folder cannot be used; GRADBUS_JOB
 * where the version is not written, with the reason. */
int32_t gradbus_checkpoint(gradbus_handle session, const char *folder, const void *program, int64_t bytes,
                           uint64_t *version);

/* The bytes that gradbus_checkpoint was given with the version at which the session was resumed; none where *program is
 * NULL. They are the caller's, to be given to gradbus_free. GRADBUS_FILE where they are not what was written. */
int32_t gradbus_program(gradbus_handle session, void **program, int64_t *bytes);

/* Waits. Rows first to first+count-1 of a table at the newest complete version, [count, dim]. */
int32_t gradbus_table(gradbus_handle session, int32_t table, uint64_t first, int64_t count, float *rows);

/* A tensor of the caller, in the processor's memory, row-major and contiguous. dtype is the name of its type in
 * safetensors: F64, F32, F16, BF16, I64, I32, I16, I8, U8 or BOOL. shape has dims numbers, values as many bytes as
 * follow from both. */
typedef struct {
  const char *name, *dtype;
  const int64_t *shape;
  int32_t dims;
  const void *values;
  int64_t bytes;
} gradbus_tensor;

/* Waits. Writes all weights of the newest complete version to a safetensors file, with manifest and digest; the file is
 * there whole or not at all. Rows go to it as they come from the shards, and no table is held whole. The n tensors go
 * into the file as they are; their names are in UTF-8, and none is that of another one or of a weight. metadata is a
 * JSON object whose values are strings, which go into the file's metadata; NULL is none. */
int32_t gradbus_save(gradbus_handle session, const char *path, const gradbus_tensor *tensors, int32_t n,
                     const char *metadata);

/* What the session has done so far, as JSON: counts and seconds. *json is the caller's, to be given to gradbus_free. */
int32_t gradbus_stats(gradbus_handle session, char **json);

/* Waits. Ends the membership. reason NULL: this trainer is done, what was committed is awaited, and a batch that was
 * begun and not committed is given back; else the job ends for the others with this text, whatever was finished. The
 * handle is gone, whatever comes back, unless that is GRADBUS_ORDER. */
int32_t gradbus_leave(gradbus_handle session, const char *reason);

/* A saved model, held in memory whole; needs no server. From any thread. Reads a file of gradbus_save, and checks its
 * digest. */
int32_t gradbus_open(const char *path, gradbus_handle *model);

/* {"job": {...}, "version": 7, "digest": "...", "metadata": {...}}; *json is the caller's, to be given to gradbus_free.
 * */
int32_t gradbus_model_job(gradbus_handle model, char **json);

/* Fills rows [count, dim] with the rows of keys, in their order: nothing else of an ask is looked at. */
int32_t gradbus_model_lookup(gradbus_handle model, gradbus_ask *asks, int32_t n);

/* A dense parameter, row-major, as many values as the manifest says. */
int32_t gradbus_model_param(gradbus_handle model, const char *name, float *values);

int32_t gradbus_model_close(gradbus_handle model);

#ifdef __cplusplus
}
#endif
#endif

/* gradbus.h: the C interface of the native arithmetic, the only header that other languages see.
 *
 * A backend is a table of functions (gb_api). gb_backend gives the CPU's; gb_cuda_backend gives the
 * GPU's, or NULL where the library was built without it. Every backend gives the same bits (but for
 * the payload of a NaN); in which order they add is written down in docs/kernels.md.
 *
 * Rules of the interface
 *   - Functions return a gb_status and never exit, abort, throw or print. A call that fails leaves
 * its outputs untouched, except GB_DEVICE, after which they are undefined.
 *   - Every struct that the caller fills starts with its size in bytes, and unknown bytes of a
 * longer one must be zero, else the call answers GB_UNSUPPORTED. Zero in a field is always the
 * plain case.
 *   - Operations allocate nothing. What they need beyond their arguments is the caller's workspace,
 * of any alignment, whose size is a pure function of the lengths in the arguments
 * (gb_api.workspace).
 *   - All data belong to the caller and must stay in place during the call. Inputs and outputs may
 * not overlap unless the operation says so. Pointers to no elements may be NULL. Numbers need their
 * own alignment, no more. Functions may be called from several threads at once, each with its own
 * outputs and workspace.
 *   - A stream of NULL asks for the synchronous form: when the call returns the outputs are
 * written. It is the only form that may be given memory the backend did not allocate.
 *   - With a stream the call only queues work. Arrays and workspace then lie in memory of
 * device_alloc or alloc; the report, if any, in memory of alloc, and is GB_BUSY until the work has
 * ended. The structs themselves, terms, slots and hyperparameters stay the host's and are read
 * during the call. What the host can see of the arguments is checked at once; offsets, ids and key
 * order are checked on the device, and a call that is refused there writes nothing but its report.
 * A fault of the device is in the report of stream_query and stream_wait.
 *   - Floats are stored as float32, float16 or bfloat16. Every sum, product and quotient is
 * float32, and what is stored in fewer bits is rounded once, to nearest even. Unless it is said
 * otherwise an output is float32 or of its input's type.
 */
#ifndef GRADBUS_H_
#define GRADBUS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GB_EXPORT __attribute__((visibility("default")))

/* GB_ABI is raised when something changes that appended fields cannot express. */
#define GB_ABI 3u

typedef int32_t gb_status;
enum {
  GB_OK = 0,
  GB_UNSUPPORTED = 1, /* this backend lacks the operation, the mode, the type or the field */
  GB_SHAPE = 2,       /* lengths do not fit together; report.message says which */
  GB_ARGUMENT = 3,    /* a mode, weight or hyperparameter is wrong */
  GB_ID = 4,          /* report: position of the first bad id, its value, and the limit */
  GB_ORDER = 5,       /* report: term and position of the first key not above the one before it */
  GB_NODE = 6,        /* report: the first term that is no node of the tree or not in lane order */
  GB_ROOM = 7,        /* report: value is the number of distinct keys, limit the room for them */
  GB_WORKSPACE = 8,   /* report: value is the number of bytes needed */
  GB_MEMORY = 9,      /* gb_api.open or gb_api.alloc found no memory */
  GB_DEVICE = 10,     /* the device failed or was lost; report.value is the driver's own code */
  GB_NO_DEVICE = 11,  /* no device or no driver on this machine */
  GB_NONFINITE = 12,  /* report: position of the first value that is not finite, and their number */
  GB_BUSY = 13        /* the work queued on a stream has not ended */
};

typedef uint32_t gb_dtype;
enum {
  GB_FLOAT32 = 0, /* zero, so that a struct of zeros means float32 */
  GB_FLOAT16 = 1,
  GB_BFLOAT16 = 2,
  GB_INT32 = 16,
  GB_INT64 = 17,
  GB_UINT64 = 18,
  GB_UINT8 = 19
};

typedef uint32_t gb_mode;
enum { GB_SUM = 0, GB_MEAN = 1, GB_MAX = 2 };

/* Ids out of range: refuse the call and name the first, or skip and count them. */
typedef uint32_t gb_id_policy;
enum { GB_REFUSE = 0, GB_SKIP = 1 };

/* What to do with gradient values that are NaN or Inf at the moment the optimizer would use them
 * (summed and divided): nothing, count them in report.nonfinite, or refuse the whole call. */
typedef uint32_t gb_nonfinite;
enum { GB_NONFINITE_IGNORE = 0, GB_NONFINITE_COUNT = 1, GB_NONFINITE_REFUSE = 2 };

#define GB_NO_PADDING ((int64_t)-1)
#define GB_POSITIONS_MAX ((int64_t)1 << 31) /* a call has fewer ids or keys than this */

typedef struct gb_context gb_context; /* an opened backend */
typedef struct gb_stream gb_stream;   /* a queue of a device; NULL is the synchronous form */

/* gb_in is n elements to be read, gb_out n elements to be written. */
typedef struct gb_in {
  const void* data;
  int64_t n;
  gb_dtype dtype;
  uint32_t reserved;
} gb_in;

typedef struct gb_out {
  void* data;
  int64_t n;
  gb_dtype dtype;
  uint32_t reserved;
} gb_out;

typedef struct gb_workspace {
  void* data;
  uint64_t bytes;
} gb_workspace;

/* gb_report says more than the status. Every call fills it; message is static text or NULL. */
typedef struct gb_report {
  uint32_t size;
  gb_status status;
  int64_t count;                  /* distinct keys written by the operations that write keys */
  int64_t position, value, limit; /* of the first fault */
  int64_t term;                   /* which term a fault is in */
  int64_t skipped;                /* ids out of range that were skipped */
  int64_t nonfinite;              /* values that are not finite, where the call was to count them */
  const char* message;
} gb_report;

/* out[b] = mode over i in [offsets[b], offsets[b+1]) of weights[i] * rows[ids[i]].
 * rows [R, dim], ids [N] int32 or int64, offsets [B+1] int32 or int64, from 0 to N and never
 * falling; with open_offsets they are [B], and the last bag ends at N. out [B, dim]. weights [N]
 * float32 or empty; only with sum. Positions with the padding id, and skipped ones, are neither
 * read nor counted. An empty bag is a zero row. Max passes NaN on and takes the first of equals;
 * argmax [B, dim] int32, empty or only with max, is the position in ids of the row that was taken,
 * -1 in an empty bag. {1 2|10 20|100 200}, ids 0 2 1, offsets 0 2 3 -> {101 202|10 20} */
typedef struct gb_bag_forward_args {
  uint32_t size;
  gb_mode mode;
  int64_t dim, padding;
  gb_id_policy policy;
  uint32_t open_offsets;
  gb_in rows, ids, offsets, weights;
  gb_out out, argmax;
} gb_bag_forward_args;

/* The gradient of bag_forward with respect to rows, coalesced: distinct ids ascending to keys
 * (int64), and to out the sums over their positions, ascending, of grad_out[bag] divided first by
 * the bag's length (mean), multiplied first by weights[i] (sum with weights), or, with max, only
 * where argmax, which must be forward's, names the position. keys need room for the distinct ids,
 * out for as many rows as keys. rows is R. The number of ids written is report.count. out is
 * float32 or of grad_out's type. */
typedef struct gb_bag_backward_args {
  uint32_t size;
  gb_mode mode;
  int64_t dim, padding;
  gb_id_policy policy;
  uint32_t open_offsets;
  int64_t rows;
  gb_in ids, offsets, weights, argmax, grad_out;
  gb_out keys, out;
} gb_bag_backward_args;

/* Sums the rows of equal keys in order of position, each sum divided once by weight (0: not
 * divided): keys 9 5 9, rows 1|2|4 -> keys 5 9, rows 2|5. */
typedef struct gb_coalesce_args {
  uint32_t size;
  float weight;
  int64_t dim;
  gb_in keys, rows;          /* keys uint64, int64 or int32, not negative */
  gb_out out_keys, out_rows; /* out_keys of the keys' type */
} gb_coalesce_args;

/* A node of the lane tree: lanes [first, first+count). */
typedef struct gb_node {
  uint32_t first, count;
} gb_node;

typedef struct gb_rows_term {
  gb_node node;
  gb_in keys, rows; /* keys uint64, strictly ascending */
} gb_rows_term;

/* Adds sparse terms along the lane tree: the union of keys ascending; a term without a key is
 * skipped for it. Each sum is divided once by weight (0: not divided). All terms' rows are of one
 * type. */
typedef struct gb_merge_args {
  uint32_t size;
  float weight;
  int64_t dim, lanes;
  const gb_rows_term* terms;
  int64_t terms_n;
  gb_out out_keys, out_rows;
} gb_merge_args;

/* An optimizer: its kind, a block of hyperparameters whose meaning is the kind's, and named slots.
 * Slots are matched by name, in any order. p, d and slots are float32 while they are worked on; a
 * product is rounded before it is added. d = grad/weight, clipped as gb_clip says, then, where
 * weight_decay is not 0, d = d + weight_decay*p.
 *
 * GB_SGD, PyTorch's form. Slot "momentum" [dim values a row], where momentum is not 0:
 *   m = momentum*m + (1-dampening)*d, at the first step m = d
 *   p = p - lr*u, u = nesterov ? d + momentum*m : m (without momentum: u = d)
 * GB_ROWWISE_ADAGRAD. Slot "sum" [one float32 a row]:
 *   s = s + columns(d*d)/dim;  p = p - lr*(d/(sqrt(s) + eps))
 *   columns(x): 16 partial sums, the j-th over x[j], x[j+16], ... in turn from +0, then
 *   pairwise: i with i+8, i+4, i+2, i+1.
 * GB_ADAGRAD. The same with "sum" [dim values a row] and s = s + d*d.
 * GB_ADAM. Slots "mean" and "square" [dim values a row]. step counts from 1:
 *   mean = beta1*mean + (1-beta1)*d;  square = beta2*square + ((1-beta2)*d)*d
 *   p = p - (lr/b1)*(mean/(sqrt(square)/b2 + eps)),  b1 = 1 - beta1^step,
 *   b2 = sqrt(1 - beta2^step)
 *   The powers are double, by repeated squaring of the float32 beta; b1 and b2 are rounded to
 *   float32 once, and lr/b1 is a float32 division. 1-beta1, 1-beta2, 1-dampening are float32.
 * GB_ADAMW, decoupled decay: gb_adam, with p*shrink for p in the last line and no decay in d;
 *   shrink = 1 - lr*weight_decay in double, rounded once.
 * GB_FTRL, FTRL-proximal (McMahan et al. 2013, algorithm 1). Slots "z" and "n" [dim values a row],
 *   z being lr times the paper's; l = lr*l1, base = beta + lr*l2, sign(0) = 0:
 *   where n is 0: z = -(p*base + sign(p)*l)
 *   n' = n + d*d;  z = (z + lr*d) - (sqrt(n') - sqrt(n))*p
 *   p = n' is 0 ? p : |z| <= l ? 0 : (sign(z)*l - z)/(sqrt(n') + base) */
enum { GB_SGD = 1, GB_ROWWISE_ADAGRAD = 2, GB_ADAM = 3, GB_ADAGRAD = 4, GB_ADAMW = 5, GB_FTRL = 6 };

typedef struct gb_sgd {
  float lr, momentum, dampening, weight_decay;
  uint32_t nesterov, reserved;
} gb_sgd;

typedef struct gb_adagrad {
  float lr, eps, weight_decay;
  uint32_t reserved;
} gb_adagrad;

typedef struct gb_adam {
  float lr, beta1, beta2, eps, weight_decay;
  uint32_t reserved;
  uint64_t step;
} gb_adam;

typedef struct gb_ftrl {
  float lr, beta, l1, l2;
} gb_ftrl;

/* What becomes of d = grad/weight before weight decay, after it is looked at for NaN, which stays.
 * GB_CLIP_SCALE: d = d*by, by at least 0 (the global norm's factor, which the caller knows)
 * GB_CLIP_VALUE: d to [-by, by], by above 0
 * GB_CLIP_ROW: d = d*(by/norm) for a row whose norm sqrt(columns(d*d)) is above by, which is above
 *   0; not of dense tensors. A norm that overflows makes a row of finite values zero. */
enum { GB_CLIP_NONE = 0, GB_CLIP_SCALE = 1, GB_CLIP_VALUE = 2, GB_CLIP_ROW = 3 };

typedef struct gb_clip {
  uint32_t kind;
  float by; /* 0 with GB_CLIP_NONE */
} gb_clip;

typedef struct gb_slot {
  const char* name;
  gb_in before; /* of all rows, or of the dense tensor */
  gb_out after; /* of the rows written: laid out as the operation's out; of before's type */
} gb_slot;

typedef struct gb_optimizer {
  uint32_t kind;
  uint32_t hyper_bytes;
  const void* hyper;    /* gb_sgd, gb_adagrad (both), gb_adam (both) or gb_ftrl; host memory, read
                           during the call */
  const gb_slot* slots; /* host memory, read during the call */
  int64_t slots_n;
  gb_clip clip;
} gb_optimizer;

/* Which steps a row has had. Rows are lazy: those that no gradient names do not move. With exact
 * a row first makes up for the steps it sat out, each as if with a gradient of zero, so that the
 * table is bit for bit what dense steps make of it; not for GB_ADAM, GB_ADAMW and GB_FTRL.
 * last[row] is the number of the step that wrote the row, 0 for none; last_after, laid out as the
 * operation's out rows, gets step. Both are int64, and empty where neither the first step of a row
 * nor exact matters: every row then counts as having had a step. step, from 1, is the number of
 * this one. */
typedef struct gb_steps {
  gb_in last;
  gb_out last_after;
  int64_t step;
  uint32_t exact, reserved;
} gb_steps;

/* The optimizer on the rows index[i] of table, grad [n, dim] being divided once by weight. The new
 * rows go to out [n, dim], separate memory, so that the version before stays readable; an index
 * that comes twice gives its result twice, both from the table. Or out is the table itself: then
 * every slot's after is its before and last_after is last, row i goes to index[i], and index must
 * be strictly ascending. first[i] is not 0 where the row has had no step yet; empty where
 * steps.last is given or where every row has had one. With skip, rows of a bad index are neither
 * read nor written. */
typedef struct gb_apply_rows_args {
  uint32_t size;
  float weight;
  int64_t dim;
  gb_id_policy policy;
  gb_nonfinite nonfinite;
  gb_optimizer optimizer;
  gb_steps steps;
  gb_in table, index, first, grad; /* index int64 or int32, first uint8 */
  gb_out out;
} gb_apply_rows_args;

/* coalesce and apply_rows in one pass, bit for bit what the two give in turn: the rows of equal
 * keys are summed, divided once by weight, and the optimizer runs on the table's row of that key.
 * keys [N] are rows of the table; out_keys [>= distinct] int64, ascending; out [>= distinct, dim]
 * or the table itself, when out_keys may be empty. report.count is the number of distinct keys. */
typedef struct gb_coalesce_apply_args {
  uint32_t size;
  float weight;
  int64_t dim;
  gb_id_policy policy;
  gb_nonfinite nonfinite;
  gb_optimizer optimizer;
  gb_steps steps;
  gb_in table, keys, rows; /* keys int64, int32 or uint64 */
  gb_out out_keys, out;
} gb_coalesce_apply_args;

/* The optimizer on a dense tensor of n/dim rows. out may be param itself, and a slot's after its
 * before. dim matters to row-wise optimizers only. */
typedef struct gb_apply_dense_args {
  uint32_t size;
  float weight;
  int64_t dim;    /* 0: one row */
  uint32_t first; /* not 0: no step before this one */
  gb_nonfinite nonfinite;
  gb_optimizer optimizer;
  gb_in param, grad;
  gb_out out;
} gb_apply_dense_args;

typedef struct gb_term {
  gb_node node;
  gb_in values;
} gb_term;

/* The sum of dense terms along the lane tree, divided once by weight. out may be one of the terms.
 * All terms are of one type; where that is float32, out may be of any type of floats. */
typedef struct gb_average_args {
  uint32_t size;
  float weight;
  int64_t lanes;
  const gb_term* terms;
  int64_t terms_n;
  gb_out out;
} gb_average_args;

/* average and apply_dense in one pass: the terms' sum along the lane tree is the gradient. */
typedef struct gb_average_apply_args {
  uint32_t size;
  float weight;
  int64_t dim;
  uint32_t first;
  gb_nonfinite nonfinite;
  int64_t lanes;
  const gb_term* terms;
  int64_t terms_n;
  gb_optimizer optimizer;
  gb_in param;
  gb_out out;
} gb_average_apply_args;

/* to = from, bytes of any type. */
typedef struct gb_copy_args {
  uint32_t size, reserved;
  const void* from;
  void* to;
  int64_t bytes;
} gb_copy_args;

/* out[i] = rows[ids[i]], bit for bit; of the CPU backend alone. rows [R, dim] of any type of
 * floats, ids [n] int32 or int64 in [0, R), out [n, dim] of rows' type. {1 2|10 20|100 200}, ids 2
 * 0 2 -> {100 200|1 2|100 200} */
typedef struct gb_gather_args {
  uint32_t size, reserved;
  int64_t dim;
  gb_in rows, ids;
  gb_out out;
} gb_gather_args;

/* c [m, n] = op(a) x op(b) (+ bias [n]), the sum over k in canonical order. a is [m, k], or [k, m]
 * with trans_a; b is [k, n], or [n, k] with trans_b. Bias may be empty. */
typedef struct gb_matmul_args {
  uint32_t size, trans_a, trans_b, reserved;
  int64_t m, n, k;
  gb_in a, b, bias;
  gb_out c;
} gb_matmul_args;

/* loss[i] = log(sum exp(x - max)) - (x[target] - max); grad = softmax - onehot, undivided. Outputs
 * not wanted are empty; targets may be empty where only probabilities are asked for. */
typedef struct gb_softmax_args {
  uint32_t size, reserved;
  int64_t classes;
  gb_in logits;
  gb_in targets; /* int32 */
  gb_out loss, grad, probabilities;
} gb_softmax_args;

/* report.position is the index of the first NaN or Inf, or -1. */
typedef struct gb_first_nonfinite_args {
  uint32_t size, reserved;
  gb_in values;
} gb_first_nonfinite_args;

/* Operations by number: for workspace sizes and for batches of commands. */
typedef uint32_t gb_op;
enum {
  GB_OP_BAG_FORWARD = 1,
  GB_OP_BAG_BACKWARD = 2,
  GB_OP_COALESCE = 3,
  GB_OP_MERGE = 4,
  GB_OP_APPLY_ROWS = 5,
  GB_OP_APPLY_DENSE = 6,
  GB_OP_AVERAGE = 7,
  GB_OP_MATMUL = 8,
  GB_OP_SOFTMAX = 9,
  GB_OP_FIRST_NONFINITE = 10,
  GB_OP_COALESCE_APPLY = 11,
  GB_OP_AVERAGE_APPLY = 12,
  GB_OP_COPY = 13,
  GB_OP_GATHER = 14
};

typedef struct gb_command {
  gb_op op;
  uint32_t reserved;
  const void* args;  /* the operation's struct */
  gb_report* report; /* of this command, or NULL */
} gb_command;

typedef struct gb_open_args {
  uint32_t size;
  uint32_t threads; /* CPU: threads of one call, the caller's among them; 0 is 1, at most 256 */
  const char* isa;  /* NULL or "": the best one. CPU: "baseline", "avx2", "avx512" */
  int32_t device;   /* which GPU */
  uint32_t reserved;
} gb_open_args;

/* A backend. Entries that it lacks are NULL; those beyond size are not there. */
typedef struct gb_api {
  uint32_t size, abi;
  const char* name; /* "cpu", "cuda" */

  gb_status (*open)(const gb_open_args*, gb_context**, gb_report*);
  void (*close)(gb_context*);
  const char* (*isa)(const gb_context*); /* "avx512", "sm_90"; valid until close */

  /* Zeroed memory for host and device, aligned to 64 bytes: on huge pages (CPU) or pinned (GPU). */
  gb_status (*alloc)(gb_context*, uint64_t bytes, void** memory, gb_report*);
  void (*free)(gb_context*, void* memory, uint64_t bytes);

  /* Bytes of workspace; args need only lengths, modes and dims. UINT64_MAX: unknown operation. */
  uint64_t (*workspace)(gb_context*, gb_op op, const void* args);

  gb_status (*bag_forward)(gb_context*, gb_stream*, const gb_bag_forward_args*, gb_workspace,
                           gb_report*);
  gb_status (*bag_backward)(gb_context*, gb_stream*, const gb_bag_backward_args*, gb_workspace,
                            gb_report*);
  gb_status (*coalesce)(gb_context*, gb_stream*, const gb_coalesce_args*, gb_workspace, gb_report*);
  gb_status (*merge)(gb_context*, gb_stream*, const gb_merge_args*, gb_workspace, gb_report*);
  gb_status (*apply_rows)(gb_context*, gb_stream*, const gb_apply_rows_args*, gb_workspace,
                          gb_report*);
  gb_status (*apply_dense)(gb_context*, gb_stream*, const gb_apply_dense_args*, gb_workspace,
                           gb_report*);
  gb_status (*average)(gb_context*, gb_stream*, const gb_average_args*, gb_workspace, gb_report*);
  gb_status (*matmul)(gb_context*, gb_stream*, const gb_matmul_args*, gb_workspace, gb_report*);
  gb_status (*softmax_cross_entropy)(gb_context*, gb_stream*, const gb_softmax_args*, gb_workspace,
                                     gb_report*);
  gb_status (*first_nonfinite)(gb_context*, gb_stream*, const gb_first_nonfinite_args*,
                               gb_workspace, gb_report*);
  gb_status (*coalesce_apply)(gb_context*, gb_stream*, const gb_coalesce_apply_args*, gb_workspace,
                              gb_report*);
  gb_status (*average_apply)(gb_context*, gb_stream*, const gb_average_apply_args*, gb_workspace,
                             gb_report*);
  gb_status (*copy)(gb_context*, gb_stream*, const gb_copy_args*, gb_workspace, gb_report*);
  /* Runs commands in order and stops at the first that fails, whose number is *done. They share
   * the workspace: as large as the largest needs. report is that of the last command run. On a
   * stream every command is queued, and its own report says how it went. */
  gb_status (*submit)(gb_context*, gb_stream*, const gb_command*, int64_t n, gb_workspace,
                      int64_t* done, gb_report*);

  /* What only a backend with a device of its own has (NULL otherwise). */
  gb_status (*device_alloc)(gb_context*, uint64_t bytes, void** memory, gb_report*); /* zeroed */
  void (*device_free)(gb_context*, void* memory);
  gb_status (*stream_open)(gb_context*, gb_stream**, gb_report*);
  void (*stream_close)(gb_context*, gb_stream*);                  /* waits for what is queued */
  gb_status (*stream_query)(gb_context*, gb_stream*, gb_report*); /* GB_OK, GB_BUSY or GB_DEVICE */
  gb_status (*stream_wait)(gb_context*, gb_stream*, gb_report*);  /* blocks the calling thread */
  /* Adds 1 to the eventfd fd when everything queued so far has ended, however it ended. */
  gb_status (*stream_notify)(gb_context*, gb_stream*, int fd, gb_report*);
  gb_status (*gather)(gb_context*, gb_stream*, const gb_gather_args*, gb_workspace, gb_report*);
} gb_api;

/* The CPU backend, or NULL where the library does not speak this abi. */
GB_EXPORT const gb_api* gb_backend(uint32_t abi);
/* The CUDA backend, or NULL where it was not compiled in; needs no driver until open is called. */
GB_EXPORT const gb_api* gb_cuda_backend(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif /* GRADBUS_H_ */

/* gradbus.h: the C interface of the native arithmetic, the only header that other languages see.
 *
 * A backend is a table of functions (gb_api). gb_backend gives the CPU's; gb_cuda_backend gives the
 * GPU's, or NULL where the library was built without it. What the operations compute, and in which
 * order they add, is written down in cuda/doc.go and cuda/cuda.go; every backend gives the same
 * bits (but for the payload of a NaN).
 *
 * Rules of the interface
 *   - Functions return a gb_status and never exit, abort, throw or print. A call that fails leaves
 * its outputs untouched, except GB_DEVICE, after which they are undefined.
 *   - Every struct that the caller fills starts with its size in bytes, and unknown bytes of a
 * longer one must be zero, else the call answers GB_UNSUPPORTED. So fields are only ever appended,
 * and zero always means "as before".
 *   - Operations allocate nothing. What they need beyond their arguments is the caller's workspace,
 * whose size is a pure function of the lengths in the arguments (gb_api.workspace); any alignment
 * will do.
 *   - All data belong to the caller and must stay in place during the call. Inputs and outputs may
 * not overlap unless the operation says so. Pointers to no elements may be NULL. Floats need the
 * alignment of a float, no more.
 *   - A stream of NULL asks for the synchronous form: when the call returns the outputs are
 * written. It is the only form that may be given memory the backend did not allocate, and the only
 * one that this version has.
 *   - Functions may be called from several threads at once, each with its own outputs and
 * workspace.
 */
#ifndef GRADBUS_H_
#define GRADBUS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define GB_EXPORT __attribute__((visibility("default")))
#else
#define GB_EXPORT
#endif

/* GB_ABI is raised when something changes that appended fields cannot express. */
#define GB_ABI 1u

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
  GB_NO_DEVICE = 11   /* no device or no driver on this machine */
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

/* What to do with ids out of range: refuse the call and name the first, or skip and count them. */
typedef uint32_t gb_id_policy;
enum { GB_REFUSE = 0, GB_SKIP = 1 };

#define GB_NO_PADDING ((int64_t)-1)

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

/* gb_report says more than the status. The library fills it in every call; message is static text
 * or NULL. */
typedef struct gb_report {
  uint32_t size;
  gb_status status;
  int64_t count;    /* distinct keys written by the operations that write keys */
  int64_t position; /* of the first fault */
  int64_t value;
  int64_t limit;
  int64_t term; /* which term a fault is in */
  const char* message;
} gb_report;

/* out[b] = mode over i in [offsets[b], offsets[b+1]) of rows[ids[i]].
 * rows [R, dim], ids [N], offsets [B+1] from 0 to N and never falling, out [B, dim]. Positions with
 * the padding id are neither read nor counted. An empty bag is a zero row. {1 2|10 20|100 200}, ids
 * 0 2 1, offsets 0 2 3 -> {101 202|10 20} */
typedef struct gb_bag_forward_args {
  uint32_t size;
  gb_mode mode;
  int64_t dim;
  int64_t padding;
  gb_in rows;
  gb_in ids;     /* int64 */
  gb_in offsets; /* int64 */
  gb_in weights; /* one factor a position; must be empty in this version */
  gb_out out;
  gb_id_policy policy;
  uint32_t reserved;
} gb_bag_forward_args;

/* The gradient of bag_forward with respect to rows, coalesced: distinct ids ascending to keys, sums
 * of grad_out rows to out, each divided first by its bag's length where the mode is mean. keys need
 * room for the distinct ids, out for as many rows as keys. rows is R. The number of ids written is
 * report.count. */
typedef struct gb_bag_backward_args {
  uint32_t size;
  gb_mode mode;
  int64_t dim;
  int64_t padding;
  int64_t rows;
  gb_in ids;
  gb_in offsets;
  gb_in weights; /* must be empty in this version */
  gb_in grad_out;
  gb_out keys; /* int64 */
  gb_out out;
  gb_id_policy policy;
  uint32_t reserved;
} gb_bag_backward_args;

/* Sums the rows of equal keys: keys 9 5 9, rows 1|2|4 -> keys 5 9, rows 2|5. */
typedef struct gb_coalesce_args {
  uint32_t size;
  uint32_t reserved;
  int64_t dim;
  gb_in keys; /* uint64 */
  gb_in rows;
  gb_out out_keys;
  gb_out out_rows;
} gb_coalesce_args;

/* A node of the lane tree: lanes [first, first+count). */
typedef struct gb_node {
  uint32_t first;
  uint32_t count;
} gb_node;

typedef struct gb_rows_term {
  gb_node node;
  gb_in keys; /* uint64, strictly ascending */
  gb_in rows;
} gb_rows_term;

/* Adds sparse terms along the lane tree: the union of keys ascending; a term without a key is
 * skipped for it. */
typedef struct gb_merge_args {
  uint32_t size;
  uint32_t reserved;
  int64_t dim;
  int64_t lanes;
  const gb_rows_term* terms;
  int64_t terms_n;
  gb_out out_keys;
  gb_out out_rows;
} gb_merge_args;

/* An optimizer: its kind, a block of hyperparameters whose meaning is the kind's, and named slots.
 * Slots are matched by name, so that their order and number are the kind's own affair. Adagrad
 * would have "sum" with one value a row, Adam "mean" and "square" with dim values. */
enum { GB_SGD = 1 };

typedef struct gb_sgd {
  float lr, momentum, dampening, weight_decay;
  uint32_t nesterov;
  uint32_t reserved;
} gb_sgd;

typedef struct gb_slot {
  const char* name; /* "momentum" */
  gb_in before;     /* [R, dim] for apply_rows, [n] for apply_dense */
  gb_out after;     /* [n, dim] compact for apply_rows, [n] for apply_dense */
} gb_slot;

typedef struct gb_optimizer {
  uint32_t kind;
  uint32_t hyper_bytes;
  const void* hyper; /* gb_sgd for GB_SGD */
  const gb_slot* slots;
  int64_t slots_n; /* GB_SGD: "momentum" where sgd.momentum is not 0, else none */
} gb_optimizer;

/* The optimizer on the rows index[i] of table, into out[i]: separate memory, so that the version
 * before stays readable. grad [n, dim] is divided once by weight. first[i] is not 0 where the row
 * has had no step yet (empty without slots). An index that comes twice gives its result twice, both
 * from the table. */
typedef struct gb_apply_rows_args {
  uint32_t size;
  float weight;
  int64_t dim;
  gb_optimizer optimizer;
  gb_in table;
  gb_in index; /* int64 */
  gb_in first; /* uint8 */
  gb_in grad;
  gb_out out;
} gb_apply_rows_args;

/* The optimizer on a dense tensor. out may be param itself, and a slot's after its before. */
typedef struct gb_apply_dense_args {
  uint32_t size;
  float weight;
  uint32_t first; /* not 0: no step before this one */
  uint32_t reserved;
  gb_optimizer optimizer;
  gb_in param;
  gb_in grad;
  gb_out out;
} gb_apply_dense_args;

typedef struct gb_term {
  gb_node node;
  gb_in values;
} gb_term;

/* The sum of dense terms along the lane tree, divided once by weight. out may be one of the terms.
 */
typedef struct gb_average_args {
  uint32_t size;
  float weight;
  int64_t lanes;
  const gb_term* terms;
  int64_t terms_n;
  gb_out out;
} gb_average_args;

/* c [m, n] = op(a) x op(b) (+ bias [n]), the sum over k in canonical order. a is [m, k], or [k, m]
 * with trans_a; b is [k, n], or [n, k] with trans_b. Bias may be empty. */
typedef struct gb_matmul_args {
  uint32_t size;
  uint32_t trans_a;
  uint32_t trans_b;
  uint32_t reserved;
  int64_t m, n, k;
  gb_in a, b, bias;
  gb_out c;
} gb_matmul_args;

/* loss[i] = log(sum exp(x - max)) - (x[target] - max); grad = softmax - onehot, undivided. Outputs
 * not wanted are empty; targets may be empty where only probabilities are asked for. */
typedef struct gb_softmax_args {
  uint32_t size;
  uint32_t reserved;
  int64_t classes;
  gb_in logits;
  gb_in targets; /* int32 */
  gb_out loss;
  gb_out grad;
  gb_out probabilities;
} gb_softmax_args;

/* report.position is the index of the first NaN or Inf, or -1. */
typedef struct gb_first_nonfinite_args {
  uint32_t size;
  uint32_t reserved;
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
  GB_OP_FIRST_NONFINITE = 10
};

typedef struct gb_command {
  gb_op op;
  uint32_t reserved;
  const void* args; /* the operation's struct */
} gb_command;

typedef struct gb_open_args {
  uint32_t size;
  uint32_t threads; /* 0 and 1: the caller's thread; more is GB_UNSUPPORTED in this version */
  const char* isa;  /* NULL or "": the best one. CPU: "baseline", "avx2", "avx512" */
  int32_t device;   /* which GPU */
  uint32_t reserved;
} gb_open_args;

/* A backend. Entries that it lacks are NULL, and so are entries beyond size: look before calling.
 */
typedef struct gb_api {
  uint32_t size;
  uint32_t abi;
  const char* name; /* "cpu", "cuda" */

  gb_status (*open)(const gb_open_args*, gb_context**, gb_report*);
  void (*close)(gb_context*);
  const char* (*isa)(const gb_context*); /* "avx512", "sm_90"; valid until close */

  /* Zeroed memory that the device can read, aligned to 64 bytes. */
  gb_status (*alloc)(gb_context*, uint64_t bytes, void** memory, gb_report*);
  void (*free)(gb_context*, void* memory, uint64_t bytes);

  /* Bytes of workspace for an operation; args need only their lengths, modes and dims. UINT64_MAX
   * for an unknown one. */
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

  /* Runs commands in order in one call and stops at the first that fails, whose number is *done.
   * The workspace is shared by all: as large as the largest needs. report is that of the last
   * command run. */
  gb_status (*submit)(gb_context*, gb_stream*, const gb_command*, int64_t n, gb_workspace,
                      int64_t* done, gb_report*);
} gb_api;

/* The CPU backend, or NULL where the library does not speak this abi. */
GB_EXPORT const gb_api* gb_backend(uint32_t abi);
/* The CUDA backend, or NULL where it was not compiled in or the abi is another. Needs no driver
 * until open is called. */
GB_EXPORT const gb_api* gb_cuda_backend(uint32_t abi);

#ifdef __cplusplus
}
#endif
#endif /* GRADBUS_H_ */

// What the checks of the arguments share. Each operation has CheckShapes, which reads no array, and
// CheckData, which does.
#ifndef GRADBUS_CORE_CHECK_H_
#define GRADBUS_CORE_CHECK_H_

#include <cmath>

#include "core/core.h"

#define GB_TRY(call)                                \
  do {                                              \
    if (const gb_status s_ = (call); s_ != GB_OK) { \
      return s_;                                    \
    }                                               \
  } while (0)

namespace gradbus {

inline gb_status Shape(gb_report* r, const char* message, int64_t have = 0, int64_t want = 0) {
  return Fail(r, GB_SHAPE, message, -1, have, want);
}

// Types is a set of types, one bit each.
using Types = uint32_t;
constexpr Types Only(gb_dtype t) { return t < 32 ? Types{1} << t : 0; }
constexpr Types kFloats = Only(GB_FLOAT32) | Only(GB_FLOAT16) | Only(GB_BFLOAT16);
constexpr Types kIds = Only(GB_INT32) | Only(GB_INT64);
constexpr Types kKeys = kIds | Only(GB_UINT64);

// Array checks length, pointer, type and alignment of an argument.
template <typename InOrOut>
gb_status Array(const InOrOut& x, Types types, const char* message, gb_report* r) {
  if (x.n < 0) return Shape(r, message, x.n);
  if (x.n > 0 && x.data == nullptr) return Shape(r, message, x.n);
  if (x.n > 0 && ((Only(x.dtype) & types) == 0 || x.reserved != 0)) {
    return Fail(r, GB_UNSUPPORTED, message, -1, x.dtype);
  }
  return GB_OK;
}

// Result checks an array of floats that is stored as float32 or as the input is.
inline gb_status Result(const gb_out& x, gb_dtype input, const char* message, gb_report* r) {
  return Array(x, Only(GB_FLOAT32) | (Only(input) & kFloats), message, r);
}

// Exactly rows x dim values; dim is at least 1.
inline bool IsRows(int64_t n, int64_t rows, int64_t dim) { return n % dim == 0 && n / dim == rows; }

inline gb_status Dim(int64_t dim, gb_report* r) {
  return dim < 1 || dim > kDimMax ? Shape(r, "dim", dim, kDimMax) : gb_status{GB_OK};
}

// Positions refuses as many ids or keys as a position cannot name.
inline gb_status Positions(int64_t n, const char* message, gb_report* r) {
  return n >= GB_POSITIONS_MAX ? Shape(r, message, n, GB_POSITIONS_MAX - 1) : gb_status{GB_OK};
}

inline gb_status Policy(gb_id_policy policy, gb_report* r) {
  return policy > GB_SKIP ? Fail(r, GB_UNSUPPORTED, "policy for ids", -1, policy)
                          : gb_status{GB_OK};
}

inline bool GoodWeight(float w) { return std::isfinite(w) && w > 0; }

// Divisor is the weight of coalesce and merge, where 0 leaves sums undivided.
inline gb_status Divisor(float w, gb_report* r) {
  return w != 0 && !GoodWeight(w)
             ? Fail(r, GB_ARGUMENT, "weight is neither 0 nor a finite number above 0")
             : gb_status{GB_OK};
}

template <typename Term>
gb_status Nodes(const Term* terms, int64_t n, int64_t lanes, gb_report* r) {
  if (n < 0 || n > kLanesMax || (n > 0 && terms == nullptr)) return Shape(r, "terms", n, kLanesMax);
  int64_t end = 0;
  for (int64_t i = 0; i < n; i++) {
    if (!IsNode(terms[i].node, lanes)) {
      return Fail(r, GB_NODE, "term is no node of the tree", -1, terms[i].node.first, lanes, i);
    }
    if (terms[i].node.first < end) {
      return Fail(r, GB_NODE, "term begins before the one before it ends", -1, terms[i].node.first,
                  end, i);
    }
    end = static_cast<int64_t>(terms[i].node.first) + terms[i].node.count;
  }
  return GB_OK;
}

// Values checks the terms of a dense sum: at least one, of one type, each of n values.
inline gb_status Values(const gb_term* terms, int64_t terms_n, int64_t lanes, int64_t n,
                        gb_report* r) {
  if (terms_n < 1) return Shape(r, "no terms: a round without a term has no average");
  GB_TRY(Nodes(terms, terms_n, lanes, r));
  for (int64_t i = 0; i < terms_n; i++) {
    const gb_in& v = terms[i].values;
    GB_TRY(Array(v, kFloats, "values of a term", r));
    if (v.n != n) return Fail(r, GB_SHAPE, "values of a term", -1, v.n, n, i);
    if (n > 0 && v.dtype != terms[0].values.dtype) {
      return Fail(r, GB_UNSUPPORTED, "terms of different types", -1, v.dtype, terms[0].values.dtype,
                  i);
    }
  }
  return GB_OK;
}

// IdsInRange finds the first id outside of [0, limit) that is not padding; with the policy to skip
// there is none. ids are of kKeys.
gb_status IdsInRange(const gb_in& ids, int64_t limit, int64_t padding, gb_id_policy policy,
                     const char* message, gb_report* r);

}  // namespace gradbus

#endif  // GRADBUS_CORE_CHECK_H_

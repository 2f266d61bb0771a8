// Checks that every engine must pass, one layer below Communicator, and helpers
// for elements of any type.
//
//   // On every rank of the group, as threads or processes:
//   CheckCollectives(*engine, {});
//
// Every rank of the group calls the same checks in the same order; failures are
// reported through GoogleTest on the rank that detects them.
#ifndef TESSERA_COLLECTIVES_TESTING_ENGINE_CHECKS_H_
#define TESSERA_COLLECTIVES_TESTING_ENGINE_CHECKS_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/dtype/dtype_traits.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/operation_context.h"
#include "collectives/operation/operation.h"
#include "collectives/operation/signature.h"
#include "collectives/reduction/reduction.h"

namespace tessera::collectives {

inline double LoadElement(DType dtype, const void* at) {
  return DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return static_cast<double>(value);
  });
}

inline void StoreElement(DType dtype, double value, void* at) {
  DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
    T stored;
    if constexpr (std::is_integral_v<T>) {
      stored = static_cast<T>(static_cast<int64_t>(value));
    } else if constexpr (std::is_same_v<T, double>) {
      stored = value;
    } else {
      stored = T(static_cast<float>(value));
    }
    std::memcpy(at, &stored, sizeof(T));
  });
}

// `value` rounded to `dtype`.
inline double Rounded(DType dtype, double value) {
  std::byte memory[8] = {};
  StoreElement(dtype, value, memory);
  return LoadElement(dtype, memory);
}

// Element `i` of the input of `rank`: exact in `dtype`, and small enough for
// the product over nine ranks.
inline double Element(DType dtype, ReduceOp op, int64_t rank, int64_t i) {
  uint64_t hash = static_cast<uint64_t>(rank * 1'000'003 + i + 1);
  hash *= 0x9e3779b97f4a7c15ULL;
  hash ^= hash >> 32;
  const bool product = op == ReduceOp::kProduct;
  if (IsInteger(dtype)) {
    const auto range = static_cast<int64_t>(hash % (product ? 3 : 13));
    return static_cast<double>(dtype == DType::kU8 ? range
                                                   : range - (product ? 1 : 6));
  }
  const double unit = static_cast<double>(hash % 4096) / 4096.0;
  return Rounded(dtype, product ? 0.5 + unit : 4 * unit - 2);
}

struct Reference {
  double value = 0;
  double tolerance = 0;
};

// The reduction of element `i` over all ranks in double precision, and the
// tolerance if every step is rounded to `dtype`.
inline Reference ReduceElements(DType dtype, const Reduction& reduction,
                                int64_t ranks, int64_t i) {
  Reference reference;
  double magnitude = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    double x = Element(dtype, reduction.op, r, i);
    if (reduction.op == ReduceOp::kScaledSum) x *= reduction.scale;
    double& sum = reference.value;
    switch (r == 0 ? ReduceOp::kSum : reduction.op) {
      case ReduceOp::kProduct:
        sum *= x;
        break;
      case ReduceOp::kMin:
        sum = std::min(sum, x);
        break;
      case ReduceOp::kMax:
        sum = std::max(sum, x);
        break;
      case ReduceOp::kBitAnd:
        sum = static_cast<double>(static_cast<int64_t>(sum) &
                                  static_cast<int64_t>(x));
        break;
      case ReduceOp::kBitOr:
        sum = static_cast<double>(static_cast<int64_t>(sum) |
                                  static_cast<int64_t>(x));
        break;
      case ReduceOp::kBitXor:
        sum = static_cast<double>(static_cast<int64_t>(sum) ^
                                  static_cast<int64_t>(x));
        break;
      default:
        sum += x;
    }
    magnitude += std::abs(x);
  }
  if (reduction.op == ReduceOp::kProduct) magnitude = 2 * reference.value;
  if (IsInteger(dtype)) reference.value = Rounded(dtype, reference.value);
  if (reduction.op == ReduceOp::kAverage) {
    reference.value /= static_cast<double>(ranks);
    if (IsInteger(dtype)) reference.value = std::trunc(reference.value);
  }
  const bool exact = IsInteger(dtype) || reduction.op == ReduceOp::kMin ||
                     reduction.op == ReduceOp::kMax;
  const double unit = dtype == DType::kF64    ? 1.2e-16
                      : dtype == DType::kF32  ? 6e-8
                      : dtype == DType::kF16  ? 5e-4
                      : dtype == DType::kBF16 ? 4e-3
                                              : 0;
  if (!exact) {
    reference.tolerance =
        unit * std::abs(magnitude) * static_cast<double>(ranks + 1);
  }
  return reference;
}

// Runs collectives on an engine as Communicator does.
class Caller {
 public:
  explicit Caller(Engine& engine, absl::Duration timeout = absl::Seconds(60))
      : engine_(engine), timeout_(timeout) {}

  // Uses the engine if it implements the kind, otherwise an algorithm over its
  // messages.
  absl::Status Run(const Operation& operation);

  int64_t Deadline() const;
  // The signature of message `number`.
  static Signature MessageSignature(uint64_t number, int64_t bytes);

 private:
  Engine& engine_;
  absl::Duration timeout_;
  Scratch scratch_;
  uint64_t sequence_ = 0;
};

struct CollectiveChecks {
  std::vector<int64_t> counts = {0, 1, 7, 1001};
  std::vector<int64_t> large_counts = {70'001};  // f32 and bf16 alone.

  // Allocates memory that this process and the engine can access. Null:
  // ordinary memory.
  std::function<std::shared_ptr<std::byte>(int64_t bytes)> allocate = nullptr;
};

// All kinds x types x reductions x counts, even and uneven, in place and not,
// against exact or double-precision references.
void CheckCollectives(Engine& engine, const CollectiveChecks& checks);

// Messages of all sizes on both lanes: order, many in flight, to itself, all to
// all with sends awaited first, Test until complete.
void CheckMessages(Engine& engine);

// The last rank does not call: the others get DeadlineExceeded in time, from a
// collective (`collective`) or a message. Breaks the group. Every rank returns.
void CheckLateRank(Engine& engine, bool collective);

// Rank 0 aborts while all others wait in a collective or for a message; they
// return long before their deadline if `reaches_peers`. Breaks the group.
void CheckAbort(Engine& engine, bool collective, bool reaches_peers);

// Rank 0's call differs (`collective`) or its message does: FailedPrecondition
// with both sides on the ranks that detect it. Breaks the group.
void CheckMismatch(Engine& engine, bool collective);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_ENGINE_CHECKS_H_

// BytesOnWire of cost.h.

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/algorithms/bruck_schedule.h"
#include "collectives/algorithms/check_question.h"
#include "collectives/algorithms/chunks.h"
#include "collectives/algorithms/cost.h"
#include "collectives/algorithms/fold.h"
#include "collectives/algorithms/supports.h"
#include "collectives/algorithms/tree_kind.h"

namespace tessera::collectives {
namespace {

// What virtual rank 0 sends when all double what they have, and to the rank
// that folded into it.
int64_t DoublingAllGatherBytes(int64_t s, int64_t n) {
  const Fold fold(n);
  int64_t blocks = 0;
  for (int64_t width = 1; width < fold.power(); width *= 2) {
    blocks += width + std::min(width, fold.extra());
  }
  return blocks * (s / n) + (fold.extra() > 0 ? s : 0);
}

int64_t AllReduceBytes(Algorithm algorithm, int64_t s, int64_t n) {
  const Fold fold(n);
  const int64_t folded = fold.extra() > 0 ? s : 0;
  switch (algorithm) {
    case Algorithm::kTree:
      if (TreeKindFor(s, n) == TreeKind::kBinomial) return CeilLog2(n) * s;
      return n == 3 ? s + s / 2 : 2 * s;
    case Algorithm::kChain:
      return n == 2 ? s : 2 * s;
    case Algorithm::kRecursiveDoubling:
      return FloorLog2(n) * s + folded;
    case Algorithm::kHalvingDoubling:
      return 2 * (s - s / fold.power()) + folded;
    default:  // kRing, kPairwise
      return 2 * (s - s / n);
  }
}

int64_t ReduceBytes(Algorithm algorithm, int64_t s, int64_t n) {
  if (algorithm != Algorithm::kHalvingDoubling) return s;
  return s - s / Fold(n).power() + s / 2;
}

int64_t BroadcastBytes(Algorithm algorithm, int64_t s, int64_t n) {
  switch (algorithm) {
    case Algorithm::kTree:
      return TreeKindFor(s, n) == TreeKind::kBinomial ? CeilLog2(n) * s : s;
    case Algorithm::kChain:
      return s;
    default:  // kHalvingDoubling
      return s - s / n + DoublingAllGatherBytes(s, n);
  }
}

// The largest subtree below the root of the binomial tree.
int64_t GatherBytes(Algorithm algorithm, int64_t s, int64_t n) {
  if (algorithm == Algorithm::kPairwise) return s / n;
  const int64_t half = int64_t{1} << (CeilLog2(n) - 1);
  return std::max(n - half, half / 2) * (s / n);
}

int64_t AllToAllBytes(Algorithm algorithm, int64_t s, int64_t n) {
  if (algorithm == Algorithm::kPairwise) return s - s / n;
  int64_t slots = 0;
  for (int64_t k = 0; k < CeilLog2(n); ++k) slots += BruckMovingSlots(n, k);
  return slots * (s / n);
}

}  // namespace

absl::Status CheckQuestion(const CostQuestion& question) {
  if (!Supports(question.algorithm, question.kind, false)) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm ", AlgorithmName(question.algorithm),
                     " has no ", OpKindName(question.kind)));
  }
  if (question.bytes >= 0 && question.ranks >= 1 && question.chunk_bytes >= 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "a cost for ", question.bytes, " bytes, ", question.ranks,
      " ranks and chunks of ", question.chunk_bytes,
      "; at least 0 bytes, 1 rank and chunks of 1 byte are needed"));
}

absl::StatusOr<int64_t> BytesOnWire(const CostQuestion& question) {
  TESSERA_RETURN_IF_ERROR(CheckQuestion(question));
  const Algorithm algorithm = question.algorithm;
  if (algorithm == Algorithm::kHierarchical) {
    return absl::UnimplementedError(
        "bytes on the wire of hierarchical algorithms; ask for each level");
  }
  const int64_t s = question.bytes;
  const int64_t n = question.ranks;
  if (n == 1) return 0;
  switch (question.kind) {
    case OpKind::kAllReduce:
      return AllReduceBytes(algorithm, s, n);
    case OpKind::kReduce:
      return ReduceBytes(algorithm, s, n);
    case OpKind::kBroadcast:
      return BroadcastBytes(algorithm, s, n);
    case OpKind::kReduceScatter:
      return algorithm == Algorithm::kHalvingDoubling && Fold(n).extra() > 0
                 ? s
                 : s - s / n;
    case OpKind::kAllGather:
      return algorithm == Algorithm::kRecursiveDoubling
                 ? DoublingAllGatherBytes(s, n)
                 : s - s / n;
    case OpKind::kGather:
      return GatherBytes(algorithm, s, n);
    case OpKind::kScatter:
      return s - s / n;
    case OpKind::kAllToAll:
      return AllToAllBytes(algorithm, s, n);
    default:
      return 0;
  }
}

}  // namespace tessera::collectives

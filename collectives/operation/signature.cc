#include "collectives/operation/signature.h"

#include <bit>

#include "absl/strings/str_cat.h"

namespace tessera::collectives {
namespace {

// The finaliser of MurmurHash3: every input bit affects every output bit.
constexpr uint64_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ x >> 33;
}

uint32_t HashDetails(const Operation& operation) {
  uint64_t hash = 0;
  if (operation.kind != OpKind::kAllToAll) {
    for (int64_t count : operation.counts) {
      hash = Mix(hash + 1 + static_cast<uint64_t>(count));
    }
  } else if (operation.uneven()) {
    hash = 1;
  }
  if (operation.reduction.op == ReduceOp::kScaledSum) {
    hash = Mix(hash ^ std::bit_cast<uint64_t>(operation.reduction.scale));
  }
  if (operation.label != 0) hash = Mix(hash ^ (uint64_t{operation.label} << 8));
  return static_cast<uint32_t>(hash ^ hash >> 32);
}

// The name of the most important difference between the calls; null if there is
// none.
const char* FirstDifference(const Signature& a, const Signature& b) {
  if (a.group != b.group) return "group";
  if (a.kind != b.kind) return "operation";
  if (a.dtype != b.dtype) return "element type";
  if (a.count != b.count) return "count";
  if (a.root != b.root) return "root";
  if (a.reduce != b.reduce) return "reduction";
  if (a.algorithm != b.algorithm) return "algorithm";
  if (a.details != b.details) return "uneven counts, scale factor or label";
  if (a.sequence != b.sequence) return "order";
  return nullptr;
}

}  // namespace

Signature SignatureOf(const Operation& operation, int64_t world, uint32_t group,
                      uint64_t sequence, Algorithm algorithm) {
  Signature signature;
  signature.sequence = sequence;
  signature.group = group;
  signature.kind =
      IsCollective(operation.kind) ? operation.kind : OpKind::kSend;
  signature.dtype = DTypeOf(operation);
  signature.algorithm = algorithm;
  const bool ranks_differ =
      operation.kind == OpKind::kAllToAll && operation.uneven();
  if (!ranks_differ) signature.count = MessageCount(operation, world);
  if (HasRoot(operation.kind)) {
    signature.root = static_cast<int32_t>(operation.root.value());
  }
  if (operation.tag != kNoTag) signature.root = operation.tag;
  if (Reduces(operation.kind)) signature.reduce = operation.reduction.op;
  if (operation.uneven() || Reduces(operation.kind) || operation.label != 0) {
    signature.details = HashDetails(operation);
  }
  return signature;
}

uint32_t Fingerprint(const Signature& signature) {
  const uint64_t small = static_cast<uint64_t>(signature.kind) |
                         static_cast<uint64_t>(signature.dtype) << 8 |
                         static_cast<uint64_t>(signature.reduce) << 16 |
                         static_cast<uint64_t>(signature.algorithm) << 24 |
                         static_cast<uint64_t>(signature.details) << 32;
  const uint64_t place =
      static_cast<uint64_t>(signature.group) << 32 |
      static_cast<uint64_t>(static_cast<uint32_t>(signature.root));
  const uint64_t hash =
      Mix(Mix(small + 0x9e3779b97f4a7c15ULL) ^
          Mix(static_cast<uint64_t>(signature.count) + Mix(place)));
  const auto folded = static_cast<uint32_t>(hash ^ hash >> 32);
  return folded == 0 ? 1 : folded;
}

std::string DescribeSignature(const Signature& signature) {
  std::string text(OpKindName(signature.kind));
  // A receive with a tag does not know the number of its message.
  if (signature.sequence > 0 || signature.kind != OpKind::kSend) {
    absl::StrAppend(&text, " #", signature.sequence);
  }
  if (signature.kind != OpKind::kBarrier) {
    absl::StrAppend(&text, " of ", signature.count, " ",
                    DTypeName(signature.dtype));
  }
  if (Reduces(signature.kind)) {
    absl::StrAppend(&text, ", ", ReduceOpName(signature.reduce));
  }
  if (signature.root >= 0) {
    absl::StrAppend(&text,
                    signature.kind == OpKind::kSend ? ", tag " : ", root ",
                    signature.root);
  }
  return absl::StrCat(text, ", ", AlgorithmName(signature.algorithm));
}

absl::Status MismatchError(const Signature& mine, Rank my_rank,
                           const Signature& theirs, Rank their_rank) {
  // The text does not depend on which rank detects the mismatch.
  if (their_rank < my_rank) {
    return MismatchError(theirs, their_rank, mine, my_rank);
  }
  const char* difference = FirstDifference(mine, theirs);
  return absl::FailedPreconditionError(absl::StrCat(
      "ranks of one group called different operations: rank ", my_rank.value(),
      " called ", DescribeSignature(mine), "; rank ", their_rank.value(),
      " called ", DescribeSignature(theirs), "; they differ in ",
      difference == nullptr ? "values that signatures do not include"
                            : difference,
      ". Every rank must make the same calls in the same order"));
}

}  // namespace tessera::collectives

#include "collectives/algorithms/run_algorithm.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "collectives/algorithms/chunks.h"
#include "collectives/algorithms/run_task.h"
#include "collectives/algorithms/supports.h"

namespace tessera::collectives {
namespace {

absl::Status Check(Algorithm algorithm, const Operation& operation,
                   int64_t ranks, const AlgorithmOptions& options) {
  if (!Supports(algorithm, operation.kind, operation.uneven())) {
    return NoSuchForm(algorithm, operation.kind, operation.uneven());
  }
  if (options.chunk_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "chunk_bytes of ", options.chunk_bytes, "; at least 1 is needed, ",
        kDefaultChunkBytes, " is the default"));
  }
  if (options.hierarchy != nullptr && options.hierarchy->ranks() != ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("the hierarchy has ", options.hierarchy->ranks(),
                     " ranks, the group ", ranks, "; they must be the same"));
  }
  return absl::OkStatus();
}

absl::Status RunTaskOfKind(RunTask& task) {
  switch (task.operation.kind) {
    case OpKind::kAllReduce:
      return RunAllReduce(task);
    case OpKind::kReduce:
      return RunReduce(task);
    case OpKind::kReduceScatter:
      return RunReduceScatter(task);
    case OpKind::kAllGather:
      return RunAllGather(task);
    case OpKind::kBroadcast:
      return RunBroadcast(task);
    case OpKind::kGather:
      return RunGather(task);
    case OpKind::kScatter:
      return RunScatter(task);
    case OpKind::kAllToAll:
      return RunAllToAll(task);
    case OpKind::kBarrier:
      return RunBarrier(task);
    default:
      return NoSuchForm(task.algorithm, task.operation.kind, false);
  }
}

}  // namespace

absl::Status NoSuchForm(Algorithm algorithm, OpKind kind, bool uneven) {
  const std::string others = absl::StrJoin(
      AlgorithmsFor(kind, uneven), ", ", [](std::string* out, Algorithm a) {
        absl::StrAppend(out, AlgorithmName(a));
      });
  return absl::InvalidArgumentError(absl::StrCat(
      "algorithm ", AlgorithmName(algorithm), " has no ",
      uneven ? "uneven " : "", OpKindName(kind),
      others.empty() ? "; no algorithm has" : "; there are ", others));
}

absl::Status RunAlgorithm(Algorithm algorithm, const Operation& operation,
                          Transport& transport, const AlgorithmOptions& options,
                          OperationContext& context) {
  const int64_t ranks = transport.size();
  TESSERA_RETURN_IF_ERROR(Check(algorithm, operation, ranks, options));
  std::optional<Hierarchy> flat;
  if (options.hierarchy == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(flat, Hierarchy::Flat(ranks));
  }
  const int64_t element = SizeInBytes(DTypeOf(operation));
  RunTask task = {.algorithm = algorithm,
                  .operation = operation,
                  .options = options,
                  .hierarchy = flat.has_value() ? *flat : *options.hierarchy,
                  .party = Party(transport, context, AlgorithmName(algorithm)),
                  .element = element,
                  .chunk = ChunkElements(options.chunk_bytes, element)};
  return RunTaskOfKind(task);
}

}  // namespace tessera::collectives

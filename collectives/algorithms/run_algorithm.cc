
#include "collectives/algorithms/run_algorithm.h"

#include <optional>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/algorithms/doubling.h"
#include "collectives/algorithms/exchange.h"
#include "collectives/algorithms/layered.h"
#include "collectives/algorithms/rank_group.h"
#include "collectives/algorithms/ring.h"
#include "collectives/algorithms/schedule.h"
#include "collectives/algorithms/trees.h"

namespace tessera::collectives {
namespace {

struct RunTask {
  Algorithm algorithm;
  const Operation& operation;
  const AlgorithmOptions& options;
  const Hierarchy& hierarchy;
  RankGroup group;
  int64_t element;  // Bytes per element.
  int64_t chunk;    // Elements per chunk.

  int64_t ranks() const { return group.size(); }
  bool IsRoot() const { return operation.root == group.RankOf(group.rank()); }
  ConstVectorView input() const { return {operation.input.Bytes(), element}; }
  VectorView output() const { return {operation.output.Bytes(), element}; }
};

// The error for combinations that no switch covers.
absl::Status NoSuchForm(Algorithm algorithm, OpKind kind, bool uneven);

absl::Status RunAllReduce(RunTask& task);
absl::Status RunReduce(RunTask& task);
absl::Status RunReduceScatter(RunTask& task);

absl::Status RunAllGather(RunTask& task);
absl::Status RunBroadcast(RunTask& task);
absl::Status RunGather(RunTask& task);
absl::Status RunScatter(RunTask& task);
absl::Status RunAllToAll(RunTask& task);
absl::Status RunBarrier(RunTask& task);

// Gathers all slices of `all` on all ranks with the task's algorithm. Each rank
// starts with its own slice.
absl::Status SpreadSlices(RunTask& task, const Blocks& slices, VectorView all);

Layered LayeredOf(const RunTask& task) {
  return Layered(task.group, task.hierarchy, task.chunk);
}

// Copies unless the operation is in place.
void Place(RunTask& task, std::byte* to, const std::byte* from, int64_t count) {
  if (to == from || count == 0) return;
  task.group.Enter(Phase::kCopying);
  CopyBytes(to, from, count * task.element);
}

// Broadcasts from `root`, whose `input` may be its `data`.
absl::Status TreeBroadcastFrom(RunTask& task, int64_t root, int64_t count,
                               ConstVectorView input, VectorView data) {
  const TreeKind kind = task.algorithm == Algorithm::kChain
                            ? TreeKind::kChain
                            : TreeKindFor(count * task.element, task.ranks());
  return TreeBroadcast(task.group.From(root), {.kind = kind,
                                               .count = count,
                                               .chunk = task.chunk,
                                               .input = input,
                                               .output = data,
                                               .reducer = {}});
}

// Van de Geijn's broadcast: scatters slices along a binomial tree, then
// all-gathers.
absl::Status ScatterAllGather(RunTask& task, VectorView data) {
  const int64_t root = task.operation.root.value();
  const Blocks slices =
      Blocks::Balanced(task.ranks(), task.operation.output.count);
  TESSERA_RETURN_IF_ERROR(
      BinomialScatter(task.group, root, slices, data,
                      data.From(slices.offset(task.group.rank()))));
  return DoublingAllGather(task.group, slices, data);
}

absl::Status SpreadSlices(RunTask& task, const Blocks& slices, VectorView all) {
  const VectorView own = all.From(slices.offset(task.group.rank()));
  switch (task.algorithm) {
    case Algorithm::kRing:
      return RingAllGather(task.group, slices, all, task.chunk);
    case Algorithm::kRecursiveDoubling:
    case Algorithm::kHalvingDoubling:
      return DoublingAllGather(task.group, slices, all);
    case Algorithm::kHierarchical:
      return LayeredOf(task).AllGather(slices, all);
    case Algorithm::kBruck:
      return BruckAllGather(task.group, slices, all);
    case Algorithm::kPairwise:
      return PairwiseAllGather(task.group, slices, all);
    case Algorithm::kTree:
      TESSERA_RETURN_IF_ERROR(BinomialGather(task.group, 0, slices, own, all));
      return TreeBroadcastFrom(task, 0, slices.total(), all, all);
    case Algorithm::kChain:
      TESSERA_RETURN_IF_ERROR(LinearGather(task.group, 0, slices, own, all));
      return TreeBroadcastFrom(task, 0, slices.total(), all, all);
    case Algorithm::kEngine:
      break;
  }
  return NoSuchForm(task.algorithm, task.operation.kind,
                    task.operation.uneven());
}

absl::Status RunAllGather(RunTask& task) {
  const Blocks blocks = OutputBlocks(task.operation, task.ranks());
  const int64_t me = task.group.rank();
  Place(task, task.output().at(blocks.offset(me)), task.input().data,
        blocks.count(me));
  return SpreadSlices(task, blocks, task.output());
}

absl::Status RunBroadcast(RunTask& task) {
  const int64_t count = task.operation.output.count;
  const int64_t root = task.operation.root.value();
  const VectorView output = task.output();
  if (task.algorithm == Algorithm::kTree ||
      task.algorithm == Algorithm::kChain) {
    return TreeBroadcastFrom(task, root, count,
                             task.IsRoot() ? task.input() : output, output);
  }
  if (task.IsRoot()) Place(task, output.data, task.input().data, count);
  return task.algorithm == Algorithm::kHierarchical
             ? LayeredOf(task).Broadcast(root, count, output)
             : ScatterAllGather(task, output);
}

absl::Status RunGather(RunTask& task) {
  const Blocks blocks = Blocks::Even(task.ranks(), task.operation.input.count);
  const int64_t root = task.operation.root.value();
  const VectorView all = task.IsRoot() ? task.output() : VectorView();
  return task.algorithm == Algorithm::kTree
             ? BinomialGather(task.group, root, blocks, task.input(), all)
             : LinearGather(task.group, root, blocks, task.input(), all);
}

absl::Status RunScatter(RunTask& task) {
  const Blocks blocks = Blocks::Even(task.ranks(), task.operation.output.count);
  const int64_t root = task.operation.root.value();
  const ConstVectorView all = task.IsRoot() ? task.input() : ConstVectorView();
  return task.algorithm == Algorithm::kTree
             ? BinomialScatter(task.group, root, blocks, all, task.output())
             : LinearScatter(task.group, root, blocks, all, task.output());
}

absl::Status RunAllToAll(RunTask& task) {
  const Blocks in = InputBlocks(task.operation, task.ranks());
  const Blocks out = OutputBlocks(task.operation, task.ranks());
  if (task.algorithm == Algorithm::kBruck) {
    return BruckAllToAll(task.group, in.count(0), task.input(), task.output());
  }
  ConstVectorView input = task.input();
  if (input.data == task.output().data && !task.operation.uneven()) {
    // Received blocks must not overwrite blocks that are not sent yet.
    const int64_t count = task.operation.input.count;
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> parked,
                             task.group.Scratch(count * task.element));
    Place(task, parked.data(), input.data, count);
    input = {parked.data(), task.element};
  }
  return PairwiseAllToAll(task.group, in, input, out, task.output());
}

absl::Status RunBarrier(RunTask& task) {
  const Reducer reducer = Reducer::Of(Reduction::Sum(), DType::kU8, 1);
  switch (task.algorithm) {
    case Algorithm::kTree:
      return TreeAllReduce(task.group, {.kind = TreeKind::kBinomial,
                                        .count = 0,
                                        .chunk = 1,
                                        .input = {},
                                        .output = {},
                                        .reducer = reducer});
    case Algorithm::kHierarchical:
      return LayeredOf(task).AllReduce(0, {}, {}, reducer);
    default:
      return DisseminationBarrier(task.group);
  }
}

Combination WholeOf(const RunTask& task) {
  return Combination::Whole(task.operation.reduction,
                            task.operation.input.dtype, task.ranks());
}

Reducer ReducerOf(const RunTask& task) {
  return Reducer::Of(task.operation.reduction, task.operation.input.dtype,
                     task.ranks());
}

absl::StatusOr<VectorView> Take(RunTask& task, int64_t count) {
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                           task.group.Scratch(count * task.element));
  return VectorView(memory.data(), task.element);
}

// Returns the input, or a scaled copy if the reduction scales, in `place` or in
// scratch memory if `place` is null.
absl::StatusOr<ConstVectorView> ScaledInput(RunTask& task, VectorView place) {
  const Combination scaling = Combination::ScaleInput(
      task.operation.reduction, task.operation.input.dtype);
  if (scaling.KeepsSingleSource()) return task.input();
  const int64_t count = task.operation.input.count;
  if (place.data == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(place, Take(task, count));
  }
  task.group.Enter(Phase::kReducing);
  CombineOne(scaling, task.input().data, place.data, count);
  return ConstVectorView(place);
}

TreeTask TreeTaskOf(const RunTask& task, ConstVectorView input) {
  const int64_t count = task.operation.input.count;
  return {.kind = task.algorithm == Algorithm::kChain
                      ? TreeKind::kChain
                      : TreeKindFor(count * task.element, task.ranks()),
          .count = count,
          .chunk = task.chunk,
          .input = input,
          .output = task.output(),
          .reducer = ReducerOf(task)};
}

// All-gathers the inputs by recursive doubling and reduces them locally in rank
// order: the same number of steps, n times the bytes.
absl::Status OrderedDoublingAllReduce(RunTask& task) {
  const int64_t n = task.ranks();
  const int64_t count = task.operation.input.count;
  TESSERA_ASSIGN_OR_RETURN(const VectorView inputs, Take(task, n * count));
  CopyBytes(inputs.at(task.group.rank() * count), task.input().data,
            count * task.element);
  TESSERA_RETURN_IF_ERROR(
      DoublingAllGather(task.group, Blocks::Even(n, count), inputs));
  TESSERA_ASSIGN_OR_RETURN(const std::span<const void*> sources,
                           task.group.ScratchOf<const void*>(n));
  for (int64_t rank = 0; rank < n; ++rank) {
    sources[static_cast<size_t>(rank)] = inputs.at(rank * count);
  }
  void* const destinations[] = {task.output().data};
  task.group.Enter(Phase::kReducing);
  if (count > 0) Combine(WholeOf(task), sources, destinations, count);
  return absl::OkStatus();
}

absl::Status OrderedAllReduce(RunTask& task) {
  if (task.algorithm == Algorithm::kRecursiveDoubling) {
    return OrderedDoublingAllReduce(task);
  }
  const Blocks slices =
      Blocks::Balanced(task.ranks(), task.operation.input.count);
  TESSERA_RETURN_IF_ERROR(
      OrderedReduceScatter(task.group, slices, task.input(),
                           task.output().From(slices.offset(task.group.rank())),
                           WholeOf(task), task.chunk));
  return SpreadSlices(task, slices, task.output());
}

absl::Status OrderedReduce(RunTask& task) {
  const Blocks slices =
      Blocks::Balanced(task.ranks(), task.operation.input.count);
  const int64_t me = task.group.rank();
  const VectorView all = task.IsRoot() ? task.output() : VectorView();
  VectorView own = all.From(slices.offset(me));
  if (!task.IsRoot()) {
    TESSERA_ASSIGN_OR_RETURN(own, Take(task, slices.count(me)));
  }
  TESSERA_RETURN_IF_ERROR(OrderedReduceScatter(task.group, slices, task.input(),
                                               own, WholeOf(task), task.chunk));
  const int64_t root = task.operation.root.value();
  return task.algorithm == Algorithm::kChain
             ? LinearGather(task.group, root, slices, own, all)
             : BinomialGather(task.group, root, slices, own, all);
}

absl::Status RunAllReduce(RunTask& task) {
  if (task.options.reproducible || task.algorithm == Algorithm::kPairwise) {
    return OrderedAllReduce(task);
  }
  const int64_t count = task.operation.input.count;
  if (task.ranks() == 1) {
    CombineOne(WholeOf(task), task.input().data, task.output().data, count);
    return absl::OkStatus();
  }
  const Reducer reducer = ReducerOf(task);
  const VectorView output = task.output();
  TESSERA_ASSIGN_OR_RETURN(const ConstVectorView input,
                           ScaledInput(task, output));
  switch (task.algorithm) {
    case Algorithm::kRing:
      return RingAllReduce(task.group, count, input, output, reducer,
                           task.chunk);
    case Algorithm::kTree:
    case Algorithm::kChain:
      return TreeAllReduce(task.group, TreeTaskOf(task, input));
    case Algorithm::kRecursiveDoubling:
      return DoublingAllReduce(task.group, count, input, output, reducer,
                               task.chunk);
    case Algorithm::kHalvingDoubling:
      return HalvingDoublingAllReduce(task.group, count, input, output, reducer,
                                      task.chunk);
    case Algorithm::kHierarchical:
      return Layered(task.group, task.hierarchy, task.chunk)
          .AllReduce(count, input, output, reducer);
    default:
      return NoSuchForm(task.algorithm, task.operation.kind, false);
  }
}

absl::Status RunReduce(RunTask& task) {
  const int64_t count = task.operation.input.count;
  if (task.ranks() == 1) {
    CombineOne(WholeOf(task), task.input().data, task.output().data, count);
    return absl::OkStatus();
  }
  if (task.options.reproducible) return OrderedReduce(task);
  const VectorView output = task.IsRoot() ? task.output() : VectorView();
  TESSERA_ASSIGN_OR_RETURN(const ConstVectorView input,
                           ScaledInput(task, output));
  const RankGroup rooted = task.group.From(task.operation.root.value());
  switch (task.algorithm) {
    case Algorithm::kTree:
    case Algorithm::kChain:
      return TreeReduce(rooted, TreeTaskOf(task, input));
    case Algorithm::kHalvingDoubling:
      return HalvingReduce(rooted, count, input, output, ReducerOf(task),
                           task.chunk);
    case Algorithm::kHierarchical:
      return Layered(task.group, task.hierarchy, task.chunk)
          .Reduce(task.operation.root.value(), count, input, output,
                  ReducerOf(task));
    default:
      return NoSuchForm(task.algorithm, task.operation.kind, false);
  }
}

absl::Status RunReduceScatter(RunTask& task) {
  const Blocks blocks = InputBlocks(task.operation, task.ranks());
  const Reducer reducer = ReducerOf(task);
  if (task.options.reproducible || task.ranks() == 1 ||
      task.algorithm == Algorithm::kPairwise) {
    // These reduce all contributions at once.
    return OrderedReduceScatter(task.group, blocks, task.input(), task.output(),
                                WholeOf(task), task.chunk);
  }
  TESSERA_ASSIGN_OR_RETURN(const ConstVectorView input, ScaledInput(task, {}));
  switch (task.algorithm) {
    case Algorithm::kRing:
      return RingReduceScatter(task.group, blocks, input, task.output(),
                               reducer, task.chunk);
    case Algorithm::kHalvingDoubling:
      return HalvingReduceScatter(task.group, blocks, input, task.output(),
                                  reducer, task.chunk);
    case Algorithm::kHierarchical:
      return Layered(task.group, task.hierarchy, task.chunk)
          .ReduceScatter(blocks, input, task.output(), reducer);
    default:
      return NoSuchForm(task.algorithm, task.operation.kind,
                        task.operation.uneven());
  }
}

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

absl::Status NoSuchForm(Algorithm algorithm, OpKind kind, bool uneven) {
  const std::string others = absl::StrJoin(
      AlgorithmsFor(kind, uneven), ", ", [](std::string* out, Algorithm a) {
        absl::StrAppend(out, AlgorithmName(a));
      });
  return absl::InvalidArgumentError(absl::StrCat(
      "algorithm ", AlgorithmName(algorithm), " does not support ",
      uneven ? "uneven " : "", OpKindName(kind),
      others.empty() ? "; no algorithm supports it" : "; use ", others));
}

}  // namespace

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
  RunTask task = {
      .algorithm = algorithm,
      .operation = operation,
      .options = options,
      .hierarchy = flat.has_value() ? *flat : *options.hierarchy,
      .group = RankGroup(transport, context, AlgorithmName(algorithm)),
      .element = element,
      .chunk = ChunkElements(options.chunk_bytes, element)};
  return RunTaskOfKind(task);
}

}  // namespace tessera::collectives

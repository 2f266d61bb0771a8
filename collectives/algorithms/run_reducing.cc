// The kinds that reduce.

#include <span>

#include "base/status_macros.h"
#include "collectives/algorithms/binomial.h"
#include "collectives/algorithms/doubling.h"
#include "collectives/algorithms/layered.h"
#include "collectives/algorithms/ordered.h"
#include "collectives/algorithms/pairwise.h"
#include "collectives/algorithms/reducer.h"
#include "collectives/algorithms/ring.h"
#include "collectives/algorithms/run_task.h"
#include "collectives/algorithms/trees.h"

namespace tessera::collectives {
namespace {

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
                           task.party.Scratch(count * task.element));
  return VectorView(memory.data(), task.element);
}

// The input, scaled where the reduction scales: into `place`, or into scratch
// where there is none.
absl::StatusOr<ConstVectorView> ScaledInput(RunTask& task, VectorView place) {
  const Combination scaling = Combination::ScaleInput(
      task.operation.reduction, task.operation.input.dtype);
  if (scaling.KeepsSingleSource()) return task.input();
  const int64_t count = task.operation.input.count;
  if (place.data == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(place, Take(task, count));
  }
  task.party.Enter(Phase::kReducing);
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

// All inputs to all ranks by recursive doubling: as many steps as without the
// order, and n times the bytes of a step.
absl::Status OrderedDoublingAllReduce(RunTask& task) {
  const int64_t n = task.ranks();
  const int64_t count = task.operation.input.count;
  TESSERA_ASSIGN_OR_RETURN(const VectorView inputs, Take(task, n * count));
  CopyBytes(inputs.at(task.party.rank() * count), task.input().data,
            count * task.element);
  TESSERA_RETURN_IF_ERROR(
      DoublingAllGather(task.party, Blocks::Even(n, count), inputs));
  TESSERA_ASSIGN_OR_RETURN(const std::span<const void*> sources,
                           task.party.ScratchOf<const void*>(n));
  for (int64_t rank = 0; rank < n; ++rank) {
    sources[static_cast<size_t>(rank)] = inputs.at(rank * count);
  }
  void* const destinations[] = {task.output().data};
  task.party.Enter(Phase::kReducing);
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
      OrderedReduceScatter(task.party, slices, task.input(),
                           task.output().From(slices.offset(task.party.rank())),
                           WholeOf(task), task.chunk));
  return SpreadSlices(task, slices, task.output());
}

absl::Status OrderedReduce(RunTask& task) {
  const Blocks slices =
      Blocks::Balanced(task.ranks(), task.operation.input.count);
  const int64_t me = task.party.rank();
  const VectorView all = task.IsRoot() ? task.output() : VectorView();
  VectorView own = all.From(slices.offset(me));
  if (!task.IsRoot()) {
    TESSERA_ASSIGN_OR_RETURN(own, Take(task, slices.count(me)));
  }
  TESSERA_RETURN_IF_ERROR(OrderedReduceScatter(task.party, slices, task.input(),
                                               own, WholeOf(task), task.chunk));
  const int64_t root = task.operation.root.value();
  return task.algorithm == Algorithm::kChain
             ? LinearGather(task.party, root, slices, own, all)
             : BinomialGather(task.party, root, slices, own, all);
}

}  // namespace

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
      return RingAllReduce(task.party, count, input, output, reducer,
                           task.chunk);
    case Algorithm::kTree:
    case Algorithm::kChain:
      return TreeAllReduce(task.party, TreeTaskOf(task, input));
    case Algorithm::kRecursiveDoubling:
      return DoublingAllReduce(task.party, count, input, output, reducer,
                               task.chunk);
    case Algorithm::kHalvingDoubling:
      return HalvingDoublingAllReduce(task.party, count, input, output, reducer,
                                      task.chunk);
    case Algorithm::kHierarchical:
      return Layered(task.party, task.hierarchy, task.chunk)
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
  const Party rooted = task.party.From(task.operation.root.value());
  switch (task.algorithm) {
    case Algorithm::kTree:
    case Algorithm::kChain:
      return TreeReduce(rooted, TreeTaskOf(task, input));
    case Algorithm::kHalvingDoubling:
      return HalvingReduce(rooted, count, input, output, ReducerOf(task),
                           task.chunk);
    case Algorithm::kHierarchical:
      return Layered(task.party, task.hierarchy, task.chunk)
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
    // Sees all contributions at once in any case.
    return OrderedReduceScatter(task.party, blocks, task.input(), task.output(),
                                WholeOf(task), task.chunk);
  }
  TESSERA_ASSIGN_OR_RETURN(const ConstVectorView input, ScaledInput(task, {}));
  switch (task.algorithm) {
    case Algorithm::kRing:
      return RingReduceScatter(task.party, blocks, input, task.output(),
                               reducer, task.chunk);
    case Algorithm::kHalvingDoubling:
      return HalvingReduceScatter(task.party, blocks, input, task.output(),
                                  reducer, task.chunk);
    case Algorithm::kHierarchical:
      return Layered(task.party, task.hierarchy, task.chunk)
          .ReduceScatter(blocks, input, task.output(), reducer);
    default:
      return NoSuchForm(task.algorithm, task.operation.kind,
                        task.operation.uneven());
  }
}

}  // namespace tessera::collectives

// The kinds that only move.

#include <span>

#include "base/status_macros.h"
#include "collectives/algorithms/binomial.h"
#include "collectives/algorithms/bruck.h"
#include "collectives/algorithms/doubling.h"
#include "collectives/algorithms/layered.h"
#include "collectives/algorithms/pairwise.h"
#include "collectives/algorithms/reducer.h"
#include "collectives/algorithms/ring.h"
#include "collectives/algorithms/run_task.h"
#include "collectives/algorithms/trees.h"

namespace tessera::collectives {
namespace {

Layered LayeredOf(const RunTask& task) {
  return Layered(task.party, task.hierarchy, task.chunk);
}

// Copies where the operation is not in place.
void Place(RunTask& task, std::byte* to, const std::byte* from, int64_t count) {
  if (to == from || count == 0) return;
  task.party.Enter(Phase::kCopying);
  CopyBytes(to, from, count * task.element);
}

// From `root`, whose `input` may be its `data`.
absl::Status TreeBroadcastFrom(RunTask& task, int64_t root, int64_t count,
                               ConstVectorView input, VectorView data) {
  const TreeKind kind = task.algorithm == Algorithm::kChain
                            ? TreeKind::kChain
                            : TreeKindFor(count * task.element, task.ranks());
  return TreeBroadcast(task.party.From(root), {.kind = kind,
                                               .count = count,
                                               .chunk = task.chunk,
                                               .input = input,
                                               .output = data,
                                               .reducer = {}});
}

// Van de Geijn's: the root's message in slices along a binomial tree, then an
// all-gather.
absl::Status ScatterAllGather(RunTask& task, VectorView data) {
  const int64_t root = task.operation.root.value();
  const Blocks slices =
      Blocks::Balanced(task.ranks(), task.operation.output.count);
  TESSERA_RETURN_IF_ERROR(
      BinomialScatter(task.party, root, slices, data,
                      data.From(slices.offset(task.party.rank()))));
  return DoublingAllGather(task.party, slices, data);
}

}  // namespace

absl::Status SpreadSlices(RunTask& task, const Blocks& slices, VectorView all) {
  const VectorView own = all.From(slices.offset(task.party.rank()));
  switch (task.algorithm) {
    case Algorithm::kRing:
      return RingAllGather(task.party, slices, all, task.chunk);
    case Algorithm::kRecursiveDoubling:
    case Algorithm::kHalvingDoubling:
      return DoublingAllGather(task.party, slices, all);
    case Algorithm::kHierarchical:
      return LayeredOf(task).AllGather(slices, all);
    case Algorithm::kBruck:
      return BruckAllGather(task.party, slices, all);
    case Algorithm::kPairwise:
      return PairwiseAllGather(task.party, slices, all);
    case Algorithm::kTree:
      TESSERA_RETURN_IF_ERROR(BinomialGather(task.party, 0, slices, own, all));
      return TreeBroadcastFrom(task, 0, slices.total(), all, all);
    case Algorithm::kChain:
      TESSERA_RETURN_IF_ERROR(LinearGather(task.party, 0, slices, own, all));
      return TreeBroadcastFrom(task, 0, slices.total(), all, all);
    case Algorithm::kEngine:
      break;
  }
  return NoSuchForm(task.algorithm, task.operation.kind,
                    task.operation.uneven());
}

absl::Status RunAllGather(RunTask& task) {
  const Blocks blocks = OutputBlocks(task.operation, task.ranks());
  const int64_t me = task.party.rank();
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
             ? BinomialGather(task.party, root, blocks, task.input(), all)
             : LinearGather(task.party, root, blocks, task.input(), all);
}

absl::Status RunScatter(RunTask& task) {
  const Blocks blocks = Blocks::Even(task.ranks(), task.operation.output.count);
  const int64_t root = task.operation.root.value();
  const ConstVectorView all = task.IsRoot() ? task.input() : ConstVectorView();
  return task.algorithm == Algorithm::kTree
             ? BinomialScatter(task.party, root, blocks, all, task.output())
             : LinearScatter(task.party, root, blocks, all, task.output());
}

absl::Status RunAllToAll(RunTask& task) {
  const Blocks in = InputBlocks(task.operation, task.ranks());
  const Blocks out = OutputBlocks(task.operation, task.ranks());
  if (task.algorithm == Algorithm::kBruck) {
    return BruckAllToAll(task.party, in.count(0), task.input(), task.output());
  }
  ConstVectorView input = task.input();
  if (input.data == task.output().data && !task.operation.uneven()) {
    // What has come must not overwrite what has yet to go.
    const int64_t count = task.operation.input.count;
    TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> parked,
                             task.party.Scratch(count * task.element));
    Place(task, parked.data(), input.data, count);
    input = {parked.data(), task.element};
  }
  return PairwiseAllToAll(task.party, in, input, out, task.output());
}

absl::Status RunBarrier(RunTask& task) {
  const Reducer reducer = Reducer::Of(Reduction::Sum(), DType::kU8, 1);
  switch (task.algorithm) {
    case Algorithm::kTree:
      return TreeAllReduce(task.party, {.kind = TreeKind::kBinomial,
                                        .count = 0,
                                        .chunk = 1,
                                        .input = {},
                                        .output = {},
                                        .reducer = reducer});
    case Algorithm::kHierarchical:
      return LayeredOf(task).AllReduce(0, {}, {}, reducer);
    default:
      return DisseminationBarrier(task.party);
  }
}

}  // namespace tessera::collectives

#include "collectives/algorithms/flat_choice.h"

#include "collectives/algorithms/bruck.h"
#include "collectives/algorithms/doubling.h"
#include "collectives/algorithms/ordered.h"
#include "collectives/algorithms/ring.h"
#include "collectives/algorithms/tree_kind.h"
#include "collectives/algorithms/trees.h"

namespace tessera::collectives {
namespace {

bool IsSmall(int64_t count, int64_t element) {
  return count * element <= kSmallMessageBytes;
}

TreeTask TaskOf(const Party& party, int64_t count, ConstVectorView input,
                VectorView output, const Reducer& reducer, int64_t chunk) {
  return {.kind = TreeKindFor(count * input.element, party.size()),
          .count = count,
          .chunk = chunk,
          .input = input,
          .output = output,
          .reducer = reducer};
}

}  // namespace

absl::Status FlatAllReduce(const Party& party, int64_t count,
                           ConstVectorView input, VectorView output,
                           const Reducer& reducer, int64_t chunk) {
  return IsSmall(count, input.element)
             ? DoublingAllReduce(party, count, input, output, reducer, chunk)
             : RingAllReduce(party, count, input, output, reducer, chunk);
}

absl::Status FlatReduce(const Party& party, int64_t count,
                        ConstVectorView input, VectorView output,
                        const Reducer& reducer, int64_t chunk) {
  return TreeReduce(party, TaskOf(party, count, input, output, reducer, chunk));
}

absl::Status FlatReduceScatter(const Party& party, const Blocks& blocks,
                               ConstVectorView input, VectorView own,
                               const Reducer& reducer, int64_t chunk) {
  return IsSmall(blocks.total(), input.element)
             ? OrderedReduceScatter(party, blocks, input, own, reducer.last,
                                    chunk)
             : RingReduceScatter(party, blocks, input, own, reducer, chunk);
}

absl::Status FlatAllGather(const Party& party, const Blocks& blocks,
                           VectorView all, int64_t chunk) {
  return IsSmall(blocks.total(), all.element)
             ? BruckAllGather(party, blocks, all)
             : RingAllGather(party, blocks, all, chunk);
}

absl::Status FlatBroadcast(const Party& party, int64_t count, VectorView data,
                           int64_t chunk) {
  return TreeBroadcast(party, TaskOf(party, count, data, data, {}, chunk));
}

}  // namespace tessera::collectives

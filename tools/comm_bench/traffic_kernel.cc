#include "tools/comm_bench/traffic_kernel.h"

#include "collectives/operation/blocks.h"
#include "collectives/reduction/combine.h"

namespace tessera::tools {
namespace {

using collectives::Blocks;
using collectives::Combination;
using collectives::OpKind;
using collectives::StoreMode;

constexpr int64_t kElement = sizeof(float);

StoreMode ModeOf(bool streamed) {
  return streamed ? StoreMode::kStreaming : StoreMode::kCached;
}

// Reads elements [first, first + count) of every input, adds them and writes
// them to `outputs`.
void Fold(const TrafficBuffers& buffers, const std::vector<std::byte*>& outputs,
          int64_t first, int64_t count, bool streamed) {
  std::vector<const void*> sources;
  for (std::byte* input : buffers.inputs) {
    sources.push_back(input + first * kElement);
  }
  std::vector<void*> destinations;
  for (std::byte* output : outputs) {
    destinations.push_back(output + first * kElement);
  }
  Combination combination;
  combination.dtype = DType::kF32;
  combination.stores = ModeOf(streamed);
  Combine(combination, sources, destinations, count);
}

// Moves a block from every input to its place in the rank's output.
void Collect(const TrafficBuffers& buffers, int64_t rank, int64_t block,
             bool all_to_all, bool streamed) {
  const auto world = static_cast<int64_t>(buffers.inputs.size());
  std::byte* const output = buffers.outputs[static_cast<size_t>(rank)];
  for (int64_t step = 0; step < world; ++step) {
    const int64_t from = (rank + step) % world;
    const std::byte* source = buffers.inputs[static_cast<size_t>(from)];
    CopyBytes(output + from * block, source + (all_to_all ? rank * block : 0),
              block, ModeOf(streamed));
  }
}

}  // namespace

void MoveTraffic(const TrafficBuffers& buffers, int64_t rank, OpKind kind,
                 int64_t bytes, bool streamed) {
  const auto world = static_cast<int64_t>(buffers.inputs.size());
  const Blocks parts = Blocks::Balanced(world, bytes / kElement);
  const int64_t first = parts.offset(rank);
  const int64_t count = parts.count(rank);
  const int64_t block = bytes / world;
  std::byte* const output = buffers.outputs[static_cast<size_t>(rank)];
  const std::byte* const input = buffers.inputs[static_cast<size_t>(rank)];
  switch (kind) {
    case OpKind::kAllReduce:
      return Fold(buffers, buffers.outputs, first, count, streamed);
    case OpKind::kReduce:
      return Fold(buffers, {buffers.outputs[0]}, first, count, streamed);
    case OpKind::kReduceScatter:
      return Fold(buffers, {output}, first, count, streamed);
    case OpKind::kAllGather:
      return Collect(buffers, rank, block, /*all_to_all=*/false, streamed);
    case OpKind::kAllToAll:
      return Collect(buffers, rank, block, /*all_to_all=*/true, streamed);
    case OpKind::kBroadcast:
      return CopyBytes(output, buffers.inputs[0], bytes, ModeOf(streamed));
    case OpKind::kGather:
      return CopyBytes(buffers.outputs[0] + rank * block, input, block,
                       ModeOf(streamed));
    case OpKind::kScatter:
      return CopyBytes(output, buffers.inputs[0] + rank * block, block,
                       ModeOf(streamed));
    default:
      return;
  }
}

}  // namespace tessera::tools

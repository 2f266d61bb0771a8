#include "zero3/checkpoint/state_blocks.h"

#include <algorithm>

#include "base/status_macros.h"

namespace tessera::zero3 {
namespace {

OptimizerPart OptimizerPartOf(StatePart part) {
  switch (part) {
    case StatePart::kMaster:
      return OptimizerPart::kMaster;
    case StatePart::kFirstMoment:
      return OptimizerPart::kFirstMoment;
    default:
      return OptimizerPart::kSecondMoment;
  }
}

bool IsOfOnePart(const BlockRange& a, const BlockRange& b) {
  return a.parameter == b.parameter && a.part == b.part;
}

// With scales the bytes of a range are not together, and are put so in
// `packed`.
std::span<const std::byte> BytesOf(const BlockRange& range,
                                   const StateArray& array,
                                   std::vector<std::byte>& packed) {
  const auto size = static_cast<size_t>(range.bytes());
  if (range.format.block == 0) {
    return {array.bytes +
                (range.begin - array.begin) * SizeInBytes(range.format.dtype),
            size};
  }
  packed.resize(size);
  CopyElements({array.format, array.begin, array.capacity, array.bytes},
               {range.format, range.begin, range.size(), packed.data()},
               range.begin, range.end);
  return packed;
}

}  // namespace

absl::StatusOr<StateShare> ShareOf(int stage, const StateLayout& layout,
                                   topology::Rank shard_rank,
                                   int64_t shard_ranks) {
  if (stage > 0) return StateShare{layout, shard_rank};
  LayoutOptions options = layout.options();
  options.kind = LayoutKind::kChunks;
  options.ranks = shard_ranks;
  TESSERA_ASSIGN_OR_RETURN(StateLayout chunks,
                           StateLayout::Create(layout.model(), options));
  return StateShare{std::move(chunks), shard_rank};
}

absl::StatusOr<StateShare> ShareOf(const ShardedState& state,
                                   topology::Rank shard_rank,
                                   int64_t shard_ranks) {
  const int stage = state.options().stage;
  return ShareOf(stage, state.layout(), stage > 0 ? state.rank() : shard_rank,
                 shard_ranks);
}

MomentKinds MomentsOf(const ShardedState& state) {
  const ShardedStateOptions& options = state.options();
  return {options.moments, MomentCount(options.optimizer, options.sgd)};
}

std::vector<BlockRange> PlanBlocks(const StateShare& share,
                                   const MomentKinds& moments,
                                   int64_t elements) {
  const int64_t block = std::max<int64_t>(moments.format.block, 1);
  const int64_t step = (elements + block - 1) / block * block;
  std::vector<BlockRange> blocks;
  for (const ModelParameter& parameter : share.layout.model().all()) {
    const Extent extent = share.layout.ExtentOf(share.rank, parameter.id);
    for (const StatePart part : kAllStateParts) {
      const auto format = StateFormatOf(parameter, moments, part);
      if (!format) continue;
      for (int64_t begin = extent.begin; begin < extent.end; begin += step) {
        blocks.push_back({parameter.id, part, *format, begin,
                          std::min(begin + step, extent.end)});
      }
    }
  }
  return blocks;
}

absl::StatusOr<OpenPart> OpenPart::Open(ShardedState& state,
                                        ParameterId parameter, StatePart part) {
  OpenPart open(state, parameter, part);
  const Extent extent = state.layout().ExtentOf(state.rank(), parameter);
  const auto format =
      StateFormatOf(state.layout().model()[parameter], MomentsOf(state), part);
  open.array_ = {*format, extent.begin, extent.slot, nullptr};
  if (part == StatePart::kValue) {
    TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan own,
                             state.own_values().Open(parameter));
    open.array_.bytes = own.data();
    return open;
  }
  TESSERA_ASSIGN_OR_RETURN(
      const std::span<std::byte> bytes,
      state.optimizer().Open(OptimizerPartOf(part), parameter));
  open.array_.bytes = bytes.data();
  return open;
}

absl::Status OpenPart::Close(bool changed) {
  return part_ == StatePart::kValue
             ? state_->own_values().Close(parameter_, changed)
             : state_->optimizer().Close(OptimizerPartOf(part_), parameter_,
                                         changed);
}

absl::Status ReadBlocks(ShardedState& state, std::span<const BlockRange> blocks,
                        BlockUse use) {
  std::vector<std::byte> packed;
  for (size_t i = 0; i < blocks.size();) {
    const BlockRange first = blocks[i];
    TESSERA_ASSIGN_OR_RETURN(
        OpenPart part, OpenPart::Open(state, first.parameter, first.part));
    absl::Status status;
    for (; i < blocks.size() && IsOfOnePart(first, blocks[i]); ++i) {
      if (!status.ok()) continue;
      status = use(blocks[i], BytesOf(blocks[i], part.array(), packed));
    }
    status.Update(part.Close(/*changed=*/false));
    TESSERA_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace tessera::zero3

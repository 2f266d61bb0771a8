#include "zero3/checkpoint/state_blocks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::zero3 {
namespace {

// The queue that works on the memory of a part.
Queue& QueueOf(ShardedState& state, StatePart part) {
  return part == StatePart::kValue ? state.queue() : state.optimizer().queue();
}

bool IsOfOnePart(const BlockRange& a, const BlockRange& b) {
  return a.parameter == b.parameter && a.part == b.part;
}

// In block-wise formats the bytes of a range are not contiguous, and are copied
// to `packed`.
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
  return state.options().moment_kinds();
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
                                        ParameterId parameter, StatePart part,
                                        Access access) {
  OpenPart open(state, parameter, part);
  const Extent extent = state.layout().ExtentOf(state.rank(), parameter);
  const auto format =
      StateFormatOf(state.layout().model()[parameter], MomentsOf(state), part);
  open.array_ = {*format, extent.begin, extent.slot, nullptr};
  TESSERA_ASSIGN_OR_RETURN(open.array_.bytes, open.OpenMemory());
  if (access == Access::kDevice || open.queue().is_immediate()) return open;
  TESSERA_RETURN_IF_ERROR(open.CopyToHost(access));
  return open;
}

Queue& OpenPart::queue() const { return QueueOf(*state_, part_); }

absl::StatusOr<std::byte*> OpenPart::OpenMemory() {
  if (part_ == StatePart::kValue) {
    TESSERA_ASSIGN_OR_RETURN(const offload::TypedSpan own,
                             state_->weights().OpenOwn(parameter_));
    return own.data();
  }
  TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> bytes,
                           state_->optimizer().Open(part_, parameter_));
  return bytes.data();
}

absl::Status OpenPart::CopyToHost(Access access) {
  const int64_t bytes = array_.format.BytesOf(array_.capacity);
  if (array_.bytes == nullptr || bytes == 0) return absl::OkStatus();
  device_ = {array_.bytes, static_cast<size_t>(bytes)};
  host_.resize(device_.size());
  array_.bytes = host_.data();
  if (access == Access::kOverwrite) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const Download download,
                           state_->staging().StartDownload(device_));
  TESSERA_ASSIGN_OR_RETURN(const auto read, download.Wait());
  std::copy(read.begin(), read.end(), host_.begin());
  return absl::OkStatus();
}

absl::Status OpenPart::Close(bool changed) {
  absl::Status status;
  if (changed && !device_.empty()) {
    status = state_->staging().Upload(host_, device_);
    // Copies are limited to a block of staging memory.
    if (status.ok()) status = state_->queue().Synchronize();
  }
  status.Update(part_ == StatePart::kValue
                    ? state_->weights().CloseOwn(parameter_, changed)
                    : state_->optimizer().Close(part_, parameter_, changed));
  return status;
}

namespace {

// Opens each part once for its consecutive blocks.
absl::Status ForEachBlock(
    ShardedState& state, std::span<const BlockRange> blocks,
    OpenPart::Access access,
    absl::FunctionRef<absl::Status(const BlockRange&, const StateArray&)> use) {
  for (size_t i = 0; i < blocks.size();) {
    const BlockRange first = blocks[i];
    TESSERA_ASSIGN_OR_RETURN(
        OpenPart part,
        OpenPart::Open(state, first.parameter, first.part, access));
    absl::Status status;
    for (; i < blocks.size() && IsOfOnePart(first, blocks[i]); ++i) {
      if (status.ok()) status = use(blocks[i], part.array());
    }
    status.Update(
        part.Close(/*changed=*/access == OpenPart::Access::kOverwrite));
    TESSERA_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadBlocks(ShardedState& state, std::span<const BlockRange> blocks,
                        BlockUse use) {
  std::vector<std::byte> packed;
  return ForEachBlock(state, blocks, OpenPart::Access::kHost,
                      [&](const BlockRange& range, const StateArray& array) {
                        return use(range, BytesOf(range, array, packed));
                      });
}

absl::Status WriteBlocks(ShardedState& state,
                         std::span<const BlockRange> blocks,
                         std::span<const std::byte> source) {
  int64_t bytes = 0;
  for (const BlockRange& range : blocks) bytes += range.bytes();
  if (static_cast<int64_t>(source.size()) != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the blocks of the state have ", bytes, " bytes, not ", source.size()));
  }
  return ForEachBlock(
      state, blocks, OpenPart::Access::kOverwrite,
      [&](const BlockRange& range, const StateArray& array) {
        CopyElements({range.format, range.begin, range.size(), source.data()},
                     array, range.begin, range.end);
        source = source.subspan(static_cast<size_t>(range.bytes()));
        return absl::OkStatus();
      });
}

absl::StatusOr<Event> StartCopyOfBlocks(ShardedState& state,
                                        std::span<const BlockRange> blocks,
                                        std::span<std::byte> target) {
  TESSERA_RETURN_IF_ERROR(ForEachBlock(
      state, blocks, OpenPart::Access::kDevice,
      [&](const BlockRange& range, const StateArray& array) {
        const StateArray to = {range.format, range.begin, range.size(),
                               target.data()};
        Queue& queue = QueueOf(state, range.part);
        absl::Status status;
        for (const ByteCopy& copy :
             CopiesOf({array.format, array.begin, array.capacity, array.bytes},
                      to, range.begin, range.end)) {
          const auto size = static_cast<size_t>(copy.bytes);
          status.Update(queue.Copy({copy.from, size}, {copy.to, size}));
        }
        target = target.subspan(static_cast<size_t>(range.bytes()));
        return status;
      }));
  return state.queue().Record();
}

}  // namespace tessera::zero3

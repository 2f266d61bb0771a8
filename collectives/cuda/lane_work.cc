#include "collectives/cuda/lane_work.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "collectives/operation/blocks.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {
namespace {

// The minimum number of bytes that justifies the launch of a lane.
constexpr int64_t kLaneBytes = int64_t{32} << 10;
// Slices begin at multiples of this, to be aligned like buffers.
constexpr int64_t kSliceAlignment = 128;

// Elements that a lane folds.
struct Slice {
  int64_t first = 0;
  int64_t count = 0;
};

Slice SliceOf(int64_t count, DType dtype, int64_t ranks, int64_t lane) {
  const int64_t unit = kSliceAlignment / SizeInBytes(dtype);
  const int64_t units = (count + unit - 1) / unit;
  const int64_t bytes = count * SizeInBytes(dtype);
  const int64_t lanes = std::clamp<int64_t>(bytes / kLaneBytes, 1, ranks);
  if (lane >= lanes) return {};
  const Blocks slices = Blocks::Balanced(lanes, units);
  const int64_t first = std::min(count, slices.offset(lane) * unit);
  const int64_t end = std::min(count, slices.offset(lane + 1) * unit);
  return {first, end - first};
}

class Planner {
 public:
  Planner(std::span<const Operation> operations, int64_t lane)
      : operations_(operations),
        lane_(static_cast<size_t>(lane)),
        ranks_(static_cast<int64_t>(operations.size())) {}

  LaneWork Plan() {
    const Operation& mine = operations_[lane_];
    const auto root = static_cast<size_t>(mine.root.value());
    switch (mine.kind) {
      case OpKind::kAllReduce: {
        const Slice slice = SliceOf(mine.input.count, mine.input.dtype, ranks_,
                                    static_cast<int64_t>(lane_));
        std::vector<Buffer> targets;
        for (const Operation& operation : operations_) {
          targets.push_back(operation.output.Slice(slice.first, slice.count));
        }
        FoldTo(targets, slice.first);
        break;
      }
      case OpKind::kReduce:
        if (lane_ == root) FoldTo({mine.output}, 0);
        break;
      case OpKind::kReduceScatter:
        FoldTo({mine.output},
               InputBlocks(mine, ranks_).offset(static_cast<int64_t>(lane_)));
        break;
      case OpKind::kAllGather:
        CollectAll(OutputBlocks(mine, ranks_));
        break;
      case OpKind::kGather:
        if (lane_ == root) CollectAll(OutputBlocks(mine, ranks_));
        break;
      case OpKind::kBroadcast:
        Copy(operations_[root].input, mine.output);
        break;
      case OpKind::kScatter:
        Copy(BlockOf(operations_[root].input,
                     InputBlocks(operations_[root], ranks_), lane_),
             mine.output);
        break;
      case OpKind::kAllToAll:
        ExchangeAll();
        break;
      default:
        break;
    }
    return std::move(work_);
  }

 private:
  template <typename Buffer>
  static Buffer BlockOf(Buffer buffer, const Blocks& blocks, size_t rank) {
    const auto r = static_cast<int64_t>(rank);
    return buffer.Slice(blocks.offset(r), blocks.count(r));
  }

  // Folds elements [first, ...) of all inputs.
  void FoldTo(const std::vector<Buffer>& targets, int64_t first) {
    const Operation& mine = operations_[lane_];
    const Buffer& target = targets.front();
    if (target.count == 0) return;
    const Combination whole =
        Combination::Whole(mine.reduction, target.dtype, ranks_);
    if (ranks_ == 1 && whole.KeepsSingleSource()) {
      return Copy(mine.input.Slice(first, target.count), target);
    }
    FoldJob& fold = work_.fold.emplace();
    for (const Operation& operation : operations_) {
      fold.sources[static_cast<size_t>(fold.source_count++)] =
          operation.input.Slice(first, target.count).data;
    }
    for (const Buffer& each : targets) {
      fold.targets[static_cast<size_t>(fold.target_count++)] = each.data;
    }
    fold.count = target.count;
    fold.dtype = target.dtype;
    fold.op = mine.reduction.op;
    fold.scale = whole.input_scale;
    fold.divisor = whole.divisor;
  }

  void Copy(ConstBuffer from, Buffer to) {
    if (to.count == 0 || from.data == to.data) return;
    work_.moves.push_back(
        {.from = from.data, .to = to.data, .bytes = to.bytes()});
  }

  // Copies all inputs to the blocks of this lane's output.
  void CollectAll(const Blocks& blocks) {
    for (size_t r = 0; r < operations_.size(); ++r) {
      Copy(operations_[r].input, BlockOf(operations_[lane_].output, blocks, r));
    }
  }

  void ExchangeAll() {
    Copy(Sent(lane_, lane_), Received(lane_, lane_));
    for (size_t r = 0; r < operations_.size(); ++r) {
      if (r == lane_ || !IsMine(r)) continue;
      Move move;
      const ConstBuffer there = Sent(lane_, r), back = Sent(r, lane_);
      if (there.count > 0) {
        move.from = there.data;
        move.to = Received(r, lane_).data;
        move.bytes = there.bytes();
      }
      if (back.count > 0) {
        move.back_from = back.data;
        move.back_to = Received(lane_, r).data;
        move.back_bytes = back.bytes();
      }
      if (move.bytes + move.back_bytes > 0) work_.moves.push_back(move);
    }
  }

  // Each pair of ranks is assigned to one lane: to the lower rank's in about
  // half of the pairs.
  bool IsMine(size_t other) const {
    return ((lane_ + other) % 2 == 0) == (lane_ < other);
  }
  ConstBuffer Sent(size_t by, size_t to) const {
    return BlockOf(operations_[by].input, InputBlocks(operations_[by], ranks_),
                   to);
  }
  Buffer Received(size_t by, size_t from) const {
    return BlockOf(operations_[by].output,
                   OutputBlocks(operations_[by], ranks_), from);
  }

  const std::span<const Operation> operations_;
  const size_t lane_;
  const int64_t ranks_;
  LaneWork work_;
};

}  // namespace

LaneWork PlanLane(std::span<const Operation> operations, int64_t lane) {
  return Planner(operations, lane).Plan();
}

absl::Status CheckPairs(std::span<const Operation> operations) {
  for (size_t a = 0; a < operations.size(); ++a) {
    if (operations[a].kind != OpKind::kAllToAll) return absl::OkStatus();
    if (!operations[a].uneven()) return absl::OkStatus();
    for (size_t b = 0; b < operations.size(); ++b) {
      const int64_t sent = operations[a].counts[b];
      const int64_t received = operations[b].receive_counts[a];
      if (sent == received) continue;
      return absl::FailedPreconditionError(
          absl::StrCat("all_to_all: rank ", a, " sends ", sent,
                       " elements to rank ", b, ", which receives ", received,
                       "; give equal counts for each pair of ranks"));
    }
  }
  return absl::OkStatus();
}

FoldJob MovedTo(const DeviceAddresses& at, FoldJob fold) {
  for (int i = 0; i < fold.source_count; ++i) {
    const void*& source = fold.sources[static_cast<size_t>(i)];
    source = at(static_cast<const std::byte*>(source));
  }
  for (int i = 0; i < fold.target_count; ++i) {
    void*& target = fold.targets[static_cast<size_t>(i)];
    target = at(static_cast<std::byte*>(target));
  }
  return fold;
}

Moves MovedTo(const DeviceAddresses& at, Moves moves) {
  for (int i = 0; i < moves.count; ++i) {
    Move& move = moves.moves[static_cast<size_t>(i)];
    move.from = at(static_cast<const std::byte*>(move.from));
    move.to = at(static_cast<std::byte*>(move.to));
    move.back_from = at(static_cast<const std::byte*>(move.back_from));
    move.back_to = at(static_cast<std::byte*>(move.back_to));
  }
  return moves;
}

}  // namespace tessera::collectives

#include "collectives/algorithms/ring.h"

#include <algorithm>
#include <array>

#include "base/status_macros.h"
#include "collectives/algorithms/schedule.h"

namespace tessera::collectives {
namespace {

// Chunks of a block in flight, and number of receives posted ahead.
constexpr int64_t kDepth = 2;
constexpr int64_t kAhead = 2;
// Partial results stay in slots until the right neighbour has received them one
// step later: two steps of chunks plus the posted receives.
constexpr int64_t kSlots = 2 * kDepth + kAhead;

// The data of one ring operation.
struct RingTask {
  const Blocks& blocks;
  RingShape shape;
  int64_t element;             // Bytes per element.
  ConstVectorView input = {};  // All ranks' blocks, for reduce-scatter steps.
  VectorView own = {};         // The rank's own block of the output.
  VectorView all = {};         // All ranks' blocks, for all-gather steps.
  Reducer reducer = {};

  int64_t ranks() const { return blocks.ranks(); }
  bool Reduces(int64_t step) const { return step < ranks() - 1; }
  bool Completes(int64_t step) const { return step == ranks() - 2; }
};

class RingRun {
 public:
  RingRun(RankGroup& group, const RingTask& task)
      : group_(group),
        task_(task),
        posted_(task.blocks, group.rank(), task.shape),
        at_(task.blocks, group.rank(), task.shape) {}

  absl::Status Run() {
    TESSERA_RETURN_IF_ERROR(Prepare());
    TESSERA_RETURN_IF_ERROR(SendFirst(0));
    for (; !at_.done(); ++index_) {
      group_.Step(1 + at_.step() - task_.shape.first_step,
                  task_.shape.end_step - task_.shape.first_step);
      TESSERA_RETURN_IF_ERROR(PostAhead());
      TESSERA_RETURN_IF_ERROR(group_.Finish(receives_[Slot(index_)]));
      TESSERA_RETURN_IF_ERROR(Take());
      const int64_t window = at_.window();
      at_.Next();
      TESSERA_RETURN_IF_ERROR(SendFirstsAfter(window));
    }
    TESSERA_RETURN_IF_ERROR(group_.Finish(firsts_));
    return group_.Finish(sends_);
  }

 private:
  static size_t Slot(int64_t index) {
    return static_cast<size_t>(index % kSlots);
  }
  int64_t right() const { return (group_.rank() + 1) % group_.size(); }
  int64_t left() const {
    return (group_.rank() + group_.size() - 1) % group_.size();
  }

  absl::Status Prepare() {
    if (!task_.Reduces(task_.shape.first_step)) return absl::OkStatus();
    const int64_t longest = std::min(task_.shape.chunk, task_.blocks.largest());
    for (VectorView& slot : slots_) {
      TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                               group_.Scratch(longest * task_.element));
      slot = {memory.data(), task_.element};
    }
    return absl::OkStatus();
  }

  // Also sends the start chunks of windows from which nothing is received.
  absl::Status SendFirstsAfter(int64_t window) {
    const int64_t last = std::min(at_.window(), at_.windows() - 1);
    while (window < last) TESSERA_RETURN_IF_ERROR(SendFirst(++window));
    return absl::OkStatus();
  }

  // Sends the chunks of `window` with which the ring starts, unchanged.
  absl::Status SendFirst(int64_t window) {
    const int64_t block =
        RingBlock(task_.ranks(), group_.rank(), task_.shape.first_step - 1);
    const bool raw = task_.Reduces(task_.shape.first_step);
    const int64_t offset = task_.blocks.offset(block);
    for (int64_t k = 0; k < at_.ChunksIn(window, block); ++k) {
      const int64_t first =
          (window * task_.shape.depth + k) * task_.shape.chunk;
      const int64_t length =
          std::min(task_.shape.chunk, task_.blocks.count(block) - first);
      Request& request = firsts_[static_cast<size_t>(k)];
      TESSERA_RETURN_IF_ERROR(group_.Finish(request));
      const ConstVectorView from = raw ? task_.input : task_.all;
      TESSERA_ASSIGN_OR_RETURN(
          request, group_.Send(right(), from.Range(offset + first, length)));
    }
    return absl::OkStatus();
  }

  // Returns true if the next receive may be posted now. In place, an all-gather
  // step overwrites the block that was read as input n steps before; the first
  // one overwrites the start block, which the right neighbour receives in step
  // 0.
  bool MayPost() const {
    if (posted_.done() || posted_index_ - index_ >= kAhead) return false;
    if (posted_index_ == index_ || task_.Reduces(posted_.step())) return true;
    return !task_.Reduces(task_.shape.first_step) ||
           (posted_.window() == at_.window() && at_.step() > 0 &&
            posted_.step() <= at_.step() + 1);
  }

  absl::Status PostAhead() {
    for (; MayPost(); ++posted_index_, posted_.Next()) {
      const size_t slot = Slot(posted_index_);
      TESSERA_RETURN_IF_ERROR(group_.Finish(sends_[slot]));
      VectorView landing = slots_[slot];
      if (!task_.Reduces(posted_.step())) {
        landing = task_.all.From(task_.blocks.offset(posted_.block()) +
                                 posted_.first());
        if (task_.Reduces(task_.shape.first_step) &&
            posted_.step() == task_.ranks() - 1) {
          TESSERA_RETURN_IF_ERROR(
              group_.Finish(firsts_[static_cast<size_t>(posted_.chunk())]));
        }
      }
      TESSERA_ASSIGN_OR_RETURN(
          receives_[slot],
          group_.Receive(left(), landing.Range(0, posted_.length())));
    }
    return absl::OkStatus();
  }

  // Reduces the received chunk if the step reduces, and forwards it.
  absl::Status Take() {
    const int64_t first = at_.first();
    const int64_t length = at_.length();
    const int64_t offset = task_.blocks.offset(at_.block()) + first;
    std::byte* result = task_.Reduces(at_.step()) ? slots_[Slot(index_)].data
                                                  : task_.all.at(offset);
    if (task_.Reduces(at_.step())) {
      const bool complete = task_.Completes(at_.step());
      const std::byte* incoming = result;
      if (complete) result = task_.own.at(first);
      group_.Enter(Phase::kReducing);
      CombineTwo(task_.reducer.At(complete), incoming, task_.input.at(offset),
                 result, length);
    }
    if (at_.step() + 1 == task_.shape.end_step) return absl::OkStatus();
    const std::span<const std::byte> bytes(
        result, static_cast<size_t>(length * task_.element));
    TESSERA_ASSIGN_OR_RETURN(sends_[Slot(index_)], group_.Send(right(), bytes));
    return absl::OkStatus();
  }

  RankGroup& group_;
  const RingTask& task_;
  RingWalk posted_;  // The next receive to post, the posted_index_-th.
  RingWalk at_;      // The next one to take, the index_-th.
  int64_t posted_index_ = 0;
  int64_t index_ = 0;
  std::array<VectorView, kSlots> slots_ = {};
  std::array<Request, kSlots> receives_ = {};
  std::array<Request, kSlots> sends_ = {};
  std::array<Request, kDepth> firsts_ = {};
};

absl::Status RunRing(RankGroup& group, const RingTask& task) {
  return RingRun(group, task).Run();
}

}  // namespace

absl::Status RingReduceScatter(RankGroup group, const Blocks& blocks,
                               ConstVectorView input, VectorView own,
                               const Reducer& reducer, int64_t chunk) {
  const int64_t n = group.size();
  if (n == 1) {
    CombineOne(reducer.last, input.data, own.data, blocks.total());
    return absl::OkStatus();
  }
  return RunRing(group, {.blocks = blocks,
                         .shape = {0, n - 1, chunk, kDepth},
                         .element = reducer.element(),
                         .input = input,
                         .own = own,
                         .reducer = reducer});
}

absl::Status RingAllGather(RankGroup group, const Blocks& blocks,
                           VectorView all, int64_t chunk) {
  const int64_t n = group.size();
  if (n == 1) return absl::OkStatus();
  return RunRing(group, {.blocks = blocks,
                         .shape = {n - 1, 2 * n - 2, chunk, kDepth},
                         .element = all.element,
                         .all = all});
}

absl::Status RingAllReduce(RankGroup group, int64_t count,
                           ConstVectorView input, VectorView output,
                           const Reducer& reducer, int64_t chunk) {
  const int64_t n = group.size();
  if (n == 1) {
    CombineOne(reducer.last, input.data, output.data, count);
    return absl::OkStatus();
  }
  const Blocks blocks = Blocks::Balanced(n, count);
  return RunRing(group, {.blocks = blocks,
                         .shape = {0, 2 * n - 2, chunk, kDepth},
                         .element = reducer.element(),
                         .input = input,
                         .own = output.From(blocks.offset(group.rank())),
                         .all = output,
                         .reducer = reducer});
}

}  // namespace tessera::collectives

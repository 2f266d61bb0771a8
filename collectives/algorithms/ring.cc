#include "collectives/algorithms/ring.h"

#include <algorithm>
#include <array>

#include "base/status_macros.h"
#include "collectives/algorithms/ring_walk.h"

namespace tessera::collectives {
namespace {

// Chunks of a block that are under way together, and how many receives are
// posted ahead of the one that is waited for.
constexpr int64_t kDepth = 2;
constexpr int64_t kAhead = 2;
// Partial results wait in slots until the right neighbour has taken them, which
// it does a step later: two steps of chunks, and those that are posted.
constexpr int64_t kSlots = 2 * kDepth + kAhead;

// What one run of the ring works on.
struct RingTask {
  const Blocks& blocks;
  RingShape shape;
  int64_t element;             // Bytes of one.
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
  RingRun(Party& party, const RingTask& task)
      : party_(party),
        task_(task),
        posted_(task.blocks, party.rank(), task.shape),
        at_(task.blocks, party.rank(), task.shape) {}

  absl::Status Run() {
    TESSERA_RETURN_IF_ERROR(Prepare());
    TESSERA_RETURN_IF_ERROR(SendFirst(0));
    for (; !at_.done(); ++index_) {
      party_.Step(1 + at_.step() - task_.shape.first_step,
                  task_.shape.end_step - task_.shape.first_step);
      TESSERA_RETURN_IF_ERROR(PostAhead());
      TESSERA_RETURN_IF_ERROR(party_.Finish(receives_[Slot(index_)]));
      TESSERA_RETURN_IF_ERROR(Take());
      const int64_t window = at_.window();
      at_.Next();
      TESSERA_RETURN_IF_ERROR(SendFirstsAfter(window));
    }
    TESSERA_RETURN_IF_ERROR(party_.Finish(firsts_));
    return party_.Finish(sends_);
  }

 private:
  static size_t Slot(int64_t index) {
    return static_cast<size_t>(index % kSlots);
  }
  int64_t right() const { return (party_.rank() + 1) % party_.size(); }
  int64_t left() const {
    return (party_.rank() + party_.size() - 1) % party_.size();
  }

  absl::Status Prepare() {
    if (!task_.Reduces(task_.shape.first_step)) return absl::OkStatus();
    const int64_t longest = std::min(task_.shape.chunk, task_.blocks.largest());
    for (VectorView& slot : slots_) {
      TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> memory,
                               party_.Scratch(longest * task_.element));
      slot = {memory.data(), task_.element};
    }
    return absl::OkStatus();
  }

  // Those of the windows that have come up since, where nothing comes in from
  // some of them.
  absl::Status SendFirstsAfter(int64_t window) {
    const int64_t last = std::min(at_.window(), at_.windows() - 1);
    while (window < last) TESSERA_RETURN_IF_ERROR(SendFirst(++window));
    return absl::OkStatus();
  }

  // The chunks of `window` that the ring starts with go out as they are.
  absl::Status SendFirst(int64_t window) {
    const int64_t block =
        RingBlock(task_.ranks(), party_.rank(), task_.shape.first_step - 1);
    const bool raw = task_.Reduces(task_.shape.first_step);
    const int64_t offset = task_.blocks.offset(block);
    for (int64_t k = 0; k < at_.ChunksIn(window, block); ++k) {
      const int64_t first =
          (window * task_.shape.depth + k) * task_.shape.chunk;
      const int64_t length =
          std::min(task_.shape.chunk, task_.blocks.count(block) - first);
      Request& request = firsts_[static_cast<size_t>(k)];
      TESSERA_RETURN_IF_ERROR(party_.Finish(request));
      const ConstVectorView from = raw ? task_.input : task_.all;
      TESSERA_ASSIGN_OR_RETURN(
          request, party_.Send(right(), from.Range(offset + first, length)));
    }
    return absl::OkStatus();
  }

  // Whether the next receive may be posted now. In place, an all-gather step
  // lands where the same block was read as input n steps before; the first one
  // where the ring started, which the right neighbour takes in step 0.
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
      TESSERA_RETURN_IF_ERROR(party_.Finish(sends_[slot]));
      VectorView landing = slots_[slot];
      if (!task_.Reduces(posted_.step())) {
        landing = task_.all.From(task_.blocks.offset(posted_.block()) +
                                 posted_.first());
        if (task_.Reduces(task_.shape.first_step) &&
            posted_.step() == task_.ranks() - 1) {
          TESSERA_RETURN_IF_ERROR(
              party_.Finish(firsts_[static_cast<size_t>(posted_.chunk())]));
        }
      }
      TESSERA_ASSIGN_OR_RETURN(
          receives_[slot],
          party_.Receive(left(), landing.Range(0, posted_.length())));
    }
    return absl::OkStatus();
  }

  // What came in is combined where the step combines, and goes on.
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
      party_.Enter(Phase::kReducing);
      CombineTwo(task_.reducer.At(complete), incoming, task_.input.at(offset),
                 result, length);
    }
    if (at_.step() + 1 == task_.shape.end_step) return absl::OkStatus();
    const std::span<const std::byte> bytes(
        result, static_cast<size_t>(length * task_.element));
    TESSERA_ASSIGN_OR_RETURN(sends_[Slot(index_)], party_.Send(right(), bytes));
    return absl::OkStatus();
  }

  Party& party_;
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

absl::Status RunRing(Party& party, const RingTask& task) {
  return RingRun(party, task).Run();
}

}  // namespace

absl::Status RingReduceScatter(Party party, const Blocks& blocks,
                               ConstVectorView input, VectorView own,
                               const Reducer& reducer, int64_t chunk) {
  const int64_t n = party.size();
  if (n == 1) {
    CombineOne(reducer.last, input.data, own.data, blocks.total());
    return absl::OkStatus();
  }
  return RunRing(party, {.blocks = blocks,
                         .shape = {0, n - 1, chunk, kDepth},
                         .element = reducer.element(),
                         .input = input,
                         .own = own,
                         .reducer = reducer});
}

absl::Status RingAllGather(Party party, const Blocks& blocks, VectorView all,
                           int64_t chunk) {
  const int64_t n = party.size();
  if (n == 1) return absl::OkStatus();
  return RunRing(party, {.blocks = blocks,
                         .shape = {n - 1, 2 * n - 2, chunk, kDepth},
                         .element = all.element,
                         .all = all});
}

absl::Status RingAllReduce(Party party, int64_t count, ConstVectorView input,
                           VectorView output, const Reducer& reducer,
                           int64_t chunk) {
  const int64_t n = party.size();
  if (n == 1) {
    CombineOne(reducer.last, input.data, output.data, count);
    return absl::OkStatus();
  }
  const Blocks blocks = Blocks::Balanced(n, count);
  return RunRing(party, {.blocks = blocks,
                         .shape = {0, 2 * n - 2, chunk, kDepth},
                         .element = reducer.element(),
                         .input = input,
                         .own = output.From(blocks.offset(party.rank())),
                         .all = output,
                         .reducer = reducer});
}

}  // namespace tessera::collectives

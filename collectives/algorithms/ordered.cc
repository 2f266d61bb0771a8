#include "collectives/algorithms/ordered.h"

#include <algorithm>

#include "base/status_macros.h"
#include "collectives/algorithms/rank_group.h"
#include "collectives/algorithms/schedule.h"

namespace tessera::collectives {
namespace {

// Limit for all contributions to one chunk together, so that memory does not
// grow with the number of ranks and data is read while still in cache.
constexpr int64_t kLandingBytes = 4 << 20;
constexpr int64_t kShortestChunkBytes = 1 << 10;

int64_t ChunkFor(int64_t ranks, int64_t element, int64_t chunk) {
  const int64_t most =
      std::max(kLandingBytes / ranks, kShortestChunkBytes) / element;
  return std::clamp<int64_t>(chunk, 1, most);
}

// Two chunks: one is received while the previous one is reduced.
int64_t LandingBytes(int64_t ranks, const Chunks& mine, int64_t element) {
  return (mine.count() > 1 ? 2 : 1) * (ranks - 1) * mine.longest() * element;
}

class OrderedRun {
 public:
  OrderedRun(RankGroup& group, const Blocks& blocks, ConstVectorView input,
             VectorView own, const Combination& combination, int64_t chunk)
      : group_(group),
        blocks_(blocks),
        input_(input),
        own_(own),
        combination_(combination),
        chunk_(ChunkFor(group.size(), input.element, chunk)),
        mine_(blocks.count(group.rank()), chunk_) {}

  absl::Status Run() {
    const int64_t n = group_.size();
    TESSERA_ASSIGN_OR_RETURN(receives_, group_.ScratchOf<Request>(2 * n));
    TESSERA_ASSIGN_OR_RETURN(sends_, group_.ScratchOf<Request>(2 * n));
    TESSERA_ASSIGN_OR_RETURN(sources_, group_.ScratchOf<const void*>(n));
    TESSERA_ASSIGN_OR_RETURN(
        const std::span<std::byte> memory,
        group_.Scratch(LandingBytes(n, mine_, input_.element)));
    landing_ = {memory.data(), input_.element};
    const int64_t rounds = Chunks(blocks_.largest(), chunk_).count();
    for (int64_t k = -1; k < rounds; ++k) {
      group_.Step(k + 1, rounds);
      TESSERA_RETURN_IF_ERROR(Start(k + 1));
      if (k >= 0) TESSERA_RETURN_IF_ERROR(Take(k));
    }
    return group_.Finish(sends_);
  }

 private:
  std::span<Request> OfRound(std::span<Request> requests, int64_t k) const {
    const auto n = static_cast<size_t>(group_.size());
    return requests.subspan(static_cast<size_t>(k % 2) * n, n);
  }
  // The landing buffer of a rank's contribution to chunk k of this rank's
  // block.
  VectorView Landing(int64_t rank, int64_t k) const {
    const int64_t others = group_.size() - 1;
    const int64_t place = rank < group_.rank() ? rank : rank - 1;
    return landing_.From(((k % 2) * others + place) * mine_.longest());
  }

  absl::Status Start(int64_t k) {
    const int64_t n = group_.size();
    const std::span<Request> receives = OfRound(receives_, k);
    const std::span<Request> sends = OfRound(sends_, k);
    TESSERA_RETURN_IF_ERROR(group_.Finish(sends));
    for (int64_t step = 1; step < n; ++step) {
      const int64_t from = (group_.rank() + n - step) % n;
      const int64_t to = (group_.rank() + step) % n;
      const Chunks theirs(blocks_.count(to), chunk_);
      if (k < mine_.count()) {
        TESSERA_ASSIGN_OR_RETURN(
            receives[static_cast<size_t>(from)],
            group_.Receive(from, Landing(from, k).Range(0, mine_.length(k))));
      }
      if (k < theirs.count()) {
        TESSERA_ASSIGN_OR_RETURN(
            sends[static_cast<size_t>(to)],
            group_.Send(to, input_.Range(blocks_.offset(to) + theirs.first(k),
                                         theirs.length(k))));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Take(int64_t k) {
    if (k >= mine_.count()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(group_.Finish(OfRound(receives_, k)));
    if (mine_.length(k) == 0) return absl::OkStatus();
    group_.Enter(Phase::kReducing);
    for (int64_t rank = 0; rank < group_.size(); ++rank) {
      sources_[static_cast<size_t>(rank)] =
          rank == group_.rank()
              ? input_.at(blocks_.offset(rank) + mine_.first(k))
              : Landing(rank, k).data;
    }
    void* const destinations[] = {own_.at(mine_.first(k))};
    Combine(combination_, sources_, destinations, mine_.length(k));
    return absl::OkStatus();
  }

  RankGroup& group_;
  const Blocks& blocks_;
  ConstVectorView input_;
  VectorView own_;
  Combination combination_;
  int64_t chunk_;
  Chunks mine_;
  VectorView landing_;
  std::span<Request> receives_;
  std::span<Request> sends_;
  std::span<const void*> sources_;
};

}  // namespace

int64_t OrderedLandingBytes(int64_t ranks, int64_t block, int64_t element,
                            int64_t chunk) {
  return LandingBytes(ranks, Chunks(block, ChunkFor(ranks, element, chunk)),
                      element);
}

absl::Status OrderedReduceScatter(RankGroup group, const Blocks& blocks,
                                  ConstVectorView input, VectorView own,
                                  const Combination& combination,
                                  int64_t chunk) {
  if (group.size() == 1) {
    CombineOne(combination, input.data, own.data, blocks.total());
    return absl::OkStatus();
  }
  return OrderedRun(group, blocks, input, own, combination, chunk).Run();
}

}  // namespace tessera::collectives

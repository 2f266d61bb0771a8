// TreeLane: one rank's part in one tree of trees.h: the messages of each chunk.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_TREE_LANE_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_TREE_LANE_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "collectives/algorithms/chunks.h"
#include "collectives/algorithms/party.h"
#include "collectives/algorithms/tree_place.h"
#include "collectives/algorithms/trees.h"
#include "collectives/algorithms/vector_view.h"

namespace tessera::collectives {

// What travels along a tree, and since when.
struct TreeFlow {
  bool up = false;    // Partial results, from time 0.
  bool down = false;  // Results.
  int64_t height = 0;

  int64_t UpTime(int64_t depth) const { return height - depth; }
  int64_t DownTime(int64_t depth) const { return (up ? height : 0) + depth; }
};

class TreeLane {
 public:
  // Elements [first, first + count) of the task's vectors move along `place`.
  TreeLane(const TreeTask& task, const TreeFlow& flow, const TreePlace& place,
           int64_t first, int64_t count);

  absl::Status Prepare(Party& party);
  int64_t chunk_count() const { return chunks_.count(); }

  // Posts what will be taken at `time`.
  absl::Status PostUp(Party& party, int64_t time);
  absl::Status PostDown(Party& party, int64_t time);
  // Takes, combines and passes on.
  absl::Status MoveUp(Party& party, int64_t time);
  absl::Status MoveDown(Party& party, int64_t time);

  absl::Status Finish(Party& party);

 private:
  // Chunks on their way up: one comes in, one is combined, one goes out.
  static constexpr int64_t kSlots = 3;

  bool is_root() const { return place_.parent < 0; }
  int64_t children() const { return place_.child_count; }
  bool Has(int64_t k) const { return k >= 0 && k < chunks_.count(); }
  VectorView Landing(int64_t child, int64_t k) const {
    return slots_.From(((k % kSlots) * children() + child) * chunks_.longest());
  }
  std::span<Request> OfChunk(std::span<Request> requests, int64_t set) const {
    const auto width = static_cast<size_t>(children());
    return requests.subspan(static_cast<size_t>(set) * width, width);
  }
  void CombineChunk(int64_t k, std::byte* result);

  TreeFlow flow_;
  TreePlace place_;
  Chunks chunks_;
  Reducer reducer_;
  ConstVectorView input_;
  VectorView output_;
  ConstVectorView source_;  // What is passed down.
  VectorView slots_;
  std::span<const void*> sources_;
  std::span<Request> from_children_;  // A set of children's for each slot.
  std::span<Request> to_children_;    // Two sets.
  Request to_parent_[kSlots];
  Request from_parent_[2];
  int64_t sent_up_ = 0;  // Chunks.
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_TREE_LANE_H_

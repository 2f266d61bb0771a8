// MemoryCopies: copies of a run's state in the memory of its ranks, from which
// the run continues after a rank was replaced, without a file and with the bits
// that it would have had.
//
// Each rank keeps a copy of its own state and one of the state of another rank,
// on another host if every rank has such a partner (Wang et al., Gemini: Fast
// Failure Recovery in Distributed Training with In-Memory Checkpoints, SOSP
// 2023, section 4, with one replica). The copy travels while the next step
// computes. The previous copies are kept until all ranks have the new ones, so
// that every rank has up to four copies of one rank's state.
//
//   MemoryCopies copies;  // outlives the communicators of the run
//   TESSERA_ASSIGN_OR_RETURN(bool found, copies.Join(world, {}));
//   ...  // create `rank` on `world`
//   TESSERA_ASSIGN_OR_RETURN(auto metadata, copies.Restore(rank));
//   TESSERA_RETURN_IF_ERROR(copies.Take(rank, metadata_of_the_run));
//   while (...) {
//     rank.Step();
//     TESSERA_RETURN_IF_ERROR(copies.Finish());
//     TESSERA_RETURN_IF_ERROR(world.Barrier());  // or another exchange
//     copies.Commit();
//     TESSERA_RETURN_IF_ERROR(copies.Take(rank, metadata_of_the_run));
//   }
//   copies.Leave();  // before `world` is destroyed
//
// If a rank dies, the others call Leave, form a new world together with a new
// process in the place of the dead one, and begin again with Join. If the run
// cannot go on, they write a checkpoint instead, without any TrainRank:
//
//   TESSERA_RETURN_IF_ERROR(copies.Join(world, {}).status());
//   TESSERA_ASSIGN_OR_RETURN(const std::string path, copies.Save(options));
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_MEMORY_COPIES_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_MEMORY_COPIES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "collectives/communicator.h"
#include "collectives/groups/host_hierarchy.h"
#include "offload/tier/accounting.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/step/train_rank.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/shard_format.h"
#include "zero3/state/sharded_state.h"
#include "zero3/state/state_device.h"

namespace tessera::train {

// The least distance of ranks such that no rank and the one at that distance
// are on the same host; 1 if there is none. `locations` is empty or has the
// location of each rank.
int64_t PartnerDistance(std::span<const collectives::RankLocation> locations);

// The blocks of a state that a rank keeps: all that it owns.
std::vector<zero3::BlockRange> BlocksToCopy(zero3::ShardedState& state);

// One thread at a time. Methods that return a status are collectives of the
// world.
class MemoryCopies {
 public:
  MemoryCopies() = default;
  ~MemoryCopies() { Leave(); }
  MemoryCopies(const MemoryCopies&) = delete;
  MemoryCopies& operator=(const MemoryCopies&) = delete;

  // Compares the copies of all ranks. Returns true if there are copies of the
  // same step for every rank; of several, the newest. InvalidArgument if the
  // world has one rank, which has no partner. `world` must exist until Leave.
  absl::StatusOr<bool> Join(
      collectives::Communicator& world,
      std::span<const collectives::RankLocation> locations);

  // The round of the rendezvous in which the next world has met.
  void SetRound(int64_t round) { round_ = round; }

  // True if any rank has copies, even if they are incomplete, or had some: the
  // world is not the first one of the run.
  bool were_taken() const { return sequence_ > 0 || round_ > 0; }

  // Prepares for Take. If Join returned true, restores `rank` and returns the
  // metadata of its Take; otherwise, or if a rank's state has another form than
  // its copy, drops all copies and returns nullopt. All ranks return the same.
  absl::StatusOr<std::optional<zero3::CheckpointMetadata>> Restore(
      TrainRank& rank);

  // Writes the copies that Join found as a checkpoint, which RestoreRun
  // restores on any mesh. Whoever holds the copy of a rank that has lost its
  // own writes that rank's files. Of the options, `identity` and
  // `snapshot_memory` are not used. Returns the path of the checkpoint, or of
  // one that is not older; "" if Join returned false.
  absl::StatusOr<std::string> Save(const RunCheckpointOptions& options);

  // Between steps: copies the state of `rank` with its progress, and starts to
  // exchange the copies. ResourceExhausted, on this rank only, if memory is
  // exhausted.
  absl::Status Take(TrainRank& rank, zero3::CheckpointMetadata metadata);

  // Waits for the exchange that Take started. Not a collective by itself: after
  // it, and after an exchange that no rank completes before all ranks have
  // called Finish, call Commit.
  absl::Status Finish();
  // The copies of the last Take replace the previous ones.
  void Commit();

  // Ends the use of the world. The copies remain.
  void Leave();

  // The bytes of all copies on this rank, and their peak.
  offload::Usage usage() const { return accounting_->usage(); }

 private:
  // Describes the files of a rank's state: FormatReport of the shard of each
  // part, one per line.
  using Plan = std::shared_ptr<const std::string>;
  // The copies of one step. Each is one block of memory, with the blocks of all
  // parts of the model one after the other, then the scales of fp8.
  struct Copies {
    int64_t sequence = 0;  // Numbers the calls of Take, equal on all ranks.
    zero3::CheckpointMetadata metadata = {};
    zero3::AccountedMemory own = {};
    // The sizes of the blocks and a hash of their ranges; empty: no copy.
    std::string own_form = "";
    Plan own_plan = {};
    zero3::AccountedMemory held = {};
    std::string held_form = "";
    Plan held_plan = {};
    int64_t held_rank = 0;     // Whose state `held` is.
    bool is_reusable = false;  // The memory belongs to the current rank.
  };
  // The copies of one step that a rank has, as it announces them to the others.
  struct Offer {
    int64_t sequence = 0;
    zero3::CheckpointMetadata metadata = {};
    std::string own_form = "";
    std::string held_form = "";
    int64_t held_rank = 0;
  };

  static std::string FormatOffers(const std::vector<Offer>& offers);
  static absl::StatusOr<std::vector<Offer>> ParseOffers(
      const std::string& text);
  static const Offer* Find(const std::vector<Offer>& offers, int64_t sequence);

  int64_t size() const { return group_->size(); }
  // A rank that holds a copy of the state of `rank`; nullopt: none does. The
  // ranks that exchanged it may have had other partners than those of now,
  // since a replaced rank may be on another host.
  std::optional<int64_t> HolderOf(int64_t rank, int64_t sequence) const;
  std::vector<Offer> Offers() const;
  bool HasOwn(int64_t rank, int64_t sequence) const;
  bool AreComplete(int64_t sequence) const;
  // Returns the copies of the step that Join found, if this rank has them.
  std::optional<Copies> TakeFound();
  absl::StatusOr<std::vector<std::string>> ExchangeForms(TrainRank& rank);
  absl::Status ExchangePlans(TrainRank& rank);
  bool FormsAreEqual(const std::vector<std::string>& forms) const;
  // Sends and receives the copies of ranks that have lost theirs.
  absl::Status Return(Copies& copies);
  // The shards that this rank writes.
  absl::Status AddShards(const Copies& copies, zero3::SaveJob& job) const;
  absl::StatusOr<std::string> Write(
      const std::vector<collectives::Rank>& writers, zero3::SaveJob job);
  absl::StatusOr<int64_t> Write(const Copies& copies, TrainRank& rank);
  absl::StatusOr<zero3::AccountedMemory> Allocate(int64_t bytes) const;
  absl::Status StartCopy(TrainRank& rank);
  void Drop();
  // Run by the thread.
  absl::Status Exchange();

  const std::shared_ptr<offload::Accounting> accounting_ =
      std::make_shared<offload::Accounting>("copies in memory",
                                            offload::kUnlimited);
  std::unique_ptr<collectives::Communicator> group_;
  int64_t distance_ = 1;
  std::vector<std::vector<Offer>> offers_;  // Of each rank, from Join.
  int64_t found_ = 0;                       // A sequence; 0: none.
  int64_t sequence_ = 0;                    // The last one.
  int64_t round_ = 0;
  // The blocks and forms of the rank that Restore was called with.
  std::vector<std::vector<zero3::BlockRange>> blocks_;  // By part.
  std::string own_form_;
  std::string held_form_;
  Plan own_plan_;
  Plan held_plan_;
  std::optional<Copies> committed_;
  std::optional<Copies> pending_;
  std::optional<Copies> spare_;  // Memory for the next Take.
  std::vector<Event> copied_;    // Of `pending_`, by part.
  std::thread thread_;
  absl::Status exchanged_;  // Set by the thread.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_MEMORY_COPIES_H_

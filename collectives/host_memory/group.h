// Group: one rank's view of a group: publishes its state, waits for peers, and
// breaks the group on errors.
//
// Threads: several threads of a rank (collectives and messages) may call Await,
// Wake and Break at once; only the thread that runs collectives calls Enter and
// Leave.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_GROUP_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_GROUP_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/os/processors.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_report.h"
#include "collectives/host_memory/domain.h"

namespace tessera::collectives::host_memory {

class Group {
 public:
  // `members`: the group's ranks as indices in the domain, in group order.
  // `rank`: this rank's index in `members`.
  // `owns_block`: this rank's domain allocated the block.
  Group(std::shared_ptr<Domain> domain, GroupBlock block,
        std::vector<int64_t> members, int64_t rank, bool owns_block);
  // Frees the group's memory once all ranks have left the group.
  ~Group();

  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  int64_t rank() const { return rank_; }
  int64_t size() const { return block_.size(); }
  Domain& domain() const { return *domain_; }
  const std::shared_ptr<Domain>& shared_domain() const { return domain_; }
  const GroupBlock& block() const { return block_; }
  RankBlock& mine() const { return *mine_; }
  RankBlock& of(int64_t rank) const { return block_.rank(rank); }
  const Tuning& tuning() const { return tuning_; }
  // True if there are fewer processors than ranks. The same on all ranks.
  bool crowded() const { return crowded_; }
  std::span<const int64_t> members() const { return members_; }

  // Publishes that this rank entered the collective of `context`, or left it.
  void Enter(OperationContext& context);
  void Leave();

  // Waits until ready() returns true. `missing` lists the ranks that are still
  // awaited; it is called only in long waits. On error the group is broken: the
  // deadline of `context` passed, a peer died, left, or called another
  // operation, or the group was broken before.
  template <typename Ready, typename Missing>
  absl::Status Await(OperationContext& context, const Ready& ready,
                     const Missing& missing) {
    if (Spin(ready)) return absl::OkStatus();
    return AwaitLong(context, ready, missing);
  }

  // Like Await, after a store (release) that every awaited rank waits for in
  // turn. Wakes sleeping ranks only when the spin has ended, so that the spin's
  // loads do not wait for the store.
  template <typename Ready, typename Missing>
  absl::Status AwaitEachOther(OperationContext& context, const Ready& ready,
                              const Missing& missing) {
    const bool spun = Spin(ready);
    FenceStores();
    Wake();
    return spun ? absl::OkStatus() : AwaitLong(context, ready, missing);
  }

  // Wakes sleeping ranks. Call it after every store that a peer may wait for;
  // the store must be sequentially consistent, or a fence must follow it.
  void Wake() {
    stores_.store(stores_.load(std::memory_order_relaxed) + 1,
                  std::memory_order_relaxed);
    if (block_.header().sleepers.load(std::memory_order_seq_cst) != 0) {
      WakeSleepers();
    }
  }

  // OK, or the error that broke the group.
  absl::Status Whole() const {
    const auto& state = block_.header().broken.state;
    // Sequentially consistent, so that a rank that is about to sleep sees it.
    if (state.load(std::memory_order_seq_cst) != BrokenRecord::kBroken) {
      return absl::OkStatus();
    }
    return BrokenStatus();
  }

  // Breaks the group for all ranks unless it is already broken; returns the
  // error that broke it.
  absl::Status Break(const absl::Status& reason);

  // Breaks the group because `peer` called another operation than `context`;
  // returns the error.
  absl::Status Mismatch(const OperationContext& context, int64_t peer);

  // Breaks the group after reading from `peer` failed with `status`. Returns an
  // error that `peer` is dead, if it is, or `status`.
  absl::Status Lost(OperationContext& context, int64_t peer,
                    const absl::Status& status);

  // Publishes that this rank has left the group.
  void Depart();

  // Frees `memory` of the domain after all ranks have left the group.
  void FreeLater(std::byte* memory);

  PeerReport Report(int64_t peer, bool look_at_process) const;

 private:
  using Missing = absl::FunctionRef<void(std::vector<int64_t>&)>;

  template <typename Ready>
  bool Spin(const Ready& ready) {
    const int64_t limit = spin_limit_.load(std::memory_order_relaxed);
    for (int64_t i = 0; i < limit; ++i) {
      if (ready()) {
        if (limit < spins_) LearnSpins(2 * limit);
        return true;
      }
      SpinPause();
    }
    LearnSpins(limit / 2);
    return false;
  }

  // Orders earlier stores before the load of the sleepers.
  void FenceStores() {
#if defined(__SANITIZE_THREAD__)
    // ThreadSanitizer does not know fences.
    stores_.fetch_add(1, std::memory_order_seq_cst);
#else
    std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
  }

  // Adapts the number of spins: fewer after spinning failed, for example
  // because the peer shares this processor, more after it succeeded.
  void LearnSpins(int64_t wanted) {
    spin_limit_.store(
        std::clamp(wanted, std::min(kFewestSpins, spins_), spins_),
        std::memory_order_relaxed);
  }
  static constexpr int64_t kFewestSpins = 8;

  absl::Status AwaitLong(OperationContext& context,
                         absl::FunctionRef<bool()> ready, Missing missing);
  absl::Status CheckWait(OperationContext& context, Missing missing,
                         absl::FunctionRef<bool()> ready,
                         bool look_at_processes);
  static std::vector<int64_t> ListOf(Missing missing);
  // True if `peer` has called a different collective than the one of `context`,
  // or has advanced so far that its history no longer holds that collective.
  bool IsElsewhere(const OperationContext& context, int64_t peer) const;
  absl::Status MissingError(OperationContext& context,
                            std::span<const int64_t> missing) const;
  void Sleep(absl::FunctionRef<bool()> ready);
  void WakeSleepers();
  absl::Status BrokenStatus() const;
  bool ReadSignature(int64_t peer, uint64_t sequence, Signature& out) const;

  const std::shared_ptr<Domain> domain_;
  const GroupBlock block_;
  const std::vector<int64_t> members_;
  const int64_t rank_;
  RankBlock* const mine_;
  const Tuning tuning_;
  const bool crowded_;
  const int64_t spins_;
  std::atomic<int64_t> spin_limit_ = spins_;
  const bool owns_block_;
  // Counts calls of Wake, roughly: a wait that makes progress does not sleep.
  std::atomic<uint64_t> stores_ = 0;

  std::mutex retired_mutex_;
  std::vector<std::byte*> retired_;
};

}  // namespace tessera::collectives::host_memory

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_GROUP_H_

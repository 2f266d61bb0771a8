// Group: one rank's seat at a GroupBlock: publishing, waiting, breaking.
//
// Threads: Await, Wake and the announcing calls may be used by several threads
// of a rank at once (its collectives and its messages); Enter and Leave by the
// one that runs collectives.
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
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_report.h"
#include "collectives/host_memory/domain.h"
#include "collectives/host_memory/layout.h"

namespace tessera::collectives::direct {

// Lets the other hyperthread run, and saves power, between two looks.
inline void SpinPause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

class Group {
 public:
  // `members`: the ranks of the domain that are the group's, in its order.
  // `rank`: this one's index among them.
  // `owns_block`: its domain allocated the block.
  Group(std::shared_ptr<Domain> domain, GroupBlock block,
        std::vector<int64_t> members, int64_t rank, bool owns_block);
  // Gives the group's memory back once all ranks have left it.
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
  // Whether ranks share processors; the same on all of them.
  bool crowded() const { return crowded_; }
  std::span<const int64_t> members() const { return members_; }

  // This rank is in the collective of `context`; it has left it.
  void Enter(OperationContext& context);
  void Leave();

  // Returns when `ready` is true. `missing` lists the ranks that it waits for
  // now; it is called only after a while. An error breaks the group: the
  // deadline of `context`, a rank that is dead or has left, one that called
  // another operation, or what broke the group before.
  template <typename Ready, typename Missing>
  absl::Status Await(OperationContext& context, const Ready& ready,
                     const Missing& missing) {
    const int64_t limit = spin_limit_.load(std::memory_order_relaxed);
    for (int64_t i = 0; i < limit; ++i) {
      if (ready()) {
        if (limit < spins_) LearnSpins(2 * limit);
        return absl::OkStatus();
      }
      SpinPause();
    }
    LearnSpins(limit / 2);
    return AwaitLong(context, ready, missing);
  }

  // Wakes whoever sleeps; after every store that somebody may wait for, which
  // must be sequentially consistent.
  void Wake() {
    if (block_.header().sleepers.load(std::memory_order_seq_cst) != 0) {
      WakeSleepers();
    }
  }

  // OK, or why the group is broken.
  absl::Status Whole() const {
    const auto& state = block_.header().broken.state;
    if (state.load(std::memory_order_acquire) != BrokenRecord::kBroken) {
      return absl::OkStatus();
    }
    return BrokenStatus();
  }

  // Breaks the group for all of its ranks, if it is whole; returns what broke
  // it.
  absl::Status Break(const absl::Status& reason);

  // The error of a flag of `peer` whose fingerprint is not that of `context`.
  absl::Status Mismatch(const OperationContext& context, int64_t peer);

  // The error of what could not be had from `peer`: that it is dead, where it
  // is, or else `status`.
  absl::Status Lost(OperationContext& context, int64_t peer,
                    const absl::Status& status);

  // This rank has left the group.
  void Depart();

  // Memory of the domain that other ranks of the group may use until they have
  // left: freed after that.
  void FreeLater(std::byte* memory);

  PeerReport Report(int64_t peer, bool look_at_process) const;

 private:
  using Missing = absl::FunctionRef<void(std::vector<int64_t>&)>;

  // Looking pays where it finds something: it is the less the more often it was
  // in vain, as when other work keeps the peer, or both of them, on this
  // processor.
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
  // Whether `peer` has called something else than the collective of `context`,
  // or has gone so far beyond it that nobody knows any more.
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

  std::mutex retired_mutex_;
  std::vector<std::byte*> retired_;
};

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_GROUP_H_

// Helpers for engines over a communication library (MPI, Gloo, NCCL): polling
// with Backoff, checks that ranks agree (MessageHeader, CheckSignatures), parts
// of reductions that the library lacks, messages of a rank to itself, ordinary
// memory, ids of subgroups; LibraryEngine, what these engines have in common.
#ifndef TESSERA_COLLECTIVES_ENGINE_LIBRARY_ENGINE_H_
#define TESSERA_COLLECTIVES_ENGINE_LIBRARY_ENGINE_H_

#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/operation_context.h"
#include "collectives/operation/operation.h"
#include "collectives/operation/signature.h"
#include "collectives/reduction/combine.h"
#include "topology/rank.h"

namespace tessera::collectives {

// Paces the polling of a condition, for libraries that progress only when they
// are called (MPI). It spins if allowed, yields for the first second, then
// sleeps 100 us at a time.
//
//   Backoff backoff(/*may_spin=*/ranks_here <= processors);
//   while (!Look()) {
//     if (backoff.Pause() == Backoff::Stage::kSpinning) continue;
//     ... deadlines, aborts ...
//   }
class Backoff {
 public:
  enum class Stage : uint8_t { kSpinning, kYielding, kSleeping };

  // Pass false if there may be more waiting ranks than processors: spinning
  // would keep the awaited rank from running, so Pause yields from the start.
  explicit Backoff(bool may_spin) : spins_(may_spin ? kSpins : 0) {}

  Stage Pause() {
    if (spins_ > 0) {
      --spins_;
      return Stage::kSpinning;
    }
    const int64_t now = MonotonicNanos();
    if (begin_ == 0) begin_ = now;
    if (now - begin_ < kPatience) {
      sched_yield();
      return Stage::kYielding;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
    return Stage::kSleeping;
  }

 private:
  static constexpr int kSpins = 2000;
  static constexpr int64_t kPatience = 1'000'000'000;

  int spins_;
  int64_t begin_ = 0;
};

// Sent ahead of a message, so that both ends can check that they agree.
// Trivially copyable; sent as raw bytes.
struct MessageHeader {
  Signature signature;
  int64_t bytes = 0;  // Size of the message that follows.

  friend bool operator==(const MessageHeader&, const MessageHeader&) = default;
};
static_assert(sizeof(MessageHeader) == 40);

// FailedPrecondition, showing both ranks' calls, if the signatures differ, or
// both sizes, if only those differ.
absl::Status CheckHeader(const MessageHeader& mine, Rank my_rank,
                         const MessageHeader& theirs, Rank their_rank);

// Like CheckHeader for a collective: `all` holds every rank's signature.
absl::Status CheckSignatures(std::span<const Signature> all, Rank my_rank);

// The next functions add the steps of a reduction that a library with only a
// sum lacks: scaling before a scaled sum, dividing after an average.

inline bool ScalesInput(const Reduction& reduction) {
  return reduction.op == ReduceOp::kScaledSum && reduction.scale != 1.0;
}

// output[i] = input[i] * scale. `output` may be `input` but must not overlap it
// otherwise.
inline void ScaleInto(const Reduction& reduction, ConstBuffer input,
                      Buffer output) {
  const void* source = input.data;
  Combine(Combination::ScaleInput(reduction, input.dtype), {&source, 1},
          {&output.data, 1}, input.count);
}

// Completes the sum of `world` ranks: divides it if the reduction is an
// average.
inline void Finish(const Reduction& reduction, Buffer sum, int64_t world) {
  const Combination divide =
      Combination::DivideResult(reduction, sum.dtype, world);
  if (divide.KeepsSingleSource()) return;
  const void* source = sum.data;
  Combine(divide, {&source, 1}, {&sum.data, 1}, sum.count);
}

// output[i] = a[i] op b[i].
inline void CombineTwo(const Combination& partial, const void* a, const void* b,
                       void* output, int64_t count) {
  const void* sources[] = {a, b};
  Combine(partial, sources, {&output, 1}, count);
}

// The messages of a rank to itself on one lane, for libraries that connect
// ranks only to other ranks.
//
// A message is copied once both its send and its receive were started. Sends
// and receives are numbered from 1; both ends of a message have the same
// number. Thread-safe.
class SelfMessages {
 public:
  explicit SelfMessages(Rank self) : self_(self) {}

  absl::StatusOr<uint64_t> StartSend(const Signature& signature,
                                     std::span<const std::byte> bytes);
  absl::StatusOr<uint64_t> StartReceive(const Signature& expected,
                                        std::span<std::byte> bytes);

  // The signature of the next message without a started receive.
  absl::StatusOr<std::optional<Signature>> Peek() const;

  // Returns true if message `number` has been copied.
  absl::StatusOr<bool> Test(uint64_t number) const;

  // Waits until it has been copied; returns false at `deadline`
  // (MonotonicNanos).
  absl::StatusOr<bool> Wait(uint64_t number, int64_t deadline) const;

  // Makes all current and later calls fail with `reason`.
  void Fail(const absl::Status& reason);

 private:
  struct Out {
    Signature signature;
    std::span<const std::byte> bytes;
  };
  struct In {
    Signature expected;
    std::span<std::byte> bytes;
  };

  void Match();

  const Rank self_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Out> out_;
  std::deque<In> in_;
  uint64_t sends_ = 0;
  uint64_t receives_ = 0;
  uint64_t matched_ = 0;
  absl::Status status_;
};

// Allocates `bytes` zeroed bytes of ordinary memory, aligned to 64, for engines
// without special memory. InvalidArgument if `bytes` is negative,
// ResourceExhausted if memory is short.
absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateOrdinary(int64_t bytes);

// The store id of subgroup number `group` with these members, of the group
// `id`: equal on every member, and different for every subgroup.
std::string SubgroupId(std::string_view id, std::span<const Rank> members,
                       uint32_t group);

// Converts a deadline in MonotonicNanos, for stores.
absl::Time TimeOfDeadline(int64_t deadline);

// An engine with the messages of a GroupTransport over a Group. `Self` is the
// engine's class, which is made of a group.
template <typename Self, typename Group, typename GroupTransport>
class LibraryEngine : public Engine {
 public:
  explicit LibraryEngine(std::shared_ptr<Group> group)
      : group_(std::move(group)), transport_(group_) {}

  Rank rank() const override { return Rank(group_->rank()); }
  int64_t size() const override { return group_->size(); }
  Transport* transport() override { return &transport_; }

  absl::StatusOr<std::unique_ptr<Engine>> CreateSubgroup(
      std::span<const Rank> members, uint32_t group,
      int64_t deadline) override {
    absl::StatusOr<std::shared_ptr<Group>> subgroup =
        group_->Subgroup(members, group, deadline);
    if (!subgroup.ok()) return subgroup.status();
    return std::make_unique<Self>(*std::move(subgroup));
  }
  absl::StatusOr<std::unique_ptr<SharedMemory>> AllocateShared(
      int64_t bytes) override {
    return AllocateOrdinary(bytes);
  }
  std::vector<PeerReport> Peers() const override {
    return group_->peers().reports();
  }

 protected:
  const std::shared_ptr<Group> group_;
  GroupTransport transport_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_LIBRARY_ENGINE_H_

// OperationContext: the deadline, progress (Phase) and working memory (Scratch)
// of one running operation.
#ifndef TESSERA_COLLECTIVES_ENGINE_OPERATION_CONTEXT_H_
#define TESSERA_COLLECTIVES_ENGINE_OPERATION_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/operation/signature.h"
#include "topology/rank.h"

namespace tessera::collectives {

// Working memory that later operations reuse. Not thread-safe.
//
//   Scratch scratch;
//   TESSERA_ASSIGN_OR_RETURN(
//       std::span<std::byte> work, scratch.Allocate(4096));
//   scratch.Reset();  // Frees all of it.
class Scratch {
 public:
  // Reset keeps up to `kept_bytes` and frees the rest.
  explicit Scratch(int64_t kept_bytes = int64_t{64} << 20)
      : kept_bytes_(kept_bytes) {}

  // Allocates `bytes` bytes, aligned to 64. InvalidArgument if `bytes` is
  // negative, ResourceExhausted if memory is short.
  absl::StatusOr<std::span<std::byte>> Allocate(int64_t bytes);

  // Frees all allocations.
  void Reset();

  // The number of bytes currently held.
  int64_t held_bytes() const { return held_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  struct Block {
    std::unique_ptr<std::byte[], Free> memory;
    int64_t size = 0;
    int64_t used = 0;

    int64_t left() const { return size - used; }
  };

  int64_t kept_bytes_;
  int64_t held_bytes_ = 0;
  std::vector<Block> blocks_;
};

// The phase of an operation. The values are stable because other processes read
// them.
enum class Phase : uint8_t {
  kIdle = 0,
  kEntering = 1,   // Waiting for other ranks to enter.
  kSending = 2,    //
  kReceiving = 3,  //
  kReducing = 4,   //
  kCopying = 5,    //
  kLeaving = 6,    // Waiting until others stop using its memory.
};

// "entering", "sending", ...
std::string_view PhaseName(Phase phase);

// A phase and the peer that it concerns, packed into one word.
class PhaseWord {
 public:
  static constexpr uint32_t kNoPeer = 0xffffff;
  constexpr PhaseWord() = default;
  explicit constexpr PhaseWord(uint32_t bits) : bits_(bits) {}
  constexpr PhaseWord(Phase phase, uint32_t peer)
      : bits_(static_cast<uint32_t>(phase) << 24 | (peer & 0xffffff)) {}
  constexpr uint32_t bits() const { return bits_; }
  constexpr Phase phase() const { return static_cast<Phase>(bits_ >> 24); }
  constexpr uint32_t peer() const { return bits_ & 0xffffff; }

 private:
  uint32_t bits_ = 0;
};

// Nanoseconds of CLOCK_MONOTONIC, the clock of all deadlines; equal for all
// processes of a host.
int64_t MonotonicNanos();

// The end of `timeout` from now on, in MonotonicNanos; an infinite timeout
// never ends.
int64_t DeadlineAfter(absl::Duration timeout);

// One thread runs an operation; any thread may read its phase.
class OperationContext {
 public:
  // `deadline` in MonotonicNanos.
  OperationContext(const Signature& signature, int64_t deadline,
                   Scratch& scratch, uint32_t label = 0,
                   bool in_rank_order = false)
      : signature_(signature),
        deadline_(deadline),
        scratch_(scratch),
        label_(label),
        in_rank_order_(in_rank_order) {}

  OperationContext(const OperationContext&) = delete;
  OperationContext& operator=(const OperationContext&) = delete;

  const Signature& signature() const { return signature_; }
  int64_t deadline() const { return deadline_; }
  uint32_t label() const { return label_; }  // Operation::label.
  // True if a reduction must fold the inputs in rank order (Engine::
  // FoldsInRankOrder).
  bool in_rank_order() const { return in_rank_order_; }
  bool Expired() const { return MonotonicNanos() >= deadline_; }

  // An operation that runs many times (Communicator::Prepare) begins the run of
  // this number. It does not know its deadline until BeginWait, which calls
  // `on_wait` for it, so that a run that only spins reads no clock.
  void BeginRun(uint64_t sequence, const std::function<int64_t()>* on_wait) {
    signature_.sequence = sequence;
    on_wait_ = on_wait;
  }
  // Engines call it before a wait that is longer than a spin.
  void BeginWait() {
    if (on_wait_ != nullptr) deadline_ = (*std::exchange(on_wait_, nullptr))();
  }

  // Sets the phase, in the word given to PublishTo if there is one.
  void Enter(Phase phase, uint32_t peer = PhaseWord::kNoPeer) {
    published_->store(PhaseWord(phase, peer).bits(), std::memory_order_relaxed);
  }
  void Enter(Phase phase, Rank peer) {
    Enter(phase, static_cast<uint32_t>(peer.value()));
  }
  PhaseWord phase() const {
    return PhaseWord(published_->load(std::memory_order_relaxed));
  }

  // Writes phases to `word` from now on; it must outlive the operation. For
  // engines whose peers can read each other's memory.
  void PublishTo(std::atomic<uint32_t>* word) { published_ = word; }

  // Allocates working memory, aligned to 64 bytes and valid until the operation
  // ends. ResourceExhausted if memory is short.
  absl::StatusOr<std::span<std::byte>> AllocateScratch(int64_t bytes) {
    return scratch_.Allocate(bytes);
  }

 private:
  Signature signature_;
  int64_t deadline_;
  Scratch& scratch_;
  const uint32_t label_;
  const bool in_rank_order_;
  const std::function<int64_t()>* on_wait_ = nullptr;
  std::atomic<uint32_t> own_phase_ = 0;
  std::atomic<uint32_t>* published_ = &own_phase_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_OPERATION_CONTEXT_H_

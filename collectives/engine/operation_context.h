// OperationContext: what surrounds one operation while it runs: its deadline,
// how far it has come, and memory to work in.
//
// One thread runs an operation; any thread may ask how far it has come.
#ifndef TESSERA_COLLECTIVES_ENGINE_OPERATION_CONTEXT_H_
#define TESSERA_COLLECTIVES_ENGINE_OPERATION_CONTEXT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "collectives/engine/scratch.h"
#include "collectives/operation/signature.h"
#include "topology/rank.h"

namespace tessera::collectives {

// What a rank is doing within an operation. The values are stable: other
// processes read them.
enum class Phase : uint8_t {
  kIdle = 0,
  kEntering = 1,   // Waiting for the others to enter.
  kSending = 2,    //
  kReceiving = 3,  //
  kReducing = 4,   //
  kCopying = 5,    //
  kLeaving = 6,    // Waiting for the others to be done with its memory.
};

// "entering", "sending", ...
std::string_view PhaseName(Phase phase);

// A phase and the peer that it concerns, in one word that can be published.
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

// Nanoseconds of CLOCK_MONOTONIC: the clock of deadlines, the same for all
// processes of a host.
int64_t MonotonicNanos();

class OperationContext {
 public:
  // `deadline` in MonotonicNanos.
  OperationContext(const Signature& signature, int64_t deadline,
                   Scratch& scratch, uint32_t label = 0)
      : signature_(signature),
        deadline_(deadline),
        scratch_(scratch),
        label_(label) {}

  OperationContext(const OperationContext&) = delete;
  OperationContext& operator=(const OperationContext&) = delete;

  const Signature& signature() const { return signature_; }
  int64_t deadline() const { return deadline_; }
  uint32_t label() const { return label_; }  // Operation::label.
  bool Expired() const { return MonotonicNanos() >= deadline_; }

  // Publishes the phase where the engine wants it (PublishTo), else only here.
  void Enter(Phase phase, uint32_t peer = PhaseWord::kNoPeer) {
    published_->store(PhaseWord(phase, peer).bits(), std::memory_order_relaxed);
  }
  void Enter(Phase phase, Rank peer) {
    Enter(phase, static_cast<uint32_t>(peer.value()));
  }
  PhaseWord phase() const {
    return PhaseWord(published_->load(std::memory_order_relaxed));
  }

  // From now on phases are written to `word`, which outlives the operation.
  // For engines whose peers can read each other's memory.
  void PublishTo(std::atomic<uint32_t>* word) { published_ = word; }

  // Working memory, aligned to 64 bytes, valid until the operation ends. Each
  // call gives other memory. ResourceExhausted where there is none.
  absl::StatusOr<std::span<std::byte>> AllocateScratch(int64_t bytes) {
    return scratch_.Allocate(bytes);
  }

 private:
  Signature signature_;
  int64_t deadline_;
  Scratch& scratch_;
  const uint32_t label_;
  std::atomic<uint32_t> own_phase_ = 0;
  std::atomic<uint32_t>* published_ = &own_phase_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_OPERATION_CONTEXT_H_

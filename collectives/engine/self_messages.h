// SelfMessages: what a rank sends to itself on one lane, for libraries that
// connect ranks only to others.
#ifndef TESSERA_COLLECTIVES_ENGINE_SELF_MESSAGES_H_
#define TESSERA_COLLECTIVES_ENGINE_SELF_MESSAGES_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/message_header.h"

namespace tessera::collectives {

// A message is copied when both its ends are there. Thread-safe. Numbers are
// from 1, of sends and of receives; both ends of a message have the same.
class SelfMessages {
 public:
  explicit SelfMessages(Rank self) : self_(self) {}

  absl::StatusOr<uint64_t> StartSend(const Signature& signature,
                                     std::span<const std::byte> bytes);
  absl::StatusOr<uint64_t> StartReceive(const Signature& expected,
                                        std::span<std::byte> bytes);

  // Whether message `number` has been copied.
  absl::StatusOr<bool> Test(uint64_t number) const;

  // Waits for that until `deadline` (MonotonicNanos); false where it passes.
  absl::StatusOr<bool> Wait(uint64_t number, int64_t deadline) const;

  // Ends every wait; whatever is called later fails with `reason`.
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

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_SELF_MESSAGES_H_

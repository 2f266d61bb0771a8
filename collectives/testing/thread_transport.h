// ThreadWorld: a transport between the threads of a test that strictly checks
// Transport's contract.
//
//   ThreadWorld world(4, {.mode = ThreadMode::kLazy});
//   const std::vector<absl::Status> statuses = world.Run(
//       [](Transport& transport) { return RunRing(transport); });
//
// It rejects a size that the receiver does not expect and a receive into a
// buffer that another request uses. CheckIdle finds requests that were not
// awaited. It also counts messages and bytes and models their time.
#ifndef TESSERA_COLLECTIVES_TESTING_THREAD_TRANSPORT_H_
#define TESSERA_COLLECTIVES_TESTING_THREAD_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "collectives/engine/transport.h"

namespace tessera::collectives {

enum class ThreadMode : uint8_t {
  kEager,       // A send completes at once.
  kRendezvous,  // A send completes, and is read, when its receive is posted.
  kLazy,        // A send completes when a thread waits for its receive.
  kRandom,      // Each message uses one of the above, after a random delay.
};
inline constexpr ThreadMode kAllThreadModes[] = {
    ThreadMode::kEager, ThreadMode::kRendezvous, ThreadMode::kLazy,
    ThreadMode::kRandom};

struct ThreadWorldOptions {
  ThreadMode mode = ThreadMode::kEager;
  uint64_t seed = 1;  // For kRandom.

  // The time model of clock(): a message of m bytes takes alpha + beta * m, and
  // a rank sends and receives one message at a time.
  double alpha = 0;
  double beta = 0;
};

struct Traffic {
  int64_t messages = 0;
  int64_t bytes = 0;

  friend bool operator==(const Traffic&, const Traffic&) = default;
};

class ThreadWorld {
 public:
  explicit ThreadWorld(int64_t ranks, const ThreadWorldOptions& options = {});
  ~ThreadWorld();

  int64_t size() const;
  Transport& transport(int64_t rank);

  // Runs `body` on every rank, each on its own thread; returns the statuses by
  // rank. A rank that fails aborts the world.
  std::vector<absl::Status> Run(
      const std::function<absl::Status(Transport&)>& body);

  // Makes all current and later calls fail with `reason`.
  void Abort(const absl::Status& reason);

  // Internal if the rank has requests that it has not completed.
  absl::Status CheckIdle(int64_t rank) const;

  // The traffic sent by the rank and its modelled time since the last
  // ResetCounts. Call it only while no rank is running.
  Traffic sent(int64_t rank) const;
  double clock(int64_t rank) const;
  void ResetCounts();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_THREAD_TRANSPORT_H_

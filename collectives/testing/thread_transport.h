// ThreadWorld: a transport between threads of a test, which is strict about
// what Transport promises and asks.
//
//   ThreadWorld world(4, {.mode = ThreadMode::kLazy});
//   const std::vector<absl::Status> statuses = world.Run(
//       [](Transport& transport) { return RunRing(transport); });
//
// It refuses what an algorithm must not do: a size that the other side does not
// expect, a buffer that is received into while another request uses it; and
// CheckIdle finds requests that nobody waited for. It counts messages and
// bytes, and models their time.
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
  kEager,       // A send is complete at once.
  kRendezvous,  // When its receive is posted; bytes are read then.
  kLazy,        // When its receive is waited for, and not before.
  kRandom,      // Each message one of the above, after a random delay.
};
inline constexpr ThreadMode kAllThreadModes[] = {
    ThreadMode::kEager, ThreadMode::kRendezvous, ThreadMode::kLazy,
    ThreadMode::kRandom};

struct ThreadWorldOptions {
  ThreadMode mode = ThreadMode::kEager;
  uint64_t seed = 1;  // Of kRandom.

  // What clock() goes by: a message of m bytes takes alpha + beta * m, and a
  // rank sends one and receives one at a time.
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

  // `body` on every rank, each on a thread of its own; their statuses by rank.
  // A rank that fails aborts the world.
  std::vector<absl::Status> Run(
      const std::function<absl::Status(Transport&)>& body);

  // Frees every waiter; all later calls fail with `reason`.
  void Abort(const absl::Status& reason);

  // Internal where the rank has requests that it has not seen complete.
  absl::Status CheckIdle(int64_t rank) const;

  // What the rank has sent, and the modelled time that it has reached, since
  // the last ResetCounts. Read while no rank is at work.
  Traffic sent(int64_t rank) const;
  double clock(int64_t rank) const;
  void ResetCounts();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_TESTING_THREAD_TRANSPORT_H_

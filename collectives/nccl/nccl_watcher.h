// NcclWatcher: deadlines, errors and connections of one rank's NCCL group.
#ifndef TESSERA_COLLECTIVES_NCCL_NCCL_WATCHER_H_
#define TESSERA_COLLECTIVES_NCCL_NCCL_WATCHER_H_

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/device/device.h"
#include "collectives/communicator.h"
#include "collectives/engine/peer_report.h"
#include "collectives/nccl/nccl_api.h"
#include "collectives/operation/signature.h"

namespace tessera::collectives {

// An enqueued call. Collectives have neither `to` nor `from`; messages have
// both.
struct WatchedCall {
  static constexpr int32_t kNobody = -1;

  Event begun = {};
  Event done = {};
  absl::Duration timeout = {};  // The longest time from begun to done.
  // A message has its number among those with the same `to` and `from`.
  Signature signature = {};
  int32_t from = kNobody;
  int32_t to = kNobody;
  int64_t deadline = 0;  // In MonotonicNanos; 0: it has not begun.
};

// The ids of the two communicators of a pair of ranks, by the rank that sends.
struct PairIds {
  NcclUniqueId lower;
  NcclUniqueId higher;
};

// NCCL waits forever for a missing rank and does not report its number. A
// thread of this class polls the enqueued calls and exchanges a pulse with the
// other ranks' watchers: a small all-gather over a communicator for host
// memory. A pulse holds the number of collectives that the rank has enqueued
// and the signatures of the oldest calls that are not done. With the pulses a
// watcher
//
//   - names the missing ranks at a deadline,
//   - detects before the deadline that ranks call different operations,
//   - detects that a rank has died or aborted the group: the pulse fails,
//   - connects two ranks when one of them has the first message for the other,
//     independently of the other rank's program.
//
// A rank that leaves announces it and waits a few seconds for the others to
// leave too, because the pulses end when it leaves. (NCCL's ncclCommDestroy is
// also a call that all ranks make.)
class NcclWatcher {
 public:
  // Called without locks on the watcher's thread; `fail` and `connect` also on
  // a caller's thread.
  struct Hooks {
    // The first error that NCCL itself has detected.
    std::function<absl::Status()> check_health;
    // An error of the group.
    std::function<void(const absl::Status&)> fail;
    std::function<absl::StatusOr<PairIds>()> create_ids;
    // Starts to connect to a peer, which makes the same call with the same ids.
    std::function<void(int64_t peer, const PairIds& ids)> connect;
  };

  // `base` must outlive the watcher, and only the watcher may run collectives
  // on it. `peers` holds the hosts and pids of all ranks.
  NcclWatcher(Communicator& base, std::vector<PeerReport> peers,
              absl::Duration period, Hooks hooks);
  // Requires that Join was called.
  ~NcclWatcher();
  NcclWatcher(const NcclWatcher&) = delete;
  NcclWatcher& operator=(const NcclWatcher&) = delete;

  void Start();

  // This rank calls collective number `sequence`.
  void Enter(uint64_t sequence);
  void Watch(WatchedCall call);
  // Makes both ranks connect, unless they have already begun.
  void Connect(int64_t peer);
  // The error of a call that is not done at its deadline.
  absl::Status Overdue(const WatchedCall& call) const;
  std::vector<PeerReport> Peers() const;

  // Waits until all calls are done, then for the other ranks to leave.
  void Leave();
  // Ends at once. No further hook is called; one may still be running.
  void Stop();
  // Waits for a running hook. Requires Leave or Stop.
  void Join() {
    if (thread_.joinable()) thread_.join();
  }
  // After fork, in the child: forgets the thread, which the child does not
  // have.
  void Abandon() { thread_.detach(); }

 private:
  static constexpr size_t kMessages = 4;

  struct Message {
    int32_t from = WatchedCall::kNobody;
    int32_t to = WatchedCall::kNobody;
    Signature signature;
  };
  struct Pulse {
    uint64_t entered = 0;  // The last collective.
    Signature oldest;      // The oldest that is not done; sequence 0: none.
    std::array<Message, kMessages> messages;
    int32_t leaves = 0;
    // A connection between this rank and `peer`. The lower rank sends the ids;
    // the higher rank asks for them.
    int32_t peer = WatchedCall::kNobody;
    PairIds ids;
  };

  // A connection to begin, without the lock.
  using Connections = std::vector<std::pair<int64_t, PairIds>>;

  int64_t rank() const { return base_.rank().value(); }
  void Run();
  absl::Status CheckCalls();
  absl::Status CheckPulse(Connections& connections);
  absl::Status ReadPulses(Connections& connections);
  absl::Status ReadPulse(int64_t from, const Pulse& pulse,
                         Connections& connections);
  absl::Status CheckSame(int64_t from, const Pulse& pulse) const;
  absl::Status PulseEnded(const absl::Status& status);
  absl::Status BeginAsLower(int64_t peer, Connections& connections);
  Pulse Compose();
  absl::Status OverdueHere(const WatchedCall& call) const;

  Communicator& base_;
  const absl::Duration period_;
  const Hooks hooks_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<PeerReport> reports_;
  uint64_t entered_ = 0;
  // By `from` and `to`.
  std::map<std::pair<int32_t, int32_t>, std::deque<WatchedCall>> calls_;
  std::set<int64_t> begun_;  // The peers to which a connection has begun.
  std::deque<std::pair<int64_t, PairIds>> outgoing_;

  Pulse mine_;
  std::vector<Pulse> all_;
  std::optional<Work> pulse_;
  int64_t next_pulse_ = 0;
  bool leaves_ = false;  // This rank leaves.
  bool someone_left_ = false;
  bool pulse_ended_ = false;  // All have left, or one has without waiting.
  bool stops_ = false;
  std::thread thread_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_NCCL_NCCL_WATCHER_H_

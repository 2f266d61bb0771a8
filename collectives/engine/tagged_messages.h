// TaggedMessages: the point-to-point messages of one communicator that match by
// tag, with receives from any rank.
//
// A receive takes the first message with its tag from its source, in the order
// in which that rank sent them. A message that arrives before its receive is
// kept in memory of this process, so that messages with other tags can pass it.
// A send completes when the receiver has taken the message from the channel;
// short ones through shared memory at once.
//
// A waiting thread moves the messages of the whole group. A background thread,
// created when first needed, moves started messages that no thread waits for,
// and ends messages whose deadline has passed or whose peer is gone. It polls
// every 200 us while nothing moves.
//
// A receive from any rank fails if a rank has died or all other ranks have
// left. Over a network, which does not tell one from the other, it fails if the
// connections to all other ranks are lost.
//
// Needs a transport that can peek. Thread-safe.
#ifndef TESSERA_COLLECTIVES_ENGINE_TAGGED_MESSAGES_H_
#define TESSERA_COLLECTIVES_ENGINE_TAGGED_MESSAGES_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "collectives/engine/engine.h"
#include "collectives/engine/peer_report.h"
#include "collectives/engine/transport.h"
#include "collectives/operation/operation.h"
#include "collectives/record/flight_recorder.h"

namespace tessera::collectives {

class TaggedMessages;

// A send or a receive. Waiting for it moves messages.
class TaggedMessage final : public EventState {
 public:
  absl::StatusOr<bool> Test() override;
  absl::Status Wait() override;

  // The rank that sent the message, once a receive has completed.
  std::optional<Rank> source() const;

 private:
  friend class TaggedMessages;
  enum class Stage { kWaiting, kMoving, kDone };

  TaggedMessages* owner_ = nullptr;
  bool sends_ = false;
  Rank peer_ = kAnySource;  // Set for a receive from any rank once the sender
                            // is known.
  int32_t tag_ = kNoTag;
  ConstBuffer input_ = {};
  Buffer output_ = {};
  int64_t deadline_ = 0;
  OperationRecord record_ = {};
  uint64_t ticket_ = 0;
  std::function<void(const absl::Status&)> on_done_ = {};
  // Guarded by the owner's mutex until done_.
  Stage stage_ = Stage::kWaiting;
  Request request_ = {};
  absl::Status status_ = {};
  std::atomic<bool> done_ = false;
};

class TaggedMessages {
 public:
  // `engine` and `recorder` must outlive this; `group` is the group's id in
  // signatures. Calls `on_error` without locks when a message breaks the group.
  TaggedMessages(Engine& engine, uint32_t group, FlightRecorder& recorder,
                 std::function<void(const absl::Status&)> on_error);
  // Waits until every started message has completed or failed.
  ~TaggedMessages();

  TaggedMessages(const TaggedMessages&) = delete;
  TaggedMessages& operator=(const TaggedMessages&) = delete;

  // Executes a valid send or receive with a tag and returns the other rank.
  // `deadline` in MonotonicNanos. Any error breaks the group.
  absl::StatusOr<Rank> Run(const Operation& operation, int64_t deadline);

  // Like Run, but does not wait. `on_done` may be null.
  absl::StatusOr<std::shared_ptr<TaggedMessage>> Start(
      const Operation& operation, int64_t deadline,
      std::function<void(const absl::Status&)> on_done);

  // Makes all current and later messages fail with `reason` (not OK).
  void Fail(const absl::Status& reason);

 private:
  friend class TaggedMessage;
  using Pointer = std::shared_ptr<TaggedMessage>;

  // A message that arrived before its receive, or is arriving.
  struct Early {
    Rank from;
    Signature signature;
    std::unique_ptr<std::byte[]> bytes;
    int64_t size = 0;
    bool complete = false;
    Pointer receive;  // The receive that takes it once it is complete.
  };
  // A message that is arriving from a rank, into a receive's buffer or early.
  struct Arrival {
    Request request;
    Pointer receive;
    std::shared_ptr<Early> early;
  };
  struct Peer {
    std::deque<Pointer> sends;  // In the order of the channel.
    std::optional<Arrival> arrival;
    uint64_t sent = 0;
  };
  // Callbacks to run after the mutex is released.
  struct Finished {
    std::vector<Pointer> messages;
    absl::Status error;
  };

  Pointer MakeMessage(const Operation& operation, int64_t deadline);
  absl::Status Post(const Pointer& message);
  absl::Status PostSend(const Pointer& message);
  absl::Status PostReceive(const Pointer& message);
  // The next four hold the mutex.
  bool Move();
  absl::Status Explain(const absl::Status& error, Rank rank,
                       const Peer& peer) const;
  absl::StatusOr<bool> MoveSends(Peer& peer);
  absl::StatusOr<bool> MoveArrivals(Rank from, Peer& peer);
  absl::Status Accept(Rank from, Peer& peer, const Signature& signature);
  absl::Status CheckFits(Rank from, const Signature& signature,
                         const TaggedMessage& receive) const;
  bool IsAwaited(Rank from, bool by_any = true) const;
  void TakeEarly(Early& early);
  void Complete(const Pointer& message, absl::Status status);
  void FailAll(const absl::Status& reason);
  std::vector<PeerReport> Awaited(const TaggedMessage& message) const;
  void FailHopeless();
  void FinishOutside(std::unique_lock<std::mutex>& lock);

  void ListPossibleSenders(std::vector<int64_t>& ranks) const;
  absl::Status Await(TaggedMessage& message);
  bool Poll(const TaggedMessage& message);
  void RunBackground();

  Engine& engine_;
  Transport& transport_;
  const uint32_t group_;
  FlightRecorder& recorder_;
  const std::function<void(const absl::Status&)> on_error_;

  std::mutex mutex_;
  std::vector<Peer> peers_;
  std::list<Pointer> posted_;  // Receives without a message, in order.
  std::list<std::shared_ptr<Early>> early_;  // In the order of arrival.
  std::vector<Pointer> started_;             // Not done, for the background.
  int64_t open_ = 0;                         // Messages that are not done.
  Finished finished_;
  absl::Status failure_;

  std::condition_variable changed_;
  bool closing_ = false;
  int64_t next_look_ns_ = 0;  // Time of the next check for dead ranks.
  std::thread thread_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_TAGGED_MESSAGES_H_

// BlockingTransport: the Transport over a library that can wait for messages
// but cannot poll them, such as Gloo, and BlockingGroup, which adapts the
// library.
#ifndef TESSERA_COLLECTIVES_ENGINE_BLOCKING_TRANSPORT_H_
#define TESSERA_COLLECTIVES_ENGINE_BLOCKING_TRANSPORT_H_

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/bootstrap/store.h"
#include "collectives/engine/library_engine.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_table.h"
#include "collectives/engine/transport.h"

namespace tessera::collectives {

// The time until `deadline` (MonotonicNanos) as a timeout of a library: at
// least 1 ms, at most some weeks.
std::chrono::milliseconds TimeUntil(int64_t deadline);

// One rank's group of such a library, and its error state. Thread-safe.
class BlockingGroup {
 public:
  // A started message. The destructor abandons it.
  class Message {
   public:
    virtual ~Message() = default;
    // Waits until the message is complete. Throws a std::exception if it fails
    // or at the timeout, which closes all connections of the group.
    virtual void Wait(std::chrono::milliseconds timeout) = 0;
  };

  virtual ~BlockingGroup() = default;

  BlockingGroup(const BlockingGroup&) = delete;
  BlockingGroup& operator=(const BlockingGroup&) = delete;

  Rank rank() const { return rank_; }
  int64_t size() const { return static_cast<int64_t>(members_.size()); }
  const PeerTable& peers() const { return peers_; }
  const Failure& failure() const { return failure_; }

  // Starts a message to or from another rank. Messages between two ranks match
  // by slot, and with the same slot in order; a receive may be larger than what
  // is sent. A slot is a kind of 8 bits followed by 56 bits. Throws a
  // std::exception. `data` must stay valid until the message is complete or the
  // group is aborted.
  virtual std::unique_ptr<Message> Send(Rank to, uint64_t slot,
                                        const void* data, size_t bytes) = 0;
  virtual std::unique_ptr<Message> Receive(Rank from, uint64_t slot, void* data,
                                           size_t bytes) = 0;

  // Converts an exception of the library to a status: the reason of an abort,
  // the deadline, or a lost connection (to `peer` if known).
  absl::Status Explain(const std::exception& error,
                       const OperationContext* context,
                       std::optional<Rank> peer = std::nullopt) const;

  // Closes all connections, which ends all waits on both ends. Afterwards the
  // library does not access buffers of this group.
  void Abort(const absl::Status& reason);

 protected:
  // `members` are ranks of the job including this one. `id` is unique in the
  // job.
  BlockingGroup(Store& store, std::vector<Rank> members, std::string id);

  // Waits for the other members, whose hosts and processes it then knows.
  absl::Status Meet(int64_t deadline);
  // The members of a subgroup as ranks of the job.
  std::vector<Rank> InJob(std::span<const Rank> members) const;

  Store& store_;
  const std::vector<Rank> members_;  // Ranks of the job.
  const std::string id_;

 private:
  Rank rank_;
  PeerTable peers_;
  Failure failure_;
};

// The messages to or from one peer on one lane. They complete in order.
// Thread-safe, except that only one thread at a time may call Start.
class MessageChannel {
 public:
  MessageChannel(BlockingGroup& group, Rank peer, Lane lane,
                 Direction direction)
      : group_(group), peer_(peer), lane_(lane), direction_(direction) {}
  // Requires that no message is in flight, or that the group is broken.
  ~MessageChannel();

  // Starts a message and returns its number. Only receives write to `data`.
  absl::StatusOr<uint64_t> Start(const Signature& signature, std::byte* data,
                                 size_t bytes);
  // Returns true if message `number` is complete. Does not wait.
  absl::StatusOr<bool> Test(uint64_t number);
  // Waits until message `number` is complete or the context's deadline.
  absl::Status Wait(uint64_t number, const OperationContext& context);

  bool Idle();

 private:
  struct Message;

  absl::Status Post(Message& message);
  absl::Status Await(Message& message, int64_t deadline);
  absl::Status DriveFront(std::unique_lock<std::mutex>& lock, int64_t deadline,
                          const OperationContext* context);
  void Work();

  BlockingGroup& group_;
  const Rank peer_;
  const Lane lane_;
  const Direction direction_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Message>> pending_;  // Oldest first.
  uint64_t started_ = 0;
  uint64_t completed_ = 0;
  uint64_t tested_ = 0;  // The last message passed to Test.
  bool driven_ = false;  // A thread waits for the oldest message.
  bool closing_ = false;
  absl::Status status_;
  std::thread worker_;  // Waits for messages passed to Test.
};

// A message is a frame with a header and up to 4 KiB of payload. Longer
// payloads follow with a tag that contains their size, so that a payload never
// meets a buffer of another size (which would make Gloo terminate the process).
// Both parts are passed to the library at the start and progress on its thread.
//
// Wait waits in the library, and the first Test on a channel end starts a
// thread that waits for its messages.
class BlockingTransport : public Transport {
 public:
  explicit BlockingTransport(std::shared_ptr<BlockingGroup> group);
  // Breaks the group if messages are still in flight.
  ~BlockingTransport() override;

  Rank rank() const override { return group_->rank(); }
  int64_t size() const override { return group_->size(); }
  absl::StatusOr<Request> StartSend(Rank to, Lane lane,
                                    const Signature& signature,
                                    std::span<const std::byte> bytes) override;
  absl::StatusOr<Request> StartReceive(Rank from, Lane lane,
                                       const Signature& expected,
                                       std::span<std::byte> bytes) override;
  absl::StatusOr<bool> Test(const Request& request) override;
  absl::Status Wait(std::span<const Request> requests,
                    OperationContext& context) override;
  bool ProgressesAlone() const override { return true; }  // On the library's.

  // Ends waits for messages to this rank itself; other waits end with the
  // group.
  void Abort(const absl::Status& reason);

 private:
  absl::Status CheckStart(Rank peer) const;
  MessageChannel& ChannelOf(Rank peer, Lane lane, Direction direction);
  MessageChannel& ChannelOf(const Request& request) {
    return ChannelOf(request.peer, request.lane, request.direction);
  }
  SelfMessages& SelfOn(Lane lane) { return self_[static_cast<size_t>(lane)]; }

  const std::shared_ptr<BlockingGroup> group_;
  std::array<SelfMessages, kLaneCount> self_;
  std::mutex channels_mutex_;
  std::vector<std::unique_ptr<MessageChannel>> channels_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_BLOCKING_TRANSPORT_H_

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

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/bootstrap/store.h"
#include "collectives/channel/message_cipher.h"
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
    // Makes a Wait of another thread for a receive, or the next one, throw.
    virtual void Interrupt() = 0;
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

  bool encrypts() const { return keys_ != nullptr; }
  // Encrypts or decrypts the messages of this rank's end of a channel. Null if
  // the group does not encrypt.
  absl::StatusOr<std::unique_ptr<MessageCipher>> CreateCipher(
      Rank peer, Lane lane, Direction direction) const;

  // "rank 3 (host b, pid 12)".
  std::string Describe(Rank peer) const;

  // Closes all connections, which ends all waits on both ends. Afterwards the
  // library does not access buffers of this group.
  void Abort(const absl::Status& reason);

 protected:
  // `members` are ranks of the job including this one. `id` is unique in the
  // job.
  BlockingGroup(Store& store, std::vector<Rank> members, std::string id);

  // Waits for the other members, whose hosts and processes it then knows. With
  // `keys` the messages of BlockingTransport are encrypted; FailedPrecondition
  // unless all members have keys or none.
  absl::Status Meet(int64_t deadline,
                    std::unique_ptr<KeyExchange> keys = nullptr);
  // The members of a subgroup as ranks of the job.
  std::vector<Rank> InJob(std::span<const Rank> members) const;

  Store& store_;
  const std::vector<Rank> members_;  // Ranks of the job.
  const std::string id_;

 private:
  Rank rank_;
  PeerTable peers_;
  Failure failure_;
  std::unique_ptr<KeyExchange> keys_;
  std::vector<std::string> public_keys_;  // Of all members.
};

// Counts the messages of a group that have moved, for threads that wait for any
// of them. Thread-safe.
class MovedMessages {
 public:
  void Add();
  uint64_t count();
  // Waits until the count is not `seen` or for `timeout`.
  void Await(uint64_t seen, std::chrono::milliseconds timeout);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t count_ = 0;
};

// The messages to or from one peer on one lane. They complete in order.
// Thread-safe, except that only one thread at a time may call Start or Peek.
class MessageChannel {
 public:
  MessageChannel(BlockingGroup& group, Rank peer, Lane lane,
                 Direction direction, MovedMessages& moved)
      : group_(group),
        peer_(peer),
        lane_(lane),
        direction_(direction),
        moved_(moved) {}
  // Requires that no message is in flight, or that the group is broken.
  ~MessageChannel();

  // Starts a message and returns its number. Only receives write to `data`.
  absl::StatusOr<uint64_t> Start(const Signature& signature, std::byte* data,
                                 size_t bytes);
  // The signature of the next message, once its frame has arrived. Call it only
  // while all started messages are complete.
  absl::StatusOr<std::optional<Signature>> Peek();
  // Returns true if message `number` is complete. Does not wait.
  absl::StatusOr<bool> Test(uint64_t number);
  // Waits for what comes next: the oldest message, or the frame that Peek waits
  // for. Returns false at once if there is neither, another thread waits for
  // it, or the channel has failed. An error is returned by the next call of
  // another method.
  bool WaitForNext(const OperationContext& context);
  // Waits until message `number` is complete or the context's deadline.
  absl::Status Wait(uint64_t number, const OperationContext& context);

  bool Idle();

 private:
  struct Message;

  absl::Status CreateCipher();
  absl::Status PostFrame(Message& message);
  absl::Status PostPayload(Message& message);
  void PostPart(Message& message, std::byte* data, size_t bytes);
  absl::Status PostSealed(Message& message);
  absl::Status SealPiece(std::span<const std::byte> piece, bool is_last,
                         std::byte* to);
  absl::StatusOr<uint64_t> StartPeeked(const MessageHeader& mine,
                                       std::byte* data);
  absl::Status AwaitFrame(Message& message, int64_t deadline);
  absl::Status AwaitRest(Message& message, int64_t deadline);
  absl::Status OpenFrame(Message& message);
  absl::Status OpenPayload(Message& message, int64_t deadline);
  absl::Status Authenticate(const MessageCipher::Tag& tag);
  absl::Status DriveFront(std::unique_lock<std::mutex>& lock, int64_t deadline,
                          const OperationContext* context);
  absl::Status DrivePeeked(std::unique_lock<std::mutex>& lock, int64_t deadline,
                           const OperationContext* context);
  void WakeWorker();
  void Work();

  BlockingGroup& group_;
  const Rank peer_;
  const Lane lane_;
  const Direction direction_;
  MovedMessages& moved_;

  // Null unless the group encrypts. Used by Start if this end sends, otherwise
  // by the thread that waits for the oldest message.
  std::unique_ptr<MessageCipher> cipher_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Message>> pending_;  // Oldest first.
  std::shared_ptr<Message> peeked_;  // Has no receive yet; its frame may come.
  bool peeks_again_ = false;         // Peek was called again for its frame.
  std::vector<std::byte> spare_;     // Message::sealed.
  uint64_t started_ = 0;
  uint64_t completed_ = 0;
  uint64_t tested_ = 0;        // The last message passed to Test,
  uint64_t tested_again_ = 0;  // and to another Test.
  bool driven_ = false;        // A thread waits for the oldest message.
  bool closing_ = false;
  absl::Status status_;
  std::thread worker_;  // Waits for what Peek or Test was called for again.
};

// A message is a frame with a header and up to 4 KiB of payload. Longer
// payloads follow with a tag that contains their size, so that a payload never
// meets a buffer of another size (which would make Gloo terminate the process).
// Both parts are passed to the library at the start and progress on its thread.
//
// If the group encrypts, a frame consists of its size, a tag and the sealed
// rest, and a payload is sent in pieces, the last of which ends with a tag.
// StartSend encrypts each piece while the previous one is being sent; Wait, or
// the thread of Test, decrypts it while the next one arrives. A message that is
// not authentic is a DataLoss error that names the sender.
//
// Wait waits in the library. The second Test or Peek for the same message
// starts a thread of the channel end, which waits for it.
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
  bool CanPeek() const override { return true; }
  absl::StatusOr<std::optional<Signature>> Peek(Rank from, Lane lane) override;
  absl::Status WaitUntil(OperationContext& context,
                         absl::FunctionRef<bool()> ready,
                         absl::FunctionRef<void(std::vector<int64_t>&)> missing,
                         const Request* only) override;

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
  std::array<SelfMessages, kLaneCountWithTags> self_;
  MovedMessages moved_;
  std::mutex channels_mutex_;
  std::vector<std::unique_ptr<MessageChannel>> channels_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_BLOCKING_TRANSPORT_H_

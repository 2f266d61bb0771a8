// HostMemoryTransport: point-to-point messages over channels in shared memory.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_HOST_MEMORY_TRANSPORT_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_HOST_MEMORY_TRANSPORT_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/transport.h"
#include "collectives/host_memory/group.h"
#include "collectives/operation/signature.h"

namespace tessera::collectives::host_memory {

// The shared state of a channel. The sender writes `written`; the receiver
// writes the other counters.
struct ChannelMemory {
  alignas(64) std::atomic<uint64_t> written;  // Bytes since the start.
  alignas(64) std::atomic<uint64_t> read;     // Bytes since the start.
  std::atomic<uint64_t>
      taken;  // Messages copied directly from the sender's buffer.
  alignas(64) std::byte ring[1];  // Tuning::channel_bytes bytes.
};

// The location of a message's bytes.
enum class Bytes : uint32_t {
  kInRing,   // In the ring, after the header.
  kShared,   // At a DomainOffset of the domain.
  kPrivate,  // At an address of the sender's process (Domain::ReadPeer).
};

// The header of a message.
struct alignas(64) MessageHeader {
  Signature signature;
  int64_t bytes = 0;
  DomainOffset offset = 0;  // Or an address if kPrivate.
  Bytes where = Bytes::kInRing;
};
static_assert(sizeof(MessageHeader) == 64);

// The sender's end. Not thread-safe.
class SendEnd {
 public:
  SendEnd(Group& group, int64_t to, Lane lane)
      : group_(group), to_(to), lane_(lane) {}
  ~SendEnd();

  // Queues a message; returns its number, starting at 1.
  absl::StatusOr<uint64_t> Start(const Signature& signature,
                                 std::span<const std::byte> bytes);
  // Transfers as much as possible without waiting; returns the number of
  // completed messages.
  uint64_t Progress();
  int64_t peer() const { return to_; }
  bool idle() const { return queue_.empty(); }
  const Signature& front() const { return queue_.front().header.signature; }

 private:
  struct Outgoing {
    MessageHeader header;
    const std::byte* data = nullptr;
    int64_t written = -1;  // Bytes after the header; -1: header not written.
  };

  absl::Status Open();
  bool Advance(Outgoing& message);
  void Copy(uint64_t at, const std::byte* from, int64_t bytes);

  Group& group_;
  const int64_t to_;
  const Lane lane_;
  ChannelMemory* memory_ = nullptr;
  uint64_t capacity_ = 0;
  uint64_t written_ = 0;
  uint64_t direct_sent_ = 0;
  uint64_t started_ = 0;
  uint64_t completed_ = 0;
  std::deque<Outgoing> queue_;
};

// The receiver's end. Not thread-safe.
class ReceiveEnd {
 public:
  ReceiveEnd(Group& group, int64_t from, Lane lane)
      : group_(group), from_(from), lane_(lane) {}

  uint64_t Start(const Signature& expected, std::span<std::byte> bytes);
  // Like SendEnd::Progress. Breaks the group and returns an error if a message
  // differs from the expected one.
  absl::StatusOr<uint64_t> Progress();
  // The signature of the next message, for which no receive has started.
  std::optional<Signature> Peek();
  int64_t peer() const { return from_; }
  bool idle() const { return queue_.empty(); }
  const Signature& front() const { return queue_.front().expected; }

 private:
  struct Incoming {
    Signature expected;
    std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t got = -1;  // Bytes after the header; -1: header not read.
  };

  bool Open();
  absl::StatusOr<bool> Advance(Incoming& message);
  absl::Status Accept(const Incoming& message, const MessageHeader& header);
  absl::Status CopyDirectly(const Incoming& message,
                            const MessageHeader& header);
  void Copy(uint64_t at, std::byte* to, int64_t bytes) const;

  Group& group_;
  const int64_t from_;
  const Lane lane_;
  ChannelMemory* memory_ = nullptr;
  uint64_t capacity_ = 0;
  uint64_t read_ = 0;
  uint64_t taken_ = 0;
  uint64_t started_ = 0;
  uint64_t completed_ = 0;
  std::deque<Incoming> queue_;
};

// A channel is a ring buffer that the sender allocates, one per direction, peer
// and lane. A message is a header of one cache line followed by its bytes,
// padded to whole lines. A message longer than the ring is streamed: the sender
// continues as the receiver reads. The receiver copies a large message directly
// from the sender's buffer if it can access it.
class HostMemoryTransport : public Transport {
 public:
  explicit HostMemoryTransport(Group& group);
  ~HostMemoryTransport() override;

  Rank rank() const override { return Rank(group_.rank()); }
  int64_t size() const override { return group_.size(); }

  absl::StatusOr<Request> StartSend(Rank to, Lane lane,
                                    const Signature& signature,
                                    std::span<const std::byte> bytes) override;
  absl::StatusOr<Request> StartReceive(Rank from, Lane lane,
                                       const Signature& expected,
                                       std::span<std::byte> bytes) override;
  absl::StatusOr<bool> Test(const Request& request) override;
  absl::Status Wait(std::span<const Request> requests,
                    OperationContext& context) override;
  bool CanPeek() const override { return true; }
  absl::StatusOr<std::optional<Signature>> Peek(Rank from, Lane lane) override;
  absl::Status WaitUntil(OperationContext& context,
                         absl::FunctionRef<bool()> ready,
                         absl::FunctionRef<void(std::vector<int64_t>&)> missing,
                         const Request* only) override;

 private:
  // Both ends between this rank and one peer on one lane, created on first use.
  struct Ends {
    Ends(Group& group, int64_t peer, Lane lane)
        : send(group, peer, lane), receive(group, peer, lane) {}
    SendEnd send;
    ReceiveEnd receive;
    // When Test last checked whether the peer is alive.
    std::atomic<int64_t> last_look_ns = 0;
  };

  Ends& EndsOf(int64_t peer, Lane lane);
  absl::StatusOr<bool> IsComplete(const Request& request);
  absl::Status ProgressCollectives();
  absl::Status LookAtPeer(const Request& request, Ends& ends);

  Group& group_;
  std::vector<std::atomic<Ends*>> ends_;  // By peer, then lane.
  std::mutex create_mutex_;
  // The ends of the collective lane; waiting for one of its requests makes
  // progress on all.
  std::vector<Ends*> collective_ends_;
};

}  // namespace tessera::collectives::host_memory

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_HOST_MEMORY_TRANSPORT_H_

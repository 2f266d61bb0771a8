// Channel: messages from one rank to another, through a ring of bytes that the
// sender owns; a large one from memory that the receiver can reach is copied
// straight from where it is.
//
// A message is a header of one line, then its bytes, padded to whole lines. One
// that does not fit is streamed: the sender writes on as the receiver reads.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_CHANNEL_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_CHANNEL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/engine/transport.h"
#include "collectives/host_memory/group.h"
#include "collectives/operation/signature.h"

namespace tessera::collectives::direct {

// The shared part. `written` is the sender's, the others the receiver's.
struct ChannelMemory {
  alignas(64) std::atomic<uint64_t> written;  // Bytes, ever.
  alignas(64) std::atomic<uint64_t> read;     // Bytes, ever.
  std::atomic<uint64_t> taken;                // Messages copied directly.
  alignas(64) std::byte ring[1];              // Tuning::channel_bytes.
};

// What precedes a message's bytes.
struct alignas(64) MessageHeader {
  Signature signature;
  int64_t bytes = 0;
  Place place = 0;      // Where the bytes are, if they do not follow.
  uint32_t direct = 0;  // 1: they do not follow.
};
static_assert(sizeof(MessageHeader) == 64);

// The sender's end. One thread at a time.
class SendEnd {
 public:
  SendEnd(Group& group, int64_t to, Lane lane)
      : group_(group), to_(to), lane_(lane) {}
  ~SendEnd();

  // The number of the message, from 1.
  absl::StatusOr<uint64_t> Start(const Signature& signature,
                                 std::span<const std::byte> bytes);
  // Moves what can be moved; the number of messages that are complete.
  uint64_t Progress();
  int64_t peer() const { return to_; }
  bool idle() const { return queue_.empty(); }
  const Signature& front() const { return queue_.front().header.signature; }

 private:
  struct Outgoing {
    MessageHeader header;
    const std::byte* data = nullptr;
    int64_t written = -1;  // Bytes after the header; -1: not even that.
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

// The receiver's end. One thread at a time.
class ReceiveEnd {
 public:
  ReceiveEnd(Group& group, int64_t from, Lane lane)
      : group_(group), from_(from), lane_(lane) {}

  uint64_t Start(const Signature& expected, std::span<std::byte> bytes);
  // As SendEnd; an error breaks the group: another message came than expected.
  absl::StatusOr<uint64_t> Progress();
  int64_t peer() const { return from_; }
  bool idle() const { return queue_.empty(); }
  const Signature& front() const { return queue_.front().expected; }

 private:
  struct Incoming {
    Signature expected;
    std::byte* data = nullptr;
    int64_t bytes = 0;
    int64_t got = -1;  // Bytes after the header; -1: not even that.
  };

  bool Open();
  absl::StatusOr<bool> Advance(Incoming& message);
  absl::Status Accept(const Incoming& message, const MessageHeader& header);
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

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_CHANNEL_H_

// Message: what ranks and their job's store say to each other, framed.
//
//   std::string bytes;
//   AppendMessage({.type = MessageType::kSet, .id = 7, .key = "a"}, &bytes);
//   MessageReader reader;
//   reader.Append(bytes);
//   TESSERA_ASSIGN_OR_RETURN(std::optional<Message> next, reader.Next());
//
// A frame is 28 bytes, little-endian, then the key and the value:
//
//   0 version (1)   1 type   2 code   3 zero
//   4 key size (4 bytes)     8 value size (4 bytes)
//   12 id (8 bytes)          20 number (8 bytes)
//
// The two sides' parts, each `id` chosen by the client:
//
//   kHello    key: host; number: rank; value: world size and pid (HelloBody)
//   kWelcome  the answer; key: the server's host; value: its HelloBody
//   kRefuse   the other answer; code: a status code; value: the reason
//   kSet      key, value; number: how many reads it is there for, 0: forever
//   kGet      key; number: the rank that will set it, -1: any
//   kCancel   the id of a kGet or kAbsent to answer now, whatever the answer
//   kErase    key: a prefix; value: ranks (FormatRanks)
//   kAbsent   key: a prefix; value: ranks; answered (FormatAbsence) when
//             nobody of them is absent or one of the absent is gone
//   kReply    id of kSet, kGet, kErase or kAbsent; code: 0 or a status code;
//             value: what was asked for, or the error's message
//   kBye      the sender leaves in order
#ifndef TESSERA_COLLECTIVES_CHANNEL_MESSAGE_H_
#define TESSERA_COLLECTIVES_CHANNEL_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::collectives::bootstrap {

inline constexpr uint8_t kWireVersion = 1;
inline constexpr size_t kHeaderBytes = 28;
inline constexpr size_t kMaxKeyBytes = 256;
inline constexpr size_t kMaxValueBytes = size_t{1} << 20;

enum class MessageType : uint8_t {
  kHello = 1,
  kWelcome,
  kRefuse,
  kSet,
  kGet,
  kCancel,
  kErase,
  kAbsent,
  kReply,
  kBye,
};

struct Message {
  MessageType type = MessageType::kBye;
  absl::StatusCode code = absl::StatusCode::kOk;
  uint64_t id = 0;
  int64_t number = 0;
  std::string key = {};
  std::string value = {};

  friend bool operator==(const Message&, const Message&) = default;
};

// InvalidArgument where the message is not one of the above: an unknown type or
// code, a key or value that is too long or does not belong to the type, a
// negative count.
absl::Status CheckMessage(const Message& message);

// Appends the frame of a message that CheckMessage accepts.
void AppendMessage(const Message& message, std::string* bytes);

// Cuts a stream into messages. Holds what it was given and has not cut, so the
// caller takes all messages out between two reads.
class MessageReader {
 public:
  void Append(std::string_view bytes) { buffer_.append(bytes); }

  // The next message, or nothing where it is not complete. InvalidArgument
  // where the stream is none of messages, as soon as that shows; then the
  // stream is lost, and every further call gives the error again.
  absl::StatusOr<std::optional<Message>> Next();

  size_t buffered_bytes() const { return buffer_.size() - taken_; }

 private:
  absl::StatusOr<std::optional<Message>> Parse();

  std::string buffer_;
  size_t taken_ = 0;  // Bytes of buffer_ that are cut already.
  absl::Status broken_;
};

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_CHANNEL_MESSAGE_H_

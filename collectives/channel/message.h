// Messages between the ranks and their job's store, and the encoding of texts
// that they use.
#ifndef TESSERA_COLLECTIVES_CHANNEL_MESSAGE_H_
#define TESSERA_COLLECTIVES_CHANNEL_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/little_endian.h"

namespace tessera::collectives {

// A text preceded by its size. TakeText accepts at most `max_bytes`.
inline void PutText(std::string_view text, std::string* bytes) {
  AppendLittleEndian(static_cast<uint32_t>(text.size()), bytes);
  bytes->append(text);
}

inline bool TakeText(std::string_view* bytes, size_t max_bytes,
                     std::string* text) {
  uint32_t size = 0;
  std::string_view rest = *bytes;
  if (!TakeLittleEndian(&rest, &size) || size > max_bytes ||
      size > rest.size()) {
    return false;
  }
  text->assign(rest.substr(0, size));
  rest.remove_prefix(size);
  *bytes = rest;
  return true;
}

inline constexpr uint8_t kWireVersion = 1;
inline constexpr size_t kHeaderBytes = 28;
inline constexpr size_t kMaxKeyBytes = 256;
inline constexpr size_t kMaxValueBytes = size_t{1} << 20;

// See Message.
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

// A message between a rank and its job's store.
//
//   std::string bytes;
//   AppendMessage({.type = MessageType::kSet, .id = 7, .key = "a"}, &bytes);
//   MessageReader reader;
//   reader.Append(bytes);
//   TESSERA_ASSIGN_OR_RETURN(std::optional<Message> next, reader.Next());
//
// A message is sent as a header of 28 bytes (little-endian), the key and the
// value:
//
//   0 version (1)   1 type   2 code   3 zero
//   4 key size (4 bytes)     8 value size (4 bytes)
//   12 id (8 bytes)          20 number (8 bytes)
//
// The message types; the client chooses each `id`:
//
//   kHello    key: host; number: rank; value: world size and pid (HelloBody)
//   kWelcome  accepts kHello; key: the server's host; value: its HelloBody
//   kRefuse   rejects kHello; code: a status code; value: the reason
//   kSet      key, value; number: reads until it is erased, 0: never
//   kGet      key; number: the rank that will set it, -1: any
//   kCancel   asks for an immediate answer to the kGet or kAbsent with this id
//   kErase    key: a prefix; value: ranks (FormatRanks)
//   kAbsent   key: a prefix; value: ranks; answered (FormatMissingMembers)
//             when no rank is missing or a missing rank is gone
//   kReply    id of kSet, kGet, kErase or kAbsent; code: 0 or a status code;
//             value: the result, or the error message
//   kBye      the sender leaves
struct Message {
  MessageType type = MessageType::kBye;
  absl::StatusCode code = absl::StatusCode::kOk;
  uint64_t id = 0;
  int64_t number = 0;
  std::string key = {};
  std::string value = {};

  friend bool operator==(const Message&, const Message&) = default;
};

// InvalidArgument if the message is not one of the above: an unknown type or
// code, a key or value that is too long or does not belong to the type, or a
// negative count.
absl::Status CheckMessage(const Message& message);

// Appends the encoding of a valid message.
void AppendMessage(const Message& message, std::string* bytes);

// Splits a stream into messages. Buffers incomplete data; take out all messages
// between two reads.
class MessageReader {
 public:
  void Append(std::string_view bytes) { buffer_.append(bytes); }

  // The next message, or nullopt if it is incomplete. InvalidArgument as soon
  // as the stream is malformed; all later calls return the same error.
  absl::StatusOr<std::optional<Message>> Next();

  size_t buffered_bytes() const { return buffer_.size() - taken_; }

 private:
  absl::StatusOr<std::optional<Message>> Parse();

  std::string buffer_;
  size_t taken_ = 0;  // Bytes of buffer_ that were returned already.
  absl::Status broken_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_CHANNEL_MESSAGE_H_

#include "collectives/channel/message.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "base/little_endian.h"
#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

// The fields that a type may use. A number must be at least `low`; unused
// numbers are 0.
struct Shape {
  std::string_view name;
  bool code, id, number, key, value;
  int64_t low;
};

constexpr std::array<Shape, 10> kShapes = {{
    {"hello", false, false, true, true, true, 0},
    {"welcome", false, false, false, true, true, 0},
    {"refuse", true, false, false, false, true, 0},
    {"set", false, true, true, true, true, 0},
    {"get", false, true, true, true, false, -1},
    {"cancel", false, true, false, false, false, 0},
    {"erase", false, true, false, true, true, 0},
    {"absent", false, true, false, true, true, 0},
    {"reply", true, true, false, false, true, 0},
    {"bye", false, false, false, false, false, 0},
}};

struct Header {
  uint8_t version = 0, type = 0, code = 0, zero = 0;
  uint32_t key_bytes = 0, value_bytes = 0;
  uint64_t id = 0;
  int64_t number = 0;
};

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("this is not a message of the store's protocol: ", what));
}

absl::Status CheckHeader(const Header& header) {
  if (header.version != kWireVersion) {
    return Malformed(
        absl::StrCat("version ", header.version, ", not ", kWireVersion));
  }
  if (header.type < 1 || header.type > kShapes.size()) {
    return Malformed(absl::StrCat("type ", header.type));
  }
  const Shape& shape = kShapes[header.type - 1];
  const auto wrong = [&shape](std::string_view what) {
    return Malformed(absl::StrCat(what, " of a ", shape.name));
  };
  if (header.zero != 0) return wrong("a byte that must be 0");
  if (header.code > (shape.code ? 16 : 0)) return wrong("the code");
  if (header.id != 0 && !shape.id) return wrong("the id");
  if (header.number != 0 && !shape.number) return wrong("the number");
  if (header.number < shape.low) return wrong("the number");
  if (header.key_bytes > (shape.key ? kMaxKeyBytes : 0)) {
    return wrong(absl::StrCat("the key's ", header.key_bytes, " bytes"));
  }
  if (header.value_bytes > (shape.value ? kMaxValueBytes : 0)) {
    return wrong(absl::StrCat("the value's ", header.value_bytes, " bytes"));
  }
  return absl::OkStatus();
}

// Requires at least kHeaderBytes bytes.
Header TakeHeader(std::string_view bytes) {
  Header header;
  TakeLittleEndian(&bytes, &header.version);
  TakeLittleEndian(&bytes, &header.type);
  TakeLittleEndian(&bytes, &header.code);
  TakeLittleEndian(&bytes, &header.zero);
  TakeLittleEndian(&bytes, &header.key_bytes);
  TakeLittleEndian(&bytes, &header.value_bytes);
  TakeLittleEndian(&bytes, &header.id);
  TakeLittleEndian(&bytes, &header.number);
  return header;
}

}  // namespace

absl::Status CheckMessage(const Message& message) {
  if (message.key.size() > kMaxKeyBytes) {
    return Malformed(absl::StrCat("a key of ", message.key.size(), " bytes"));
  }
  if (message.value.size() > kMaxValueBytes) {
    return Malformed(
        absl::StrCat("a value of ", message.value.size(), " bytes"));
  }
  Header header;
  header.version = kWireVersion;
  header.type = static_cast<uint8_t>(message.type);
  header.code = static_cast<uint8_t>(message.code);
  header.key_bytes = static_cast<uint32_t>(message.key.size());
  header.value_bytes = static_cast<uint32_t>(message.value.size());
  header.id = message.id;
  header.number = message.number;
  return CheckHeader(header);
}

void AppendMessage(const Message& message, std::string* bytes) {
  AppendLittleEndian(kWireVersion, bytes);
  AppendLittleEndian(static_cast<uint8_t>(message.type), bytes);
  AppendLittleEndian(static_cast<uint8_t>(message.code), bytes);
  AppendLittleEndian(uint8_t{0}, bytes);
  AppendLittleEndian(static_cast<uint32_t>(message.key.size()), bytes);
  AppendLittleEndian(static_cast<uint32_t>(message.value.size()), bytes);
  AppendLittleEndian(message.id, bytes);
  AppendLittleEndian(message.number, bytes);
  bytes->append(message.key).append(message.value);
}

absl::StatusOr<std::optional<Message>> MessageReader::Next() {
  if (!broken_.ok()) return broken_;
  absl::StatusOr<std::optional<Message>> message = Parse();
  if (!message.ok()) {
    broken_ = message.status();
    buffer_ = std::string();
    taken_ = 0;
  }
  return message;
}

absl::StatusOr<std::optional<Message>> MessageReader::Parse() {
  std::string_view rest = std::string_view(buffer_).substr(taken_);
  // The first byte identifies other protocols early.
  if (!rest.empty() && static_cast<uint8_t>(rest[0]) != kWireVersion) {
    return Malformed(absl::StrCat("version ", static_cast<uint8_t>(rest[0]),
                                  ", not ", kWireVersion));
  }
  if (rest.size() < kHeaderBytes) return std::nullopt;
  const Header header = TakeHeader(rest);
  TESSERA_RETURN_IF_ERROR(CheckHeader(header));
  rest.remove_prefix(kHeaderBytes);
  const size_t body = size_t{header.key_bytes} + header.value_bytes;
  if (rest.size() < body) return std::nullopt;
  Message message;
  message.type = static_cast<MessageType>(header.type);
  message.code = static_cast<absl::StatusCode>(header.code);
  message.id = header.id;
  message.number = header.number;
  message.key = rest.substr(0, header.key_bytes);
  message.value = rest.substr(header.key_bytes, header.value_bytes);
  taken_ += kHeaderBytes + body;
  // Drops returned bytes when they are more than half of the buffer.
  if (taken_ * 2 >= buffer_.size()) {
    buffer_.erase(0, taken_);
    taken_ = 0;
  }
  return message;
}

}  // namespace tessera::collectives

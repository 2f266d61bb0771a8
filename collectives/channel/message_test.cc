#include "collectives/channel/message.h"

#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

// One valid message of each type, with all optional fields.
std::vector<Message> EveryType() {
  return {
      {.type = MessageType::kHello, .number = 3, .key = "host", .value = "v"},
      {.type = MessageType::kWelcome, .key = "host", .value = "v"},
      {.type = MessageType::kRefuse,
       .code = absl::StatusCode::kAlreadyExists,
       .value = "taken"},
      {.type = MessageType::kSet,
       .id = ~uint64_t{0},
       .number = int64_t{1} << 62,
       .key = std::string(kMaxKeyBytes, 'k'),
       .value = std::string(kMaxValueBytes, 'v')},
      {.type = MessageType::kGet, .id = 1, .number = -1, .key = "k"},
      {.type = MessageType::kCancel, .id = 1},
      {.type = MessageType::kErase, .id = 2, .key = "", .value = "1234"},
      {.type = MessageType::kAbsent, .id = 2, .key = "p/", .value = ""},
      {.type = MessageType::kReply,
       .code = absl::StatusCode::kUnauthenticated,
       .id = 9,
       .value = "no"},
      {.type = MessageType::kBye},
  };
}

std::string Frame(const Message& message) {
  std::string bytes;
  AppendMessage(message, &bytes);
  return bytes;
}

TEST(MessageTest, RoundTripsEveryTypeInAnyPieces) {
  std::string stream;
  for (const Message& message : EveryType()) {
    TESSERA_EXPECT_OK(CheckMessage(message));
    AppendMessage(message, &stream);
  }
  for (const size_t piece :
       {size_t{1}, size_t{7}, size_t{4096}, stream.size()}) {
    MessageReader reader;
    std::vector<Message> got;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.Append(std::string_view(stream).substr(at, piece));
      while (true) {
        TESSERA_ASSERT_OK_AND_ASSIGN(std::optional<Message> next,
                                     reader.Next());
        if (!next) break;
        got.push_back(*std::move(next));
      }
    }
    EXPECT_EQ(got, EveryType()) << piece;
    EXPECT_EQ(reader.buffered_bytes(), 0u);
  }
}

TEST(MessageTest, MatchesDocumentedFrame) {
  const std::string bytes = Frame({.type = MessageType::kSet,
                                   .id = 0x0102030405060708,
                                   .number = 2,
                                   .key = "k",
                                   .value = "vw"});
  const std::string expected(
      "\x01\x04\x00\x00"
      "\x01\x00\x00\x00"
      "\x02\x00\x00\x00"
      "\x08\x07\x06\x05\x04\x03\x02\x01"
      "\x02\x00\x00\x00\x00\x00\x00\x00"
      "kvw",
      31);
  EXPECT_EQ(bytes, expected);
}

// Parses a frame of `message` with one byte replaced.
absl::Status WithByte(const Message& message, size_t at, int byte) {
  std::string bytes = Frame(message);
  bytes[at] = static_cast<char>(byte);
  MessageReader reader;
  reader.Append(bytes);
  return reader.Next().status();
}

TEST(MessageTest, RejectsFieldsInvalidForType) {
  const auto wrong = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  const Message bye = {.type = MessageType::kBye};
  EXPECT_THAT(WithByte(bye, 0, 2), wrong("version 2, not 1"));
  EXPECT_THAT(WithByte(bye, 1, 0), wrong("type 0"));
  EXPECT_THAT(WithByte(bye, 1, 11), wrong("type 11"));
  EXPECT_THAT(WithByte(bye, 2, 1), wrong("the code of a bye"));
  EXPECT_THAT(WithByte(bye, 3, 1), wrong("a byte that must be 0"));
  EXPECT_THAT(WithByte(bye, 4, 1), wrong("the key's 1 bytes of a bye"));
  EXPECT_THAT(WithByte(bye, 8, 1), wrong("the value's 1 bytes of a bye"));
  EXPECT_THAT(WithByte(bye, 12, 1), wrong("the id of a bye"));
  EXPECT_THAT(WithByte(bye, 20, 1), wrong("the number of a bye"));
  const Message set = {.type = MessageType::kSet, .key = "k"};
  EXPECT_THAT(WithByte(set, 5, 1), wrong("the key's 257 bytes of a set"));
  EXPECT_THAT(WithByte(set, 11, 0x7f), wrong("bytes of a set"));
  EXPECT_THAT(WithByte(set, 27, 0x80), wrong("the number of a set"));
  EXPECT_THAT(WithByte({.type = MessageType::kReply}, 2, 17),
              wrong("the code of a reply"));
  EXPECT_THAT(CheckMessage({.type = MessageType::kSet,
                            .key = std::string(kMaxKeyBytes + 1, 'k')}),
              wrong("a key of 257 bytes"));
  EXPECT_THAT(CheckMessage({.type = MessageType::kSet,
                            .value = std::string(kMaxValueBytes + 1, 'k')}),
              wrong("a value of 1048577 bytes"));
  EXPECT_THAT(CheckMessage({.type = MessageType::kGet, .number = -2}),
              wrong("the number of a get"));
}

TEST(MessageTest, RejectsForeignStreamAtFirstByte) {
  MessageReader reader;
  reader.Append("GET / HTTP/1.1\r\n");
  EXPECT_THAT(reader.Next(), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("version 71")));
  reader.Append(Frame({.type = MessageType::kBye}));
  EXPECT_THAT(reader.Next(), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(MessageTest, RejectsInvalidLengthBeforePayload) {
  std::string bytes =
      Frame({.type = MessageType::kSet, .key = "k", .value = "v"});
  bytes.resize(kHeaderBytes);
  bytes[11] = 0x7f;  // Announces two gigabytes.
  MessageReader reader;
  reader.Append(bytes);
  EXPECT_THAT(reader.Next(), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tessera::collectives

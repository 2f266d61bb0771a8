#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "collectives/bootstrap/store_table.h"
#include "collectives/channel/message.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

std::string Frames(const std::vector<Message>& messages) {
  std::string bytes;
  for (const Message& message : messages) AppendMessage(message, &bytes);
  return bytes;
}

const std::vector<Rank>& SomeRanks() {
  static const auto& ranks = *new std::vector<Rank>{Rank(0), Rank(7)};
  return ranks;
}

MissingMembers SomeMissingMembers() {
  return {3, {{Rank(1), MemberState::kLost, "host a, pid 1"}, {Rank(9)}}};
}

TEST(MessageFuzzTest, MutatedStreamsRoundTripOrFail) {
  TextMutator mutator(
      {Frames({{.type = MessageType::kHello,
                .number = 1,
                .key = "host",
                .value = FormatHello({2, 3})}}),
       Frames({{.type = MessageType::kSet, .id = 1, .key = "a", .value = "b"},
               {.type = MessageType::kGet, .id = 2, .number = -1, .key = "a"},
               {.type = MessageType::kCancel, .id = 2},
               {.type = MessageType::kBye}}),
       Frames({{.type = MessageType::kAbsent,
                .id = 4,
                .key = "p/",
                .value = FormatRanks(SomeRanks())}})},
      {std::string(1, '\0'), std::string(4, '\0'), "\x01", "\xff\xff\xff\xff",
       Frames({{.type = MessageType::kBye}})},
      1);
  int messages = 0, refused = 0;
  for (int i = 0; i < 100'000; ++i) {
    const std::string text = mutator.Next();
    MessageReader reader;
    reader.Append(text);
    size_t bytes = 0;
    while (true) {
      const auto message = reader.Next();
      if (!message.ok()) {
        ++refused;
        ASSERT_THAT(message, StatusIs(absl::StatusCode::kInvalidArgument));
        ASSERT_FALSE(message.status().message().empty());
        ASSERT_EQ(reader.Next().status(), message.status());
        break;
      }
      if (!message->has_value()) {
        ASSERT_EQ(bytes + reader.buffered_bytes(), text.size());
        break;
      }
      ++messages;
      TESSERA_ASSERT_OK(CheckMessage(**message));
      const std::string frame = Frames({**message});
      ASSERT_EQ(text.substr(bytes, frame.size()), frame);
      bytes += frame.size();
    }
  }
  EXPECT_GT(messages, 10'000);
  EXPECT_GT(refused, 10'000);
}

// If `parse` accepts bytes, `format` reproduces them.
template <typename Parse, typename Format>
void FuzzPayload(const std::string& valid, Parse parse, Format format) {
  TextMutator mutator({valid}, {std::string(4, '\0'), "\xff\xff\xff\xff"}, 2);
  int accepted = 0, refused = 0;
  for (int i = 0; i < 50'000; ++i) {
    const std::string text = mutator.Next();
    const auto value = parse(text);
    if (value.ok()) {
      ++accepted;
      ASSERT_EQ(format(*value), text);
    } else {
      ++refused;
      ASSERT_THAT(value, StatusIs(absl::StatusCode::kInvalidArgument));
      ASSERT_FALSE(value.status().message().empty());
    }
  }
  EXPECT_GT(accepted, 1'000);
  EXPECT_GT(refused, 1'000);
}

TEST(PayloadFuzzTest, MutatedGreetingsRoundTripOrFail) {
  FuzzPayload(FormatHello({8, 1234}), ParseHello, FormatHello);
}

TEST(PayloadFuzzTest, MutatedRankListsRoundTripOrFail) {
  FuzzPayload(
      FormatRanks(SomeRanks()), ParseRanks,
      [](const std::vector<Rank>& ranks) { return FormatRanks(ranks); });
}

TEST(PayloadFuzzTest, MutatedAbsencesRoundTripOrFail) {
  FuzzPayload(FormatMissingMembers(SomeMissingMembers()), ParseMissingMembers,
              FormatMissingMembers);
}

TEST(PayloadTest, ReadsBack) {
  EXPECT_THAT(ParseMissingMembers(FormatMissingMembers(SomeMissingMembers())),
              IsOkAndHolds(SomeMissingMembers()));
  EXPECT_THAT(ParseRanks(FormatRanks(SomeRanks())), IsOkAndHolds(SomeRanks()));
  EXPECT_THAT(ParseHello(FormatHello({2, 3})), IsOkAndHolds(HelloBody{2, 3}));
}

}  // namespace
}  // namespace tessera::collectives

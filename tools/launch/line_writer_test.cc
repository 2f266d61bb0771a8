#include "tools/launch/line_writer.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using ::testing::ElementsAre;

class LineWriterTest : public ::testing::Test {
 protected:
  void Line(size_t source, std::string_view text) {
    writer_.Write(source, {text, PieceEnd::kNewline}, out_);
  }
  void Partial(size_t source, std::string_view text) {
    writer_.Write(source, {text, PieceEnd::kPartial}, out_);
  }

  LineWriter writer_{RankPrefixes(0, 3, 3, false)};
  std::string out_;
};

TEST(RankPrefixesTest, AreAsWideAsTheWidestOfTheWorld) {
  EXPECT_THAT(RankPrefixes(8, 3, 11, false),
              ElementsAre("[ 8] ", "[ 9] ", "[10] "));
  EXPECT_THAT(RankPrefixes(0, 1, 1, false), ElementsAre("[0] "));
  EXPECT_THAT(RankPrefixes(0, 2, 10, false), ElementsAre("[0] ", "[1] "));
}

TEST(RankPrefixesTest, ColoursTheLabelAndNothingElse) {
  EXPECT_THAT(RankPrefixes(0, 2, 2, true),
              ElementsAre("\x1b[36m[0]\x1b[0m ", "\x1b[33m[1]\x1b[0m "));
}

TEST_F(LineWriterTest, PutsThePrefixBeforeEveryLine) {
  Line(0, "a");
  Line(2, "");
  Line(0, "b");
  EXPECT_EQ(out_, "[0] a\n[2] \n[0] b\n");
}

TEST_F(LineWriterTest, RepeatsThePrefixWhereALineIsBroken) {
  writer_.Write(1, {"long", PieceEnd::kBroken}, out_);
  Line(1, "er");
  EXPECT_EQ(out_, "[1] long\n[1] er\n");
}

TEST_F(LineWriterTest, ContinuesAFlushedLineWhereNobodyWroteInBetween) {
  Partial(0, "10 %");
  Partial(0, "\r20 %");
  Line(0, " done");
  EXPECT_EQ(out_, "[0] 10 %\r20 % done\n");
}

TEST_F(LineWriterTest, EndsAFlushedLineBeforeAnothersBegins) {
  Partial(0, "name: ");
  Line(1, "hello");
  Line(0, "x");
  EXPECT_EQ(out_, "[0] name: \n[1] hello\n[0] x\n");
}

TEST_F(LineWriterTest, DoesNotTurnTheNewlineOfAnEndedLineIntoAnEmptyLine) {
  Partial(0, "name: ");
  Line(1, "hello");
  Line(0, "");
  Line(0, "");
  EXPECT_EQ(out_, "[0] name: \n[1] hello\n[0] \n");
}

TEST_F(LineWriterTest, FinishEndsAnOpenLineOnce) {
  Partial(0, "bye");
  writer_.Finish(out_);
  writer_.Finish(out_);
  EXPECT_EQ(out_, "[0] bye\n");
}

TEST(PlainLineWriterTest, AddsNoByte) {
  LineWriter writer;
  std::string out;
  writer.Write(0, {"long", PieceEnd::kBroken}, out);
  writer.Write(0, {"er", PieceEnd::kNewline}, out);
  writer.Write(0, {"part", PieceEnd::kPartial}, out);
  writer.Write(1, {"x", PieceEnd::kNewline}, out);
  writer.Write(0, {"", PieceEnd::kNewline}, out);
  writer.Finish(out);
  EXPECT_EQ(out, "longer\npartx\n\n");
}

// Whatever the order of pieces: every line begins with a prefix, and what
// stands behind a source's prefixes is what it wrote.
TEST(LineWriterFuzzTest, LinesNeverMixAndNothingIsLost) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 5000; ++round) {
    LineWriter writer(RankPrefixes(0, 3, 3, false));
    std::string out;
    std::map<size_t, std::string> written;
    for (int step = 0; step < 20; ++step) {
      const size_t source = random() % 3;
      const std::string text(random() % 3, static_cast<char>('a' + source));
      writer.Write(source, {text, static_cast<PieceEnd>(random() % 3)}, out);
      written[source] += text;
    }
    writer.Finish(out);
    ASSERT_EQ(out.back(), '\n');
    out.pop_back();
    std::map<size_t, std::string> shown;
    for (std::string_view line : absl::StrSplit(out, '\n')) {
      ASSERT_GE(line.size(), 4u) << out;
      const size_t source = static_cast<size_t>(line[1] - '0');
      ASSERT_TRUE(absl::StartsWith(line, absl::StrCat("[", source, "] ")));
      shown[source] += line.substr(4);
    }
    for (const auto& [source, text] : written) ASSERT_EQ(shown[source], text);
  }
}

}  // namespace
}  // namespace tessera::tools

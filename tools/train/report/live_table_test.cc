#include "tools/train/report/live_table.h"

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::optional<RemainingEstimate> kLeft =
    RemainingEstimate{absl::Seconds(125), /*without_validation=*/true};

StepMetrics StepAt(int64_t step) {
  return {.record = {.step = step,
                     .loss = 3.25,
                     .gradient_norm = 0.5,
                     .learning_rate = 2.8125e-3},
          .seconds = 0.5,
          .tokens_per_second = 9012.4,
          .memory_bytes = 31 << 20,
          .shares = {.compute = 0.72,
                     .communication = 0.15,
                     .bubble = 0.09,
                     .offload = 0.04}};
}

std::vector<std::string> Rows(const std::string& text) {
  return absl::StrSplit(text, '\n');
}

TEST(LiveTableTest, ARowHasEveryNumberUnderItsName) {
  const std::string row = LiveTableRow(StepAt(6), 60, kLeft);
  EXPECT_EQ(row.size(), LiveTableHeader().size());
  const std::vector<std::string> cells =
      absl::StrSplit(row, ' ', absl::SkipEmpty());
  EXPECT_THAT(cells,
              ElementsAre("7/60", "3.2500", "0.5", "2.81e-03", "9012", "31",
                          "MiB", "72%", "15%", "9%", "4%", "2m05s+"));
}

TEST(LiveTableTest, SaysThatAStepWasSkippedAndShowsGibibytes) {
  StepMetrics step = StepAt(0);
  step.record.skipped = true;
  step.memory_bytes = int64_t{24} << 30;
  EXPECT_THAT(LiveTableRow(step, 1, kLeft), HasSubstr("24.0 GiB"));
  EXPECT_THAT(LiveTableRow(step, 1, kLeft), HasSubstr("skipped"));
  EXPECT_THAT(LiveTableRow(step, 1, std::nullopt), HasSubstr("       - skip"));
}

TEST(LiveTableTest, ShowsTheLargestScoreOfAttention) {
  StepMetrics step = StepAt(0);
  step.record.max_attention_score = 123.456;
  EXPECT_EQ(LiveTableRow(step, 1, kLeft),
            LiveTableRow(StepAt(0), 1, kLeft) + "  score 123.5");
}

TEST(LiveTableTest, EachValidationHasALine) {
  StepMetrics step = StepAt(7);
  step.record.eval_loss = 2;
  std::ostringstream out;
  LiveTable table(out, {.steps = 100});
  table.Add(StepAt(0), kLeft);
  table.Add(StepAt(6), kLeft);
  table.Add(step, kLeft);
  EXPECT_EQ(out.str(), LiveTableHeader() + "\n" +
                           LiveTableRow(StepAt(0), 100, kLeft) + "\n" +
                           LiveTableRow(StepAt(7), 100, kLeft) +
                           "  validation 2.0000, perplexity 7.389\n");
}

TEST(LiveTableTest, OnATerminalOneLineIsWrittenAnew) {
  std::ostringstream out;
  {
    LiveTable table(out, {.is_terminal = true, .steps = 3});
    for (int64_t step = 0; step < 3; ++step) table.Add(StepAt(step), kLeft);
  }
  std::string expected = LiveTableHeader() + "\n";
  for (int64_t step = 0; step < 3; ++step) {
    expected += "\r\033[K" + LiveTableRow(StepAt(step), 3, kLeft);
  }
  EXPECT_EQ(out.str(), expected + "\n");
}

TEST(LiveTableTest, ElsewhereLinesComeAtAnInterval) {
  std::ostringstream out;
  absl::Time now = absl::UnixEpoch();
  LiveTable table(out, {.steps = 100,
                        .interval = absl::Seconds(10),
                        .now = [&] { return now; }});
  for (int64_t step = 0; step < 100; ++step) {
    now += absl::Seconds(step == 51 ? 11 : 0);
    table.Add(StepAt(step), kLeft);
  }
  const std::vector<std::string> rows = Rows(out.str());
  // The header, steps 1, 5, 10, ..., 100 and 52, and the empty text after the
  // last newline.
  ASSERT_EQ(rows.size(), 1u + 21 + 1 + 1);
  EXPECT_EQ(rows[0], LiveTableHeader());
  EXPECT_EQ(rows[1], LiveTableRow(StepAt(0), 100, kLeft));
  EXPECT_EQ(rows[2], LiveTableRow(StepAt(4), 100, kLeft));
  EXPECT_EQ(rows[12], LiveTableRow(StepAt(51), 100, kLeft));
  EXPECT_EQ(rows[22], LiveTableRow(StepAt(99), 100, kLeft));
  EXPECT_EQ(rows[23], "");
}

TEST(LiveTableTest, AShortRunShowsEveryStep) {
  std::ostringstream out;
  LiveTable table(out, {.steps = 5});
  for (int64_t step = 0; step < 5; ++step) table.Add(StepAt(step), kLeft);
  EXPECT_EQ(Rows(out.str()).size(), 7u);
}

}  // namespace
}  // namespace tessera::train

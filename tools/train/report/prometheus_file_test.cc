#include "tools/train/report/prometheus_file.h"

#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

// The samples of a text, which must have a type before them.
std::map<std::string, std::string> SamplesOf(std::string_view text) {
  EXPECT_THAT(std::string(text), EndsWith("\n"));
  std::map<std::string, std::string> samples;
  std::string typed;
  for (const std::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    if (words[0] == "#") {
      EXPECT_TRUE(words[1] == "HELP" || words[1] == "TYPE");
      EXPECT_GE(words.size(), 4u);
      typed = words[2];
      continue;
    }
    const size_t space = line.rfind(' ');
    const std::string name(line.substr(0, space));
    EXPECT_EQ(name.substr(0, name.find('{')), typed);
    EXPECT_TRUE(
        samples.emplace(name, std::string(line.substr(space + 1))).second);
  }
  return samples;
}

TEST(PrometheusTextTest, HasTheNumbersOfARun) {
  RunStatus status = {.ranks = 8, .skipped_steps = 2};
  status.settings.steps = 60;
  auto samples = SamplesOf(PrometheusText(status));
  EXPECT_EQ(samples.at("tessera_train_steps_done"), "0");
  EXPECT_EQ(samples.count("tessera_train_loss"), 0u);
  status.last = StepMetrics{
      .record = {.step = 6,
                 .loss = 0.1,
                 .gradient_norm = std::numeric_limits<double>::infinity(),
                 .learning_rate = 3e-3,
                 .rollbacks = 3},
      .seconds = 0.5,
      .tokens_per_second = 9000,
      .memory_bytes = int64_t{1} << 40,
      .shares = {.compute = 0.5, .bubble = 0.25}};
  status.last_eval_loss = std::numeric_limits<double>::quiet_NaN();
  status.remaining = RemainingEstimate{absl::Seconds(90)};
  samples = SamplesOf(PrometheusText(status));
  EXPECT_EQ(samples.at("tessera_train_info{model=\"llama-1m\",mesh=\"dp2,pp2,"
                       "tp2\",engine=\"shared_memory\"}"),
            "1");
  EXPECT_EQ(samples.at("tessera_train_ranks"), "8");
  EXPECT_EQ(samples.at("tessera_train_steps"), "60");
  EXPECT_EQ(samples.at("tessera_train_steps_done"), "7");
  EXPECT_EQ(samples.at("tessera_train_skipped_steps_total"), "2");
  EXPECT_EQ(samples.at("tessera_train_rollbacks_total"), "3");
  EXPECT_EQ(samples.at("tessera_train_loss"), "0.10000000000000001");
  EXPECT_EQ(samples.at("tessera_train_gradient_norm"), "+Inf");
  EXPECT_EQ(samples.at("tessera_train_memory_bytes"), "1099511627776");
  EXPECT_EQ(samples.at("tessera_train_validation_loss"), "NaN");
  EXPECT_EQ(samples.at("tessera_train_remaining_seconds"), "90");
  EXPECT_EQ(samples.at("tessera_train_time_share{activity=\"bubble\"}"),
            "0.25");
  EXPECT_EQ(samples.size(), 19u);
  status.last->record.expert_imbalance = 1.25;
  status.last->record.max_attention_score = 75;
  samples = SamplesOf(PrometheusText(status));
  EXPECT_EQ(samples.at("tessera_train_expert_imbalance"), "1.25");
  EXPECT_EQ(samples.at("tessera_train_max_attention_score"), "75");
  EXPECT_EQ(samples.at("tessera_train_learning_rate"), "0.0030000000000000001");
  EXPECT_EQ(samples.at("tessera_train_loss_scale"), "1");
  EXPECT_EQ(samples.at("tessera_train_step_seconds"), "0.5");
  EXPECT_EQ(samples.at("tessera_train_tokens_per_second"), "9000");
  EXPECT_EQ(samples.size(), 21u);
  status.last->slowest = {
      {.section = Section::kCompute, .rank = 3, .ratio = 1.5},
      {.section = Section::kOffload, .rank = 1, .ratio = 1}};
  samples = SamplesOf(PrometheusText(status));
  EXPECT_EQ(samples.at("tessera_train_slowest_rank{section=\"compute\"}"), "3");
  EXPECT_EQ(samples.at("tessera_train_slowest_ratio{section=\"compute\"}"),
            "1.5");
  EXPECT_EQ(samples.at("tessera_train_slowest_rank{section=\"offload\"}"), "1");
  EXPECT_EQ(samples.size(), 25u);
}

TEST(PrometheusTextTest, DescribesEveryMetricWithItsType) {
  const std::string text = PrometheusText({});
  EXPECT_THAT(text, HasSubstr("# HELP tessera_train_ranks Number of ranks.\n"
                              "# TYPE tessera_train_ranks gauge\n"
                              "tessera_train_ranks 1\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE tessera_train_rollbacks_total counter\n"
                              "tessera_train_rollbacks_total 0\n"));
}

TEST(PrometheusTextTest, EscapesLabels) {
  RunStatus status;
  status.settings.model = "a\"b\\c\nd\te\xff";
  const std::string text = PrometheusText(status);
  EXPECT_THAT(text, HasSubstr("{model=\"a\\\"b\\\\c\\nd?e\xef\xbf\xbd\","));
  SamplesOf(text);
}

class PrometheusFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }
  std::string File() const { return ReadFile(path_, 1 << 20).value_or("?"); }

  const std::string directory_ =
      absl::StrCat(::testing::TempDir(), "/collected");
  const std::string path_ = directory_ + "/train.prom";
  RunStatus status_;
  absl::Time now_ = absl::UnixEpoch();
  PrometheusFile file_{path_, [this] { return now_; }};
};

TEST_F(PrometheusFileTest, ReplacesTheFileAsAWhole) {
  status_.settings.model = std::string(10'000, 'm');
  TESSERA_ASSERT_OK(file_.Write(status_));
  EXPECT_EQ(File(), PrometheusText(status_));
  status_.settings.model = "m";
  // A reader that has opened the file keeps the old text.
  std::filesystem::create_hard_link(path_, directory_ + "/old");
  TESSERA_ASSERT_OK(file_.Write(status_));
  EXPECT_EQ(File(), PrometheusText(status_));
  EXPECT_THAT(*ReadFile(directory_ + "/old", 1 << 20),
              HasSubstr(std::string(10'000, 'm')));
  // No temporary file is left for the collector.
  const std::filesystem::directory_iterator files(directory_), end;
  EXPECT_EQ(std::distance(files, end), 2);
}

TEST_F(PrometheusFileTest, WritesStepsAtABoundedRate) {
  for (int64_t step = 0; step < 20; ++step) {
    now_ += absl::Seconds(1);
    status_.last = StepMetrics{.record = {.step = step}};
    TESSERA_ASSERT_OK(file_.WriteIfDue(status_));
    EXPECT_THAT(File(), HasSubstr(absl::StrCat("tessera_train_steps_done ",
                                               step / 5 * 5 + 1, "\n")));
  }
  TESSERA_ASSERT_OK(file_.Write(status_));
  EXPECT_THAT(File(), HasSubstr("tessera_train_steps_done 20\n"));
}

TEST_F(PrometheusFileTest, NamesTheFlagIfTheFileCannotBeWritten) {
  for (const std::string& path :
       {directory_ + "/missing/train.prom", path_ + "/train.prom",
        std::string("/proc/train.prom"), directory_}) {
    TESSERA_ASSERT_OK(WriteFile(path_, ""));
    PrometheusFile file(path);
    const absl::Status status = file.Write(status_);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("--prometheus_file=" + path));
  }
}

}  // namespace
}  // namespace tessera::train

#include "tools/train/report/run_page.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pipeline/draw/testing/svg_checker.h"
#include "tools/train/report/metrics_file.h"
#include "tools/train/settings/settings_table.h"

namespace tessera::train {
namespace {

using pipeline::XmlElement;
using ::testing::HasSubstr;
using ::testing::Not;

StepMetrics StepAt(int64_t step) {
  return {.record = {.step = step, .loss = 5.0 / static_cast<double>(step + 1)},
          .seconds = 0.5,
          .tokens_per_second = 1000.0 + static_cast<double>(step % 7),
          .memory_bytes = (30 << 20) + step,
          .shares = {.compute = 0.5,
                     .communication = 0.25,
                     .bubble = 0.125,
                     .offload = 0.125}};
}

// The page's elements, which must be well-formed XML after the document type.
std::vector<XmlElement> ElementsOf(std::string_view html) {
  constexpr std::string_view kType = "<!DOCTYPE html>\n";
  EXPECT_TRUE(absl::StartsWith(html, kType));
  html.remove_prefix(std::min(kType.size(), html.size()));
  const auto elements = pipeline::ReadXml(html);
  EXPECT_THAT(elements, IsOk());
  return elements.value_or(std::vector<XmlElement>());
}

std::vector<XmlElement> Named(const std::vector<XmlElement>& all,
                              std::string_view name,
                              std::string_view group = "") {
  std::vector<XmlElement> found;
  for (const XmlElement& element : all) {
    if (element.name == name && absl::EndsWith(element.group, group)) {
      found.push_back(element);
    }
  }
  return found;
}

// The ends of a path's lines: "M1 2h0L3 4" has two.
size_t PointsIn(const std::string& path) {
  return static_cast<size_t>(std::count_if(
      path.begin(), path.end(), [](char c) { return c == 'M' || c == 'L'; }));
}

class RunPageTest : public ::testing::Test {
 protected:
  std::unique_ptr<RunPage> Open(std::string_view name) {
    options_.path = absl::StrCat(::testing::TempDir(), "/", name);
    options_.now = [this] { return now_; };
    return *RunPage::Open(options_);
  }
  std::string File() const { return *ReadFile(options_.path, 1 << 24); }

  RunPageOptions options_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST(StepSeriesTest, GroupsStepsAsBruteForceDoes) {
  std::mt19937 random(1);
  for (const size_t most : {1u, 2u, 5u, 16u}) {
    StepSeries series(most);
    std::vector<std::pair<int64_t, double>> all;
    int64_t step = static_cast<int64_t>(random() % 3);
    for (int i = 0; i < 200; ++i) {
      const double value = static_cast<double>(random() % 100);
      series.Add(step, value);
      all.emplace_back(step, value);
      step += 1 + static_cast<int64_t>(random() % (i % 20 == 0 ? 40 : 2));
      int64_t width = 1;
      while (all.back().first / width >= static_cast<int64_t>(most)) width *= 2;
      ASSERT_EQ(series.width(), width);
      std::vector<StepSeries::Point> points(
          static_cast<size_t>(all.back().first / width) + 1);
      for (const auto& [at, y] : all) {
        StepSeries::Point& point = points[static_cast<size_t>(at / width)];
        ++point.count;
        point.sum += y;
        point.least = std::min(point.least, y);
        point.most = std::max(point.most, y);
      }
      ASSERT_EQ(series.points().size(), points.size());
      for (size_t p = 0; p < points.size(); ++p) {
        EXPECT_EQ(series.points()[p].count, points[p].count);
        EXPECT_EQ(series.points()[p].sum, points[p].sum);
        EXPECT_EQ(series.points()[p].least, points[p].least);
        EXPECT_EQ(series.points()[p].most, points[p].most);
      }
    }
  }
}

TEST(StepSeriesTest, LeavesOutWhatIsNotFinite) {
  StepSeries series(4);
  series.Add(0, std::nan(""));
  series.Add(1, std::numeric_limits<double>::infinity());
  series.Add(-1, 1);
  EXPECT_TRUE(series.points().empty());
  series.Add(2, 7);
  ASSERT_EQ(series.points().size(), 3u);
  EXPECT_EQ(series.points()[0].count, 0);
  EXPECT_EQ(series.points()[2].mean(), 7);
}

TEST_F(RunPageTest, MixturesOfExpertsHaveACurveOfTheBusiest) {
  options_.settings.steps = 40;
  const auto page = Open("experts.html");
  for (int64_t step = 0; step < 20; ++step) {
    StepMetrics metrics = StepAt(step);
    metrics.record.expert_imbalance = 1 + 1.0 / static_cast<double>(step + 1);
    TESSERA_ASSERT_OK(page->Add(metrics, RemainingEstimate{absl::Minutes(2)}));
  }
  const auto busiest = Named(ElementsOf(page->Html()), "path", "busiest");
  ASSERT_EQ(busiest.size(), 2u);
  EXPECT_EQ(PointsIn(busiest[1].Get("d")), 20u);
}

TEST_F(RunPageTest, ClippedRunsHaveACurveOfTheLargestScore) {
  options_.settings.steps = 40;
  const auto page = Open("scores.html");
  for (int64_t step = 0; step < 20; ++step) {
    StepMetrics metrics = StepAt(step);
    metrics.record.max_attention_score = 10 + static_cast<double>(step);
    TESSERA_ASSERT_OK(page->Add(metrics, RemainingEstimate{absl::Minutes(2)}));
  }
  const auto scores = Named(ElementsOf(page->Html()), "path", "score");
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_EQ(PointsIn(scores[1].Get("d")), 20u);
}

TEST_F(RunPageTest, HasCurvesBarsAndTables) {
  options_.settings.steps = 40;
  options_.settings.model = "llama-10m";
  options_.schedule = "<svg data-name=\"schedule\"></svg>";
  const auto page = Open("whole.html");
  for (int64_t step = 0; step < 20; ++step) {
    StepMetrics metrics = StepAt(step);
    if (step % 10 == 9) metrics.record.eval_loss = 2;
    TESSERA_ASSERT_OK(page->Add(metrics, RemainingEstimate{absl::Minutes(2)}));
  }
  const std::vector<XmlElement> all = ElementsOf(page->Html());
  EXPECT_EQ(Named(all, "svg").size(), 5u);
  // A line through all steps over their ranges, and one through validations.
  const auto training = Named(all, "path", "training");
  ASSERT_EQ(training.size(), 2u);
  EXPECT_EQ(PointsIn(training[1].Get("d")), 20u);
  const auto validation = Named(all, "path", "validation");
  ASSERT_EQ(validation.size(), 2u);
  EXPECT_EQ(PointsIn(validation[1].Get("d")), 2u);
  EXPECT_THAT(validation[1].Get("d"), HasSubstr("L"));
  // Bars of all four shares, which fill the chart's height.
  double height = 0;
  for (const char* const share :
       {"compute", "communication", "bubble", "offload"}) {
    const auto bars = Named(all, "rect", share);
    ASSERT_EQ(bars.size(), 20u) << share;
    height += bars[3].Number("height");
  }
  EXPECT_NEAR(height, 240 - 34 - 34, 0.05);
  const auto cells = Named(all, "td", "summary");
  std::vector<std::string> texts;
  for (const XmlElement& cell : cells) texts.push_back(cell.text);
  EXPECT_THAT(texts, ::testing::IsSupersetOf(
                         {"20 of 40", "dp2,pp2,tp2, 8 ranks over shared_memory",
                          "0.2500", "2.0000, perplexity 7.389", "2m00s"}));
  // Tooltips.
  EXPECT_THAT(page->Html(),
              HasSubstr("<title>step 10: training 0.5, validation 2</title>"));
  // Each setting once.
  EXPECT_EQ(Named(all, "th", "changed").size(), 2u);
  EXPECT_EQ(
      Named(all, "th", "changed").size() + Named(all, "th", "defaults").size(),
      SettingsFields().size());
}

TEST_F(RunPageTest, LoadsNothing) {
  const std::string html = Open("alone.html")->Html();
  for (const char* const word : {"<script", "<link", "src=", "href=", "url(",
                                 "@import", "<img", "<iframe"}) {
    EXPECT_THAT(html, Not(HasSubstr(word)));
  }
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  // The only address is the name of SVG.
  for (const std::string_view part : absl::StrSplit(html, "http://")) {
    EXPECT_TRUE(absl::StartsWith(part, "<!DOCTYPE") ||
                absl::StartsWith(part, "www.w3.org/2000/svg\""))
        << part.substr(0, 60);
  }
  EXPECT_THAT(html, Not(HasSubstr("https:")));
}

TEST_F(RunPageTest, EscapesTheUsersText) {
  options_.settings.model = "</title><script>alert(\"1\")&amp;'\xff";
  options_.settings.sample_prompt = "<b>\x01\x1b[31m";
  options_.settings.data = {"a<b", "c&d"};
  const std::string html = Open("escaped.html")->Html();
  EXPECT_THAT(html, Not(HasSubstr("<script")));
  EXPECT_THAT(html, Not(HasSubstr("<b>")));
  const std::vector<XmlElement> all = ElementsOf(html);
  std::vector<std::string> texts;
  for (const XmlElement& cell : Named(all, "td", "changed")) {
    texts.push_back(cell.text);
  }
  EXPECT_THAT(texts, ::testing::IsSupersetOf(
                         {std::string("</title><script>alert(\"1\")&amp;'?"),
                          std::string("<b>??[31m"), std::string("a<b,c&d")}));
}

TEST_F(RunPageTest, IsWrittenAtTheBeginningAtIntervalsAndAtTheEnd) {
  options_.settings.steps = 100;
  const auto page = Open("times.html");
  EXPECT_THAT(File(), HasSubstr("<td>0 of 100</td>"));
  for (int64_t step = 0; step < 30; ++step) {
    now_ += absl::Seconds(1);
    TESSERA_ASSERT_OK(page->Add(StepAt(step), std::nullopt));
    EXPECT_THAT(File(), HasSubstr(absl::StrCat("<td>", (step + 1) / 10 * 10,
                                               " of 100</td>")));
    EXPECT_THAT(File(), HasSubstr("http-equiv=\"refresh\""));
  }
  TESSERA_ASSERT_OK(page->Add(StepAt(30), std::nullopt));
  TESSERA_ASSERT_OK(page->Finish());
  EXPECT_THAT(File(), HasSubstr("<td>31 of 100, ended</td>"));
  EXPECT_THAT(File(), Not(HasSubstr("http-equiv=\"refresh\"")));
  EXPECT_EQ(File(), page->Html());
}

TEST_F(RunPageTest, EarlierStepsAreInTheCurves) {
  const auto page = Open("earlier.html");
  for (int64_t step = 0; step < 8; ++step)
    page->AddEarlier(MetricsOf(StepAt(step)));
  TESSERA_ASSERT_OK(page->Add(StepAt(8), std::nullopt));
  const auto lines = Named(ElementsOf(page->Html()), "path", "training");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(PointsIn(lines[1].Get("d")), 9u);
}

TEST_F(RunPageTest, ManyStepsStayASmallPage) {
  const auto page = Open("long.html");
  for (int64_t step = 0; step < 200'000; ++step)
    page->AddEarlier(MetricsOf(StepAt(step)));
  const std::string html = page->Html();
  EXPECT_LT(html.size(), 1u << 20);
  const auto lines = Named(ElementsOf(html), "path", "training");
  EXPECT_LE(PointsIn(lines[1].Get("d")), RunPage::kMostPoints);
  EXPECT_GE(PointsIn(lines[1].Get("d")), RunPage::kMostPoints / 2);
}

TEST_F(RunPageTest, StaysWellFormedWithAnyNumbers) {
  std::mt19937_64 random(1);
  const auto number = [&] {
    const double choices[] = {0,
                              -1,
                              1e-300,
                              1e300,
                              1.5,
                              std::nan(""),
                              std::numeric_limits<double>::infinity(),
                              -std::numeric_limits<double>::max(),
                              std::numeric_limits<double>::max()};
    return choices[random() % std::size(choices)];
  };
  for (int round = 0; round < 200; ++round) {
    const auto page = Open("any.html");
    const int64_t steps = static_cast<int64_t>(random() % 6);
    for (int64_t step = 0; step < steps; ++step) {
      StepMetrics metrics = StepAt(step * (round % 3 == 0 ? 1'000'000'000 : 1));
      metrics.record.loss = number();
      if (random() % 2 == 0) metrics.record.eval_loss = number();
      metrics.tokens_per_second = number();
      metrics.shares.compute = number();
      metrics.shares.offload = number();
      page->AddEarlier(MetricsOf(metrics));
    }
    const std::string html = page->Html();
    EXPECT_FALSE(ElementsOf(html).empty());
    EXPECT_THAT(html, Not(HasSubstr("=\"nan")));
    EXPECT_THAT(html, Not(HasSubstr("inf ")));
  }
}

TEST_F(RunPageTest, NamesTheFlagIfItCannotBeWritten) {
  options_.path = "/proc/never/run.html";
  const absl::Status status = RunPage::Open(options_).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("--html=/proc/never/run.html"));
}

}  // namespace
}  // namespace tessera::train

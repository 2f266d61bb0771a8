#include "collectives/adaptive/create_adaptive.h"

#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/in_process/in_process.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

AdaptiveOptions KeptIn(const std::string& name) {
  AdaptiveOptions options;
  options.measure.budget = absl::Milliseconds(100);
  options.measure.max_bytes = 1 << 16;
  options.cache_directory =
      name.empty() ? "" : ::testing::TempDir() + "/adaptive_" + name;
  return options;
}

// Makes an adaptive communicator on each of four threads and runs `body`.
std::vector<absl::Status> OnFourRanks(
    const AdaptiveOptions& adaptive,
    const std::function<absl::Status(Communicator&)>& body) {
  auto engines = CreateInProcessEngines(4);
  EXPECT_THAT(engines, IsOk());
  std::vector<absl::Status> statuses(4);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 4; ++r) {
    threads.emplace_back([&, r] {
      auto communicator =
          CreateAdaptiveCommunicator(std::move((*engines)[r]), {}, adaptive);
      statuses[r] =
          communicator.ok() ? body(**communicator) : communicator.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

// What each rank chooses, and why.
std::vector<std::string> Explanations(const AdaptiveOptions& adaptive) {
  std::mutex mutex;
  std::vector<std::string> texts;
  EXPECT_THAT(OnFourRanks(adaptive,
                          [&](Communicator& communicator) {
                            std::vector<float> data(1000);
                            const Buffer buffer{std::span(data)};
                            std::string text = communicator.ExplainAlgorithm(
                                AllReduceOf(buffer, buffer, Reduction::Sum()));
                            const std::lock_guard lock(mutex);
                            texts.push_back(std::move(text));
                            return absl::OkStatus();
                          }),
              Each(IsOk()));
  return texts;
}

TEST(CreateAdaptiveTest, AllRanksChooseAlikeAndForTheSameReason) {
  const std::vector<std::string> texts = Explanations(KeptIn(""));
  ASSERT_EQ(texts.size(), 4u);
  EXPECT_THAT(texts, Each(texts[0]));
  EXPECT_THAT(texts[0], HasSubstr("strategy adaptive: "));
  EXPECT_THAT(texts[0], HasSubstr("(measured just now)"));
}

TEST(CreateAdaptiveTest, TheSecondGroupTakesTheCostsOfTheFirst) {
  const AdaptiveOptions options = KeptIn("second");
  const std::string first = Explanations(options).at(0);
  EXPECT_THAT(first, HasSubstr("measured just now, kept in "));
  const std::string second = Explanations(options).at(0);
  EXPECT_THAT(second, HasSubstr("from the cache"));
  // The same predictions.
  EXPECT_EQ(first.substr(first.find('\n')), second.substr(second.find('\n')));
}

TEST(CreateAdaptiveTest, ADamagedCacheIsMeasuredAnewAndReplaced) {
  const AdaptiveOptions options = KeptIn("damaged");
  const std::string first = Explanations(options).at(0);
  const size_t begin = first.find("kept in ") + 8;
  const std::string path = first.substr(begin, first.find(')', begin) - begin);
  TESSERA_ASSERT_OK(WriteFile(path, "{\"format\":"));
  EXPECT_THAT(Explanations(options).at(0),
              HasSubstr("measured just now, kept"));
  EXPECT_THAT(Explanations(options).at(0), HasSubstr("from the cache"));
}

TEST(CreateAdaptiveTest, WhereNothingCanBeKeptItStillWorks) {
  AdaptiveOptions options = KeptIn("x");
  options.cache_directory = "/proc/no/such/directory";
  EXPECT_THAT(Explanations(options).at(0),
              HasSubstr("not kept: cannot create"));
}

TEST(CreateAdaptiveTest, ResultsAreRightWhateverIsChosen) {
  const auto statuses =
      OnFourRanks(KeptIn(""), [](Communicator& communicator) -> absl::Status {
        for (size_t count = 1; count <= 100'000; count *= 7) {
          std::vector<float> data(count, 1.0f);
          TESSERA_RETURN_IF_ERROR(communicator.AllReduce(
              Buffer(std::span(data)), Reduction::Sum()));
          if (data != std::vector<float>(count, 4.0f)) {
            return absl::InternalError("a wrong sum");
          }
        }
        return absl::OkStatus();
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(CreateAdaptiveTest, SubgroupsInheritTheChooser) {
  const auto statuses =
      OnFourRanks(KeptIn(""), [](Communicator& communicator) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            const auto half,
            communicator.Split(communicator.rank().value() % 2, 0));
        std::vector<float> data(1000, 1.0f);
        const Buffer buffer{std::span(data)};
        TESSERA_RETURN_IF_ERROR(half->AllReduce(buffer, Reduction::Sum()));
        const std::string text = half->ExplainAlgorithm(
            AllReduceOf(buffer, buffer, Reduction::Sum()));
        const bool right =
            text.find("on 2 ranks") != std::string::npos && data[0] == 2.0f;
        return right ? absl::OkStatus() : absl::InternalError(text);
      });
  EXPECT_THAT(statuses, Each(IsOk()));
}

TEST(CreateAdaptiveTest, RefusesWhatCannotBe) {
  EXPECT_THAT(CreateAdaptiveCommunicator(nullptr, {}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("needs an engine")));
  auto engines = CreateInProcessEngines(1);
  TESSERA_ASSERT_OK(engines);
  CommunicatorOptions options;
  options.chooser = std::make_shared<AdaptiveChooser>(CostTable());
  EXPECT_THAT(
      CreateAdaptiveCommunicator(std::move((*engines)[0]), options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("chooser")));
}

}  // namespace
}  // namespace tessera::collectives

#include "collectives/adaptive/create_adaptive.h"

#include <cstdlib>
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

using ::testing::HasSubstr;

CostTable Example() {
  CostTable table;
  table.key = {"cpu x", "shared_memory", 8, 4, false};
  table.costs.near = {1e-6, 1e-10};
  table.measured[{OpKind::kAllReduce, Algorithm::kRing}] = {{64, 1e-6}};
  return table;
}

std::string Directory(const std::string& name) {
  return ::testing::TempDir() + "/cache_home_" + name + "/tessera";
}

TEST(CostCacheTest, LoadsStoredCosts) {
  const std::string directory = Directory("round_trip");
  EXPECT_THAT(LoadCosts(directory, Example().key),
              StatusIs(absl::StatusCode::kNotFound));
  TESSERA_ASSERT_OK(StoreCosts(directory, Example()));
  EXPECT_THAT(LoadCosts(directory, Example().key), IsOkAndHolds(Example()));
}

TEST(CostCacheTest, DistinguishesEveryFieldOfKey) {
  const std::string directory = Directory("key");
  TESSERA_ASSERT_OK(StoreCosts(directory, Example()));
  std::vector<CostKey> others(5, Example().key);
  others[0].hardware = "cpu y";
  others[1].engine = "mpi";
  others[2].ranks = 9;
  others[3].ranks_per_host = 8;
  others[4].reproducible = true;
  for (const CostKey& key : others) {
    EXPECT_THAT(LoadCosts(directory, key),
                StatusIs(absl::StatusCode::kNotFound));
    EXPECT_NE(CostPath(directory, key), CostPath(directory, Example().key));
  }
}

TEST(CostCacheTest, IgnoresFileWithAnotherKey) {
  const std::string directory = Directory("foreign");
  CostTable other = Example();
  other.key.engine = "gloo";
  TESSERA_ASSERT_OK(StoreCosts(directory, other));
  TESSERA_ASSERT_OK(
      WriteFile(CostPath(directory, Example().key), CostTableToJson(other)));
  EXPECT_THAT(LoadCosts(directory, Example().key),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("another key")));
}

TEST(CostCacheTest, IgnoresAndReplacesDamagedFile) {
  const std::string directory = Directory("damaged");
  TESSERA_ASSERT_OK(StoreCosts(directory, Example()));
  const std::string path = CostPath(directory, Example().key);
  std::string text = CostTableToJson(Example());
  text[text.size() / 2] ^= 1;
  TESSERA_ASSERT_OK(WriteFile(path, text));
  EXPECT_THAT(LoadCosts(directory, Example().key),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
  TESSERA_ASSERT_OK(StoreCosts(directory, Example()));
  EXPECT_THAT(LoadCosts(directory, Example().key), IsOkAndHolds(Example()));
}

TEST(CostCacheTest, IgnoresHugeFile) {
  const std::string directory = Directory("huge");
  TESSERA_ASSERT_OK(StoreCosts(directory, Example()));
  TESSERA_ASSERT_OK(WriteFile(CostPath(directory, Example().key),
                              std::string(kMaxCostText + 1, ' ')));
  EXPECT_THAT(LoadCosts(directory, Example().key),
              StatusIs(absl::StatusCode::kNotFound));
}

TEST(CostCacheTest, ReturnsErrorIfCostsCannotBeStored) {
  EXPECT_THAT(StoreCosts("", Example()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("XDG_CACHE_HOME")));
  EXPECT_FALSE(StoreCosts("/proc/no/such/place", Example()).ok());
  CostTable bad = Example();
  bad.costs.gamma = -1;
  EXPECT_THAT(StoreCosts(Directory("bad"), bad),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CostCacheTest, UsesUserCacheDirectory) {
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(DefaultCacheDirectory(), "/x/tessera");
  setenv("XDG_CACHE_HOME", "relative", 1);
  setenv("HOME", "/home/me", 1);
  EXPECT_EQ(DefaultCacheDirectory(), "/home/me/.cache/tessera");
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(DefaultCacheDirectory(), "/home/me/.cache/tessera");
  unsetenv("HOME");
  EXPECT_EQ(DefaultCacheDirectory(), "");
}

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

// Creates an adaptive communicator on each of four threads and runs `body`.
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

// Each rank's choices and the reasons for them.
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

TEST(CreateAdaptiveTest, RanksAgreeOnChoiceAndReason) {
  const std::vector<std::string> texts = Explanations(KeptIn(""));
  ASSERT_EQ(texts.size(), 4u);
  EXPECT_THAT(texts, Each(texts[0]));
  EXPECT_THAT(texts[0], HasSubstr("strategy adaptive: "));
  EXPECT_THAT(texts[0], HasSubstr("(measured just now)"));
}

TEST(CreateAdaptiveTest, SecondGroupLoadsCachedCosts) {
  const AdaptiveOptions options = KeptIn("second");
  const std::string first = Explanations(options).at(0);
  EXPECT_THAT(first, HasSubstr("measured just now, stored in "));
  const std::string second = Explanations(options).at(0);
  EXPECT_THAT(second, HasSubstr("from the cache"));
  // The same predictions.
  EXPECT_EQ(first.substr(first.find('\n')), second.substr(second.find('\n')));
}

TEST(CreateAdaptiveTest, RemeasuresAndReplacesDamagedCache) {
  const AdaptiveOptions options = KeptIn("damaged");
  const std::string first = Explanations(options).at(0);
  const size_t begin = first.find("stored in ") + 10;
  const std::string path = first.substr(begin, first.find(')', begin) - begin);
  TESSERA_ASSERT_OK(WriteFile(path, "{\"format\":"));
  EXPECT_THAT(Explanations(options).at(0),
              HasSubstr("measured just now, stored in"));
  EXPECT_THAT(Explanations(options).at(0), HasSubstr("from the cache"));
}

TEST(CreateAdaptiveTest, WorksWithoutWritableCache) {
  AdaptiveOptions options = KeptIn("x");
  options.cache_directory = "/proc/no/such/directory";
  EXPECT_THAT(Explanations(options).at(0),
              HasSubstr("not stored: cannot create"));
}

TEST(CreateAdaptiveTest, ResultsAreCorrectForEverySize) {
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

TEST(CreateAdaptiveTest, RejectsInvalidArguments) {
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

// Runs the parts on little data: counts must be exact and times plausible.
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/offload_bench/bench_options.h"
#include "tools/offload_bench/measure.h"
#include "tools/offload_bench/measurement.h"

namespace tessera::offload_bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class OffloadBenchTest : public testing::Test {
 protected:
  Sink Collect() {
    return [this](const Measurement& m) { measured_.push_back(m); };
  }

  void ExpectPlausible() const {
    for (const Measurement& m : measured_) {
      EXPECT_GT(m.bytes, 0) << m.name;
      EXPECT_GE(m.times.turns, kLeastTurns) << m.name;
      EXPECT_GT(m.times.subject.seconds, 0) << m.name;
      EXPECT_GT(m.times.limit.seconds, 0) << m.name;
      EXPECT_GT(m.times.share, 0) << m.name;
      EXPECT_GE(m.times.subject.spread, 0) << m.name;
      EXPECT_TRUE(std::isfinite(m.times.share)) << m.name;
    }
  }

  std::vector<Measurement> measured_;
};

class OffloadBenchFileTest : public OffloadBenchTest {
 protected:
  OffloadBenchFileTest() : directory_(testing::TempDir() + "/bench") {
    std::filesystem::create_directory(directory_);
  }
  ~OffloadBenchFileTest() override {
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
  }

  const std::string directory_;
};

TEST_F(OffloadBenchFileTest, ComparesTheFileTierWithItsDevice) {
  TESSERA_ASSERT_OK(MeasureFileTier({.size = 1 << 20,
                                     .seconds = 0,
                                     .directory = directory_,
                                     .blocks = {4096, 128 << 10},
                                     .depth = 8},
                                    Collect()));
  EXPECT_EQ(measured_.size(), 4u);
  ExpectPlausible();
  for (const Measurement& m : measured_) {
    EXPECT_THAT(m.name, StartsWith("file by "));
    EXPECT_EQ(m.bytes, 1 << 20);
    EXPECT_EQ(m.limit, "device");
    // The note names the mode either way.
    EXPECT_TRUE(m.note == "O_DIRECT" ||
                m.note.find("PAGE CACHE") != std::string::npos)
        << m.note;
  }
}

TEST_F(OffloadBenchFileTest, RejectsTooLittleSpaceBeforeWriting) {
  OffloadBenchOptions options = {
      .size = int64_t{1} << 58, .directory = directory_, .blocks = {4096}};
  EXPECT_THAT(MeasureFileTier(options, Collect()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr(" free and "), HasSubstr("are needed"),
                             HasSubstr("--dir"))));
  options = {.size = 4096, .directory = "/no/such", .blocks = {4096}};
  EXPECT_THAT(MeasureFileTier(options, Collect()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such")));
  EXPECT_TRUE(measured_.empty());
}

}  // namespace
}  // namespace tessera::offload_bench

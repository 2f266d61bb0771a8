#include "topology/config/parallel_config_flags.h"

#include <string>

#include "absl/flags/reflection.h"
#include "absl/time/time.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/config/parallel_config_json.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ParallelConfigFlagsTest : public ::testing::Test {
 protected:
  // Sets a flag as the command line would.
  static void Set(std::string_view flag, std::string_view value) {
    std::string error;
    ASSERT_TRUE(absl::FindCommandLineFlag(flag)->ParseFrom(value, &error))
        << error;
  }
  static std::string ErrorOf(std::string_view flag, std::string_view value) {
    std::string error;
    EXPECT_FALSE(absl::FindCommandLineFlag(flag)->ParseFrom(value, &error));
    return error;
  }

 private:
  absl::FlagSaver saver_;
};

TEST_F(ParallelConfigFlagsTest, NoFlagsAreTheDefaults) {
  EXPECT_THAT(ParallelConfigFromFlags(), IsOkAndHolds(ParallelConfig()));
}

TEST_F(ParallelConfigFlagsTest, EveryFlagSetsItsField) {
  Set("mesh", "dp2,tp4,pp2,cp2,ep8");
  Set("order", "tp-pp-cp-dp");
  Set("layers", "32");
  Set("micro_batch_size", "3");
  Set("micro_batches", "8");
  Set("memory_strategy", "extreme");
  Set("strategy", "tree");
  Set("schedule", "interleaved_1f1b");
  Set("chunks", "4");
  Set("precision", "bf16");
  Set("device_memory", "80GiB");
  Set("timeout", "1m");
  ParallelConfig expected;
  expected.dp = AxisSize(2);
  expected.tp = AxisSize(4);
  expected.pp = AxisSize(2);
  expected.cp = AxisSize(2);
  expected.ep = AxisSize(8);
  expected.order = "tp-pp-cp-dp";
  expected.layers = 32;
  expected.micro_batch_size = 3;
  expected.micro_batches = 8;
  expected.memory_strategy = MemoryStrategy::kExtreme;
  expected.communication_strategy = CommunicationStrategy::kTree;
  expected.schedule = ScheduleKind::kInterleaved1F1B;
  expected.chunks = 4;
  expected.precision = Precision::kBf16;
  expected.device_memory = ByteSize(int64_t{80} << 30);
  expected.timeout = absl::Minutes(1);
  EXPECT_THAT(ParallelConfigFromFlags(), IsOkAndHolds(expected));
}

TEST_F(ParallelConfigFlagsTest, OnlyFlagsThatAreGivenOverrideTheFile) {
  ParallelConfig file;
  file.dp = AxisSize(8);
  file.cp = AxisSize(2);
  file.layers = 48;
  file.timeout = absl::Seconds(7);
  file.schedule = ScheduleKind::kZbH1;
  const std::string path = ::testing::TempDir() + "/flags_test.json";
  TESSERA_ASSERT_OK(SaveParallelConfig(file, path));
  Set("parallel_config", path);
  EXPECT_THAT(ParallelConfigFromFlags(), IsOkAndHolds(file));

  // A flag counts as given even where its value is the default.
  Set("schedule", "1f1b");
  Set("mesh", "tp2");
  ParallelConfig expected = file;
  expected.schedule = ScheduleKind::k1F1B;
  expected.dp = expected.cp = AxisSize(1);
  expected.tp = AxisSize(2);
  EXPECT_THAT(ParallelConfigFromFlags(), IsOkAndHolds(expected));

  Set("mesh", "");
  Set("schedule", "");
  EXPECT_THAT(ParallelConfigFromFlags(), IsOkAndHolds(file));
}

TEST_F(ParallelConfigFlagsTest, AWrongValueIsRefusedWithWhatIsAllowed) {
  EXPECT_THAT(ErrorOf("schedule", "1f1c"),
              AllOf(HasSubstr("\"1f1c\""), HasSubstr("interleaved_1f1b")));
  EXPECT_THAT(ErrorOf("memory_strategy", "none"),
              HasSubstr("basic, standard, aggressive, extreme"));
  EXPECT_THAT(ErrorOf("strategy", "x"), HasSubstr("hierarchical"));
  EXPECT_THAT(ErrorOf("precision", "fp8"), HasSubstr("fp32, bf16, fp16"));
  EXPECT_THAT(ErrorOf("device_memory", "lots"), HasSubstr("\"lots\""));
  ErrorOf("layers", "many");
  EXPECT_THAT(ErrorOf("timeout", "30"), HasSubstr("such as 30s"));
  EXPECT_THAT(ParallelConfigFromFlags(), IsOkAndHolds(ParallelConfig()));
}

TEST_F(ParallelConfigFlagsTest, ErrorsNameTheFlag) {
  Set("mesh", "dp2,xp2");
  EXPECT_THAT(ParallelConfigFromFlags(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--mesh: "), HasSubstr("\"xp\""))));
  Set("parallel_config", "/nonexistent/job.json");
  EXPECT_THAT(ParallelConfigFromFlags(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("--parallel_config: "),
                             HasSubstr("/nonexistent/job.json"))));
}

}  // namespace
}  // namespace tessera::topology

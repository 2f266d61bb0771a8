#include "tools/train/sample/generate.h"

#include <string>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"
#include "tools/text/tokenizer.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/testing/mesh_run.h"

namespace tessera::train {
namespace {

using ::testing::StartsWith;

// Trains some steps; returns the directory of the run's checkpoints.
std::string Checkpoints(const std::string& name, const MeshSizes& mesh,
                        int64_t steps, bool is_tied = false) {
  RunOptions options = testing::SmallRun();
  options.mesh = mesh;
  options.model.tied_embeddings = is_tied;
  const std::string directory = testing::NewRunDirectory(name);
  TESSERA_EXPECT_OK(testing::OnRanks(options, [&](TrainRank& rank) {
    TESSERA_ASSIGN_OR_RETURN(const auto losses, testing::TrainTo(rank, steps));
    (void)losses;
    TESSERA_ASSIGN_OR_RETURN(
        auto checkpoints,
        RunCheckpoints::Create(rank,
                               {.directory = directory,
                                .identity = testing::IdentityOf(options)}));
    TESSERA_RETURN_IF_ERROR(checkpoints->Start());
    return checkpoints->Wait().status();
  }));
  return directory;
}

class GenerateTextTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::string> Generate(const std::string& checkpoint,
                                       const SampleOptions& options) {
    return GenerateText(checkpoint, tokenizer_, ops_, options);
  }

  tensor_parallel::CpuOps ops_{{.threads = 1}};
  text::ByteTokenizer tokenizer_;
};

TEST_F(GenerateTextTest, IsIndependentOfSavingMesh) {
  // Initial weights have the same bits on every mesh.
  for (const bool is_tied : {false, true}) {
    const SampleOptions options = {.tokens = 60, .temperature = 1};
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const std::string text,
        Generate(Checkpoints("one", {}, 0, is_tied), options));
    EXPECT_THAT(text, StartsWith("The "));
    for (const MeshSizes mesh :
         {MeshSizes{.dp = 2, .pp = 2, .tp = 2}, MeshSizes{.tp = 4}}) {
      EXPECT_THAT(Generate(Checkpoints("many", mesh, 0, is_tied), options),
                  IsOkAndHolds(text));
    }
  }
}

TEST_F(GenerateTextTest, TrainingChangesTheText) {
  const SampleOptions options = {.tokens = 40, .temperature = 0};
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string before,
                               Generate(Checkpoints("none", {}, 0), options));
  const std::string trained = Checkpoints("steps", {.dp = 2}, 6);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string after,
                               Generate(trained, options));
  EXPECT_NE(after, before);
  EXPECT_THAT(Generate(trained, options), IsOkAndHolds(after));
}

TEST_F(GenerateTextTest, RejectsOptionsBeforeReading) {
  EXPECT_THAT(Generate("/does/not/exist", {.tokens = -1}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_FALSE(Generate("/does/not/exist", {}).ok());
}

}  // namespace
}  // namespace tessera::train

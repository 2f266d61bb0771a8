// Tests that prompts that are masked from the loss give the losses of one rank
// on every mesh. The loss of a step is the mean over the targets of the whole
// batch; ranks and micro-batches have different numbers of them, including
// none.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/train/parity/testing/covering_array.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/parity/testing/train_case.h"

namespace tessera::train {
namespace {

using tensor_parallel::Recompute;

class PromptsParityTest : public ::testing::Test {
 protected:
  // Compares with one rank, which runs once for all cases that it stands for.
  void ExpectPlainLosses(const ParityCase& run, double tolerance) {
    SCOPED_TRACE(::testing::Message() << run);
    std::ostringstream plain;
    plain << PlainCase(run);
    std::vector<StepRecord>& expected = alone_[plain.str()];
    if (expected.empty()) {
      TESSERA_ASSERT_OK_AND_ASSIGN(expected, TrainCase(PlainCase(run)));
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
    const ParityDifference difference = DifferenceOf(actual, expected);
    EXPECT_LT(difference.loss, tolerance);
    EXPECT_LT(difference.gradient_norm, 10 * tolerance);
    largest_ = std::max(largest_, difference.loss);
    ++runs_;
  }
  ~PromptsParityTest() override {
    std::cout << runs_ << " runs, largest difference of losses " << largest_
              << "\n";
  }

 private:
  std::map<std::string, std::vector<StepRecord>> alone_;
  double largest_ = 0;
  int runs_ = 0;
};

TEST_F(PromptsParityTest, EveryMeshMatchesLossesOfOneRank) {
  for (const bool all : {false, true}) {
    ParityCase run = {.documents = all,
                      .prompts = true,
                      .clip = true,
                      .loss_terms = all,
                      .steps = 3};
    for (const MeshSizes& mesh : EveryMesh()) {
      run.mesh = mesh;
      ExpectPlainLosses(run, 1e-5);
      run.sequence_parallel = !run.sequence_parallel;
      run.zigzag = run.zigzag != run.sequence_parallel;
      run.stage = (run.stage + 1) % 4;
      run.micro_batch = mesh.dp <= 2 ? 3 - run.micro_batch : 1;
    }
  }
}

// One step: the optimizer's state is of f32.
TEST_F(PromptsParityTest, InF64LossesAreWithinItsRounding) {
  for (const bool terms : {false, true}) {
    ParityCase run = {
        .prompts = true, .loss_terms = terms, .dtype = DType::kF64, .steps = 1};
    for (const MeshSizes& mesh :
         {MeshSizes{.dp = 4}, MeshSizes{.pp = 4}, MeshSizes{.cp = 4},
          MeshSizes{.tp = 4}, MeshSizes{.dp = 2, .pp = 2, .tp = 2},
          MeshSizes{.dp = 2, .pp = 2, .cp = 2},
          MeshSizes{.dp = 2, .cp = 2, .tp = 2}}) {
      run.mesh = mesh;
      for (const bool sequence_parallel : {false, true}) {
        run.sequence_parallel = sequence_parallel;
        run.zigzag = !sequence_parallel;
        ExpectPlainLosses(run, 1e-12);
      }
    }
  }
}

TEST_F(PromptsParityTest, MixturesMatchLossesOfOneRank) {
  for (const std::string architecture : {"mixtral", "dots1"}) {
    ParityCase run = {.architecture = architecture,
                      .prompts = true,
                      .clip = true,
                      .dtype = DType::kF64,
                      .steps = 4};
    for (const MeshSizes& mesh :
         {MeshSizes{.dp = 2, .ep = 2}, MeshSizes{.dp = 2, .tp = 2, .ep = 2},
          MeshSizes{.cp = 4, .ep = 2},
          MeshSizes{.dp = 2, .pp = 2, .cp = 2, .ep = 4}}) {
      run.mesh = mesh;
      run.stage = run.stage == 0 ? 3 : 0;
      run.recompute = run.stage == 0 ? Recompute::kFull : Recompute::kNone;
      ExpectPlainLosses(run, 1e-7);
    }
  }
}

// Schedules, recomputation, offload and all other options: every fourth of the
// rows that together contain every pair of options.
TEST_F(PromptsParityTest, AllOptionsMatchLossesOfOneRank) {
  const std::vector<CoveringRow> rows = CoveringArray(ParityProblem());
  for (size_t i = 0; i < rows.size(); i += 4) {
    ParityCase run = CaseOf(rows[i]);
    run.prompts = true;
    run.moments = "f32";
    run.steps = 4;
    const bool is_mixture = IsMixture(run.architecture);
    if (is_mixture) run.dtype = DType::kF64;
    ExpectPlainLosses(run, is_mixture ? 1e-7 : 1e-5);
  }
}

// The scale of the gradients differs in every step.
TEST_F(PromptsParityTest, DevicesAndGraphsMatchCpuBitForBit) {
  for (const int64_t micro_batch : {1, 4}) {
    ParityCase run = {.micro_batch = micro_batch, .prompts = true, .steps = 5};
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
    run.device_seed = 3;
    for (const bool graphs : {false, true}) {
      run.graphs = graphs;
      SCOPED_TRACE(::testing::Message() << run);
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainCase(run));
      EXPECT_EQ(DifferenceOf(actual, expected).loss, 0);
      EXPECT_EQ(DifferenceOf(actual, expected).gradient_norm, 0);
    }
  }
}

}  // namespace
}  // namespace tessera::train

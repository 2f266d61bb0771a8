// Tests that the emulated kernels of GPUs train like the CPU: ranks are threads
// that share a device, as on one GPU, and the losses equal those of the CPU up
// to the order of summation.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device/emulated_device.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/cuda/cuda_communicator.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"
#include "tools/train/loop/rank_device.h"
#include "tools/train/parity/testing/covering_array.h"
#include "tools/train/parity/testing/parity_case.h"
#include "tools/train/parity/testing/train_case.h"
#include "zero3/state/cuda_state_ops.h"

namespace tessera::train {
namespace {

DeviceKernels EmulatedCudaKernels() {
  DeviceKernels kernels;
  kernels.ops = [](Queue& queue) {
    return tensor_parallel::emulated::CreateCudaOps(queue);
  };
  kernels.state_ops = [](Queue& queue) {
    return zero3::emulated::CudaStateOps(queue);
  };
  kernels.communicator = [](std::unique_ptr<collectives::Communicator> host,
                            Device& device) {
    return collectives::emulated::CreateCudaCommunicator(std::move(host),
                                                         device);
  };
  return kernels;
}

absl::StatusOr<std::vector<StepRecord>> TrainOnEmulatedGpu(
    const ParityCase& run, uint64_t seed) {
  auto device = EmulatedDevice::Create({.seed = seed});
  if (!device.ok()) return device.status();
  return TrainOn(run, [&](collectives::Communicator& world) {
    return RankDevice::CreateWith(EmulatedCudaKernels(), *device, world);
  });
}

constexpr int64_t kSteps = 2;
// The number of tests among which the runs are distributed. They run in
// parallel.
constexpr size_t kShards = 12;

size_t Stride() {
  const char* const stride = std::getenv("TESSERA_PARITY_STRIDE");
  return stride == nullptr ? 4 : static_cast<size_t>(std::atoi(stride));
}

class CudaParityMatrixTest : public ::testing::TestWithParam<size_t> {};

// Every Nth of the runs that cover all pairs of options, where N is
// TESSERA_PARITY_STRIDE (default 4).
TEST_P(CudaParityMatrixTest, MatchesLossesOfCpu) {
  const std::vector<CoveringRow> rows = CoveringArray(ParityProblem());
  for (size_t row = GetParam() * Stride(); row < rows.size();
       row += kShards * Stride()) {
    ParityCase run = CaseOf(rows[row]);
    run.steps = kSteps;
    SCOPED_TRACE(::testing::Message() << run);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainOnEmulatedGpu(run, 1));
    const ParityDifference difference = DifferenceOf(actual, expected);
    const double allowed = run.dtype == DType::kBF16 ? 2e-2 : 1e-5;
    EXPECT_LE(difference.loss, allowed * RoundingFactor(run));
  }
}

// Another order of the device's work has the same bits.
TEST(CudaParityTest, OrdersHaveEqualBits) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const ParityCase run = {
        .mesh = {.dp = 2, .tp = 2}, .stage = 3, .dtype = dtype, .steps = 2};
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto first, TrainOnEmulatedGpu(run, 1));
    for (const uint64_t seed : {2, 3}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto again,
                                   TrainOnEmulatedGpu(run, seed));
      const ParityDifference repeated = DifferenceOf(again, first);
      EXPECT_EQ(repeated.loss, 0);
      EXPECT_EQ(repeated.gradient_norm, 0);
    }
  }
}

// Decoded by kernels, with the bits of the CPU.
TEST(CudaParityTest, QuantizedBasesMatchLossesOfCpu) {
  const MeshSizes meshes[] = {{}, {.dp = 2, .tp = 2}, {.pp = 2, .cp = 2}};
  for (const MeshSizes& mesh : meshes) {
    for (const DType dtype : {DType::kF64, DType::kBF16}) {
      const ParityCase run = {.mesh = mesh,
                              .stage = 3,
                              .lora_rank = 3,
                              .base_weights = "nf4",
                              .dtype = dtype,
                              .steps = 3};
      SCOPED_TRACE(::testing::Message() << run);
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual,
                                   TrainOnEmulatedGpu(run, 1));
      EXPECT_LE(DifferenceOf(actual, expected).loss,
                dtype == DType::kF64 ? 1e-10 : 2e-2);
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto again,
                                   TrainOnEmulatedGpu(run, 2));
      EXPECT_EQ(DifferenceOf(again, actual).loss, 0);
    }
  }
}

TEST(CudaParityTest, ClippedScoresMatchLossesOfCpu) {
  const MeshSizes meshes[] = {{}, {.dp = 2, .tp = 2}, {.pp = 2, .cp = 2}};
  for (const MeshSizes& mesh : meshes) {
    for (const DType dtype : {DType::kF64, DType::kBF16}) {
      const ParityCase run = {.mesh = mesh,
                              .stage = mesh.dp > 1 ? 3 : 1,
                              .optimizer = "muon",
                              .qk_clip = 0.02,
                              .dtype = dtype,
                              .steps = 3};
      SCOPED_TRACE(::testing::Message() << run);
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual,
                                   TrainOnEmulatedGpu(run, 1));
      const bool is_exact = dtype == DType::kF64;
      EXPECT_LE(DifferenceOf(actual, expected).loss, is_exact ? 1e-10 : 2e-2);
      for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_GT(*expected[i].max_attention_score, run.qk_clip);
        EXPECT_NEAR(
            *actual[i].max_attention_score / *expected[i].max_attention_score,
            1, is_exact ? 1e-9 : 0.1);
      }
    }
  }
}

// Sizes as a GPU needs them for fp8.
TEST(CudaParityTest, ProductsInFp8MatchLossesOfCpu) {
  const MeshSizes meshes[] = {{}, {.dp = 2, .tp = 2}, {.pp = 2, .cp = 2}};
  for (const MeshSizes& mesh : meshes) {
    const ParityCase run = {.mesh = mesh,
                            .sequence_parallel = mesh.tp > 1,
                            .stage = mesh.dp > 1 ? 3 : 1,
                            .length = 32,
                            .dtype = DType::kBF16,
                            .fp8 = true,
                            .multiples_of_16 = true,
                            .steps = 4};
    SCOPED_TRACE(::testing::Message() << run);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto expected, TrainCase(run));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto actual, TrainOnEmulatedGpu(run, 1));
    EXPECT_LE(DifferenceOf(actual, expected).loss, 1e-2);
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto again, TrainOnEmulatedGpu(run, 2));
    const ParityDifference repeated = DifferenceOf(again, actual);
    EXPECT_EQ(repeated.loss, 0);
    EXPECT_EQ(repeated.gradient_norm, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Shards, CudaParityMatrixTest,
                         ::testing::Range<size_t>(0, kShards));

}  // namespace
}  // namespace tessera::train

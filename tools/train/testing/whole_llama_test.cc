// Tests that a whole model on an emulated device gives the losses and gradients
// of the CPU, bit for bit.
#include "tools/train/testing/whole_llama.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device/emulated_device.h"
#include "base/device/host_device.h"
#include "base/device/staging.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::train {
namespace {

using tensor_parallel::CpuOps;
using tensor_parallel::Parameter;
using tensor_parallel::Recompute;
using ::testing::HasSubstr;

constexpr int64_t kSequences = 2;
constexpr int64_t kLength = 9;
constexpr int64_t kVocabulary = 23;

class SomeTokens final : public TokenSource {
 public:
  SomeTokens() : tokens_(static_cast<size_t>(kSequences * (kLength + 1))) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      tokens_[i] = static_cast<int64_t>(i * i + 3) % kVocabulary;
    }
  }
  void Set(size_t place, int64_t token) { tokens_[place] = token; }
  void SetTargets(std::vector<int64_t> targets) {
    targets_ = std::move(targets);
  }
  absl::StatusOr<std::span<const int64_t>> Tokens(int32_t) override {
    return std::span<const int64_t>(tokens_);
  }
  absl::StatusOr<std::span<const int64_t>> Targets(int32_t) override {
    return std::span<const int64_t>(targets_);
  }

 private:
  std::vector<int64_t> tokens_;
  std::vector<int64_t> targets_;
};

RunOptions OptionsOf(DType dtype, Recompute recompute) {
  return {.model = {.vocabulary = kVocabulary,
                    .hidden = 16,
                    .intermediate = 20,
                    .layers = 2,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_size = 4,
                    .max_positions = 32},
          .dtype = dtype,
          .micro_batch = kSequences,
          .length = kLength,
          .dropout = 0.1,
          .recompute = recompute};
}

struct Results {
  std::vector<double> losses;
  std::vector<std::vector<std::byte>> gradients;

  friend bool operator==(const Results&, const Results&) = default;
};

absl::Status Train(CpuOps& ops, WholeLlama& model, Results& results) {
  uint64_t stream = 0;
  for (const ParameterWindow& window : model.windows()) {
    for (Parameter* parameter : window) {
      TESSERA_RETURN_IF_ERROR(
          parameter->FillNormal(ops, {.seed = 5, .stream = ++stream}, 0.3));
    }
  }
  for (const bool apart : {false, true}) {
    TESSERA_ASSIGN_OR_RETURN(results.losses.emplace_back(), model.Forward());
    if (apart) {
      TESSERA_RETURN_IF_ERROR(model.BackwardInput());
      TESSERA_RETURN_IF_ERROR(model.BackwardWeight());
    } else {
      model.SetLossFactor(3);
      TESSERA_RETURN_IF_ERROR(model.Backward());
    }
  }
  TESSERA_RETURN_IF_ERROR(model.FinishGradients());
  StagingPool staging(ops.queue());
  for (const ParameterWindow& window : model.windows()) {
    for (const Parameter* parameter : window) {
      const TensorView gradient = parameter->gradient();
      TESSERA_ASSIGN_OR_RETURN(
          const Download download,
          staging.StartDownload(
              {gradient.data(),
               static_cast<size_t>(gradient.size_in_bytes())}));
      TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                               download.Wait());
      results.gradients.emplace_back(bytes.begin(), bytes.end());
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Results> RunOn(Queue& queue, const RunOptions& options) {
  CpuOps ops({.threads = 1}, queue);
  SomeTokens tokens;
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<WholeLlama> model,
                           WholeLlama::Create(ops, options, tokens));
  Results results;
  absl::Status status = Train(ops, *model, results);
  // No memory may be freed before the work on it has completed.
  status.Update(queue.Synchronize());
  TESSERA_RETURN_IF_ERROR(status);
  return results;
}

TEST(WholeLlamaTest, EmulatedDeviceMatchesCpuBitForBit) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const Recompute recompute :
         {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      const RunOptions options = OptionsOf(dtype, recompute);
      TESSERA_ASSERT_OK_AND_ASSIGN(const Results want,
                                   RunOn(HostQueue(), options));
      for (const uint64_t seed : {1, 2, 3}) {
        TESSERA_ASSERT_OK_AND_ASSIGN(
            const auto device,
            EmulatedDevice::Create(
                {.memory_bytes = size_t{1} << 30, .seed = seed}));
        TESSERA_ASSERT_OK_AND_ASSIGN(const auto queue,
                                     device->CreateQueue("compute"));
        TESSERA_ASSERT_OK_AND_ASSIGN(const Results got, RunOn(*queue, options));
        EXPECT_EQ(got.losses, want.losses) << seed;
        EXPECT_TRUE(got == want) << seed;
        TESSERA_EXPECT_OK(device->Synchronize());
      }
    }
  }
}

TEST(WholeLlamaTest, RejectsTokensOutsideTheVocabulary) {
  CpuOps ops({.threads = 1});
  for (const int64_t wrong : {int64_t{-1}, kVocabulary}) {
    SomeTokens tokens;
    tokens.Set(3, wrong);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto model,
        WholeLlama::Create(ops, OptionsOf(DType::kF32, Recompute::kNone),
                           tokens));
    EXPECT_THAT(model->Forward(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("token 3 of micro-batch 0 is")));
  }
  // Only a target.
  SomeTokens tokens;
  tokens.Set(kLength, kVocabulary);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto model,
      WholeLlama::Create(ops, OptionsOf(DType::kF32, Recompute::kNone),
                         tokens));
  EXPECT_THAT(model->Forward(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("is 23; the vocabulary has 0 to 22")));
}

TEST(WholeLlamaTest, RejectsInvalidTargets) {
  CpuOps ops({.threads = 1});
  std::vector<int64_t> targets(kSequences * kLength, 1);
  const auto forward = [&](const std::vector<int64_t>& targets) {
    SomeTokens tokens;
    tokens.SetTargets(targets);
    auto model = WholeLlama::Create(
        ops, OptionsOf(DType::kF32, Recompute::kNone), tokens);
    EXPECT_TRUE(model.ok()) << model.status();
    return (*model)->Forward();
  };
  targets[4] = tensor_parallel::kNoTarget;
  EXPECT_TRUE(forward(targets).ok());
  for (const int64_t target : {tensor_parallel::kNoTarget - 1, kVocabulary}) {
    targets[5] = target;
    EXPECT_THAT(
        forward(targets),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 HasSubstr(absl::StrCat("token 5 of micro-batch 0 is ", target,
                                        "; the vocabulary has 0 to 22"))));
  }
  targets.pop_back();
  EXPECT_THAT(forward(targets),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has 17 tokens; 2 sequences of 9 are")));
}

}  // namespace
}  // namespace tessera::train

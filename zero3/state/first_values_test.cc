// Tests ShardedState::Fill for parameters that are set in several blocks.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"
#include "zero3/state/sharded_state.h"
#include "zero3/state/toy_training.h"

namespace tessera::zero3 {
namespace {

using collectives::Communicator;

// Values that bf16 represents exactly.
double ValueAt(int64_t element) {
  return static_cast<double>(element % 251) - 125;
}

// Odd sizes around a block of 2^18, so that extents end within one.
absl::StatusOr<ModelParameters> LargeModel(DType dtype) {
  ModelParameters::Builder builder;
  builder.Add({.name = "large", .shape = {911, 1013}, .dtype = dtype});
  builder.Add({.name = "block", .shape = {1 << 18}, .dtype = dtype});
  builder.Add({.name = "none", .shape = {0}, .dtype = dtype});
  return builder.Build();
}

struct Filled {
  int64_t largest = 0;  // Elements per request.
  bool in_order = true;
};

absl::Status FillAndCheck(Communicator& group, DType dtype,
                          ShardedStateOptions options) {
  options.key_prefix = absl::StrCat("rank ", group.rank().value(), "/");
  TESSERA_ASSIGN_OR_RETURN(const ModelParameters model, LargeModel(dtype));
  TESSERA_ASSIGN_OR_RETURN(
      auto state, ShardedState::Create(model, options, {.shard = &group}));
  Filled filled;
  const ModelParameter* last = nullptr;
  int64_t end = 0;
  TESSERA_RETURN_IF_ERROR(state->Fill(
      [&](const ModelParameter& parameter, int64_t begin, TensorView elements) {
        filled.in_order &= last != &parameter || begin == end;
        last = &parameter;
        end = begin + elements.element_count();
        filled.largest = std::max(filled.largest, elements.element_count());
        float* const to = reinterpret_cast<float*>(elements.data());
        for (int64_t i = begin; i < end; ++i) {
          to[i - begin] = static_cast<float>(ValueAt(i));
        }
        return absl::OkStatus();
      }));
  EXPECT_LE(filled.largest, 1 << 18);
  EXPECT_TRUE(filled.in_order);
  TESSERA_ASSIGN_OR_RETURN(const auto values, testing::ReadValues(*state));
  for (const std::vector<double>& parameter : values) {
    for (size_t i = 0; i < parameter.size(); ++i) {
      if (parameter[i] == ValueAt(static_cast<int64_t>(i))) continue;
      return absl::InternalError(
          absl::StrCat("element ", i, " is ", parameter[i]));
    }
  }
  return absl::OkStatus();
}

TEST(FirstValuesTest, AreThoseOfTheirElementsInBlocksAtEveryStage) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int stage : {0, 1, 3}) {
      for (const int64_t ranks : {1, 2}) {
        SCOPED_TRACE(absl::StrCat("stage ", stage, " on ", ranks, " ranks"));
        const auto statuses =
            collectives::RunRanks(ranks, [&](Communicator& group) {
              return FillAndCheck(group, dtype, {.stage = stage});
            });
        for (const auto& status : statuses) TESSERA_EXPECT_OK(status);
      }
    }
  }
}

TEST(FirstValuesTest, ReachTiers) {
  offload::HostTier tier(
      std::make_shared<offload::Accounting>("host", offload::kUnlimited));
  const auto statuses = collectives::RunRanks(2, [&](Communicator& group) {
    ShardedStateOptions options;
    options.stage = 3;
    options.parameter_tier = &tier;
    options.optimizer_tier = &tier;
    return FillAndCheck(group, DType::kBF16, options);
  });
  for (const auto& status : statuses) TESSERA_EXPECT_OK(status);
}

}  // namespace
}  // namespace tessera::zero3

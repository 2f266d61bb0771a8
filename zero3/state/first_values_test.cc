// Tests ShardedState::Fill for parameters that are set in several parts, by
// several threads, on the host and on a device.
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/device/device.h"
#include "base/device/emulated_device.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/emulated/emulated_communicator.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"
#include "zero3/state/sharded_state.h"
#include "zero3/state/testing/toy_training.h"

namespace tessera::zero3 {
namespace {

using collectives::Communicator;

// Values that bf16 represents exactly.
double ValueAt(int64_t element) {
  return static_cast<double>(element % 251) - 125;
}

// Odd sizes around several blocks of 2^17, so that extents end within one.
absl::StatusOr<ModelParameters> LargeModel(DType dtype) {
  ModelParameters::Builder builder;
  builder.Add({.name = "large", .shape = {611, 713}, .dtype = dtype});
  builder.Add({.name = "block", .shape = {1 << 17}, .dtype = dtype});
  builder.Add({.name = "none", .shape = {0}, .dtype = dtype});
  return builder.Build();
}

// Counts how often each element is set.
class Counter {
 public:
  explicit Counter(const ModelParameters& model) {
    for (const ModelParameter& parameter : model.all()) {
      counts_.emplace_back(static_cast<size_t>(parameter.elements));
    }
  }

  absl::Status Fill(const ModelParameter& parameter, int64_t begin,
                    const TensorView& elements) {
    std::vector<std::atomic<int>>& counts =
        counts_[static_cast<size_t>(parameter.id.value())];
    float* const to = reinterpret_cast<float*>(elements.data());
    for (int64_t i = 0; i < elements.element_count(); ++i) {
      ++counts[static_cast<size_t>(begin + i)];
      to[i] = static_cast<float>(ValueAt(begin + i));
    }
    return absl::OkStatus();
  }

  void Expect(const ShardedState& state) const {
    for (const ModelParameter& parameter : state.layout().model().all()) {
      const Extent own = state.layout().ExtentOf(state.rank(), parameter.id);
      const auto& counts = counts_[static_cast<size_t>(parameter.id.value())];
      for (int64_t i = 0; i < parameter.elements; ++i) {
        const int expected = i >= own.begin && i < own.begin + own.size();
        ASSERT_EQ(counts[static_cast<size_t>(i)], expected)
            << parameter.name() << " " << i;
      }
    }
  }

 private:
  std::vector<std::vector<std::atomic<int>>> counts_;
};

absl::Status FillAndCheck(Communicator& group, DType dtype,
                          ShardedStateOptions options) {
  options.key_prefix = absl::StrCat("rank ", group.rank().value(), "/");
  TESSERA_ASSIGN_OR_RETURN(const ModelParameters model, LargeModel(dtype));
  TESSERA_ASSIGN_OR_RETURN(
      auto state, ShardedState::Create(model, options, {.shard = &group}));
  Counter counter(model);
  TESSERA_RETURN_IF_ERROR(state->Fill(
      [&](const ModelParameter& parameter, int64_t begin, TensorView elements) {
        return counter.Fill(parameter, begin, elements);
      }));
  counter.Expect(*state);
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

// On an emulated device, whose memory the host cannot touch.
absl::Status FillAndCheckOnDevice(std::unique_ptr<Communicator> host,
                                  DType dtype, ShardedStateOptions options) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::shared_ptr<EmulatedDevice> device,
      EmulatedDevice::Create(
          {.seed = static_cast<uint64_t>(host->rank().value()) + 1}));
  TESSERA_ASSIGN_OR_RETURN(const auto queue, device->CreateQueue("compute"));
  TESSERA_ASSIGN_OR_RETURN(
      const auto group,
      collectives::CreateEmulatedCommunicator(std::move(host), *device));
  options.queue = queue.get();
  return FillAndCheck(*group, dtype, options);
}

TEST(FirstValuesTest, AreThoseOfTheirElementsAtEveryStage) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int stage : {0, 1, 3}) {
      for (const int64_t ranks : {1, 2, 3}) {
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

TEST(FirstValuesTest, DoNotDependOnTheNumberOfThreads) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int threads : {1, 2, 3, 7}) {
      SCOPED_TRACE(absl::StrCat(DTypeName(dtype), ", ", threads, " threads"));
      for (const auto& status :
           collectives::RunRanks(2, [&](Communicator& group) {
             return FillAndCheck(group, dtype,
                                 {.stage = 3, .fill_threads = threads});
           })) {
        TESSERA_EXPECT_OK(status);
      }
      for (const auto& status :
           collectives::RunRanks(2, [&](Communicator& group) -> absl::Status {
             TESSERA_ASSIGN_OR_RETURN(auto host, group.Split(0, 0, "host"));
             return FillAndCheckOnDevice(std::move(host), dtype,
                                         {.stage = 1, .fill_threads = threads});
           })) {
        TESSERA_EXPECT_OK(status);
      }
    }
  }
}

TEST(FirstValuesTest, ErrorsOfAnyThreadAreReturned) {
  for (const int threads : {1, 3}) {
    const auto statuses =
        collectives::RunRanks(1, [&](Communicator& group) -> absl::Status {
          TESSERA_ASSIGN_OR_RETURN(const ModelParameters model,
                                   LargeModel(DType::kBF16));
          TESSERA_ASSIGN_OR_RETURN(
              auto state, ShardedState::Create(model, {.fill_threads = threads},
                                               {.shard = &group}));
          return state->Fill([](const ModelParameter&, int64_t begin,
                                TensorView elements) -> absl::Status {
            const int64_t last = begin + elements.element_count() - 1;
            if (begin > 200'000 || last < 200'000) return absl::OkStatus();
            return absl::DataLossError("element 200000");
          });
        });
    EXPECT_THAT(statuses[0],
                StatusIs(absl::StatusCode::kDataLoss, "element 200000"));
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
    options.fill_threads = 2;
    return FillAndCheck(group, DType::kBF16, options);
  });
  for (const auto& status : statuses) TESSERA_EXPECT_OK(status);
}

}  // namespace
}  // namespace tessera::zero3

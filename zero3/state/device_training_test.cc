// The toy model trains with its state on emulated devices, whose memory the
// host cannot touch and whose work is done late, in random order: the same bits
// as on the CPU, and the host waits once a step. With TESSERA_CUDA_KERNELS the
// work is that of emulated CUDA kernels.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"
#include "zero3/state/testing/tiers.h"
#include "zero3/state/testing/toy_training.h"
#ifdef TESSERA_CUDA_KERNELS
#include "zero3/state/cuda_state_ops.h"
#endif

namespace tessera::zero3 {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Le;
using testing::ToyOptions;
using testing::ToyResult;

constexpr uint64_t kSeeds[] = {1, 2, 3};

std::vector<ToyResult> TrainOk(const ToyOptions& options) {
  std::vector<ToyResult> results;
  for (auto& result : testing::Train(options)) {
    EXPECT_THAT(result.status(), IsOk());
    results.push_back(result.ok() ? *std::move(result) : ToyResult());
  }
  return results;
}

// The operations of a rank on a device.
void ChooseOps([[maybe_unused]] ShardedStateOptions& options) {
#ifdef TESSERA_CUDA_KERNELS
  if (options.queue != nullptr) {
    options.ops = *emulated::CudaStateOps(*options.queue);
  }
#endif
}

ToyOptions Base(int stage, int64_t ranks = 1) {
  ToyOptions base;
  base.adapt = [](int64_t, ShardedStateOptions& options) {
    ChooseOps(options);
  };
  base.ranks = ranks;
  base.steps = 4;
  base.parts = 12;
  base.reproducible = true;
  base.state.stage = stage;
  base.state.adamw = {.learning_rate = 0.01, .weight_decay = 0.1};
  base.state.decayed =
      stage % 2 == 0 ? DecayedParameters::kMatrices : DecayedParameters::kAll;
  base.state.bucket_bytes = 300;
  base.state.persistence_threshold = 10;
  base.state.clip_norm = 1;
  return base;
}

void ExpectSame(const ToyResult& actual, const ToyResult& expected) {
  EXPECT_EQ(actual.values, expected.values);
  ASSERT_EQ(actual.reports.size(), expected.reports.size());
  for (size_t i = 0; i < actual.reports.size(); ++i) {
    const UpdateReport& a = actual.reports[i];
    const UpdateReport& b = expected.reports[i];
    EXPECT_EQ(a.gradient_norm, b.gradient_norm);
    EXPECT_EQ(a.clip_factor, b.clip_factor);
    EXPECT_EQ(a.loss_scale, b.loss_scale);
    EXPECT_EQ(a.skipped, b.skipped);
  }
}

// Every rank, with every seed, has the bits of the CPU. Returns the last
// results on devices.
std::vector<ToyResult> ExpectBitsOfTheCpu(ToyOptions options) {
  const std::vector<ToyResult> expected = TrainOk(options);
  std::vector<ToyResult> actual;
  for (const uint64_t seed : kSeeds) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    options.device_seed = seed;
    actual = TrainOk(options);
    for (size_t r = 0; r < expected.size(); ++r) {
      ExpectSame(actual[r], expected[r]);
    }
  }
  return actual;
}

struct Case {
  std::string name;
  ToyOptions options;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (int stage = 0; stage < 4; ++stage) {
    for (const int64_t ranks : {1, 2, 3, 4}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        Case& plain = cases.emplace_back(
            absl::StrCat(ranks, " ranks, stage ", stage, " ", DTypeName(dtype)),
            Base(stage, ranks));
        plain.options.dtype = dtype;
      }
    }
    Case& sgd =
        cases.emplace_back(absl::StrCat("SGD, stage ", stage), Base(stage, 2));
    sgd.options.dtype = DType::kF64;
    sgd.options.state.optimizer = OptimizerKind::kSgd;
    sgd.options.state.sgd = {.learning_rate = 0.05, .momentum = 0.9};
    Case& held = cases.emplace_back(
        absl::StrCat("held gradients, stage ", stage), Base(stage, 2));
    held.options.holds_gradients = true;
    held.options.dtype = DType::kBF16;
    held.options.state.moments = offload::MomentFormat::Blockwise8(64);
    held.options.state.loss_scale = {.dynamic = true, .initial = 1 << 10};
    held.options.state.overlap = false;
    Case& small = cases.emplace_back(
        absl::StrCat("bf16 moments, stage ", stage), Base(stage, 3));
    small.options.dtype = DType::kF16;
    small.options.state.moments = offload::MomentFormat::BF16();
    Case& hybrid = cases.emplace_back(absl::StrCat("replicas, stage ", stage),
                                      Base(stage, 2));
    hybrid.options.replicas = 2;
    Case& robin = cases.emplace_back(absl::StrCat("whole, stage ", stage),
                                     Base(stage, 3));
    robin.options.state.layout = LayoutKind::kRoundRobin;
  }
  Case& plus = cases.emplace_back("ZeRO++", Base(3, 4));
  plus.options.state.quantized_gradients = true;
  plus.options.state.quantized_weights = true;
  plus.options.state.hpz_partition_size = 2;
  return cases;
}

TEST(DeviceTrainingTest, HasTheBitsOfTheCpuAndWaitsOnceAStep) {
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    for (const ToyResult& result : ExpectBitsOfTheCpu(c.options)) {
      EXPECT_THAT(result.host_waits, Each(1));
      ASSERT_EQ(result.allocations.size(), 4u);
      EXPECT_EQ(result.allocations.back(), 0);
    }
  }
}

offload::HostTier Host() {
  return offload::HostTier(
      std::make_shared<offload::Accounting>("host", offload::kUnlimited));
}

// The memory in which a test keeps offloaded state.
struct Tiers {
  testing::FarTier far;
  offload::HostTier host = Host();

  offload::MemoryTier* Of(bool in_place) {
    if (in_place) return &host;
    return &far;
  }
};

// A tier of each rank, with and without in-place access; the optimizer's step
// is the device's or the host's.
TEST(DeviceTrainingTest, TiersHaveTheBitsOfTheCpu) {
  for (const bool on_host : {false, true}) {
    for (const bool in_place : {false, true}) {
      for (const bool overlap : {false, true}) {
        for (const int64_t ranks : {1, 2, 3}) {
          for (int stage = 0; stage < 4; ++stage) {
            SCOPED_TRACE(absl::StrCat(ranks, " ranks, stage ", stage, on_host,
                                      in_place, overlap));
            Tiers tiers;
            offload::MemoryTier* const tier = tiers.Of(in_place);
            ToyOptions options = Base(stage, ranks);
            options.state.overlap = overlap;
            options.state.optimizer_tier = tier;
            options.state.optimizer_on_host = on_host;
            if (stage >= 2) options.state.gradient_tier = tier;
            if (stage == 3) options.state.parameter_tier = tier;
            ExpectBitsOfTheCpu(options);
            EXPECT_TRUE(tier->Keys().empty());
          }
        }
      }
    }
  }
}

// The optimizer's state alone is in a tier, and the host steps it: gradients
// come down, and values go up. The host waits in Step alone, for the norm and
// then for the downloads, which may come later than the norm: one wait for each
// parameter at most.
std::vector<Case> HostSteps() {
  std::vector<Case> cases;
  for (int stage = 0; stage < 4; ++stage) {
    for (const int64_t ranks : {1, 2, 4}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        Case& plain = cases.emplace_back(
            absl::StrCat(ranks, " ranks, stage ", stage, " ", DTypeName(dtype)),
            Base(stage, ranks));
        plain.options.dtype = dtype;
      }
    }
    for (const double momentum : {0.0, 0.9}) {
      Case& sgd = cases.emplace_back(
          absl::StrCat("SGD, stage ", stage, ", momentum ", momentum),
          Base(stage, 2));
      sgd.options.dtype = momentum == 0 ? DType::kF16 : DType::kF64;
      sgd.options.state.optimizer = OptimizerKind::kSgd;
      sgd.options.state.sgd = {.learning_rate = 0.05, .momentum = momentum};
    }
    Case& small = cases.emplace_back(
        absl::StrCat("bf16 moments, held bf16 gradients, stage ", stage),
        Base(stage, 3));
    small.options.holds_gradients = true;
    small.options.dtype = DType::kBF16;
    small.options.state.gradient_dtype = DType::kBF16;
    small.options.state.moments = offload::MomentFormat::BF16();
    small.options.state.overlap = false;
    Case& overflow = cases.emplace_back(
        absl::StrCat("8-bit moments, overflow, stage ", stage), Base(stage, 2));
    overflow.options.steps = 6;
    overflow.options.dtype = DType::kF16;
    overflow.options.state.gradient_dtype = DType::kF16;
    overflow.options.state.moments = offload::MomentFormat::Blockwise8(64);
    overflow.options.state.loss_scale = {.dynamic = true, .initial = 1 << 16};
    Case& robin = cases.emplace_back(absl::StrCat("replicas, stage ", stage),
                                     Base(stage, 2));
    robin.options.replicas = 2;
    robin.options.state.layout = LayoutKind::kRoundRobin;
  }
  Case& plus = cases.emplace_back("ZeRO++", Base(3, 4));
  plus.options.state.quantized_gradients = true;
  plus.options.state.quantized_weights = true;
  plus.options.state.hpz_partition_size = 2;
  return cases;
}

TEST(DeviceTrainingTest, AStepOnTheHostHasTheBitsOfTheCpu) {
  const ModelParameters model = testing::ToyModel(DType::kF32);
  int skipped = 0, stepped_after = 0;
  for (const bool in_place : {false, true}) {
    for (const Case& c : HostSteps()) {
      SCOPED_TRACE(absl::StrCat(c.name, ", in place ", in_place));
      Tiers tiers;
      ToyOptions options = c.options;
      options.state.optimizer_tier = tiers.Of(in_place);
      for (const ToyResult& result : ExpectBitsOfTheCpu(options)) {
        EXPECT_EQ(result.host_waits, result.waits_in_step);
        EXPECT_THAT(result.waits_in_step, Each(Le(1 + model.count())));
        EXPECT_EQ(result.allocations.back(), 0);
        for (const UpdateReport& report : result.reports) {
          skipped += report.skipped;
          stepped_after += skipped > 0 && !report.skipped;
        }
      }
      EXPECT_TRUE(tiers.Of(in_place)->Keys().empty());
    }
  }
  EXPECT_GT(skipped, 0);
  EXPECT_GT(stepped_after, 0);
}

// Steps that begin before the norm is known, and are undone where it clips or a
// gradient is not finite.
TEST(DeviceTrainingTest, EarlyStepsHaveTheBitsOfTheCpu) {
  int kept = 0, clipped = 0, skipped = 0, partly = 0;
  const int64_t parameters = testing::ToyModel(DType::kF32).count();
  for (const double clip_norm : {0.0, 1.0, 3.0}) {
    for (const Case& c : HostSteps()) {
      SCOPED_TRACE(absl::StrCat(c.name, ", clip ", clip_norm));
      Tiers tiers;
      ToyOptions options = c.options;
      options.state.clip_norm = clip_norm;
      options.state.optimizer_tier = &tiers.host;
      options.state.speculative_bytes = clip_norm == 1 ? 1500 : 1 << 30;
      for (const ToyResult& result : ExpectBitsOfTheCpu(options)) {
        EXPECT_THAT(result.waits_in_step, Each(Le(1 + parameters)));
        EXPECT_EQ(result.allocations.back(), 0);
        for (const UpdateReport& report : result.reports) {
          const bool early = report.stepped_early > 0;
          kept += early && !report.skipped && report.clip_factor == 1;
          clipped += early && report.clip_factor < 1;
          skipped += early && report.skipped;
          partly += early && report.stepped_early < parameters / 2;
        }
      }
    }
  }
  std::cout << "early steps: " << kept << " kept, " << clipped << " clipped, "
            << skipped << " skipped, " << partly << " of few parameters\n";
  EXPECT_GT(kept, 0);
  EXPECT_GT(clipped, 0);
  EXPECT_GT(skipped, 0);
  EXPECT_GT(partly, 0);
}

// After a step that was clipped the next one waits for the norm.
TEST(DeviceTrainingTest, AfterClippingAStepWaits) {
  Tiers tiers;
  ToyOptions options = Base(/*stage=*/1);
  options.device_seed = 1;
  options.steps = 4;
  options.state.clip_norm = 1e-6;
  options.state.optimizer_tier = &tiers.host;
  options.state.speculative_bytes = 1 << 20;
  const ToyResult result = TrainOk(options)[0];
  EXPECT_GT(result.reports[0].stepped_early, 0);
  for (size_t i = 1; i < result.reports.size(); ++i) {
    EXPECT_EQ(result.reports[i].stepped_early, 0);
  }
}

// State in a tier without in-place access is stepped in the order in which it
// is read ahead.
TEST(DeviceTrainingTest, StateThatIsReadAheadIsNotSteppedEarly) {
  Tiers tiers;
  ToyOptions options = Base(/*stage=*/2);
  options.state.optimizer_tier = &tiers.far;
  options.state.speculative_bytes = 1 << 20;
  const std::vector<ToyResult> results = ExpectBitsOfTheCpu(options);
  ASSERT_EQ(results[0].reports.size(), 4u);
  for (const UpdateReport& report : results[0].reports) {
    EXPECT_EQ(report.stepped_early, 0);
  }
}

TEST(DeviceTrainingTest, EarlyStepsNeedATier) {
  ShardedStateOptions options;
  options.speculative_bytes = 1;
  EXPECT_THAT(CheckOptions(options, testing::ToyModel(DType::kF32)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("speculative_bytes without optimizer_tier")));
  options.speculative_bytes = -1;
  EXPECT_THAT(CheckOptions(options, testing::ToyModel(DType::kF32)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("speculative_bytes is -1")));
}

TEST(DeviceTrainingTest, AStepOnTheHostNeedsATier) {
  ShardedStateOptions options;
  options.optimizer_on_host = true;
  EXPECT_THAT(CheckOptions(options, testing::ToyModel(DType::kF32)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("optimizer_on_host without optimizer_tier")));
}

// A step of one of two trainings is longer by the steps that only it has.
SimulatedTime TimePerStep(ToyOptions options) {
  options.steps = 4;
  const SimulatedTime few = TrainOk(options)[0].time;
  options.steps = 8;
  const SimulatedTime many = TrainOk(options)[0].time;
  return {.elapsed = (many.elapsed - few.elapsed) / 4,
          .work = (many.work - few.work) / 4,
          .uploads = (many.uploads - few.uploads) / 4,
          .downloads = (many.downloads - few.downloads) / 4,
          .host = (many.host - few.host) / 4};
}

// The host steps early gradients while the device is still at the backward.
TEST(DeviceTrainingTest, EarlyStepsHideTheOptimizer) {
  SimulatedTime times[2];
  for (const bool early : {false, true}) {
    Tiers tiers;
    ToyOptions options = Base(/*stage=*/2);
    options.dtype = DType::kBF16;
    options.device_seed = 1;
    options.state.clip_norm = 0;
    options.state.optimizer_tier = &tiers.host;
    options.state.speculative_bytes = early ? 1 << 20 : 0;
    options.timing =
        DeviceTiming{.memory_bytes_per_second = 2e6,
                     .launch_seconds = 1e-6,
                     .host_seconds = [](std::string_view name, size_t bytes) {
                       return name.starts_with("step a parameter")
                                  ? 1e-6 * static_cast<double>(bytes)
                                  : 0;
                     }};
    times[early] = TimePerStep(options);
    std::cout << (early ? "early" : "late") << ": a step takes "
              << times[early].elapsed << " s, work " << times[early].work
              << ", host " << times[early].host << "\n";
  }
  EXPECT_NEAR(times[true].host, times[false].host, 1e-9);
  EXPECT_LT(times[true].elapsed,
            times[false].elapsed - 0.3 * times[false].host);
}

// On a slow link, by the time that it is busy: 12 bytes a parameter of 16 bits
// go each way if the device steps (master weight and moments), and 2 up and 4
// down if the host does (value and f32 gradient), which takes no time here.
TEST(DeviceTrainingTest, AStepOnTheHostMovesAQuarterOfTheBytes) {
  constexpr double kBytesPerSecond = 1e5;
  const ModelParameters model = testing::ToyModel(DType::kBF16);
  double elements = 0, statistics = 0;
  for (const ModelParameter& parameter : model.all()) {
    if (!parameter.trainable() || parameter.elements == 0) continue;
    elements += static_cast<double>(parameter.elements);
    statistics += sizeof(offload::GradientStatistics);
  }
  for (const int64_t ranks : {1, 2}) {
    SimulatedTime times[2];
    for (const bool on_host : {false, true}) {
      Tiers tiers;
      ToyOptions options = Base(/*stage=*/3, ranks);
      options.dtype = DType::kBF16;
      options.device_seed = 1;
      options.timing =
          DeviceTiming{.upload_bytes_per_second = kBytesPerSecond,
                       .download_bytes_per_second = kBytesPerSecond,
                       .memory_bytes_per_second = 2e7,
                       .launch_seconds = 1e-9};
      options.state.optimizer_tier = &tiers.host;
      options.state.optimizer_on_host = on_host;
      const SimulatedTime& time = times[on_host] = TimePerStep(options);
      std::cout << ranks << " ranks, " << (on_host ? "host" : "device")
                << ": a step takes " << time.elapsed << " s, work " << time.work
                << ", up " << time.uploads << ", down " << time.downloads
                << "\n";
      if (ranks > 1) continue;
      EXPECT_NEAR(time.uploads * kBytesPerSecond, (on_host ? 2 : 12) * elements,
                  1);
      EXPECT_NEAR(time.downloads * kBytesPerSecond,
                  (on_host ? 4 : 12) * elements + statistics, 1);
    }
    EXPECT_LT(times[true].elapsed, 0.6 * times[false].elapsed);
  }
}

// On links on which the copies of a step take as long as its work, or longer.
TEST(DeviceTrainingTest, CopiesOfTiersRunBesideTheWork) {
  for (const double bytes_per_second : {3e5, 1e6}) {
    offload::HostTier host(
        std::make_shared<offload::Accounting>("host", offload::kUnlimited));
    ToyOptions options = Base(/*stage=*/3);
    options.device_seed = 1;
    options.timing = DeviceTiming{.upload_bytes_per_second = bytes_per_second,
                                  .download_bytes_per_second = bytes_per_second,
                                  .memory_bytes_per_second = 2e6,
                                  .launch_seconds = 1e-6};
    options.state.optimizer_tier = &host;
    options.state.optimizer_on_host = false;
    options.state.parameter_tier = &host;
    for (const ToyResult& result : TrainOk(options)) {
      const SimulatedTime& time = result.time;
      SCOPED_TRACE(absl::StrCat(bytes_per_second, " bytes/s: ", time.elapsed,
                                " s; work ", time.work, ", uploads ",
                                time.uploads, ", downloads ", time.downloads));
      EXPECT_GT(time.uploads, 0.5 * time.work);
      EXPECT_GT(time.downloads, 0);
      EXPECT_LT(time.elapsed, 1.15 * time.bound());
      RecordProperty("share_of_bound",
                     absl::StrCat(time.bound() / time.elapsed));
      std::cout << time.bound() / time.elapsed << "\n";
    }
  }
}

}  // namespace
}  // namespace tessera::zero3

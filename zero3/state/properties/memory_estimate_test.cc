// What EstimateMemory says before anything is allocated is what the accounting
// of a ShardedState that trains shows, to the byte: model state by purpose and
// tier, and its peak with all buffers.
//
// A sample of configurations at random; with TESSERA_FULL_MATRIX many more.
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"
#include "zero3/estimate/estimate_memory.h"
#include "zero3/state/options_from_config.h"
#include "zero3/state/testing/far_tier.h"
#include "zero3/state/testing/toy_training.h"

namespace tessera::zero3 {
namespace {

#ifdef TESSERA_FULL_MATRIX
constexpr int kRounds = 600;
#else
constexpr int kRounds = 12;
#endif

using topology::Rank;

// Where offloaded state goes: host memory, files, or both.
enum class Home { kHost, kFiles, kBoth };

struct Setting {
  DType dtype = DType::kF32;
  int64_t ranks = 1;
  int64_t replicas = 1;
  Home home = Home::kHost;
  bool holds_gradients = false;
  OptimizerState optimizer = {};
  ZeroConfig config = {};

  std::string ToString() const {
    return absl::StrCat(
        "stage ", config.stage, ", ", ranks, " x ", replicas, " ranks, layout ",
        static_cast<int>(config.layout), ", ", DTypeName(dtype), ", offload ",
        config.offload_parameters, config.offload_gradients,
        config.offload_optimizer, " to ", static_cast<int>(home), ", buckets ",
        config.reduce_bucket_size.bytes(), ", overlap ", config.overlap,
        ", prefetch ", config.async_prefetch, " ", config.prefetch_buffer,
        ", accumulation ", config.gradient_accumulation_steps, ", holds ",
        holds_gradients, ", moments ", optimizer.moments, " of ",
        static_cast<int>(optimizer.type), ", live ",
        config.max_live_parameters);
  }
};

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  bool Coin() { return engine_() % 2 == 0; }
  template <typename T>
  T OneOf(const std::vector<T>& values) {
    return values[engine_() % values.size()];
  }

 private:
  std::mt19937_64 engine_;
};

void SetOptimizer(Random& random, Setting& setting) {
  setting.optimizer.moments = random.OneOf<int64_t>({2, 2, 1, 0});
  setting.optimizer.type = random.OneOf<MomentType>(
      {MomentType::kFp32, MomentType::kBf16, MomentType::kBlock8});
  if (setting.optimizer.type != MomentType::kBlock8) return;
  setting.optimizer.block = 64;
  setting.config.alignment = 64;
}

Setting RandomSetting(int64_t stage, int64_t ranks, Random& random) {
  Setting setting;
  ZeroConfig& config = setting.config;
  config.stage = stage;
  setting.ranks = ranks;
  setting.replicas = random.OneOf<int64_t>({1, 1, 1, 2});
  setting.dtype = random.OneOf<DType>(
      {DType::kF32, DType::kBF16, DType::kF16, DType::kF64});
  config.layout = random.OneOf<LayoutKind>(
      {LayoutKind::kChunks, LayoutKind::kChunks, LayoutKind::kRoundRobin,
       LayoutKind::kBalanced});
  config.alignment = random.OneOf<int64_t>({1, 1, 4});
  config.offload_parameters = random.Coin();
  config.offload_gradients = random.Coin();
  config.offload_optimizer = random.Coin();
  setting.home = random.OneOf<Home>({Home::kHost, Home::kFiles, Home::kBoth});
  if (setting.home != Home::kHost) config.swap_directory = "/swap";
  if (setting.home == Home::kFiles) config.cpu_budget = ByteSize(1);
  if (setting.home == Home::kBoth) config.cpu_budget = ByteSize(1500);
  config.reduce_bucket_size =
      ByteSize(random.OneOf<int64_t>({8, 100, 300, 1 << 20}));
  config.overlap = random.Coin();
  config.async_prefetch = random.Coin();
  config.prefetch_buffer = random.OneOf<int64_t>({1, 2, 16});
  config.gradient_accumulation_steps = random.OneOf<int64_t>({1, 1, 3});
  setting.holds_gradients = random.OneOf<bool>({false, false, true});
  config.parameter_persistence_threshold = random.OneOf<int64_t>({0, 20});
  config.max_live_parameters = random.OneOf<int64_t>({0, 70, 150, 1 << 20});
  config.max_reuse_distance = random.OneOf<int64_t>({0, 60, 1 << 20});
  config.device_parameter_budget =
      ByteSize(random.OneOf<int64_t>({1, 1500, 1 << 20}));
  config.gradient_type = random.OneOf<GradientType>(
      {GradientType::kParameter, GradientType::kFp32});
  config.loss_scale = 1;
  SetOptimizer(random, setting);
  return setting;
}

offload::MomentFormat FormatOf(const OptimizerState& optimizer) {
  switch (optimizer.type) {
    case MomentType::kBf16:
      return offload::MomentFormat::BF16();
    case MomentType::kBlock8:
      return offload::MomentFormat::Blockwise8(optimizer.block);
    default:
      return offload::MomentFormat::F32();
  }
}

testing::ToyOptions ToyOf(const Setting& setting, offload::MemoryTier* host,
                          offload::MemoryTier* files) {
  testing::ToyOptions toy;
  toy.dtype = setting.dtype;
  toy.ranks = setting.ranks;
  toy.replicas = setting.replicas;
  toy.steps = 2;  // The second knows the order of use.
  toy.parts = setting.ranks * setting.replicas *
              setting.config.gradient_accumulation_steps;
  toy.holds_gradients = setting.holds_gradients;
  const auto options =
      OptionsFrom(setting.config, setting.dtype, host,
                  setting.home == Home::kHost ? nullptr : files);
  EXPECT_THAT(options.status(), IsOk());
  toy.state = *options;
  toy.state.moments = FormatOf(setting.optimizer);
  toy.state.adamw.learning_rate = toy.state.sgd.learning_rate = 1e-3;
  if (setting.optimizer.moments < 2) {
    toy.state.optimizer = OptimizerKind::kSgd;
    toy.state.sgd.momentum = setting.optimizer.moments == 1 ? 0.9 : 0;
  }
  return toy;
}

using ByPurpose = std::map<offload::Purpose, int64_t>;

offload::Purpose PurposeOf(Purpose purpose) {
  switch (purpose) {
    case Purpose::kParameters:
    case Purpose::kCopies:
      return offload::Purpose::kParameters;
    case Purpose::kGradients:
      return offload::Purpose::kGradients;
    default:
      return offload::Purpose::kOptimizer;
  }
}

void ExpectState(const offload::Usage& usage, ByPurpose expected,
                 const std::string& where) {
  for (const offload::Purpose purpose :
       {offload::Purpose::kParameters, offload::Purpose::kGradients,
        offload::Purpose::kOptimizer}) {
    EXPECT_EQ(usage.of(purpose).peak, expected[purpose])
        << where << " " << offload::PurposeName(purpose);
  }
}

void ExpectEstimate(const Setting& setting) {
  const auto host =
      std::make_shared<offload::Accounting>("host", offload::kUnlimited);
  const auto files =
      std::make_shared<offload::Accounting>("files", offload::kUnlimited);
  offload::HostTier host_tier(host);
  testing::FarTier file_tier(files);
  const auto results = testing::Train(ToyOf(setting, &host_tier, &file_tier));
  const auto memory =
      MemoryModel::Create(testing::ToyModel(setting.dtype), setting.config,
                          {.ranks = setting.ranks,
                           .replicas = setting.replicas,
                           .optimizer = setting.optimizer,
                           .holds_gradients = setting.holds_gradients});
  ASSERT_THAT(memory.status(), IsOk());
  std::map<Tier, ByPurpose> all;
  for (size_t r = 0; r < results.size(); ++r) {
    const std::string where = absl::StrCat("rank ", r);
    ASSERT_THAT(results[r].status(), IsOk()) << where;
    const Rank rank(static_cast<int64_t>(r) % setting.ranks);
    std::map<Tier, ByPurpose> own;
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<StateBlock> blocks,
                                 memory->Blocks(rank));
    for (const StateBlock& block : blocks) {
      own[block.tier][PurposeOf(block.purpose)] += block.bytes;
      all[block.tier][PurposeOf(block.purpose)] += block.bytes;
    }
    ExpectState(results[r]->usage, own[Tier::kDevice], where);
    TESSERA_ASSERT_OK_AND_ASSIGN(const MemoryUse use, memory->Estimate(rank));
    EXPECT_EQ(results[r]->usage.peak, use.Of(Tier::kDevice)) << where << "\n"
                                                             << use.ToString();
  }
  ExpectState(host->usage(), all[Tier::kHost], "host");
  ExpectState(files->usage(), all[Tier::kFile], "files");
}

class MemoryEstimateTest
    : public ::testing::TestWithParam<std::tuple<int64_t, int64_t>> {};

TEST_P(MemoryEstimateTest, IsWhatTheAccountingShows) {
  const auto [stage, ranks] = GetParam();
  Random random(static_cast<uint64_t>(100 * stage + ranks));
  for (int round = 0; round < kRounds; ++round) {
    const Setting setting = RandomSetting(stage, ranks, random);
    SCOPED_TRACE(setting.ToString());
    ExpectEstimate(setting);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MemoryEstimateTest,
    ::testing::Combine(::testing::Values<int64_t>(0, 1, 2, 3),
                       ::testing::Values<int64_t>(1, 2, 3, 4, 8)));

// 2 bytes a parameter of value, 2 of gradient, 4 of master weight, 8 of
// moments: 16 P / N a rank, in the accounting of a rank that trains.
TEST(MemoryEstimateTest,
     ModelStateOfARankIsSixteenBytesAParameterOverTheRanks) {
  const ModelParameters model = testing::ToyModel(DType::kBF16);
  int64_t trained = 0, frozen = 0;
  for (const Parameter& parameter : model.all()) {
    (parameter.trainable() ? trained : frozen) += parameter.elements;
  }
  for (const int64_t ranks : {1, 2, 4, 8}) {
    Setting setting = {.dtype = DType::kBF16, .ranks = ranks};
    setting.config.parameter_persistence_threshold = 0;
    setting.config.loss_scale = 1;
    setting.config.offload_parameters = setting.config.offload_gradients =
        setting.config.offload_optimizer = false;
    const auto results = testing::Train(ToyOf(setting, nullptr, nullptr));
    int64_t padding = 0;
    for (const Parameter& parameter : model.all()) {
      const int64_t slot = (parameter.elements + ranks - 1) / ranks;
      padding += (slot * ranks - parameter.elements) *
                 (parameter.trainable() ? 16 : 2);
    }
    for (const auto& result : results) {
      ASSERT_THAT(result.status(), IsOk());
      int64_t state = 0;
      for (const offload::Purpose purpose :
           {offload::Purpose::kParameters, offload::Purpose::kGradients,
            offload::Purpose::kOptimizer}) {
        state += result->usage.of(purpose).peak;
      }
      EXPECT_EQ(state * ranks, 16 * trained + 2 * frozen + padding) << ranks;
    }
  }
}

}  // namespace
}  // namespace tessera::zero3

#include "tools/plan/device_rates.h"

#include <cstdint>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/train/predict/pipeline_plan.h"
#include "tools/train/settings/run_options.h"

namespace tessera::plan {
namespace {

using ::testing::AllOf;
using ::testing::DoubleNear;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

train::RunOptions Options(const char* model, int64_t micro_batch,
                          int64_t length) {
  train::RunOptions options;
  options.model = *model_files::PresetConfig(model);
  options.dtype = DType::kBF16;
  options.micro_batch = micro_batch;
  options.batch = micro_batch;
  options.length = length;
  return options;
}

train::StageShapes WholeModel(const train::RunOptions& options) {
  return *train::StageShapes::Of(
      options, {},
      {.layers = {0, options.model.layers}, .is_first = true, .is_last = true});
}

PassSeconds WholePass(const DeviceRates& rates,
                      const train::RunOptions& options) {
  return rates.SecondsOf(WholeModel(options), options);
}

double Total(const PassSeconds& pass) {
  return pass.forward + pass.backward_input + pass.backward_weight;
}

TEST(DeviceRatesTest, FlatRatesAreOperationsOverThePeak) {
  const train::RunOptions options = Options("llama-7b", 2, 1024);
  const train::StageWork work =
      train::StageWorkOf(WholeModel(options), options);
  const PassSeconds pass = WholePass(DeviceRates::Flat(1e12, 0.5), options);
  EXPECT_DOUBLE_EQ(pass.forward, work.forward / 0.5e12);
  EXPECT_DOUBLE_EQ(pass.attention, work.attention / 0.5e12);
  EXPECT_DOUBLE_EQ(pass.backward_input, work.backward_input / 0.5e12);
  EXPECT_DOUBLE_EQ(pass.backward_weight, work.backward_weight / 0.5e12);
}

TEST(DeviceRatesTest, NoProductIsFasterThanItsOperationsOrItsBytes) {
  const DeviceRates rates = DeviceRates::Gpu({}, DType::kBF16);
  for (const int64_t m : {1, 100, 128, 1000, 8192}) {
    for (const int64_t n : {1, 300, 4096}) {
      for (const int64_t k : {1, 64, 4096}) {
        const double operations = 2.0 * static_cast<double>(m * n * k);
        const auto elements = static_cast<double>(m * k + k * n + m * n);
        EXPECT_GE(rates.ProductSeconds(m, n, k), operations / (989e12 * 0.72));
        EXPECT_GE(rates.ProductSeconds(m, n, k), 2 * elements / 4.8e12);
      }
    }
  }
  EXPECT_EQ(rates.ProductSeconds(0, 10, 10), 0);
}

TEST(DeviceRatesTest, SmallProductsReachALowerShareOfThePeak) {
  const DeviceRates rates = DeviceRates::Gpu({}, DType::kBF16);
  const auto share = [&](int64_t m) {
    return 2.0 * static_cast<double>(m * 4096 * 4096) /
           (989e12 * rates.ProductSeconds(m, 4096, 4096));
  };
  EXPECT_LT(share(256), 0.45);
  EXPECT_GT(share(16384), 0.6);
  const auto attention = [&](int64_t length, int64_t head) {
    return 1e12 / rates.AttentionSeconds(1e12, length, head, false);
  };
  EXPECT_GT(attention(8192, 128), attention(2048, 128));
  EXPECT_GT(attention(2048, 128), attention(512, 128));
  EXPECT_GT(attention(4096, 128), attention(4096, 64));
}

// A Llama of 8e9 parameters on one H200, 2 x 4096 tokens: 0.66 to 0.75 s from
// products at 600 to 700 Tflop/s and the rates of attention and streams.
TEST(DeviceRatesTest, PredictsStepTimeOfEightBillionParameters) {
  const train::RunOptions options = Options("llama-8b", 2, 4096);
  const PassSeconds pass =
      WholePass(DeviceRates::Gpu({}, DType::kBF16), options);
  EXPECT_THAT(Total(pass), AllOf(Ge(0.62), Le(0.76)));
  EXPECT_THAT(pass.attention + pass.backward_attention,
              DoubleNear(0.061, 0.01));
}

TEST(DeviceRatesTest, DescribesAssumptions) {
  EXPECT_THAT(DeviceRates::Flat(989e12, 0.5).Describe(),
              HasSubstr("reach 50 % of it, independent of size"));
  EXPECT_THAT(DeviceRates::Gpu({}, DType::kBF16).Describe(),
              HasSubstr("by shape"));
}

}  // namespace
}  // namespace tessera::plan

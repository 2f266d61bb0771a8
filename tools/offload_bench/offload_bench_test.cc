// Runs the parts on little data: counts must be exact and times plausible.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"
#include "tools/offload_bench/bench_options.h"
#include "tools/offload_bench/blocks.h"
#include "tools/offload_bench/measure_file.h"
#include "tools/offload_bench/measure_memory.h"
#include "tools/offload_bench/measurement.h"

namespace tessera::offload_bench {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class OffloadBenchTest : public testing::Test {
 protected:
  Sink Collect() {
    return [this](const Measurement& m) { measured_.push_back(m); };
  }

  // The only measurement of this name, operation and data.
  const Measurement& Of(const std::string& name, const std::string& operation,
                        const std::string& data) const {
    const Measurement* found = nullptr;
    for (const Measurement& m : measured_) {
      if (m.name != name || m.operation != operation || m.data != data) {
        continue;
      }
      EXPECT_EQ(found, nullptr) << name << " " << operation << " " << data;
      found = &m;
    }
    static const Measurement none;
    EXPECT_NE(found, nullptr) << name << " " << operation << " " << data;
    return found == nullptr ? none : *found;
  }

  void ExpectPlausible() const {
    for (const Measurement& m : measured_) {
      EXPECT_GT(m.bytes, 0) << m.name;
      EXPECT_GE(m.times.turns, kLeastTurns) << m.name;
      EXPECT_GT(m.times.subject.seconds, 0) << m.name;
      EXPECT_GT(m.times.limit.seconds, 0) << m.name;
      EXPECT_GT(m.times.share, 0) << m.name;
      EXPECT_GE(m.times.subject.spread, 0) << m.name;
      EXPECT_TRUE(std::isfinite(m.times.share)) << m.name;
    }
  }

  std::vector<Measurement> measured_;
};

// The required ratio of the lossless codec. The data are the same everywhere.
TEST_F(OffloadBenchTest, LosslessCompressesNormalWeights) {
  TESSERA_ASSERT_OK(MeasureCodecs(
      {.size = 8 << 20, .seconds = 0, .codecs = {"lossless"}}, Collect()));
  EXPECT_EQ(measured_.size(), 4u);
  EXPECT_GE(Of("lossless", "encode", "bf16").ratio, 1.48);
  EXPECT_GE(Of("lossless", "encode", "f32").ratio, 1.18);
  for (const Measurement& m : measured_) EXPECT_EQ(m.error, 0.0);
  ExpectPlausible();
}

TEST_F(OffloadBenchTest, LossyCodecsHaveTheirRoundingError) {
  TESSERA_ASSERT_OK(
      MeasureCodecs({.size = 1 << 20,
                     .seconds = 0,
                     .codecs = {"none", "fp16", "bf16", "int8", "nf4"}},
                    Collect()));
  EXPECT_EQ(measured_.size(), 20u);
  ExpectPlausible();
  EXPECT_EQ(Of("none", "decode", "f32").error, 0.0);
  EXPECT_NEAR(*Of("none", "decode", "f32").ratio, 1, 1e-4);
  EXPECT_EQ(Of("bf16", "decode", "bf16").error, 0.0);
  // The error is uniform within half a unit in the last place, and mantissas
  // are spread between 1 and 2.
  EXPECT_NEAR(*Of("bf16", "decode", "f32").error, 0x1p-8 * 0.41, 0x1p-12);
  EXPECT_NEAR(*Of("fp16", "decode", "f32").error, 0x1p-11 * 0.41, 0x1p-15);
  EXPECT_NEAR(*Of("bf16", "decode", "f32").ratio, 2, 1e-3);
  EXPECT_NEAR(*Of("int8", "encode", "f32").ratio, 3.88, 0.01);
  EXPECT_LT(*Of("int8", "encode", "f32").error, 0.01);
  EXPECT_NEAR(*Of("nf4", "encode", "f32").ratio, 7.11, 0.01);
  EXPECT_LT(*Of("nf4", "encode", "f32").error, 0.12);
  EXPECT_GT(*Of("nf4", "encode", "f32").error, 0.05);
}

TEST_F(OffloadBenchTest, OptimizersCountTheBytesOfAStep) {
  constexpr int64_t kSize = 2048 * 4 * 8;
  TESSERA_ASSERT_OK(MeasureOptimizers(
      {.size = kSize, .threads = {1, 2}, .seconds = 0}, Collect()));
  EXPECT_EQ(measured_.size(), 24u);
  ExpectPlausible();
  const std::map<std::string, std::pair<double, double>> expected = {
      {"f32 moments", {28, 20}},
      {"f32 moments, bf16 copy", {30, 22}},
      {"bf16 moments", {20, 16}},
      {"bf16 moments, bf16 copy", {22, 18}},
      {"8-bit/2048 moments", {16 + 16.0 / 2048, 14 + 8.0 / 2048}},
      {"8-bit/2048 moments, bf16 copy", {18 + 16.0 / 2048, 16 + 8.0 / 2048}},
  };
  std::map<int64_t, int> of_threads;
  for (const Measurement& m : measured_) {
    ++of_threads[m.threads];
    ASSERT_TRUE(expected.contains(m.data)) << m.data;
    const auto& [adamw, sgd] = expected.at(m.data);
    EXPECT_EQ(m.bytes_per_parameter, m.name == "adamw" ? adamw : sgd);
    EXPECT_EQ(m.limit, "triad");
  }
  EXPECT_EQ(of_threads[1], 12);
  EXPECT_EQ(of_threads[2], 12);
}

TEST_F(OffloadBenchTest, TiersMoveBlocksOfAnySize) {
  // 3 blocks; the remainder is ignored.
  TESSERA_ASSERT_OK(MeasureTiers(
      {.size = 10 * 4096, .seconds = 0, .blocks = {3 * 4096}}, Collect()));
  EXPECT_EQ(measured_.size(), 8u);
  ExpectPlausible();
  for (const Measurement& m : measured_) EXPECT_EQ(m.bytes, 9 * 4096);
  EXPECT_FALSE(Of("host", "put", "bf16").ratio.has_value());
  EXPECT_GT(*Of("lossless_fast over host", "get", "bf16").ratio, 1.3);
  EXPECT_GT(*Of("int8 over host", "get", "f32").ratio, 3.8);
  Of("pinned", "get", "bf16");
}

class OffloadBenchFileTest : public OffloadBenchTest {
 protected:
  OffloadBenchFileTest() : directory_(testing::TempDir() + "/bench") {
    std::filesystem::create_directory(directory_);
  }
  ~OffloadBenchFileTest() override {
    EXPECT_TRUE(std::filesystem::is_empty(directory_));
  }

  const std::string directory_;
};

TEST_F(OffloadBenchFileTest, ComparesTheFileTierWithItsDevice) {
  TESSERA_ASSERT_OK(MeasureFileTier({.size = 1 << 20,
                                     .seconds = 0,
                                     .directory = directory_,
                                     .blocks = {4096, 128 << 10},
                                     .depth = 8},
                                    Collect()));
  EXPECT_EQ(measured_.size(), 4u);
  ExpectPlausible();
  for (const Measurement& m : measured_) {
    EXPECT_THAT(m.name, StartsWith("file by "));
    EXPECT_EQ(m.bytes, 1 << 20);
    EXPECT_EQ(m.limit, "device");
    // The note names the mode either way.
    EXPECT_TRUE(m.note == "O_DIRECT" ||
                m.note.find("PAGE CACHE") != std::string::npos)
        << m.note;
  }
}

TEST_F(OffloadBenchFileTest, RejectsTooLittleSpaceBeforeWriting) {
  OffloadBenchOptions options = {
      .size = int64_t{1} << 58, .directory = directory_, .blocks = {4096}};
  EXPECT_THAT(MeasureFileTier(options, Collect()),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr(" free and "), HasSubstr("are needed"),
                             HasSubstr("--dir"))));
  options = {.size = 4096, .directory = "/no/such", .blocks = {4096}};
  EXPECT_THAT(MeasureFileTier(options, Collect()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such")));
  EXPECT_TRUE(measured_.empty());
}

TEST(BlocksTest, DetectsAChangedBlock) {
  offload::HostTier tier(
      std::make_shared<offload::Accounting>("host", offload::kUnlimited));
  TESSERA_ASSERT_OK_AND_ASSIGN(Buffer values,
                               Buffer::Allocate(HostMemory(), 10 * 1000));
  std::memset(values.data(), 7, values.size());
  TESSERA_ASSERT_OK_AND_ASSIGN(
      Blocks blocks, Blocks::Cut(std::move(values), DType::kU8, 1000));
  EXPECT_EQ(blocks.count(), 10);
  TESSERA_ASSERT_OK(blocks.PutAll(tier));
  TESSERA_ASSERT_OK(blocks.GetAll(tier));
  TESSERA_EXPECT_OK(blocks.CheckRoom(tier));
  blocks.room(6)[999] = std::byte{8};
  EXPECT_THAT(
      blocks.CheckRoom(tier),
      StatusIs(absl::StatusCode::kDataLoss,
               HasSubstr("tier host gave other bytes for block \"6\"")));
  TESSERA_ASSERT_OK(blocks.CopyAll());
  TESSERA_EXPECT_OK(blocks.CheckRoom(tier));
  TESSERA_ASSERT_OK(tier.Drop("3"));
  EXPECT_THAT(blocks.GetAll(tier), StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace tessera::offload_bench

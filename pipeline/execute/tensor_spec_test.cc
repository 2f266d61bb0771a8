#include <limits>
#include <random>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/execute/stage.h"

namespace tessera::pipeline {
namespace {

using ::testing::HasSubstr;

auto Refuses(const char* part) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(part));
}

TEST(TensorSpecTest, CountsElementsAndBytes) {
  const TensorSpec spec{DType::kBF16, {4, 3, 2}};
  EXPECT_EQ(spec.elements(), 24);
  EXPECT_EQ(spec.bytes(), 48);
  EXPECT_EQ(spec.ToString(), "bf16 [4,3,2]");
  EXPECT_EQ((TensorSpec{DType::kF64, {}}.bytes()), 8);
  EXPECT_EQ((TensorSpec{DType::kF64, {5, 0}}.bytes()), 0);
}

TEST(TensorSpecTest, RejectsInvalidSpecs) {
  EXPECT_THAT(CheckSpec({static_cast<DType>(99), {1}}), Refuses("number 99"));
  EXPECT_THAT(CheckSpec({DType::kF32, {1, -2}}), Refuses("[1,-2]"));
  EXPECT_THAT(CheckSpec({DType::kF32, Dims(9, 1)}), Refuses("9 dimensions"));
  const int64_t large = int64_t{1} << 60;
  EXPECT_THAT(CheckSpec({DType::kU8, {large, 4}}), IsOk());
  EXPECT_THAT(CheckSpec({DType::kF32, {large, 4}}), Refuses("2^62"));
  EXPECT_THAT(CheckSpec({DType::kU8, {large, large}}), Refuses("a tensor u8"));
}

TEST(TensorSpecTest, RoundTrips) {
  for (const DType dtype : kAllDTypes) {
    for (size_t dims = 0; dims <= TensorSpec::kMostDims; ++dims) {
      TensorSpec spec{dtype, Dims(dims, 3)};
      if (dims > 2) spec.shape[1] = 0;
      TESSERA_ASSERT_OK_AND_ASSIGN(const TensorSpec sent,
                                   FromWire(ToWire(spec)));
      EXPECT_EQ(sent, spec);
    }
  }
}

TEST(TensorSpecTest, ReceivedBytesAreSpecOrRejected) {
  std::mt19937_64 random(1);
  constexpr int64_t kEdges[] = {0,
                                1,
                                2,
                                7,
                                8,
                                9,
                                10,
                                -1,
                                int64_t{1} << 40,
                                int64_t{1} << 62,
                                -5,
                                100,
                                std::numeric_limits<int64_t>::min(),
                                std::numeric_limits<int64_t>::max()};
  int specs = 0;
  for (int i = 0; i < 100'000; ++i) {
    WireSpec wire = ToWire({DType::kF32, {2, 3, 4}});
    for (uint64_t changes = 1 + random() % 3; changes > 0; --changes) {
      wire[random() % wire.size()] = kEdges[random() % std::size(kEdges)];
    }
    const auto spec = FromWire(wire);
    if (!spec.ok()) {
      EXPECT_THAT(spec, StatusIs(absl::StatusCode::kInvalidArgument));
      EXPECT_FALSE(spec.status().message().empty());
      continue;
    }
    ++specs;
    EXPECT_EQ(ToWire(*spec), wire);
    EXPECT_THAT(CheckSpec(*spec), IsOk());
  }
  EXPECT_GT(specs, 100);
}

}  // namespace
}  // namespace tessera::pipeline

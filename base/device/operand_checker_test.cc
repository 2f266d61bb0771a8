#include "base/device/operand_checker.h"

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/device/device.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/layout.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

auto Refused(const char* text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

class OperandCheckerTest : public ::testing::Test {
 protected:
  TensorView View(DType dtype, std::vector<int64_t> shape) {
    return *TensorView::Create(std::span<std::byte>(bytes_), dtype, shape);
  }
  TensorView Strided(std::vector<int64_t> shape, std::vector<int64_t> strides) {
    return *TensorView::Create(std::span<std::byte>(bytes_), DType::kF32,
                               *Layout::Strided(shape, strides));
  }
  alignas(64) std::array<std::byte, 4096> bytes_{};
};

TEST_F(OperandCheckerTest, AcceptsWhatFits) {
  OperandChecker check("Op");
  TESSERA_ASSERT_OK(check.Leads("x", View(DType::kBF16, {3, 4}), 2));
  check.Reads("w", View(DType::kBF16, {4}), {{4}})
      .WritesEither("a", View(DType::kBF16, {4}), {{4}})
      .WritesEither("b", View(DType::kF32, {4}), {{4}})
      .WritesStatistics("s", View(DType::kF32, {3}), {{3}})
      .WritesStatisticsRows("r", Strided({3, 4}, {5, 1}), {{3, 4}})
      .ReadsList("n", View(DType::kI64, {3}), DType::kI64, 3)
      .Requires(true, "");
  EXPECT_THAT(check.status(), IsOk());
}

TEST_F(OperandCheckerTest, RefusesTypesRanksAndShapes) {
  EXPECT_THAT(
      OperandChecker("Op").Leads("x", View(DType::kI32, {3})),
      Refused("Op: \"x\" is of i32; it may be of f64, f32, bf16 or f16"));
  EXPECT_THAT(OperandChecker("Op").Leads("x", View(DType::kF32, {3}), 2),
              Refused("Op: \"x\" has shape [3]; it should have 2 dimensions."));
  OperandChecker check("Op");
  TESSERA_ASSERT_OK(check.Leads("x", View(DType::kF64, {3})));
  EXPECT_THAT(check.Reads("w", View(DType::kF32, {3}), {{3}}).status(),
              Refused("Op: \"w\" is of f32; it should be of f64."));
}

TEST_F(OperandCheckerTest, KeepsTheFirstError) {
  OperandChecker check("Op");
  check.Requires(false, "first.")
      .Requires(false, "second.")
      .ReadsList("n", View(DType::kI64, {1}), DType::kI64, 2);
  EXPECT_THAT(check.status(), Refused("Op: first."));
}

TEST_F(OperandCheckerTest, RefusesMemoryThatItCannotReach) {
  const TensorView device = *TensorView::Create(
      std::span<std::byte>(bytes_), DType::kF32, {{4}}, MemoryKind::kDevice);
  EXPECT_THAT(OperandChecker("Op").Leads("x", device),
              Refused("lies in device memory"));
  EXPECT_THAT(OperandChecker("Op", MemoryKind::kDevice).Leads("x", device),
              IsOk());
  EXPECT_THAT(OperandChecker("Op", MemoryKind::kDevice)
                  .Leads("x", View(DType::kF32, {4})),
              Refused("lies in host memory"));
}

TEST_F(OperandCheckerTest, RefusesListsOfOtherTypesAndLengths) {
  EXPECT_THAT(OperandChecker("Op")
                  .ReadsList("ids", View(DType::kI32, {3}), DType::kI64, 3)
                  .status(),
              Refused("Op: \"ids\" is of i32; it should be of i64."));
  EXPECT_THAT(OperandChecker("Op")
                  .ReadsList("ids", View(DType::kI64, {3}), DType::kI64, 2)
                  .status(),
              Refused("Op: \"ids\" has 3 numbers; it should have 2, one for "
                      "each row."));
  EXPECT_THAT(OperandChecker("Op")
                  .ReadsList("x", Strided({3, 4}, {5, 1}), DType::kF32, 12)
                  .status(),
              Refused("lists should be contiguous"));
}

TEST_F(OperandCheckerTest, RecordsWhatIsReadAndWritten) {
  const TensorView x = View(DType::kF32, {3, 4}), y = Strided({2, 3}, {5, 1});
  OperandChecker check("Op", MemoryKind::kHost, /*records=*/true);
  TESSERA_ASSERT_OK(check.Leads("x", x));
  check.Writes("y", y, {{2, 3}});
  ASSERT_EQ(check.accesses().size(), 2u);
  EXPECT_EQ(check.accesses()[0].data, x.data());
  EXPECT_EQ(check.accesses()[0].size, 48u);
  EXPECT_FALSE(check.accesses()[0].writes);
  EXPECT_EQ(check.accesses()[1].size, 32u);
  EXPECT_TRUE(check.accesses()[1].writes);
  OperandChecker silent("Op");
  TESSERA_ASSERT_OK(silent.Leads("x", x));
  EXPECT_TRUE(silent.accesses().empty());
}

TEST_F(OperandCheckerTest, RefusesStridesThatDoNotServe) {
  EXPECT_THAT(OperandChecker("Op").Leads("x", Strided({3, 4}, {1, 3})),
              Refused("the elements of a row should lie side by side"));
  EXPECT_THAT(OperandChecker("Op")
                  .Writes("y", Strided({3, 4}, {0, 1}), {{3, 4}})
                  .status(),
              Refused("what is written should not overlap itself"));
  EXPECT_THAT(OperandChecker("Op")
                  .ReadsStatistics("s", Strided({3, 4}, {5, 1}), {{3, 4}})
                  .status(),
              Refused("statistics should be contiguous"));
  // Reading may alias rows.
  EXPECT_THAT(OperandChecker("Op").Leads("x", Strided({3, 4}, {0, 1})), IsOk());
}

TEST_F(OperandCheckerTest, RefusesElementsThatAreNotAligned) {
  const TensorView odd = *TensorView::Create(
      std::span<std::byte>(bytes_).subspan(1), DType::kF32, {{4}});
  EXPECT_THAT(OperandChecker("Op").Leads("x", odd),
              Refused("does not begin at a multiple of the 4 bytes"));
}

}  // namespace
}  // namespace tessera

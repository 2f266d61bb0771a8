#include "collectives/reduction/reduction.h"

#include <cmath>
#include <limits>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::HasSubstr;

TEST(ReductionTest, NamesRoundTrip) {
  for (ReduceOp op : kAllReduceOps) {
    EXPECT_THAT(ParseReduceOp(ReduceOpName(op)), IsOkAndHolds(op));
  }
  EXPECT_THAT(ParseReduceOp("avg"), IsOkAndHolds(ReduceOp::kAverage));
  EXPECT_THAT(ParseReduceOp("prod"), IsOkAndHolds(ReduceOp::kProduct));
  EXPECT_THAT(ParseReduceOp("median"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sum, average, product")));
}

TEST(ReductionTest, BitwiseReductionsRequireIntegers) {
  EXPECT_THAT(ParseReduceOp("bxor"), IsOkAndHolds(ReduceOp::kBitXor));
  EXPECT_THAT(Validate(Reduction::BitAnd(), DType::kBF16),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("bit_and of bf16; bits are reduced of "
                                 "integers only: i64 i32 i8 u8")));
}

TEST(ReductionTest, EveryReducibleTypeHasEveryReduction) {
  for (DType dtype : kAllDTypes) {
    for (ReduceOp op : kAllReduceOps) {
      const bool is_f8 = dtype == DType::kF8E4M3 || dtype == DType::kF8E5M2;
      const bool has = IsInteger(dtype) || !IsBitwise(op);
      EXPECT_EQ(Validate({op, 3.0}, dtype).ok(), !is_f8 && has);
    }
  }
}

TEST(ReductionTest, RejectsFactorsThatTypeCannotRepresent) {
  const auto scaled = [](double scale) { return Reduction::ScaledSum(scale); };
  EXPECT_THAT(Validate(scaled(0.5), DType::kBF16), IsOk());
  EXPECT_THAT(Validate(scaled(0.5), DType::kI32),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("factor of a scaled sum of i32 is 0.5")));
  EXPECT_THAT(Validate(scaled(127), DType::kI8), IsOk());
  EXPECT_THAT(Validate(scaled(-128), DType::kI8), IsOk());
  EXPECT_FALSE(Validate(scaled(128), DType::kI8).ok());
  EXPECT_FALSE(Validate(scaled(-1), DType::kU8).ok());
  EXPECT_THAT(Validate(scaled(255), DType::kU8), IsOk());
  EXPECT_FALSE(Validate(scaled(std::ldexp(1.0, 63)), DType::kI64).ok());
  EXPECT_THAT(Validate(scaled(-std::ldexp(1.0, 63)), DType::kI64), IsOk());
  EXPECT_THAT(
      Validate(scaled(std::numeric_limits<double>::infinity()), DType::kF32),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("must be finite")));
  EXPECT_FALSE(Validate(scaled(std::nan("")), DType::kF64).ok());
  // Other reductions have no factor.
  EXPECT_THAT(Validate({ReduceOp::kSum, 0.5}, DType::kI32), IsOk());
}

TEST(ReductionTest, RejectsForeignBytes) {
  EXPECT_FALSE(Validate({static_cast<ReduceOp>(17), 1}, DType::kF32).ok());
  EXPECT_FALSE(Validate(Reduction::Sum(), static_cast<DType>(99)).ok());
  EXPECT_EQ(ReduceOpName(static_cast<ReduceOp>(17)), "invalid");
}

}  // namespace
}  // namespace tessera::collectives

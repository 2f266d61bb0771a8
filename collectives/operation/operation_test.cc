#include "collectives/operation/operation.h"

#include <limits>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Rank kMe(1);
constexpr int64_t kWorld = 4;

class ValidateOperationTest : public ::testing::Test {
 protected:
  Buffer Some(int64_t count, DType dtype = DType::kF32) {
    return Buffer(memory_.data(), count, dtype);
  }
  Buffer Other(int64_t count, DType dtype = DType::kF32) {
    return Buffer(other_.data(), count, dtype);
  }
  void Refused(const Operation& operation, const std::string& part) {
    EXPECT_THAT(
        ValidateOperation(operation, kMe, kWorld),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr(part),
                       HasSubstr(std::string(OpKindName(operation.kind))))));
  }
  void Accepted(const Operation& operation) {
    EXPECT_THAT(ValidateOperation(operation, kMe, kWorld), IsOk());
  }

  std::vector<double> memory_ = std::vector<double>(64);
  std::vector<double> other_ = std::vector<double>(64);
};

TEST_F(ValidateOperationTest, AcceptsEveryKindInPlaceAndOutOfPlace) {
  const Reduction sum = Reduction::Sum();
  Accepted(AllReduceOf(Some(8), Other(8), sum));
  Accepted(AllReduceOf(Some(8), Some(8), sum));
  Accepted(ReduceOf(Some(8), Other(8), sum, kMe));
  Accepted(ReduceOf(Some(8), Buffer(), sum, Rank(0)));
  Accepted(ReduceScatterOf(Some(8), Other(2), sum));
  Accepted(ReduceScatterOf(Some(8), Some(8).Slice(2, 2), sum));
  Accepted(ReduceScatterOf(Some(8), Other(0), sum, {5, 0, 3, 0}));
  Accepted(AllGatherOf(Some(2), Other(8)));
  Accepted(AllGatherOf(Some(8).Slice(2, 2), Some(8)));
  Accepted(AllGatherOf(Some(3), Other(8), {5, 3, 0, 0}));
  Accepted(BroadcastOf(ConstBuffer(), Other(8), Rank(0)));
  Accepted(BroadcastOf(Some(8), Some(8), kMe));
  Accepted(GatherOf(Some(2), Other(8), kMe));
  Accepted(GatherOf(Some(2), Buffer(), Rank(3)));
  Accepted(ScatterOf(Some(8), Other(2), kMe));
  Accepted(ScatterOf(Some(8), Some(8).Slice(2, 2), kMe));
  Accepted(AllToAllOf(Some(8), Other(8)));
  Accepted(AllToAllOf(Some(8), Some(8)));
  Accepted(AllToAllOf(Some(8), Other(2), {1, 2, 5, 0}, {0, 2, 0, 0}));
  Accepted(BarrierOf());
  Accepted(SendOf(Some(8), Rank(1)));
  Accepted(ReceiveOf(Some(8), Rank(3)));
  Accepted(SendReceiveOf(Some(8), Rank(0), Other(5), Rank(2)));
}

TEST_F(ValidateOperationTest, AcceptsEmptyOperations) {
  Accepted(AllReduceOf(ConstBuffer(nullptr, 0, DType::kF32),
                       Buffer(nullptr, 0, DType::kF32), Reduction::Max()));
  Accepted(SendOf(ConstBuffer(), Rank(0)));
}

TEST_F(ValidateOperationTest, RejectsRanksOutsideTheGroup) {
  Refused(BroadcastOf(Some(8), Some(8), Rank(4)), "root 4 is not in the group");
  Refused(SendOf(Some(8), Rank(-1)), "destination -1");
  Refused(ReceiveOf(Some(8), Rank(7)), "source 7");
  Refused(SendReceiveOf(Some(8), Rank(0), Other(8), Rank(4)), "source 4");
}

TEST_F(ValidateOperationTest, RejectsBadMemory) {
  Refused(SendOf(ConstBuffer(nullptr, 3, DType::kF32), Rank(0)),
          "input is null, but has 3 elements");
  Refused(SendOf(ConstBuffer(memory_.data(), -1, DType::kF32), Rank(0)),
          "-1 elements");
  Refused(SendOf(ConstBuffer(memory_.data(),
                             std::numeric_limits<int64_t>::max(), DType::kF32),
                 Rank(0)),
          "elements");
  Refused(SendOf(ConstBuffer(reinterpret_cast<char*>(memory_.data()) + 2, 3,
                             DType::kF32),
                 Rank(0)),
          "not aligned to its 4-byte elements of type f32");
  Refused(
      SendOf(ConstBuffer(memory_.data(), 3, static_cast<DType>(77)), Rank(0)),
      "77 is not an element type");
}

TEST_F(ValidateOperationTest, RejectsMismatchedCounts) {
  const Reduction sum = Reduction::Sum();
  Refused(AllReduceOf(Some(8), Other(7), sum), "output has 7 elements; 8");
  Refused(ReduceScatterOf(Some(9), Other(2), sum), "input has 9 elements; 8");
  Refused(AllGatherOf(Some(2), Other(9)), "output has 9 elements; 8");
  Refused(AllToAllOf(Some(9), Other(9)), "which 4 ranks do not divide");
  Refused(AllToAllOf(Some(8), Other(4)), "output has 4 elements; 8");
  Refused(GatherOf(Some(2), Other(6), kMe), "output has 6 elements; 8");
  Refused(ScatterOf(Some(6), Other(2), kMe), "input has 6 elements; 8");
}

TEST_F(ValidateOperationTest, RejectsMismatchedUnevenCounts) {
  Refused(AllGatherOf(Some(3), Other(8), {5, 3, 0}), "3 counts for 4 ranks");
  Refused(AllGatherOf(Some(3), Other(8), {5, 3, 1, -1}),
          "counts of rank 3 is -1");
  Refused(AllGatherOf(Some(2), Other(8), {5, 3, 0, 0}),
          "input has 2 elements; 3");
  Refused(AllGatherOf(Some(3), Other(9), {5, 3, 0, 0}),
          "output has 9 elements; 8");
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 2;
  Refused(AllGatherOf(Some(3), Other(9), {kHuge, kHuge, kHuge, kHuge}),
          "counts of rank 0");
  Refused(AllToAllOf(Some(8), Other(8), {2, 2, 2, 2}, {2, 3, 2, 1}),
          "sends itself 2 elements but receives 3");
  Refused(AllToAllOf(Some(8), Other(8), {2, 2, 2, 2}, {}), "0 receive counts");
  Refused(AllToAllOf(Some(8), Other(8), {}, {2, 2, 2, 2}), "0 counts");
  Operation broadcast = BroadcastOf(Some(8), Some(8), kMe);
  broadcast.counts = {2, 2, 2, 2};
  Refused(broadcast, "no uneven form");
}

TEST_F(ValidateOperationTest, RejectsMismatchedOrIrreducibleTypes) {
  Refused(AllReduceOf(Some(4), Other(4, DType::kF64), Reduction::Sum()),
          "input is of f32, the output of f64");
  Refused(AllReduceOf(Some(4, DType::kF8E4M3), Other(4, DType::kF8E4M3),
                      Reduction::Sum()),
          "fp8_e4m3");
  Accepted(AllGatherOf(Some(1, DType::kF8E4M3), Other(4, DType::kF8E4M3)));
}

TEST_F(ValidateOperationTest, RejectsOverlapOtherThanInPlace) {
  const Reduction sum = Reduction::Sum();
  Refused(AllReduceOf(Some(8), Some(16).Slice(4, 8), sum), "overlap");
  Refused(ReduceScatterOf(Some(8), Some(8).Slice(4, 2), sum), "overlap");
  Refused(AllGatherOf(Some(8).Slice(4, 2), Some(8)), "overlap");
  Refused(AllToAllOf(Some(8), Some(8), {2, 2, 2, 2}, {2, 2, 2, 2}), "overlap");
  Refused(SendReceiveOf(Some(8), Rank(0), Some(8), Rank(0)), "overlap");
  Accepted(AllReduceOf(Some(8), Some(16).Slice(8, 8), sum));
}

TEST(OperationTest, NamesRoundTrip) {
  for (int i = 0; i < 12; ++i) {
    const auto kind = static_cast<OpKind>(i);
    EXPECT_THAT(ParseOpKind(OpKindName(kind)), IsOkAndHolds(kind));
  }
  EXPECT_EQ(OpKindName(static_cast<OpKind>(12)), "invalid");
  EXPECT_THAT(ParseOpKind("allreduce"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("all_reduce, reduce")));
}

TEST(OperationTest, MessageCountIsWholeMessageOnEveryRank) {
  const Buffer two(nullptr, 2, DType::kF32);
  const Buffer eight(nullptr, 8, DType::kF32);
  const Reduction sum = Reduction::Sum();
  EXPECT_EQ(MessageCount(AllReduceOf(eight, eight, sum), 4), 8);
  EXPECT_EQ(MessageCount(ReduceScatterOf(eight, two, sum), 4), 8);
  EXPECT_EQ(MessageCount(AllGatherOf(two, eight), 4), 8);
  // Ranks other than the root omit one side.
  EXPECT_EQ(MessageCount(GatherOf(two, Buffer(), Rank(0)), 4), 8);
  EXPECT_EQ(MessageCount(ScatterOf(ConstBuffer(), two, Rank(0)), 4), 8);
  EXPECT_EQ(MessageCount(BroadcastOf(ConstBuffer(), two, Rank(0)), 4), 2);
  EXPECT_EQ(MessageCount(AllToAllOf(eight, eight), 4), 8);
  EXPECT_EQ(MessageCount(BarrierOf(), 4), 0);
}

TEST(OperationTest, DescribesOperation) {
  const Buffer two(nullptr, 2, DType::kBF16);
  EXPECT_EQ(DescribeOperation(ReduceOf(two, two, Reduction::Max(), Rank(3))),
            "reduce of 2 bf16, max, root 3");
  EXPECT_EQ(DescribeOperation(SendReceiveOf(two, Rank(1), two, Rank(2))),
            "send_receive of 2 bf16 to rank 1 from rank 2");
  EXPECT_EQ(DescribeOperation(AllGatherOf(two, two, {2, 0})),
            "all_gather of 2 bf16, uneven");
  EXPECT_EQ(DescribeOperation(BarrierOf()), "barrier");
}

}  // namespace
}  // namespace tessera::collectives

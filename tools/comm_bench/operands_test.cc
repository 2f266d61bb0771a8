#include "tools/comm_bench/operands.h"

#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::tools {

namespace {

using collectives::Buffer;
using collectives::Communicator;
using collectives::kAllReduceOps;
using collectives::kCollectiveKinds;
using collectives::Operation;
using collectives::OpKind;
using collectives::ReduceOp;
using collectives::Reduction;
using collectives::RunRanks;
using ::testing::Each;
using ::testing::HasSubstr;
using topology::Rank;

int64_t BytesOf(OpKind kind, DType dtype, int64_t bytes, int64_t world) {
  const Operation operation =
      MakeOperation(kind, dtype, Reduction::Sum(), bytes, Rank(0), world);
  return MessageCount(operation, world) * SizeInBytes(dtype);
}

TEST(MakeOperationTest, CountsAllBlocksAndIsNeverEmpty) {
  EXPECT_EQ(BytesOf(OpKind::kAllReduce, DType::kF32, 67, 4), 64);
  EXPECT_EQ(BytesOf(OpKind::kAllGather, DType::kF32, 67, 4), 64);
  EXPECT_EQ(BytesOf(OpKind::kAllGather, DType::kF32, 8, 4), 16);
  EXPECT_EQ(BytesOf(OpKind::kBarrier, DType::kF32, 64, 4), 0);
  EXPECT_EQ(BytesOf(OpKind::kScatter, DType::kBF16, 32, 4), 32);
  EXPECT_EQ(BytesOf(OpKind::kReduce, DType::kF64, 1, 4), 8);
}

TEST(MakeOperationTest, AllRanksHaveTheSameMessage) {
  for (const OpKind kind : kCollectiveKinds) {
    for (const int64_t rank : {0, 1, 2}) {
      const Operation operation = MakeOperation(
          kind, DType::kF32, Reduction::Sum(), 240, Rank(rank), 3);
      EXPECT_EQ(MessageCount(operation, 3), kind == OpKind::kBarrier ? 0 : 60)
          << kind << " " << rank;
    }
  }
}

// `count` elements in each block.
OperandShape ShapeOf(const Communicator& communicator, OpKind kind,
                     int64_t count) {
  const bool has_blocks =
      !collectives::HasRoot(kind)
          ? kind != OpKind::kAllReduce
          : kind == OpKind::kGather || kind == OpKind::kScatter;
  const int64_t world = communicator.size();
  return {.operation = MakeOperation(kind, DType::kF32, Reduction::Sum(),
                                     4 * count * (has_blocks ? world : 1),
                                     communicator.rank(), world)};
}

absl::Status RunAndCheck(Communicator& communicator,
                         const OperandShape& shape) {
  TESSERA_ASSIGN_OR_RETURN(Operands operands,
                           Operands::Allocate(communicator, shape));
  for (int64_t iteration = 0; iteration < 3; ++iteration) {
    TESSERA_RETURN_IF_ERROR(operands.Rewrite(iteration));
    for (int64_t slot = 0; slot < operands.slots(); ++slot) {
      TESSERA_RETURN_IF_ERROR(communicator.Run(operands.operation(slot)));
    }
    TESSERA_RETURN_IF_ERROR(operands.Check(iteration));
  }
  return absl::OkStatus();
}

TEST(OperandsTest, EveryCollectivePassesItsOwnCheck) {
  for (const int64_t ranks : {1, 2, 5}) {
    EXPECT_THAT(RunRanks(ranks,
                         [](Communicator& communicator) -> absl::Status {
                           for (const OpKind kind : kCollectiveKinds) {
                             for (int variant = 0; variant < 4; ++variant) {
                               OperandShape shape =
                                   ShapeOf(communicator, kind, 777);
                               shape.in_place = (variant & 1) != 0;
                               shape.registered = (variant & 2) != 0;
                               shape.slots = shape.in_place ? 3 : 1;
                               TESSERA_RETURN_IF_ERROR(
                                   RunAndCheck(communicator, shape));
                             }
                           }
                           return absl::OkStatus();
                         }),
                Each(IsOk()));
  }
}

// If no data moves, the ranks that should have received data report it.
TEST(OperandsTest, DetectsAnOperationThatDoesNothing) {
  EXPECT_THAT(
      RunRanks(2,
               [](Communicator& communicator) -> absl::Status {
                 for (const OpKind kind : kCollectiveKinds) {
                   if (kind == OpKind::kBarrier) continue;
                   const OperandShape shape = ShapeOf(communicator, kind, 100);
                   TESSERA_ASSIGN_OR_RETURN(
                       Operands operands,
                       Operands::Allocate(communicator, shape));
                   TESSERA_RETURN_IF_ERROR(operands.Rewrite(1));
                   const absl::Status status = operands.Check(1);
                   const bool receives = operands.operation(0).output.count > 0;
                   EXPECT_EQ(status.ok(), !receives) << kind;
                   if (receives) {
                     EXPECT_THAT(status.message(), HasSubstr("wrong result"));
                   }
                 }
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(OperandsTest, DetectsOneWrongSlotOfABatch) {
  EXPECT_THAT(RunRanks(2,
                       [](Communicator& communicator) -> absl::Status {
                         OperandShape shape =
                             ShapeOf(communicator, OpKind::kAllReduce, 10);
                         shape.in_place = true;
                         shape.slots = 3;
                         TESSERA_ASSIGN_OR_RETURN(
                             Operands operands,
                             Operands::Allocate(communicator, shape));
                         TESSERA_RETURN_IF_ERROR(operands.Rewrite(0));
                         for (const int64_t slot : {0, 2}) {
                           TESSERA_RETURN_IF_ERROR(
                               communicator.Run(operands.operation(slot)));
                         }
                         EXPECT_FALSE(operands.Check(0).ok());
                         return communicator.Run(operands.operation(1));
                       }),
              Each(IsOk()));
}

class Memory {
 public:
  Memory(DType dtype, int64_t count)
      : dtype_(dtype),
        count_(count),
        bytes_(static_cast<size_t>(count * SizeInBytes(dtype))) {}

  Buffer buffer() { return Buffer(bytes_.data(), count_, dtype_); }

  std::vector<double> Doubles() {
    std::vector<double> values(static_cast<size_t>(count_));
    EXPECT_THAT(Convert(dtype_, bytes_, DType::kF64,
                        std::as_writable_bytes(std::span(values))),
                IsOk());
    return values;
  }
  void Set(const std::vector<double>& values) {
    EXPECT_THAT(
        Convert(DType::kF64, std::as_bytes(std::span(values)), dtype_, bytes_),
        IsOk());
  }

 private:
  DType dtype_;
  int64_t count_;
  std::vector<std::byte> bytes_;
};

Reduction ReductionOf(ReduceOp op, DType dtype) {
  Reduction reduction;
  reduction.op = op;
  if (op == ReduceOp::kScaledSum) reduction.scale = IsFloating(dtype) ? 0.5 : 2;
  return reduction;
}

// Computed directly, in float64.
std::vector<double> ReduceAll(const Pattern& pattern, DType dtype,
                              const Reduction& reduction, int64_t world,
                              int64_t count, int64_t first, int64_t iteration) {
  std::vector<double> result;
  for (int64_t r = 0; r < world; ++r) {
    Memory memory(dtype, count);
    pattern.Fill(memory.buffer(), Rank(r), first, iteration);
    const std::vector<double> own = memory.Doubles();
    if (r == 0) result.assign(own.size(), reduction.op == ReduceOp::kProduct);
    for (size_t i = 0; i < own.size(); ++i) {
      const double x = own[i];
      double& y = result[i];
      switch (reduction.op) {
        case ReduceOp::kProduct:
          y *= x;
          break;
        case ReduceOp::kMin:
          y = r == 0 ? x : std::min(x, y);
          break;
        case ReduceOp::kMax:
          y = r == 0 ? x : std::max(x, y);
          break;
        case ReduceOp::kBitAnd:
        case ReduceOp::kBitOr:
        case ReduceOp::kBitXor: {
          const auto a = static_cast<int64_t>(x), b = static_cast<int64_t>(y);
          const int64_t both = reduction.op == ReduceOp::kBitAnd  ? (a & b)
                               : reduction.op == ReduceOp::kBitOr ? (a | b)
                                                                  : (a ^ b);
          y = r == 0 ? x : static_cast<double>(both);
          break;
        }
        default:
          y += reduction.scale * x;
      }
    }
  }
  if (reduction.op == ReduceOp::kAverage) {
    for (double& y : result) y /= static_cast<double>(world);
  }
  return result;
}

TEST(PatternTest, ReductionsOfAllRanksAreExact) {
  constexpr int64_t kCount = 3000;  // Several periods.
  for (const DType dtype : kAllDTypes) {
    if (!collectives::IsReducible(dtype)) continue;
    for (const ReduceOp op : kAllReduceOps) {
      if (!collectives::IsReducible(dtype, op)) continue;
      for (const int64_t world : {1, 2, 3, 7, 8}) {
        const Reduction reduction = ReductionOf(op, dtype);
        TESSERA_ASSERT_OK_AND_ASSIGN(const Pattern pattern,
                                     Pattern::Create(dtype, reduction, world));
        const std::vector<double> expected =
            ReduceAll(pattern, dtype, reduction, world, kCount, 17, 5);
        Memory memory(dtype, kCount);
        memory.Set(expected);
        ASSERT_EQ(memory.Doubles(), expected);  // All values are representable.
        EXPECT_THAT(pattern.CheckReduced(memory.buffer(), 17, 5), IsOk())
            << DTypeName(dtype) << " " << ReduceOpName(op) << " " << world;
      }
    }
  }
}

TEST(PatternTest, FindsOneWrongElementAnywhere) {
  constexpr int64_t kCount = 2100;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Pattern pattern, Pattern::Create(DType::kF32, Reduction::Sum(), 4));
  Memory memory(DType::kF32, kCount);
  const std::vector<double> expected =
      ReduceAll(pattern, DType::kF32, Reduction::Sum(), 4, kCount, 0, 1);
  for (const size_t at : {0, 1, 1020, 1021, 2099}) {
    std::vector<double> wrong = expected;
    wrong[at] += 1;
    memory.Set(wrong);
    EXPECT_THAT(pattern.CheckReduced(memory.buffer(), 0, 1),
                StatusIs(absl::StatusCode::kInternal,
                         HasSubstr("element " + std::to_string(at) + " is ")));
  }
}

TEST(PatternTest, AverageMayDifferByItsLastBitOnly) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Pattern pattern,
      Pattern::Create(DType::kF32, Reduction::Average(), 3));
  std::vector<double> values =
      ReduceAll(pattern, DType::kF32, Reduction::Average(), 3, 100, 0, 0);
  Memory memory(DType::kF32, 100);
  size_t at = 0;
  while (values[at] == 0) ++at;
  const float exact = static_cast<float>(values[at]);
  values[at] = std::nextafterf(exact, 1e9f);
  memory.Set(values);
  EXPECT_THAT(pattern.CheckReduced(memory.buffer(), 0, 0), IsOk());
  values[at] = exact * 1.0001;
  memory.Set(values);
  EXPECT_FALSE(pattern.CheckReduced(memory.buffer(), 0, 0).ok());
}

TEST(PatternTest, RejectsOldResultsAndThoseOfOtherRanks) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Pattern pattern, Pattern::Create(DType::kI32, Reduction::Sum(), 4));
  Memory memory(DType::kI32, 64);
  pattern.Fill(memory.buffer(), Rank(2), 10, 3);
  EXPECT_THAT(pattern.CheckCopied(memory.buffer(), Rank(2), 10, 3), IsOk());
  EXPECT_FALSE(pattern.CheckCopied(memory.buffer(), Rank(1), 10, 3).ok());
  EXPECT_FALSE(pattern.CheckCopied(memory.buffer(), Rank(2), 11, 3).ok());
  EXPECT_FALSE(pattern.CheckCopied(memory.buffer(), Rank(2), 10, 2).ok());
  EXPECT_FALSE(pattern.CheckReduced(memory.buffer(), 10, 3).ok());
}

TEST(PatternTest, IrreducibleTypesCanBeCopied) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Pattern pattern,
      Pattern::Create(DType::kF8E4M3, Reduction::Max(), 4));
  Memory memory(DType::kF8E4M3, 64);
  pattern.Fill(memory.buffer(), Rank(2), 0, 0);
  EXPECT_THAT(pattern.CheckCopied(memory.buffer(), Rank(2), 0, 0), IsOk());
}

TEST(PatternTest, RejectsInexactReductions) {
  EXPECT_THAT(Pattern::Create(DType::kI8, Reduction::Average(), 200),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("average of i8 over 200 ranks")));
}

}  // namespace

}  // namespace tessera::tools

#include "tools/comm_bench/operands.h"

#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using collectives::Communicator;
using collectives::kCollectiveKinds;
using collectives::OpKind;
using collectives::RunRanks;
using ::testing::Each;
using ::testing::HasSubstr;

TEST(CountTest, MessagesAreAllBlocksTogetherAndNeverEmpty) {
  EXPECT_EQ(CountFor(OpKind::kAllReduce, DType::kF32, 64, 4), 16);
  EXPECT_EQ(CountFor(OpKind::kAllGather, DType::kF32, 64, 4), 4);
  EXPECT_EQ(CountFor(OpKind::kAllGather, DType::kF32, 8, 4), 1);
  EXPECT_EQ(CountFor(OpKind::kBarrier, DType::kF32, 64, 4), 0);
  EXPECT_EQ(MessageBytes(OpKind::kAllReduce, DType::kF32, 16, 4), 64);
  EXPECT_EQ(MessageBytes(OpKind::kScatter, DType::kBF16, 4, 4), 32);
}

absl::Status RunAndCheck(Communicator& communicator,
                         const OperandShape& shape) {
  TESSERA_ASSIGN_OR_RETURN(Operands operands,
                           Operands::Allocate(communicator, shape));
  for (int64_t iteration = 0; iteration < 3; ++iteration) {
    operands.Rewrite(iteration);
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
                               OperandShape shape;
                               shape.kind = kind;
                               shape.count = kind == OpKind::kBarrier ? 0 : 777;
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

// Nothing is communicated: whoever must have received something notices.
TEST(OperandsTest, AnOperationThatDidNothingIsCaught) {
  EXPECT_THAT(
      RunRanks(2,
               [](Communicator& communicator) -> absl::Status {
                 for (const OpKind kind : kCollectiveKinds) {
                   if (kind == OpKind::kBarrier) continue;
                   OperandShape shape;
                   shape.kind = kind;
                   shape.count = 100;
                   TESSERA_ASSIGN_OR_RETURN(
                       Operands operands,
                       Operands::Allocate(communicator, shape));
                   operands.Rewrite(1);
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

TEST(OperandsTest, OneWrongSlotOfABatchIsCaught) {
  EXPECT_THAT(RunRanks(2,
                       [](Communicator& communicator) -> absl::Status {
                         OperandShape shape;
                         shape.count = 10;
                         shape.in_place = true;
                         shape.slots = 3;
                         TESSERA_ASSIGN_OR_RETURN(
                             Operands operands,
                             Operands::Allocate(communicator, shape));
                         operands.Rewrite(0);
                         for (const int64_t slot : {0, 2}) {
                           TESSERA_RETURN_IF_ERROR(
                               communicator.Run(operands.operation(slot)));
                         }
                         EXPECT_FALSE(operands.Check(0).ok());
                         return communicator.Run(operands.operation(1));
                       }),
              Each(IsOk()));
}

}  // namespace
}  // namespace tessera::tools

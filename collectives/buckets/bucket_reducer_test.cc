#include "collectives/buckets/bucket_reducer.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

using Tensors = std::vector<std::vector<float>>;

Tensors MakeTensors(const std::vector<size_t>& sizes) {
  Tensors tensors;
  for (size_t size : sizes) tensors.emplace_back(size);
  return tensors;
}

// Element j of tensor i on a rank in a round: small whole numbers.
float ValueOf(int64_t rank, size_t i, size_t j, int round) {
  return static_cast<float>((rank + 1) * static_cast<int64_t>(i + j % 7 + 1) +
                            round);
}

void Fill(Tensors& tensors, int64_t rank, int round) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (size_t j = 0; j < tensors[i].size(); ++j) {
      tensors[i][j] = ValueOf(rank, i, j, round);
    }
  }
}

absl::Status CheckSums(const Tensors& tensors, int64_t ranks, int round) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (size_t j = 0; j < tensors[i].size(); ++j) {
      float sum = 0;
      for (int64_t r = 0; r < ranks; ++r) sum += ValueOf(r, i, j, round);
      if (tensors[i][j] != sum) return absl::InternalError("wrong sum");
    }
  }
  return absl::OkStatus();
}

std::vector<Buffer> BuffersOf(Tensors& tensors) {
  std::vector<Buffer> buffers;
  for (auto& tensor : tensors) buffers.emplace_back(std::span(tensor));
  return buffers;
}

const std::vector<size_t> kSizes = {3, 1000, 0, 17, 5000, 1, 64, 333, 2, 900};

TEST(BucketReducerTest, EveryTensorIsReducedWhateverTheOrderOnEachRank) {
  constexpr int64_t kRanks = 3;
  EXPECT_THAT(
      RunRanks(kRanks,
               [&](Communicator& communicator) -> absl::Status {
                 Tensors tensors = MakeTensors(kSizes);
                 BucketOptions options;
                 options.bucket_bytes = 4096;
                 options.reduction = Reduction::Sum();
                 TESSERA_ASSIGN_OR_RETURN(
                     auto reducer,
                     BucketReducer::Create(communicator, BuffersOf(tensors),
                                           options));
                 std::mt19937_64 random(
                     static_cast<uint64_t>(communicator.rank().value()));
                 std::vector<int64_t> order(kSizes.size());
                 std::iota(order.begin(), order.end(), 0);
                 for (int round = 0; round < 12; ++round) {
                   Fill(tensors, communicator.rank().value(), round);
                   std::shuffle(order.begin(), order.end(), random);
                   for (int64_t index : order) {
                     TESSERA_RETURN_IF_ERROR(reducer->MarkReady(index));
                   }
                   TESSERA_RETURN_IF_ERROR(reducer->Finish());
                   TESSERA_RETURN_IF_ERROR(CheckSums(tensors, kRanks, round));
                 }
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(BucketReducerTest, FewMessagesAreSentAndInTheOrderOfReadiness) {
  EXPECT_THAT(
      RunRanks(2,
               [&](Communicator& communicator) -> absl::Status {
                 Tensors tensors = MakeTensors(std::vector<size_t>(40, 256));
                 BucketOptions options;
                 options.bucket_bytes = 10 * 1024;  // Ten tensors.
                 TESSERA_ASSIGN_OR_RETURN(
                     auto reducer,
                     BucketReducer::Create(communicator, BuffersOf(tensors),
                                           options));
                 for (int64_t i = 39; i >= 0; --i) {
                   TESSERA_RETURN_IF_ERROR(reducer->MarkReady(i));
                 }
                 TESSERA_RETURN_IF_ERROR(reducer->Finish());
                 EXPECT_EQ(reducer->plan().buckets.front().members.front(), 39);
                 int64_t sent = 0;
                 for (const auto& [key, totals] : communicator.Statistics()) {
                   if (key.first == OpKind::kAllReduce) sent += totals.count;
                 }
                 EXPECT_EQ(sent, 4);
                 // Now the first bucket leaves after ten tensors.
                 for (int64_t i = 39; i >= 30; --i) {
                   TESSERA_RETURN_IF_ERROR(reducer->MarkReady(i));
                 }
                 TESSERA_RETURN_IF_ERROR(communicator.Barrier());
                 sent = 0;
                 for (const auto& [key, totals] : communicator.Statistics()) {
                   if (key.first == OpKind::kAllReduce) sent += totals.count;
                 }
                 EXPECT_EQ(sent, 5);
                 for (int64_t i = 29; i >= 0; --i) {
                   TESSERA_RETURN_IF_ERROR(reducer->MarkReady(i));
                 }
                 return reducer->Finish();
               }),
      Each(IsOk()));
}

TEST(BucketReducerTest, TensorsMayLiveInTheirBuckets) {
  EXPECT_THAT(
      RunRanks(
          4,
          [&](Communicator& communicator) -> absl::Status {
            const std::vector<Buffer> tensors = {
                Buffer(nullptr, 100, DType::kF32),
                Buffer(nullptr, 7, DType::kF64),
                Buffer(nullptr, 100, DType::kF32)};
            TESSERA_ASSIGN_OR_RETURN(
                auto reducer, BucketReducer::Create(communicator, tensors));
            for (int round = 0; round < 3; ++round) {
              for (int64_t i : {2, 1, 0}) {
                TESSERA_ASSIGN_OR_RETURN(const Buffer view, reducer->ViewOf(i));
                if (view.dtype == DType::kF64) {
                  std::fill_n(static_cast<double*>(view.data), view.count,
                              static_cast<double>(communicator.rank().value()));
                } else {
                  std::fill_n(static_cast<float*>(view.data), view.count,
                              static_cast<float>(i + 4 * round));
                }
                TESSERA_RETURN_IF_ERROR(reducer->MarkReady(i));
              }
              TESSERA_RETURN_IF_ERROR(reducer->Finish());
              TESSERA_ASSIGN_OR_RETURN(const Buffer mean, reducer->ViewOf(1));
              EXPECT_EQ(static_cast<double*>(mean.data)[6], 1.5);
              TESSERA_ASSIGN_OR_RETURN(const Buffer same, reducer->ViewOf(2));
              EXPECT_EQ(static_cast<float*>(same.data)[99],
                        static_cast<float>(2 + 4 * round));
            }
            return absl::OkStatus();
          }),
      Each(IsOk()));
}

TEST(BucketReducerTest, RefusesMisuseAndGoesOn) {
  EXPECT_THAT(
      RunRanks(
          2,
          [&](Communicator& communicator) -> absl::Status {
            Tensors tensors = MakeTensors({4, 4});
            EXPECT_THAT(BucketReducer::Create(communicator, BuffersOf(tensors),
                                              {.bucket_bytes = 0}),
                        StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("0 bytes")));
            EXPECT_THAT(BucketReducer::Create(
                            communicator, {Buffer(nullptr, 4, DType::kF8E4M3)}),
                        StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("tensor 0")));
            TESSERA_ASSIGN_OR_RETURN(
                auto reducer,
                BucketReducer::Create(communicator, BuffersOf(tensors),
                                      {.reduction = Reduction::Sum()}));
            Fill(tensors, communicator.rank().value(), 0);
            TESSERA_RETURN_IF_ERROR(reducer->MarkReady(1));
            EXPECT_THAT(reducer->MarkReady(1),
                        StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("already ready")));
            EXPECT_THAT(reducer->MarkReady(2),
                        StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("no tensor 2")));
            EXPECT_THAT(reducer->Finish(),
                        StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("1 of 2 tensors are not ready: 0")));
            TESSERA_RETURN_IF_ERROR(reducer->MarkReady(0));
            TESSERA_RETURN_IF_ERROR(reducer->Finish());
            return CheckSums(tensors, 2, 0);
          }),
      Each(IsOk()));
}

}  // namespace
}  // namespace tessera::collectives

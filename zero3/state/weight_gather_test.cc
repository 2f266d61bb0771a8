#include "zero3/state/weight_gather.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <random>
#include <vector>

#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/state/int8_blocks.h"

namespace tessera::zero3 {
namespace {

using collectives::Communicator;
using collectives::OpKind;
using collectives::RunRanks;
using ::testing::Each;
using ::testing::HasSubstr;

using Bytes = std::vector<std::byte>;
constexpr ParameterId kWeight(1);

StateContext SeatOf(int64_t elements, DType dtype, LayoutKind kind,
                    int64_t ranks, int64_t rank,
                    int64_t budget = offload::kUnlimited) {
  ModelParameters::Builder builder;
  builder.Add({.name = "before", .shape = {3}, .dtype = dtype});
  builder.Add({.name = "weight", .shape = {elements}, .dtype = dtype});
  return {
      *StateLayout::Create(*builder.Build(), {.kind = kind, .ranks = ranks}),
      topology::Rank(rank),
      std::make_shared<offload::Accounting>("device", budget)};
}

// The slot of `rank`; zeros follow the parameter's elements.
Bytes SlotOf(const StateContext& context, int64_t rank, uint64_t seed = 0) {
  const Extent extent = context.layout.ExtentOf(topology::Rank(rank), kWeight);
  std::vector<double> values(static_cast<size_t>(extent.slot));
  for (int64_t i = 0; i < extent.size(); ++i) {
    std::mt19937_64 random(static_cast<uint64_t>(extent.begin + i) + seed);
    values[static_cast<size_t>(i)] =
        std::normal_distribution<double>()(random) *
        std::pow(8.0, static_cast<double>((extent.begin + i) / 100 % 5));
  }
  const DType dtype = context.model()[kWeight].dtype();
  Bytes bytes(values.size() * static_cast<size_t>(SizeInBytes(dtype)));
  EXPECT_TRUE(
      Convert(DType::kF64, std::as_bytes(std::span(values)), dtype, bytes)
          .ok());
  return bytes;
}

std::vector<double> AsDoubles(DType dtype, std::span<const std::byte> bytes) {
  std::vector<double> values(bytes.size() /
                             static_cast<size_t>(SizeInBytes(dtype)));
  EXPECT_TRUE(Convert(dtype, bytes, DType::kF64,
                      std::as_writable_bytes(std::span(values)))
                  .ok());
  return values;
}

Bytes RoomFor(const StateContext& context) {
  return Bytes(
      static_cast<size_t>(context.layout.GatheredElements(kWeight) *
                          SizeInBytes(context.model()[kWeight].dtype())));
}

Bytes AllSlots(const StateContext& context, uint64_t seed = 0) {
  Bytes all;
  for (int64_t r = 0; r < context.layout.ranks(); ++r) {
    const Bytes slot = SlotOf(context, r, seed);
    all.insert(all.end(), slot.begin(), slot.end());
  }
  return all;
}

absl::Status GatherNow(WeightGather& gather, std::span<const std::byte> own,
                       std::span<std::byte> whole) {
  TESSERA_RETURN_IF_ERROR(gather.Start(own, whole));
  return gather.Finish();
}

// Expects every value within the bound of its block, allowing for bf16
// rounding.
void ExpectNear(const StateContext& context,
                std::span<const std::byte> actual) {
  const DType dtype = context.model()[kWeight].dtype();
  const std::vector<double> values = AsDoubles(dtype, actual);
  size_t at = 0;
  for (int64_t r = 0; r < context.layout.ranks(); ++r) {
    const std::vector<double> slot = AsDoubles(dtype, SlotOf(context, r));
    for (size_t i = 0; i < slot.size(); ++i, ++at) {
      const size_t block = i / kInt8BlockElements * kInt8BlockElements;
      double largest = 0;
      for (size_t j = block;
           j < std::min(slot.size(), block + kInt8BlockElements); ++j) {
        largest = std::max(largest, std::abs(slot[j]));
      }
      const double rounding = dtype == DType::kBF16 ? 0x1p-8 : 0;
      ASSERT_LE(std::abs(values[at] - slot[i]),
                largest * kInt8Error + rounding * std::abs(values[at]))
          << "rank " << r << " element " << i;
    }
  }
  EXPECT_EQ(at, values.size());
}

TEST(WeightGatherTest, GathersAreWholeAndTheSameOnEveryRank) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t elements : {1, 5, 127, 1000, 4099}) {
      for (const LayoutKind kind :
           {LayoutKind::kChunks, LayoutKind::kRoundRobin}) {
        for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
          for (const bool quantized : {false, true}) {
            SCOPED_TRACE(::testing::Message()
                         << ranks << " ranks " << elements << " "
                         << DTypeName(dtype) << " quantized " << quantized);
            std::vector<Bytes> wholes(static_cast<size_t>(ranks));
            EXPECT_THAT(
                RunRanks(ranks,
                         [&](Communicator& group) -> absl::Status {
                           const int64_t rank = group.rank().value();
                           const StateContext context =
                               SeatOf(elements, dtype, kind, ranks, rank);
                           BufferPool pool(context.device);
                           WeightGather gather(context, kWeight,
                                               {.quantized = quantized},
                                               {.shard = &group}, pool);
                           Bytes& whole = wholes[static_cast<size_t>(rank)];
                           whole = RoomFor(context);
                           TESSERA_RETURN_IF_ERROR(
                               GatherNow(gather, SlotOf(context, rank), whole));
                           EXPECT_EQ(gather.held_bytes(), 0);
                           pool.Trim();
                           EXPECT_EQ(context.device.accounting->usage().current,
                                     0);
                           return absl::OkStatus();
                         }),
                Each(IsOk()));
            EXPECT_THAT(wholes, Each(wholes[0]));
            const StateContext context =
                SeatOf(elements, dtype, kind, ranks, 0);
            if (quantized && dtype != DType::kF64) {
              ExpectNear(context, wholes[0]);
            } else {
              EXPECT_EQ(wholes[0], AllSlots(context));
            }
          }
        }
      }
    }
  }
}

int64_t BusyBytes(const Communicator& group) {
  int64_t bytes = 0;
  for (const auto& [key, totals] : group.Statistics()) {
    if (key.first == OpKind::kAllGather) bytes += totals.busy_bytes;
  }
  return bytes;
}

TEST(WeightGatherTest, LaterGathersOfAStepStayWithinTheHost) {
  struct Sizes {
    int64_t ranks, host, elements;
  };
  for (const Sizes& sizes : {Sizes{4, 2, 1000}, Sizes{8, 4, 77}, Sizes{6, 3, 2},
                             Sizes{4, 4, 999}, Sizes{3, 1, 50}}) {
    for (const bool quantized : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << sizes.ranks << " ranks " << sizes.elements);
      EXPECT_THAT(
          RunRanks(sizes.ranks,
                   [&](Communicator& group) -> absl::Status {
                     const int64_t rank = group.rank().value();
                     TESSERA_ASSIGN_OR_RETURN(const auto shard,
                                              group.Split(0, rank, "shard"));
                     TESSERA_ASSIGN_OR_RETURN(
                         const auto host,
                         group.Split(rank / sizes.host, rank, "host"));
                     const StateContext context =
                         SeatOf(sizes.elements, DType::kF32,
                                LayoutKind::kChunks, sizes.ranks, rank);
                     BufferPool pool(context.device);
                     WeightGather gather(
                         context, kWeight, {.quantized = quantized},
                         {.shard = shard.get(), .secondary = host.get()}, pool);
                     Bytes first = RoomFor(context), later = RoomFor(context);
                     EXPECT_TRUE(gather.NeedsOwn());
                     TESSERA_RETURN_IF_ERROR(
                         GatherNow(gather, SlotOf(context, rank), first));
                     const int64_t wire = BusyBytes(*shard);
                     int64_t message = static_cast<int64_t>(first.size());
                     if (quantized) {
                       message = sizes.ranks *
                                 Int8Bytes(context.OwnExtent(kWeight).slot);
                     }
                     EXPECT_EQ(wire, message * (sizes.ranks - 1) / sizes.ranks);
                     for (int i = 0; i < 2; ++i) {
                       EXPECT_FALSE(gather.NeedsOwn());
                       TESSERA_RETURN_IF_ERROR(GatherNow(gather, {}, later));
                       EXPECT_EQ(later, first);
                     }
                     // Nothing crossed hosts, and each rank keeps its part.
                     EXPECT_EQ(BusyBytes(*shard), wire);
                     EXPECT_EQ(BusyBytes(*host),
                               2 * static_cast<int64_t>(first.size()) *
                                   (sizes.host - 1) / sizes.host);
                     EXPECT_LE(gather.held_bytes(),
                               (static_cast<int64_t>(first.size()) / 4 +
                                sizes.host - 1) /
                                   sizes.host * 4);
                     pool.Trim();
                     EXPECT_EQ(gather.held_bytes(),
                               context.device.accounting->usage().current);
                     // Values change with the step.
                     gather.Forget();
                     EXPECT_EQ(context.device.accounting->usage().current, 0);
                     TESSERA_RETURN_IF_ERROR(
                         GatherNow(gather, SlotOf(context, rank, 99), later));
                     if (!quantized) {
                       EXPECT_EQ(later, AllSlots(context, 99));
                     }
                     EXPECT_NE(later, first);
                     return absl::OkStatus();
                   }),
          Each(IsOk()));
    }
  }
}

TEST(WeightGatherTest, RefusesWhatDoesNotFit) {
  EXPECT_THAT(
      RunRanks(2,
               [](Communicator& group) -> absl::Status {
                 const int64_t rank = group.rank().value();
                 const StateContext context =
                     SeatOf(100, DType::kF32, LayoutKind::kChunks, 2, rank);
                 BufferPool pool(context.device);
                 WeightGather gather(context, kWeight, {.quantized = true},
                                     {.shard = &group}, pool);
                 TESSERA_EXPECT_OK(gather.Finish());  // Nothing was started.
                 const Bytes own = SlotOf(context, rank);
                 Bytes whole = RoomFor(context);
                 EXPECT_THAT(gather.Start(std::span(own).first(8), whole),
                             StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("\"weight\" from 8 bytes")));
                 EXPECT_THAT(gather.Start(own, std::span(whole).first(8)),
                             StatusIs(absl::StatusCode::kInvalidArgument));
                 TESSERA_RETURN_IF_ERROR(gather.Start(own, whole));
                 EXPECT_THAT(gather.Start(own, whole),
                             StatusIs(absl::StatusCode::kFailedPrecondition,
                                      HasSubstr("finish it before")));
                 TESSERA_RETURN_IF_ERROR(gather.Finish());
                 ExpectNear(context, whole);
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

TEST(WeightGatherTest, CodesCountAgainstTheBudget) {
  EXPECT_THAT(
      RunRanks(2,
               [](Communicator& group) -> absl::Status {
                 const int64_t rank = group.rank().value();
                 const StateContext context = SeatOf(
                     1000, DType::kF32, LayoutKind::kChunks, 2, rank, 1000);
                 BufferPool pool(context.device);
                 WeightGather gather(context, kWeight, {.quantized = true},
                                     {.shard = &group}, pool);
                 Bytes whole = RoomFor(context);
                 EXPECT_THAT(gather.Start(SlotOf(context, rank), whole),
                             StatusIs(absl::StatusCode::kResourceExhausted,
                                      HasSubstr("weight (int8)")));
                 return absl::OkStatus();
               }),
      Each(IsOk()));
}

}  // namespace
}  // namespace tessera::zero3

#include "zero3/state/gradient_reduction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <random>

#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/state/int8_blocks.h"

namespace tessera::zero3 {
namespace {

using collectives::Buffer;
using collectives::Communicator;
using collectives::Hierarchy;
using collectives::OpKind;
using collectives::Rank;
using collectives::RunRanks;
using ::testing::Each;
using ::testing::HasSubstr;

using Doubles = std::vector<double>;
using Hosts = std::vector<std::vector<int64_t>>;  // Ranks of each.

struct Case {
  std::vector<int64_t> counts;  // By rank.
  DType dtype = DType::kF32;
  Hosts hosts = {};  // Empty: no hierarchy.
  ReductionOptions options = {.quantized = true};
};

std::ostream& operator<<(std::ostream& os, const Case& test) {
  os << DTypeName(test.dtype) << " counts";
  for (const int64_t count : test.counts) os << " " << count;
  return os << " hosts " << test.hosts.size();
}

BufferPool Unlimited() {
  return BufferPool(
      std::make_shared<offload::Accounting>("device", offload::kUnlimited));
}

collectives::CommunicatorOptions OptionsFor(const Hosts& hosts) {
  collectives::CommunicatorOptions options;
  options.reproducible = true;
  if (hosts.empty()) return options;
  std::map<int64_t, int64_t> host_of;
  for (size_t h = 0; h < hosts.size(); ++h) {
    for (const int64_t r : hosts[h]) host_of[r] = static_cast<int64_t>(h);
  }
  std::vector<std::vector<int64_t>> levels(1);
  for (const auto& [rank, host] : host_of) levels[0].push_back(host);
  options.hierarchy =
      std::make_shared<const Hierarchy>(*Hierarchy::FromLabels(levels));
  return options;
}

int64_t Total(const std::vector<int64_t>& counts) {
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  return total;
}

// Values of different magnitudes, so that blocks have different scales.
std::vector<std::byte> Values(DType dtype, int64_t count, int64_t rank) {
  std::mt19937_64 random(static_cast<uint64_t>(rank * 1000 + count));
  std::normal_distribution<double> normal;
  Doubles values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(normal(random) * std::pow(4.0, (i / 50) % 9 - 6));
  }
  std::vector<std::byte> bytes(static_cast<size_t>(count * SizeInBytes(dtype)));
  EXPECT_TRUE(
      Convert(DType::kF64, std::as_bytes(std::span(values)), dtype, bytes)
          .ok());
  return bytes;
}

Doubles AsDoubles(DType dtype, std::span<const std::byte> bytes) {
  Doubles values(bytes.size() / static_cast<size_t>(SizeInBytes(dtype)));
  EXPECT_TRUE(Convert(dtype, bytes, DType::kF64,
                      std::as_writable_bytes(std::span(values)))
                  .ok());
  return values;
}

// Each rank's own block.
using Blocks = std::vector<std::vector<std::byte>>;

Blocks Reduce(const Case& test) {
  const auto ranks = static_cast<int64_t>(test.counts.size());
  Blocks blocks(test.counts.size());
  EXPECT_THAT(
      RunRanks(
          ranks,
          [&](Communicator& group) -> absl::Status {
            const int64_t rank = group.rank().value();
            std::vector<std::byte> values =
                Values(test.dtype, Total(test.counts), rank);
            BufferPool pool = Unlimited();
            TESSERA_ASSIGN_OR_RETURN(
                const auto reduction,
                GradientReduction::Create(group, test.options, pool));
            const Buffer buffer(values.data(), Total(test.counts), test.dtype);
            TESSERA_ASSIGN_OR_RETURN(PendingReduction pending,
                                     reduction->Start(buffer, test.counts));
            TESSERA_RETURN_IF_ERROR(pending.Wait());
            int64_t before = 0;
            for (int64_t r = 0; r < rank; ++r) {
              before += test.counts[static_cast<size_t>(r)];
            }
            const auto own =
                buffer.Slice(before, test.counts[static_cast<size_t>(rank)])
                    .AsBytes();
            blocks[static_cast<size_t>(rank)].assign(own.begin(), own.end());
            return absl::OkStatus();
          },
          OptionsFor(test.hosts)),
      Each(IsOk()));
  return blocks;
}

// The largest magnitude in each element's int8 block.
Doubles LargestOfBlocks(const Doubles& values) {
  Doubles largest(values.size());
  constexpr auto kBlock = static_cast<size_t>(kInt8BlockElements);
  for (size_t b = 0; b < values.size(); b += kBlock) {
    double top = 0;
    const size_t end = std::min(values.size(), b + kBlock);
    for (size_t i = b; i < end; ++i) top = std::max(top, std::abs(values[i]));
    std::fill(largest.begin() + static_cast<std::ptrdiff_t>(b),
              largest.begin() + static_cast<std::ptrdiff_t>(end), top);
  }
  return largest;
}

// The sums of one owner's block, in f64, and the allowed error of a reduction.
struct Reference {
  Doubles sums, bounds;
};

Reference ReferenceOf(const Case& test, size_t owner) {
  const auto count = static_cast<size_t>(test.counts[owner]);
  const auto before = static_cast<std::ptrdiff_t>(
      Total({test.counts.begin(),
             test.counts.begin() + static_cast<std::ptrdiff_t>(owner)}));
  Hosts hosts = test.hosts;
  const bool two_hops =
      hosts.size() > 1 && hosts[0].size() > 1 &&
      std::all_of(hosts.begin(), hosts.end(), [&](const auto& host) {
        return host.size() == hosts[0].size();
      });
  if (!two_hops) {
    hosts.assign(1, {});
    for (size_t r = 0; r < test.counts.size(); ++r) {
      hosts[0].push_back(static_cast<int64_t>(r));
    }
  }
  Reference reference = {Doubles(count), Doubles(count)};
  Doubles magnitudes(count);
  for (const auto& host : hosts) {
    Doubles sums(count), bounds(count);
    for (const int64_t r : host) {
      const Doubles all =
          AsDoubles(test.dtype, Values(test.dtype, Total(test.counts), r));
      const Doubles mine(
          all.begin() + before,
          all.begin() + before + static_cast<std::ptrdiff_t>(count));
      const Doubles largest = LargestOfBlocks(mine);
      for (size_t i = 0; i < count; ++i) {
        sums[i] += mine[i];
        magnitudes[i] += std::abs(mine[i]) + kInt8Error * largest[i];
        bounds[i] += kInt8Error * largest[i];
      }
    }
    Doubles largest_sum(count);
    for (size_t i = 0; i < count; ++i) {
      largest_sum[i] = std::abs(sums[i]) + bounds[i];
    }
    largest_sum = LargestOfBlocks(largest_sum);
    for (size_t i = 0; i < count; ++i) {
      reference.sums[i] += sums[i];
      reference.bounds[i] += bounds[i];
      if (two_hops) reference.bounds[i] += 1.001 * kInt8Error * largest_sum[i];
    }
  }
  // Roundings: of the additions in f32, and of the result.
  const double ulp = test.dtype == DType::kBF16 ? 0x1p-8 : 0x1p-24;
  for (size_t i = 0; i < count; ++i) {
    const auto n = static_cast<double>(test.counts.size());
    reference.bounds[i] += (2 * n + 4) * 0x1p-24 * magnitudes[i];
    reference.bounds[i] +=
        ulp * (std::abs(reference.sums[i]) + reference.bounds[i]);
    if (test.options.average) {
      reference.sums[i] /= n;
      reference.bounds[i] = reference.bounds[i] / n + 0x1p-149;
    }
  }
  return reference;
}

// Returns the largest ratio of error to bound.
double ExpectWithinBounds(const Case& test, const Blocks& blocks) {
  double largest = 0;
  for (size_t r = 0; r < test.counts.size(); ++r) {
    const Doubles actual = AsDoubles(test.dtype, blocks[r]);
    const Reference reference = ReferenceOf(test, r);
    if (actual.size() != reference.sums.size()) {
      ADD_FAILURE() << "rank " << r << " has " << actual.size() << " elements";
      continue;
    }
    for (size_t i = 0; i < actual.size(); ++i) {
      const double error = std::abs(actual[i] - reference.sums[i]);
      EXPECT_LE(error, reference.bounds[i]) << "rank " << r << " element " << i;
      if (error > 0) largest = std::max(largest, error / reference.bounds[i]);
    }
  }
  return largest;
}

std::vector<std::vector<int64_t>> CountsFor(int64_t ranks) {
  std::vector<std::vector<int64_t>> all;
  for (const int64_t even : {0, 1, 127, 128, 129, 5001}) {
    all.emplace_back(static_cast<size_t>(ranks), even);
  }
  std::vector<int64_t> uneven, one;
  for (int64_t r = 0; r < ranks; ++r) {
    uneven.push_back(r % 3 == 1 ? 0 : 37 * r * r + 5);
    one.push_back(r + 1 == ranks ? 300 : 0);
  }
  all.push_back(uneven);
  all.push_back(one);
  return all;
}

TEST(GradientReductionTest, QuantizedSumsAreWithinTheirBound) {
  double largest = 0;
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (const auto& counts : CountsFor(ranks)) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const Case test = {.counts = counts, .dtype = dtype};
        SCOPED_TRACE(::testing::Message() << test);
        largest = std::max(largest, ExpectWithinBounds(test, Reduce(test)));
      }
    }
  }
  // The bound is tight.
  EXPECT_GT(largest, 0.5);
}

TEST(GradientReductionTest, TwoHopsAreWithinTheirBound) {
  const std::vector<Hosts> all = {{{0, 1}, {2, 3}},
                                  {{0, 2}, {1, 3}},
                                  {{0, 1, 2}, {3, 4, 5}},
                                  {{0, 5}, {3, 1}, {2, 4}},
                                  {{0, 1, 2, 3}, {4, 5, 6, 7}},
                                  {{0, 1}, {2, 3}, {4, 5}, {6, 7}},
                                  // One hop: hosts of different sizes, or a
                                  // single host.
                                  {{0, 1, 2}, {3, 4}},
                                  {{0}, {1}, {2}}};
  for (const Hosts& hosts : all) {
    int64_t ranks = 0;
    for (const auto& host : hosts) ranks += static_cast<int64_t>(host.size());
    for (const auto& counts : CountsFor(ranks)) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const Case test = {.counts = counts, .dtype = dtype, .hosts = hosts};
        SCOPED_TRACE(::testing::Message() << test);
        ExpectWithinBounds(test, Reduce(test));
      }
    }
  }
}

TEST(GradientReductionTest, AveragesAreTheSumsDivided) {
  for (const Hosts& hosts : {Hosts{}, Hosts{{0, 1}, {2, 3}}}) {
    const Case test = {.counts = {100, 7, 300, 0},
                       .hosts = hosts,
                       .options = {.quantized = true, .average = true}};
    ExpectWithinBounds(test, Reduce(test));
  }
}

TEST(GradientReductionTest, TheSameInputsHaveTheSameBits) {
  for (const Hosts& hosts : {Hosts{}, Hosts{{0, 1, 2}, {3, 4, 5}}}) {
    const Case test = {.counts = {1000, 5, 0, 777, 128, 1}, .hosts = hosts};
    EXPECT_EQ(Reduce(test), Reduce(test));
  }
}

TEST(GradientReductionTest, NativeIsTheReduceScatter) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (const bool average : {false, true}) {
      Case test = {.counts = {10, 0, 33},
                   .dtype = dtype,
                   .options = {.average = average}};
      Blocks expected(3);
      EXPECT_THAT(
          RunRanks(
              3,
              [&](Communicator& group) -> absl::Status {
                const int64_t rank = group.rank().value();
                const auto values = Values(dtype, 43, rank);
                auto& block = expected[static_cast<size_t>(rank)];
                const int64_t count = test.counts[static_cast<size_t>(rank)];
                block.resize(static_cast<size_t>(count * SizeInBytes(dtype)));
                return group.ReduceScatterUneven(
                    collectives::ConstBuffer(values.data(), 43, dtype),
                    test.counts, Buffer(block.data(), count, dtype),
                    average ? collectives::Reduction::Average()
                            : collectives::Reduction::Sum());
              },
              OptionsFor({})),
          Each(IsOk()));
      EXPECT_EQ(Reduce(test), expected);
      // f64 has no int8 form.
      test.options.quantized = true;
      if (dtype == DType::kF64) {
        EXPECT_EQ(Reduce(test), expected);
      }
    }
  }
}

TEST(GradientReductionTest, AnInfinityMakesItsBlockNan) {
  for (const Hosts& hosts : {Hosts{}, Hosts{{0, 1}, {2, 3}}}) {
    EXPECT_THAT(
        RunRanks(
            4,
            [](Communicator& group) -> absl::Status {
              std::vector<float> values(4 * 300, 1.0f);
              const int64_t rank = group.rank().value();
              if (rank == 3) {
                values[2 * 300 + 130] = std::numeric_limits<float>::infinity();
              }
              BufferPool pool = Unlimited();
              TESSERA_ASSIGN_OR_RETURN(
                  const auto reduction,
                  GradientReduction::Create(group, {.quantized = true}, pool));
              TESSERA_ASSIGN_OR_RETURN(
                  PendingReduction pending,
                  reduction->Start(Buffer(std::span(values)),
                                   {300, 300, 300, 300}));
              TESSERA_RETURN_IF_ERROR(pending.Wait());
              for (int64_t i = 0; i < 300; ++i) {
                const float sum = values[static_cast<size_t>(rank * 300 + i)];
                const bool poisoned = rank == 2 && i / 128 == 1;
                EXPECT_EQ(std::isnan(sum), poisoned) << rank << " " << i;
                if (!poisoned) {
                  EXPECT_EQ(sum, 4);
                }
              }
              return absl::OkStatus();
            },
            OptionsFor(hosts)),
        Each(IsOk()));
  }
}

int64_t BusyBytes(const Communicator& group, OpKind kind) {
  int64_t bytes = 0;
  for (const auto& [key, totals] : group.Statistics()) {
    if (key.first == kind) bytes += totals.busy_bytes;
  }
  return bytes;
}

TEST(GradientReductionTest, BytesOnTheWireAreThoseOfTheHeader) {
  constexpr int64_t kOwn = 128 * 10 + 50;  // With 8 ranks.
  constexpr int64_t kAll = 8 * kOwn, kMessage = 8 * Int8Bytes(kOwn);
  const std::vector<int64_t> counts(8, kOwn);
  const auto run = [&](Communicator& group, bool quantized, BufferPool& pool)
      -> absl::StatusOr<std::unique_ptr<GradientReduction>> {
    std::vector<float> values(kAll, 1.0f);
    TESSERA_ASSIGN_OR_RETURN(
        auto reduction,
        GradientReduction::Create(group, {.quantized = quantized}, pool));
    TESSERA_ASSIGN_OR_RETURN(
        PendingReduction pending,
        reduction->Start(Buffer(std::span(values)), counts));
    TESSERA_RETURN_IF_ERROR(pending.Wait());
    return reduction;
  };
  EXPECT_THAT(
      RunRanks(8,
               [&](Communicator& group) -> absl::Status {
                 BufferPool pool = Unlimited();
                 TESSERA_RETURN_IF_ERROR(run(group, false, pool).status());
                 TESSERA_RETURN_IF_ERROR(run(group, true, pool).status());
                 EXPECT_EQ(BusyBytes(group, OpKind::kReduceScatter),
                           4 * kAll * 7 / 8);
                 EXPECT_EQ(BusyBytes(group, OpKind::kAllToAll),
                           kMessage * 7 / 8);
                 return absl::OkStatus();
               }),
      Each(IsOk()));
  EXPECT_THAT(
      RunRanks(
          8,
          [&](Communicator& group) -> absl::Status {
            BufferPool pool = Unlimited();
            TESSERA_ASSIGN_OR_RETURN(const auto reduction,
                                     run(group, true, pool));
            EXPECT_EQ(reduction->hops(), 2);
            EXPECT_EQ(BusyBytes(group, OpKind::kAllToAll), 0);
            EXPECT_EQ(BusyBytes(*reduction->within_host(), OpKind::kAllToAll),
                      kMessage * 3 / 4);
            EXPECT_EQ(BusyBytes(*reduction->across_hosts(), OpKind::kAllToAll),
                      kMessage / 4 / 2);
            return absl::OkStatus();
          },
          OptionsFor({{0, 1, 2, 3}, {4, 5, 6, 7}})),
      Each(IsOk()));
  // Bytes between hosts: 1/8 of 1/4 of the bytes of f32 values.
  EXPECT_LT(kMessage / 4 / 2, 4 * kAll / 2 / 15);
}

TEST(GradientReductionTest, SeveralMayBeOnTheirWay) {
  EXPECT_THAT(
      RunRanks(
          4,
          [](Communicator& group) -> absl::Status {
            BufferPool pool = Unlimited();
            TESSERA_ASSIGN_OR_RETURN(
                const auto reduction,
                GradientReduction::Create(group, {.quantized = true}, pool));
            std::vector<float> first(40, 1.0f), second(80, 2.0f);
            TESSERA_ASSIGN_OR_RETURN(
                PendingReduction a,
                reduction->Start(Buffer(std::span(first)), {10, 10, 10, 10}));
            TESSERA_ASSIGN_OR_RETURN(
                PendingReduction b,
                reduction->Start(Buffer(std::span(second)), {20, 20, 20, 20}));
            TESSERA_RETURN_IF_ERROR(a.Wait());
            TESSERA_RETURN_IF_ERROR(b.Wait());
            const auto rank = static_cast<size_t>(group.rank().value());
            EXPECT_EQ(first[10 * rank], 4);
            EXPECT_EQ(second[20 * rank + 19], 8);
            return absl::OkStatus();
          },
          OptionsFor({{0, 1}, {2, 3}})),
      Each(IsOk()));
}

TEST(GradientReductionTest, RefusesWhatDoesNotFit) {
  EXPECT_THAT(
      RunRanks(2,
               [](Communicator& group) -> absl::Status {
                 BufferPool pool = Unlimited();
                 TESSERA_ASSIGN_OR_RETURN(
                     const auto reduction,
                     GradientReduction::Create(group, {.quantized = true},
                                               pool));
                 std::vector<float> values(10);
                 const Buffer buffer{std::span(values)};
                 for (const std::vector<int64_t>& counts :
                      {std::vector<int64_t>{10}, {5, 6}, {11, -1}}) {
                   EXPECT_THAT(reduction->Start(buffer, counts),
                               StatusIs(absl::StatusCode::kInvalidArgument));
                 }
                 // Nothing was sent; the group is unchanged.
                 TESSERA_ASSIGN_OR_RETURN(PendingReduction pending,
                                          reduction->Start(buffer, {4, 6}));
                 return pending.Wait();
               }),
      Each(IsOk()));
}

TEST(GradientReductionTest, MessagesCountAgainstTheBudget) {
  EXPECT_THAT(
      RunRanks(
          2,
          [](Communicator& group) -> absl::Status {
            auto device = std::make_shared<offload::Accounting>("device", 3000);
            BufferPool pool(device);
            TESSERA_ASSIGN_OR_RETURN(
                const auto reduction,
                GradientReduction::Create(group, {.quantized = true}, pool));
            std::vector<float> values(2000, 1.0f);
            EXPECT_THAT(
                reduction->Start(Buffer(std::span(values)), {1000, 1000}),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("device")));
            TESSERA_ASSIGN_OR_RETURN(
                PendingReduction pending,
                reduction->Start(Buffer(std::span(values)).Slice(0, 800),
                                 {400, 400}));
            EXPECT_EQ(device->usage().current, 4 * Int8Bytes(400));
            TESSERA_RETURN_IF_ERROR(pending.Wait());
            pool.Trim();
            EXPECT_EQ(device->usage().current, 0);
            return absl::OkStatus();
          }),
      Each(IsOk()));
}

}  // namespace
}  // namespace tessera::zero3

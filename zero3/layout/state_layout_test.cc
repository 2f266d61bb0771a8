#include "zero3/layout/state_layout.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/layout/testing/models.h"

namespace tessera::zero3 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using topology::Rank;

// An explicit layout: each rank's index space as a list of the elements at each
// offset.
struct Dealt {
  // Parameter and element; element numbers continue into the padding.
  std::vector<std::vector<std::pair<int64_t, int64_t>>> ranks;
};

// Distributes the elements of one parameter, including padding, to the ranks.
void Deal(const ModelParameter& parameter, const LayoutOptions& options,
          const std::map<int64_t, int64_t>& owners, Dealt& dealt) {
  int64_t padded = parameter.elements;
  const bool in_chunks = options.kind == LayoutKind::kChunks;
  const int64_t unit = options.alignment * (in_chunks ? options.ranks : 1);
  while (padded % unit != 0) ++padded;
  for (int64_t element = 0; element < padded; ++element) {
    const int64_t rank = in_chunks ? element / (padded / options.ranks)
                                   : owners.at(parameter.id.value());
    dealt.ranks[static_cast<size_t>(rank)].push_back(
        {parameter.id.value(), element});
  }
}

// The owner of each parameter: by position, or by the layout, whose balance
// another test covers.
std::map<int64_t, int64_t> OwnersOf(const StateLayout& layout) {
  std::map<int64_t, int64_t> owners;
  for (const ModelParameter& parameter : layout.model().all()) {
    const int64_t id = parameter.id.value();
    owners[id] = id % layout.ranks();
    if (layout.options().kind == LayoutKind::kBalanced) {
      for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
        if (layout.ExtentOf(Rank(rank), parameter.id).slot > 0) {
          owners[id] = rank;
        }
      }
    }
  }
  return owners;
}

Dealt DealAll(const StateLayout& layout) {
  const LayoutOptions& options = layout.options();
  const auto owners = OwnersOf(layout);
  Dealt dealt;
  dealt.ranks.resize(static_cast<size_t>(options.ranks));
  for (int part = 0; part < 4; ++part) {
    for (const ModelParameter& parameter : layout.model().all()) {
      const bool is_small = parameter.elements < options.small_below;
      const bool wanted = part == 0   ? parameter.trainable() && is_small
                          : part == 1 ? parameter.trainable() && !is_small
                          : part == 2 ? !parameter.trainable() && !is_small
                                      : !parameter.trainable() && is_small;
      if (wanted) Deal(parameter, options, owners, dealt);
    }
  }
  return dealt;
}

int64_t ElementsOf(const StateLayout& layout, int64_t rank) {
  int64_t elements = 0;
  for (const Extent& extent : layout.ExtentsOf(Rank(rank))) {
    elements += extent.slot;
  }
  return elements;
}

void ExpectRank(const StateLayout& layout, const Dealt& dealt, int64_t number) {
  const Rank rank(number);
  const auto& index_space = dealt.ranks[static_cast<size_t>(number)];
  const auto size = static_cast<int64_t>(index_space.size());
  ASSERT_EQ(ElementsOf(layout, number), size);
  for (int64_t offset = 0; offset < size; ++offset) {
    const auto [id, element] = index_space[static_cast<size_t>(offset)];
    const ParameterId parameter(id);
    const bool is_padding = element >= layout.model()[parameter].elements;
    ASSERT_THAT(layout.GlobalOf(rank, offset),
                IsOkAndHolds(GlobalIndex{parameter, element, is_padding}));
    if (is_padding) continue;
    ASSERT_THAT(layout.LocalOf(parameter, element),
                IsOkAndHolds(LocalIndex{rank, offset}));
  }
  ASSERT_THAT(layout.GlobalOf(rank, size),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(absl::StrCat("below ", size))));
}

void ExpectExtents(const StateLayout& layout, Rank rank) {
  int64_t offset = 0;
  size_t slot = 0;
  ASSERT_EQ(layout.SlotsOf(rank).size(), layout.ExtentsOf(rank).size());
  for (const Extent& extent : layout.ExtentsOf(rank)) {
    ASSERT_EQ(extent.parameter, layout.SlotsOf(rank)[slot++]);
    ASSERT_EQ(extent.offset, offset);
    ASSERT_EQ(extent, layout.ExtentOf(rank, extent.parameter));
    ASSERT_EQ(extent.slot % layout.options().alignment, 0);
    ASSERT_LE(extent.size(), extent.slot);
    for (int64_t i = extent.begin; i < extent.end; ++i) {
      ASSERT_THAT(
          layout.LocalOf(extent.parameter, i),
          IsOkAndHolds(LocalIndex{rank, extent.offset + i - extent.begin}));
    }
    offset += extent.slot;
  }
}

void ExpectLocated(const StateLayout& layout, const ModelParameter& parameter,
                   std::mt19937_64& random) {
  const auto bound = static_cast<uint64_t>(parameter.elements + 1);
  const auto a = static_cast<int64_t>(random() % bound);
  const auto b = static_cast<int64_t>(random() % bound);
  int64_t next = std::min(a, b);
  for (const Extent& extent :
       layout.Locate(parameter.id, std::min(a, b), std::max(a, b))) {
    ASSERT_EQ(extent.begin, next);
    ASSERT_GT(extent.size(), 0);
    // A range that starts later also shortens the slot.
    const Extent whole = layout.ExtentOf(extent.rank, parameter.id);
    ASSERT_EQ(extent.offset + extent.slot, whole.offset + whole.slot);
    ASSERT_THAT(layout.LocalOf(parameter.id, extent.begin),
                IsOkAndHolds(LocalIndex{extent.rank, extent.offset}));
    ASSERT_THAT(layout.LocalOf(parameter.id, extent.end - 1),
                IsOkAndHolds(LocalIndex{extent.rank,
                                        extent.offset + extent.size() - 1}));
    next = extent.end;
  }
  ASSERT_EQ(next, std::max(a, b));
}

void ExpectHolders(const StateLayout& layout, const Dealt& dealt,
                   std::mt19937_64& random) {
  std::set<ParameterId> some;
  for (const ModelParameter& parameter : layout.model().all()) {
    if (random() % 2 == 0) some.insert(parameter.id);
  }
  std::vector<Rank> holders;
  for (size_t rank = 0; rank < dealt.ranks.size(); ++rank) {
    const auto& held = dealt.ranks[rank];
    if (std::any_of(held.begin(), held.end(), [&](const auto& place) {
          const ParameterId id(place.first);
          return some.contains(id) &&
                 place.second < layout.model()[id].elements;
        })) {
      holders.push_back(Rank(static_cast<int64_t>(rank)));
    }
  }
  // In any order.
  ASSERT_THAT(
      layout.HoldersOf(std::vector<ParameterId>(some.rbegin(), some.rend())),
      IsOkAndHolds(holders));
}

TEST(StateLayoutTest, EqualsDealingTheElementsOneByOne) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 1500; ++round) {
    const ModelParameters model = RandomModel(random);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const StateLayout layout,
        StateLayout::Create(model, RandomLayoutOptions(random)));
    const Dealt dealt = DealAll(layout);
    int64_t padded = 0;
    for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
      ASSERT_NO_FATAL_FAILURE(ExpectRank(layout, dealt, rank));
      ASSERT_NO_FATAL_FAILURE(ExpectExtents(layout, Rank(rank)));
      padded += ElementsOf(layout, rank);
    }
    int64_t gathered = 0;
    for (const ModelParameter& parameter : model.all()) {
      ASSERT_NO_FATAL_FAILURE(ExpectLocated(layout, parameter, random));
      ASSERT_EQ(layout.IsSmall(parameter.id),
                parameter.elements < layout.options().small_below);
      gathered += layout.GatheredElements(parameter.id);
    }
    ASSERT_EQ(gathered, padded);
    ASSERT_NO_FATAL_FAILURE(ExpectHolders(layout, dealt, random));
  }
}

ModelParameters ModelOf(const std::vector<int64_t>& sizes) {
  ModelParameters::Builder builder;
  for (size_t i = 0; i < sizes.size(); ++i) {
    builder.Add({.name = absl::StrCat("p", i), .shape = {sizes[i]}});
  }
  return *builder.Build();
}

TEST(StateLayoutTest, EveryRankHasTheSameChunks) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const StateLayout layout,
      StateLayout::Create(ModelOf({10, 1}), {.ranks = 4, .alignment = 2}));
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(ElementsOf(layout, rank), 6);
  }
  EXPECT_EQ(layout.ExtentOf(Rank(2), ParameterId(0)),
            (Extent{ParameterId(0), Rank(2), 8, 10, 0, 4}));
  EXPECT_EQ(layout.ExtentOf(Rank(3), ParameterId(0)).size(), 0);
}

TEST(StateLayoutTest, BalancedLayoutCountsOptimizerState) {
  const ModelParameters model =
      *ModelParameters::Builder()
           .Add({.name = "frozen", .shape = {80}, .trainable = false})
           .Add({.name = "a", .shape = {30}})
           .Add({.name = "b", .shape = {50}})
           .Build();
  // By bytes alone the loads are 80 and 30 + 50; with 12 more bytes per trained
  // element they are 50 * 16 and 30 * 16 + 80 * 4.
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const StateLayout plain,
      StateLayout::Create(
          model,
          {.kind = LayoutKind::kBalanced, .ranks = 2, .optimizer_bytes = 0}));
  EXPECT_EQ(ElementsOf(plain, 0), 80);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const StateLayout weighed,
      StateLayout::Create(model, {.kind = LayoutKind::kBalanced, .ranks = 2}));
  EXPECT_EQ(ElementsOf(weighed, 0), 50);
  EXPECT_EQ(ElementsOf(weighed, 1), 110);
}

TEST(StateLayoutTest, EmptyModelHasNoExtents) {
  for (const LayoutKind kind :
       {LayoutKind::kChunks, LayoutKind::kRoundRobin, LayoutKind::kBalanced}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const StateLayout layout,
        StateLayout::Create(ModelParameters(), {.kind = kind, .ranks = 3}));
    EXPECT_THAT(layout.ExtentsOf(Rank(2)), IsEmpty());
    EXPECT_THAT(layout.HoldersOf({}), IsOkAndHolds(IsEmpty()));
  }
}

TEST(StateLayoutTest, EqualModelsAndOptionsMakeEqualLayouts) {
  const LayoutOptions options = {.ranks = 2};
  const StateLayout layout = *StateLayout::Create(ModelOf({3}), options);
  EXPECT_EQ(layout, *StateLayout::Create(ModelOf({3}), options));
  EXPECT_FALSE(layout == *StateLayout::Create(ModelOf({4}), options));
  EXPECT_FALSE(layout == *StateLayout::Create(ModelOf({3}), {.ranks = 3}));
}

void ExpectRefused(const LayoutOptions& options, std::string_view message) {
  EXPECT_THAT(StateLayout::Create(ModelOf({3}), options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(std::string(message))));
}

TEST(StateLayoutTest, RejectsWrongOptions) {
  ExpectRefused({.kind = static_cast<LayoutKind>(7)},
                "kind is 7; allowed: chunks, round_robin, balanced");
  ExpectRefused({.ranks = 0}, "ranks is 0; allowed: 1 to 1048576");
  ExpectRefused({.ranks = kMaxShardRanks + 1}, "ranks is 1048577");
  ExpectRefused({.alignment = 0}, "alignment is 0");
  ExpectRefused({.alignment = kMaxAlignment + 1}, "alignment is 1048577");
  ExpectRefused({.small_below = -1}, "small_below is -1");
  ExpectRefused({.optimizer_bytes = 65}, "optimizer_bytes is 65");
}

TEST(StateLayoutTest, RejectsOverflowingLayouts) {
  constexpr int64_t kHuge = kMaxLayoutElements;
  TESSERA_EXPECT_OK(StateLayout::Create(ModelOf({kHuge}), {.ranks = 8}));
  for (const LayoutKind kind : {LayoutKind::kChunks, LayoutKind::kBalanced}) {
    EXPECT_THAT(StateLayout::Create(ModelOf({kHuge - 1, 1, 1}), {.kind = kind}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("with parameter 2 of 1 elements the layout "
                                   "exceeds 2^48 elements")));
  }
  EXPECT_THAT(StateLayout::Create(ModelOf({kHuge}), {.ranks = 3}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// The numbers of torsh's Zero3RankMapping: rank 1 of 4 owns parameters 1, 5, 9.
TEST(StateLayoutTest, RoundRobinMapsIndicesBothWays) {
  const StateLayout layout =
      *StateLayout::Create(ModelOf(std::vector<int64_t>(10, 3)),
                           {.kind = LayoutKind::kRoundRobin, .ranks = 4});
  EXPECT_THAT(layout.SlotsOf(Rank(1)),
              ElementsAre(ParameterId(1), ParameterId(5), ParameterId(9)));
  EXPECT_THAT(layout.LocalOf(ParameterId(5), 2),
              IsOkAndHolds(LocalIndex{Rank(1), 5}));
  EXPECT_THAT(layout.GlobalOf(Rank(1), 5),
              IsOkAndHolds(GlobalIndex{ParameterId(5), 2, false}));
  const ParameterId some[] = {ParameterId(5), ParameterId(0), ParameterId(4)};
  EXPECT_THAT(layout.HoldersOf(some),
              IsOkAndHolds(ElementsAre(Rank(0), Rank(1))));
}

TEST(StateLayoutTest, RejectsUnknownIndices) {
  const StateLayout layout = *StateLayout::Create(ModelOf({3}), {.ranks = 2});
  const auto message = [](const auto& result) {
    return std::string(result.status().message());
  };
  EXPECT_THAT(message(layout.LocalOf(ParameterId(1), 0)),
              HasSubstr("no parameter with the id 1"));
  EXPECT_THAT(message(layout.LocalOf(ParameterId(0), 3)),
              HasSubstr("no element 3; allowed: 0 to below 3"));
  EXPECT_THAT(message(layout.LocalOf(ParameterId(0), -1)),
              HasSubstr("no element -1"));
  EXPECT_THAT(message(layout.GlobalOf(Rank(2), 0)),
              HasSubstr("no rank 2; allowed: 0 to below 2"));
  EXPECT_THAT(message(layout.GlobalOf(Rank(0), -1)),
              HasSubstr("rank 0 has no offset -1; allowed: 0 to below 2"));
  EXPECT_THAT(layout.CheckRank(Rank(-1)).message(), HasSubstr("no rank -1"));
  TESSERA_EXPECT_OK(layout.CheckRank(Rank(1)));
  const ParameterId unknown(9);
  EXPECT_THAT(message(layout.HoldersOf({&unknown, 1})),
              HasSubstr("no parameter with the id 9"));
}

TEST(LayoutKindTest, NamesReadAndPrint) {
  EXPECT_THAT(topology::ParseEnum<LayoutKind>("balanced"),
              IsOkAndHolds(LayoutKind::kBalanced));
  EXPECT_EQ(::testing::PrintToString(LayoutKind::kRoundRobin), "round_robin");
}

}  // namespace
}  // namespace tessera::zero3

#include "zero3/layout/moves.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/layout/testing_models.h"

namespace tessera::zero3 {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using topology::Rank;

// One buffer per rank in which every element has a unique value; padding is -1.
using Buffers = std::vector<std::vector<int64_t>>;

int64_t ValueOf(const Parameter& parameter, int64_t element) {
  // The number in the name does not depend on the order of parameters.
  return 1000 * std::stoll(parameter.name().substr(1)) + element;
}

Buffers Filled(const StateLayout& layout) {
  Buffers buffers;
  for (int64_t rank = 0; rank < layout.ranks(); ++rank) {
    auto& buffer = buffers.emplace_back();
    for (int64_t i = 0; i < layout.all(Rank(rank)).size(); ++i) {
      const GlobalIndex at = *layout.GlobalOf(Rank(rank), i);
      buffer.push_back(at.is_padding
                           ? -1
                           : ValueOf(layout.model()[at.parameter], at.element));
    }
  }
  return buffers;
}

// Applies the moves; fails if a move writes an element twice.
Buffers Moved(const std::vector<Move>& moves, const Buffers& from,
              const StateLayout& to) {
  Buffers result;
  for (int64_t rank = 0; rank < to.ranks(); ++rank) {
    result.emplace_back(static_cast<size_t>(to.all(Rank(rank)).size()), -1);
  }
  for (const Move& move : moves) {
    EXPECT_GT(move.length, 0);
    for (int64_t i = 0; i < move.length; ++i) {
      const int64_t value = from.at(static_cast<size_t>(move.from.rank.value()))
                                .at(static_cast<size_t>(move.from.offset + i));
      int64_t& target = result.at(static_cast<size_t>(move.to.rank.value()))
                            .at(static_cast<size_t>(move.to.offset + i));
      EXPECT_EQ(target, -1) << "written twice";
      EXPECT_EQ(value, ValueOf(to.model()[move.parameter], move.element + i));
      target = value;
    }
  }
  return result;
}

ModelParameters Shuffled(const ModelParameters& model,
                         std::mt19937_64& random) {
  std::vector<ParameterSpec> specs;
  for (const Parameter& parameter : model.all()) {
    specs.push_back(parameter.spec);
    specs.back().trainable = random() % 2 == 0;
    specs.back().dtype = DType::kBF16;
  }
  std::shuffle(specs.begin(), specs.end(), random);
  ModelParameters::Builder builder;
  for (const ParameterSpec& spec : specs) builder.Add(spec);
  return *builder.Build();
}

TEST(MovesTest, FillEveryLayoutFromEveryOther) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 2000; ++round) {
    const ModelParameters model = RandomModel(random);
    const StateLayout from =
        *StateLayout::Create(model, RandomLayoutOptions(random));
    const StateLayout to = *StateLayout::Create(
        random() % 2 == 0 ? model : Shuffled(model, random),
        RandomLayoutOptions(random));
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Move> moves,
                                 AllMoves(from, to));
    ASSERT_EQ(Moved(moves, Filled(from), to), Filled(to));
    std::vector<Move> by_rank;
    for (int64_t rank = 0; rank < to.ranks(); ++rank) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<Move> of_rank,
                                   MovesTo(from, to, Rank(rank)));
      by_rank.insert(by_rank.end(), of_rank.begin(), of_rank.end());
    }
    ASSERT_EQ(by_rank, moves);
  }
}

ModelParameters ModelOf(const std::map<std::string, int64_t>& sizes) {
  ModelParameters::Builder builder;
  for (const auto& [name, size] : sizes) {
    builder.Add({.name = name, .shape = {size}});
  }
  return *builder.Build();
}

StateLayout Chunks(const std::map<std::string, int64_t>& sizes, int64_t ranks) {
  return *StateLayout::Create(ModelOf(sizes), {.ranks = ranks});
}

TEST(MovesTest, FromTwoChunksToThree) {
  const ParameterId a(0);
  EXPECT_THAT(
      AllMoves(Chunks({{"a", 5}}, 2), Chunks({{"a", 5}}, 3)),
      IsOkAndHolds(ElementsAre(Move{a, 0, {Rank(0), 0}, {Rank(0), 0}, 2},
                               Move{a, 2, {Rank(0), 2}, {Rank(1), 0}, 1},
                               Move{a, 3, {Rank(1), 0}, {Rank(1), 1}, 1},
                               Move{a, 4, {Rank(1), 1}, {Rank(2), 0}, 1})));
}

TEST(MovesTest, NothingMovesWhereThereIsNothing) {
  EXPECT_THAT(AllMoves(Chunks({}, 2), Chunks({}, 3)), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(AllMoves(Chunks({{"a", 0}}, 2), Chunks({{"a", 0}}, 3)),
              IsOkAndHolds(IsEmpty()));
}

TEST(MovesTest, DifferentModelsAndUnknownRanksAreRefused) {
  const StateLayout from = Chunks({{"a", 5}, {"b", 2}}, 2);
  const auto message = [&](const StateLayout& to, int64_t rank) {
    const absl::Status status = MovesTo(from, to, Rank(rank)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message(Chunks({{"a", 5}, {"c", 2}}, 2), 0),
              HasSubstr("\"c\" is missing in the source layout"));
  EXPECT_THAT(message(Chunks({{"a", 5}}, 2), 0),
              HasSubstr("\"b\" is missing in the target layout"));
  EXPECT_THAT(message(Chunks({{"a", 5}, {"b", 3}}, 2), 0),
              HasSubstr("\"b\" has 2 elements in the source layout and 3"));
  EXPECT_THAT(message(from, 2), HasSubstr("no rank 2"));
  EXPECT_THAT(message(from, -1), HasSubstr("no rank -1"));
  EXPECT_THAT(AllMoves(from, Chunks({{"a", 5}}, 2)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tessera::zero3

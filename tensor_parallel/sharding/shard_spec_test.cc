#include "tensor_parallel/sharding/shard_spec.h"

#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/sharding/random_specs.h"

namespace tessera::tensor_parallel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Indices = std::vector<int64_t>;

// Splits a list of indices by torch.chunk's rule or into round-robin blocks.
Indices Cut(const Indices& all, const PartitionRule& rule, int64_t parts,
            int64_t part) {
  const auto size = static_cast<int64_t>(all.size());
  std::vector<int64_t> sizes(static_cast<size_t>(parts));
  if (rule.kind() == PartitionRule::Kind::kCeilChunks) {
    const int64_t chunk = (size + parts - 1) / parts;
    for (int64_t i = 0; i < size; ++i) ++sizes[static_cast<size_t>(i / chunk)];
  } else {
    std::vector<int64_t> blocks(static_cast<size_t>(parts));
    for (int64_t i = 0, to = 0; i < size; i += rule.block()) {
      ++blocks[static_cast<size_t>(to)];
      to = (to + 1) % parts;
    }
    int64_t left = size;
    for (size_t i = 0; i < sizes.size(); ++i) {
      sizes[i] = std::min(left, blocks[i] * rule.block());
      left -= sizes[i];
    }
  }
  const auto begin =
      all.begin() +
      std::accumulate(sizes.begin(), sizes.begin() + part, int64_t{0});
  return Indices(begin, begin + sizes[static_cast<size_t>(part)]);
}

Indices Listed(const std::vector<IndexRange>& ranges) {
  Indices indices;
  for (const IndexRange range : ranges) {
    EXPECT_FALSE(range.empty());
    EXPECT_TRUE(indices.empty() || indices.back() + 1 < range.begin);
    for (int64_t i = range.begin; i < range.end; ++i) indices.push_back(i);
  }
  return indices;
}

TEST(ShardOfTest, RandomSpecsCutAsAListOfIndicesIsCutAxisByAxis) {
  for (const char* axes : {"tp1", "tp5", "tp3,dp4", "tp2,cp2,dp3"}) {
    const topology::Mesh mesh = MeshOf(axes, topology::Rank(2));
    RandomSpecs random(7);
    for (int repeat = 0; repeat < 300; ++repeat) {
      const Dims shape = random.Shape();
      const ShardSpec spec = random.Spec(mesh, shape);
      TESSERA_ASSERT_OK(Validate(spec, mesh));
      for (int64_t r = 0; r < mesh.world_size(); ++r) {
        const topology::Rank rank(2 + r);
        TESSERA_ASSERT_OK_AND_ASSIGN(const Shard shard,
                                     ShardOf(mesh, spec, shape, rank));
        for (size_t dim = 0; dim < shape.size(); ++dim) {
          const DimSharding& sharding = spec.dims[dim];
          Indices expected(static_cast<size_t>(shape[dim]));
          std::iota(expected.begin(), expected.end(), 0);
          int64_t flat = 0;
          int64_t parts = 1;
          for (const std::string& axis : sharding.axes) {
            const int64_t size = mesh.SizeOf(axis)->value();
            const int64_t at = *mesh.CoordinateOf(rank, axis);
            flat = flat * size + at;
            parts *= size;
            if (!sharding.rule.fused()) {
              expected = Cut(expected, sharding.rule, size, at);
            }
          }
          if (sharding.rule.fused() && !sharding.axes.empty()) {
            expected.clear();
            const auto fused =
                *FusedPartition::Create(sharding.rule.parts(), parts);
            for (const IndexRange range : fused.RangesOf(flat)) {
              for (int64_t i = range.begin; i < range.end; ++i) {
                expected.push_back(i);
              }
            }
          }
          EXPECT_EQ(Listed(shard.ranges[dim]), expected) << spec << dim;
          EXPECT_EQ(shard.shape()[dim], static_cast<int64_t>(expected.size()));
        }
      }
    }
  }
}

// As in DTensor: 10 into 5 and 5, each into 3 and 2.
TEST(ShardOfTest, TheFirstAxisCutsFirst) {
  const topology::Mesh mesh = MeshOf("tp2,dp2");
  const ShardSpec spec = {.dims = {{{"dp", "tp"}}}};
  std::vector<IndexRange> ranges;
  for (int64_t r = 0; r < 4; ++r) {
    ranges.push_back(
        ShardOf(mesh, spec, {{10}}, topology::Rank(r))->ranges[0][0]);
  }
  EXPECT_THAT(ranges, ElementsAre(IndexRange{0, 3}, IndexRange{3, 5},
                                  IndexRange{5, 8}, IndexRange{8, 10}));
}

TEST(ShardTest, IntersectionsAreWhatBothHold) {
  const topology::Mesh mesh = MeshOf("tp3,dp4");
  RandomSpecs random(3);
  for (int repeat = 0; repeat < 500; ++repeat) {
    const Dims shape = random.Shape();
    const Shard a = *ShardOf(mesh, random.Spec(mesh, shape), shape,
                             topology::Rank(random.Below(12)));
    const Shard b = *ShardOf(mesh, random.Spec(mesh, shape), shape,
                             topology::Rank(random.Below(12)));
    const Shard both = Intersection(a, b);
    for (size_t dim = 0; dim < shape.size(); ++dim) {
      const Indices in_a = Listed(a.ranges[dim]);
      const Indices in_b = Listed(b.ranges[dim]);
      Indices expected;
      std::set_intersection(in_a.begin(), in_a.end(), in_b.begin(), in_b.end(),
                            std::back_inserter(expected));
      Indices given;
      for (const IndexRange range : both.ranges[dim]) {
        for (int64_t i = range.begin; i < range.end; ++i) given.push_back(i);
      }
      EXPECT_EQ(given, expected);
    }
  }
}

TEST(ShardSpecTest, PrintsAxesRulesAndPartialSums) {
  const ShardSpec spec = {
      .dims = {{{"dp"}}, {{"tp", "cp"}, PartitionRule::Balanced()}, {}},
      .partial = {"pp", "ep"}};
  EXPECT_EQ(spec.ToString(), "[dp, (tp, cp):balanced, -] partial {ep, pp}");
  EXPECT_EQ(ShardSpec::Replicated(0).ToString(), "[]");
  EXPECT_EQ(PartitionRule::Blocks(4).ToString(), "blocks(4)");
  EXPECT_EQ(PartitionRule::CeilChunks().ToString(), "ceil");
  EXPECT_EQ(PartitionRule::Fused(*QkvParts(4, 1, 8, 2)).ToString(),
            "fused(32/8/1 8/8/1r 8/8/1r)");
}

TEST(ShardSpecTest, ReadsWhatItPrints) {
  const topology::Mesh mesh = MeshOf("tp3,dp4,cp2");
  RandomSpecs random(11);
  for (int repeat = 0; repeat < 3000; ++repeat) {
    const ShardSpec spec = random.Spec(mesh, random.Shape());
    EXPECT_THAT(ShardSpec::Parse(spec.ToString()), IsOkAndHolds(spec));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ShardSpec spec,
      ShardSpec::Parse(" [ dp,( tp ,cp ) : fused( 4/1/2 6/2/1r) , - ]partial"
                       "{ep} "));
  EXPECT_EQ(spec.ToString(),
            "[dp, (tp, cp):fused(4/1/2 6/2/1r), -] partial {ep}");
  EXPECT_EQ(ShardSpec::Parse("[(tp):ceil]")->ToString(), "[tp]");
}

TEST(ShardSpecTest, TextThatIsNoSpecIsRefusedWithThePlace) {
  const auto refusal = [](std::string_view text, auto says) {
    EXPECT_THAT(ShardSpec::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument, says))
        << text;
  };
  refusal("", HasSubstr("character 1, after \"\", is the end; expected \"["));
  refusal("[tp, ?]", AllOf(HasSubstr("character 6, after \"[tp, \", is "
                                     "\"?]\"; expected an axis"),
                           HasSubstr("as in \"[dp, (tp, cp):balanced")));
  refusal("[tp", HasSubstr("is the end; expected \",\" or \"]\""));
  refusal("[tp,]", HasSubstr("expected an axis"));
  refusal("[(tp cp)]", HasSubstr("expected \",\" or \")\""));
  refusal("[Tp]", HasSubstr("expected an axis"));
  refusal("[()]", HasSubstr("expected an axis"));
  refusal("[-:balanced]", HasSubstr("expected \",\" or \"]\""));
  refusal("[tp:even]", HasSubstr("expected ceil, balanced, blocks(4)"));
  refusal("[tp:blocks(0)]", HasSubstr("expected a number from 1"));
  refusal("[tp:blocks(9223372036854775808)]", HasSubstr("expected a number"));
  refusal("[tp:fused()]", HasSubstr("expected a number from 0"));
  refusal("[tp:fused(3/0/1)]", HasSubstr("expected a number from 1"));
  refusal("[tp:fused(3/1)]", HasSubstr("expected \"/\""));
  refusal("[tp] partial {}", HasSubstr("expected an axis"));
  refusal("[tp] partial {dp} x", HasSubstr("expected the end"));
  refusal("[tp] dp", HasSubstr("expected \" partial {\" or the end"));
  refusal(std::string("[\0]", 3), HasSubstr("is \"\\000]\""));
  refusal(std::string(5000, '['),
          HasSubstr("of 5000 characters; at most 4096"));
  std::string many = "[-";
  for (int i = 0; i < 64; ++i) many += ", -";
  refusal(many + "]", HasSubstr("at most 64 dimensions"));
  refusal("[" + std::string(65, 'a') + "]", HasSubstr("at most 64 characters"));
  std::string parts = "[tp:fused(";
  for (int i = 0; i < 257; ++i) parts += "1/1/1 ";
  refusal(parts + ")]", HasSubstr("at most 256 fused parts"));
}

TEST(ShardSpecTest, EqualityIsOfWhatRanksHold) {
  const ShardSpec a = {.dims = {{{"dp"}}, {}}, .partial = {"tp", "ep"}};
  ShardSpec b = a;
  b.partial = {"ep", "tp"};
  b.dims[1].rule = PartitionRule::Balanced();  // For a dimension that is whole.
  EXPECT_EQ(a, b);
  b.dims[0].rule = PartitionRule::Balanced();
  EXPECT_FALSE(a == b);
  b = a;
  b.dims[1].axes = {"cp"};
  EXPECT_FALSE(a == b);
  b = a;
  b.partial = {"tp"};
  EXPECT_FALSE(a == b);
  EXPECT_FALSE(a == ShardSpec::Replicated(3));
}

TEST(ShardSpecTest, SpecsThatDoNotFitTheMeshAreRefused) {
  const topology::Mesh mesh = *MeshOf("tp2,dp4").Redivide(
      "dp", std::vector<topology::Axis>{{"shard", topology::AxisSize(2)},
                                        {"copy", topology::AxisSize(2)}});
  const auto refusal = [&](const ShardSpec& spec, auto says) {
    EXPECT_THAT(Validate(spec, mesh),
                StatusIs(absl::StatusCode::kInvalidArgument, says));
  };
  refusal({.dims = {{{"zz"}}}}, HasSubstr("zz"));
  refusal({.dims = {{{"tp"}}, {{"tp"}}}},
          AllOf(HasSubstr("[tp, tp] uses axis \"tp\" twice")));
  refusal({.dims = {{{"tp"}}}, .partial = {"tp"}}, HasSubstr("twice"));
  refusal({.dims = {{{"dp", "shard"}}}}, HasSubstr("shard spec"));
  refusal({.dims = {{{"tp"}, PartitionRule::Blocks(0)}}},
          HasSubstr("blocks of 0 elements"));
  TESSERA_EXPECT_OK(
      Validate({.dims = {{{"shard"}}, {{"tp"}}}, .partial = {"copy"}}, mesh));
}

TEST(ShardOfTest, ShapesAndRanksThatDoNotFitAreRefused) {
  const topology::Mesh mesh = MeshOf("tp2");
  const ShardSpec spec = {.dims = {{{"tp"}}}};
  const auto refusal = [&](const ShardSpec& given, const Dims& shape,
                           int64_t rank, const char* says) {
    EXPECT_THAT(ShardOf(mesh, given, shape, topology::Rank(rank)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(says)));
  };
  refusal(spec, {4, 4}, 0, "[tp] has 1 dimensions, shape [4,4] has 2");
  refusal(spec, {-1}, 0, "-1");
  refusal(spec, {4}, 2, "2");
  ShardSpec fused = spec;
  fused.dims[0].rule = PartitionRule::Fused({{.size = 3}});
  refusal(fused, {4}, 0, "the fused parts have 3 elements, the dimension 4");
  fused.dims[0].rule = PartitionRule::Fused({{.size = 3, .groups = 3}});
  refusal(fused, {3}, 0, "dimension 0 of [tp:fused(3/1/3)]: part 0");
}

}  // namespace
}  // namespace tessera::tensor_parallel

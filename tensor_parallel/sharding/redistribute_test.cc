#include "tensor_parallel/sharding/redistribute.h"

#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "tensor_parallel/sharding/random_specs.h"

namespace tessera::tensor_parallel {
namespace {

using collectives::Communicator;
using collectives::GroupManager;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

struct Case {
  Dims shape = {};
  DType dtype = DType::kF32;
  ShardSpec from = {};
  ShardSpec to = {};
};

// The index of a rank among the addends of a partial tensor.
int64_t AddendOf(const topology::Mesh& mesh, const ShardSpec& spec,
                 topology::Rank rank) {
  int64_t addend = 0;
  for (const std::string& axis : spec.partial) {
    addend =
        addend * mesh.SizeOf(axis)->value() + *mesh.CoordinateOf(rank, axis);
  }
  return addend;
}
int64_t Addends(const topology::Mesh& mesh, const ShardSpec& spec) {
  int64_t addends = 1;
  for (const std::string& axis : spec.partial) {
    addends *= mesh.SizeOf(axis)->value();
  }
  return addends;
}

// Element `index` of an addend: small, so that sums are exact in all types.
double ValueOf(int64_t addend, int64_t index) {
  return static_cast<double>((index * 7 + addend * 13 + index / 11) % 15 - 7);
}

// Visits every element of a shard with its index in the shard and in the whole.
template <typename Visit>
void ForEachElement(const Shard& shard, const Dims& shape, const Visit& visit) {
  std::vector<int64_t> offsets = {0};
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    std::vector<int64_t> next;
    for (const int64_t offset : offsets) {
      for (const IndexRange range : shard.ranges[dim]) {
        for (int64_t i = range.begin; i < range.end; ++i) {
          next.push_back(offset * shape[dim] + i);
        }
      }
    }
    offsets = std::move(next);
  }
  for (size_t i = 0; i < offsets.size(); ++i) visit(i, offsets[i]);
}

double Element(const Tensor& tensor, size_t i) {
  return DispatchDType(
      tensor.dtype(), [&]<typename T>(std::type_identity<T>) -> double {
        return ConvertValue<double>((*tensor.view().AsSpan<T>())[i]);
      });
}

DistributedTensor MakeSource(const topology::Mesh& mesh, topology::Rank rank,
                             const Case& c) {
  DistributedTensor tensor =
      *DistributedTensor::Create(mesh, rank, c.from, c.dtype, c.shape);
  DispatchDType(c.dtype, [&]<typename T>(std::type_identity<T>) {
    const std::span<T> values = *tensor.local().view().AsSpan<T>();
    const int64_t addend = AddendOf(mesh, c.from, rank);
    ForEachElement(tensor.shard(), c.shape, [&](size_t i, int64_t index) {
      values[i] = ConvertValue<T>(ValueOf(addend, index));
    });
  });
  return tensor;
}

// Gathers all ranks' results and adds partial ones, element by element.
void ExpectRight(const topology::Mesh& mesh, const Case& c,
                 const std::vector<std::optional<DistributedTensor>>& results) {
  const auto count = static_cast<size_t>(*ElementCount(c.shape));
  std::vector<double> expected(count);
  const int64_t addends = Addends(mesh, c.from);
  for (int64_t addend = 0; addend < addends; ++addend) {
    for (size_t i = 0; i < count; ++i) {
      expected[i] += ValueOf(addend, static_cast<int64_t>(i));
    }
  }
  // Ranks that differ only in partial coordinates hold addends of one sum.
  std::set<topology::Rank> seen;
  for (const auto& result : results) {
    const topology::Rank rank = result->rank();
    if (seen.count(rank) > 0) continue;
    std::vector<topology::Rank> group = {rank};
    if (!c.to.partial.empty()) {
      group = *mesh.GroupsAlong(c.to.partial)->MembersWith(rank);
    }
    std::vector<double> sums(
        static_cast<size_t>(result->local().element_count()));
    for (const topology::Rank member : group) {
      seen.insert(member);
      const DistributedTensor& part =
          *results[static_cast<size_t>(member - mesh.first_rank())];
      ASSERT_EQ(part.spec(), c.to);
      ASSERT_EQ(part.shard(), *ShardOf(mesh, c.to, c.shape, member));
      for (size_t i = 0; i < sums.size(); ++i) {
        sums[i] += Element(part.local(), i);
      }
    }
    ForEachElement(result->shard(), c.shape, [&](size_t i, int64_t index) {
      ASSERT_EQ(sums[i], expected[static_cast<size_t>(index)])
          << "rank " << rank << " element " << index;
    });
  }
}

// The bytes counted by the communicators of a plan's steps.
absl::StatusOr<int64_t> CountedBytes(GroupManager& groups,
                                     const RedistributionPlan& plan) {
  std::set<Communicator*> communicators;
  for (const RedistributionStep& step : plan.steps) {
    if (IsLocal(step.kind)) continue;
    TESSERA_ASSIGN_OR_RETURN(Communicator* const group,
                             groups.Group(absl::StrJoin(step.axes, ",")));
    communicators.insert(group);
  }
  int64_t bytes = 0;
  for (const Communicator* communicator : communicators) {
    for (const auto& [key, totals] : communicator->Statistics()) {
      bytes += totals.bytes;
    }
  }
  return bytes;
}

absl::Status RunCase(GroupManager& groups, const Case& c,
                     const RedistributionPlan& plan,
                     std::optional<DistributedTensor>& result) {
  const DistributedTensor source =
      MakeSource(groups.mesh(), groups.mesh_rank(), c);
  TESSERA_ASSIGN_OR_RETURN(const StepBytes predicted,
                           plan.BytesOf(groups.mesh(), groups.mesh_rank()));
  TESSERA_ASSIGN_OR_RETURN(const int64_t before, CountedBytes(groups, plan));
  TESSERA_ASSIGN_OR_RETURN(result, Redistribute(groups, source, plan));
  TESSERA_ASSIGN_OR_RETURN(const int64_t after, CountedBytes(groups, plan));
  if (after - before == predicted.counted) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(after - before, " bytes moved, ",
                                          predicted.counted, " predicted:\n",
                                          plan.ToString()));
}

void RunCases(const topology::Mesh& mesh, const std::vector<Case>& cases) {
  std::vector<std::vector<std::optional<DistributedTensor>>> results(
      cases.size());
  for (auto& result : results) {
    result.resize(static_cast<size_t>(mesh.world_size()));
  }
  // Computed once for all ranks because it dominates the test's time.
  std::vector<RedistributionPlan> plans;
  for (const Case& c : cases) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        RedistributionPlan plan,
        PlanRedistribution(mesh, c.shape, c.dtype, c.from, c.to));
    plans.push_back(std::move(plan));
  }
  ASSERT_THAT(
      collectives::RunRanks(
          mesh.world_size(),
          [&](Communicator& world) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(auto groups,
                                     GroupManager::Create(world, mesh));
            const auto self = static_cast<size_t>(world.rank().value());
            for (size_t i = 0; i < cases.size(); ++i) {
              TESSERA_RETURN_IF_ERROR(
                  RunCase(*groups, cases[i], plans[i], results[i][self]),
                  Annotate(_, absl::StrCat(DimsToString(cases[i].shape), " ",
                                           cases[i].from.ToString(), " to ",
                                           cases[i].to.ToString())));
            }
            return absl::OkStatus();
          }),
      Each(IsOk()));
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(absl::StrCat(DimsToString(cases[i].shape), " ",
                              cases[i].from.ToString(), " to ",
                              cases[i].to.ToString()));
    ExpectRight(mesh, cases[i], results[i]);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

class RedistributeTest : public ::testing::TestWithParam<const char*> {};

// A hundred random pairs of specs per mesh: compares values and counted bytes.
TEST_P(RedistributeTest, GivesWhatGatheringAddingAndSlicingGive) {
  const topology::Mesh mesh = MeshOf(GetParam());
  RandomSpecs random(static_cast<uint64_t>(mesh.world_size()) * 31 +
                     mesh.axes().size());
  constexpr DType kTypes[] = {DType::kF32, DType::kF64, DType::kBF16};
  std::vector<Case> cases;
  for (int i = 0; i < 100; ++i) {
    Case c;
    c.shape = random.Shape();
    c.dtype = kTypes[i % 3];
    c.from = random.Spec(mesh, c.shape);
    c.to = random.Spec(mesh, c.shape);
    cases.push_back(std::move(c));
  }
  RunCases(mesh, cases);
}

INSTANTIATE_TEST_SUITE_P(Meshes, RedistributeTest,
                         ::testing::Values("tp1", "tp2", "tp3", "tp5", "tp8",
                                           "tp2,dp2", "tp3,dp2", "dp4,tp3",
                                           "tp2,cp2,dp2", "tp2,cp3,dp2",
                                           "tp2,ep1,dp3"));

// Every pair of specs of a matrix over two axes.
TEST(RedistributeAllPairsTest, EveryPairOfSpecsOfAMatrix) {
  const topology::Mesh mesh = MeshOf("tp2,dp3");
  std::vector<ShardSpec> specs;
  for (const int tp : {0, 1, 2, 3}) {
    for (const int dp : {0, 1, 2, 3}) {
      ShardSpec spec = ShardSpec::Replicated(2);
      if (tp < 2) spec.dims[static_cast<size_t>(tp)].axes.push_back("tp");
      if (dp < 2) spec.dims[static_cast<size_t>(dp)].axes.push_back("dp");
      if (tp == 2) spec.partial.push_back("tp");
      if (dp == 2) spec.partial.push_back("dp");
      specs.push_back(spec);
      if (tp == dp && tp < 2) {
        auto& axes = specs.back().dims[static_cast<size_t>(tp)].axes;
        std::swap(axes[0], axes[1]);
        specs.push_back(spec);
      }
    }
  }
  std::vector<Case> cases;
  for (const ShardSpec& from : specs) {
    for (const ShardSpec& to : specs) {
      cases.push_back({{7, 4}, DType::kF64, from, to});
    }
  }
  RunCases(mesh, cases);
}

// Fewer kv heads than ranks: shards that overlap.
TEST(RedistributeFusedTest, QueryKeyAndValueWithSharedHeads) {
  const topology::Mesh mesh = MeshOf("tp4,dp2");
  ShardSpec fused = ShardSpec::Replicated(2);
  fused.dims[0] = {{"tp"}, PartitionRule::Fused(*QkvParts(8, 2, 3, 4))};
  ShardSpec partial = ShardSpec::Replicated(2);
  partial.partial = {"tp"};
  ShardSpec columns = ShardSpec::Replicated(2);
  columns.dims[1] = {{"dp", "tp"}};
  const Dims shape = {36, 5};
  std::vector<Case> cases;
  for (const ShardSpec& other :
       {ShardSpec::Replicated(2), partial, columns, fused}) {
    cases.push_back({shape, DType::kF32, fused, other});
    cases.push_back({shape, DType::kF32, other, fused});
  }
  RunCases(mesh, cases);
}

TEST(GatherTest, TakesTheAxesOfOneDimensionOrAll) {
  const topology::Mesh mesh = MeshOf("tp2,dp3");
  Case c = {.shape = {7, 5}};
  c.from = {.dims = {{{"dp"}}, {{"tp"}, PartitionRule::Balanced()}}};
  EXPECT_THAT(
      collectives::RunRanks(
          6,
          [&](Communicator& world) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(auto groups,
                                     GroupManager::Create(world, mesh));
            const DistributedTensor tensor =
                MakeSource(mesh, groups->mesh_rank(), c);
            TESSERA_ASSIGN_OR_RETURN(const DistributedTensor rows,
                                     Gather(*groups, tensor, 1));
            TESSERA_ASSIGN_OR_RETURN(const Tensor full,
                                     GatherAll(*groups, tensor));
            Case gathered = c;
            gathered.from.dims[1].axes.clear();
            if (!SameBits(rows,
                          MakeSource(mesh, groups->mesh_rank(), gathered))) {
              return absl::InternalError("rows differ");
            }
            for (size_t i = 0; i < 35; ++i) {
              if (Element(full, i) != ValueOf(0, static_cast<int64_t>(i))) {
                return absl::InternalError("the whole differs");
              }
            }
            const auto beyond = Gather(*groups, tensor, 2);
            return beyond.ok() ? absl::InternalError("gathered dimension 2")
                               : absl::OkStatus();
          }),
      Each(IsOk()));
}

TEST(RedistributeRefusalTest, RefusesAnotherTensorsPlanAndAnotherRanksTensor) {
  const topology::Mesh mesh = MeshOf("tp2");
  EXPECT_THAT(
      collectives::RunRanks(
          2,
          [&](Communicator& world) -> absl::Status {
            TESSERA_ASSIGN_OR_RETURN(auto groups,
                                     GroupManager::Create(world, mesh));
            const Case c = {.shape = {4},
                            .from = {.dims = {{{"tp"}}}},
                            .to = ShardSpec::Replicated(1)};
            const DistributedTensor tensor =
                MakeSource(mesh, groups->mesh_rank(), c);
            TESSERA_ASSIGN_OR_RETURN(
                const RedistributionPlan plan,
                PlanRedistribution(mesh, {{5}}, c.dtype, c.from, c.to));
            EXPECT_THAT(
                Redistribute(*groups, tensor, plan),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("the plan is for f32 [5] as [tp]"),
                               HasSubstr("f32 [4] as [tp], rank"))));
            const DistributedTensor other = MakeSource(
                mesh, topology::Rank(1 - groups->mesh_rank().value()), c);
            EXPECT_THAT(Redistribute(*groups, other, c.to),
                        StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("both must be of one mesh")));
            EXPECT_THAT(Gather(*groups, tensor, -1),
                        StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("gather along dimension -1")));
            // No data was lost.
            return GatherAll(*groups, tensor).status();
          }),
      Each(IsOk()));
}

}  // namespace
}  // namespace tessera::tensor_parallel

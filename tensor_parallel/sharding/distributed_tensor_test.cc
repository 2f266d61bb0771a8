#include "tensor_parallel/sharding/distributed_tensor.h"

#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/device/emulated_device.h"
#include "base/device/host_device.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/counting_memory.h"
#include "collectives/counting/counting_engine.h"
#include "collectives/record/flight_recorder.h"
#include "collectives/testing/run_cuda.h"
#include "collectives/testing/run_emulated.h"
#include "collectives/testing/run_ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/sharding/testing/random_layouts.h"

namespace tessera::tensor_parallel {
namespace {

using collectives::Communicator;
using collectives::GroupManager;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

using Values = std::vector<double>;

// Runs a test on every rank of a mesh, in host memory or on emulated devices.
using RankTest = std::function<absl::Status(GroupManager&, Queue&)>;

void RunOnHost(const topology::Mesh& mesh, const RankTest& test) {
  EXPECT_THAT(collectives::RunRanks(
                  mesh.world_size(),
                  [&](Communicator& world) -> absl::Status {
                    TESSERA_ASSIGN_OR_RETURN(auto groups,
                                             GroupManager::Create(world, mesh));
                    HostDevice device;
                    TESSERA_ASSIGN_OR_RETURN(auto queue,
                                             device.CreateQueue("test"));
                    return test(*groups, *queue);
                  }),
              Each(IsOk()));
}

void RunOnDevices(const topology::Mesh& mesh, const RankTest& test) {
  EXPECT_THAT(collectives::RunEmulated(
                  mesh.world_size(), /*seed=*/mesh.axes().size(),
                  [&](collectives::EmulatedRank& rank) -> absl::Status {
                    TESSERA_ASSIGN_OR_RETURN(
                        auto groups,
                        GroupManager::Create(rank.communicator, mesh));
                    return test(*groups, rank.queue);
                  }),
              Each(IsOk()));
}

// On one emulated device, by the kernels of the cuda engine.
void RunOnCuda(const topology::Mesh& mesh, const RankTest& test) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto device,
                               EmulatedDevice::Create({.seed = 7}));
  EXPECT_THAT(
      collectives::RunCuda(mesh.world_size(), *device,
                           [&](collectives::CudaRank& rank) -> absl::Status {
                             TESSERA_ASSIGN_OR_RETURN(
                                 auto groups,
                                 GroupManager::Create(rank.communicator, mesh));
                             return test(*groups, rank.queue);
                           }),
      Each(IsOk()));
}

struct Case {
  DType dtype = DType::kF32;
  ShardedLayout from;
  ShardedLayout to;

  std::string ToString() const {
    return absl::StrCat(from.ToString(), " to ", to.ToString());
  }
};

// The number of a rank among the addends of a partial tensor.
int64_t AddendOf(const ShardedLayout& layout, topology::Rank rank) {
  int64_t addend = 0;
  for (const Placement& placement : layout.placements()) {
    if (!placement.is_partial()) continue;
    addend = addend * layout.mesh().SizeOf(placement.axis)->value() +
             *layout.mesh().CoordinateOf(rank, placement.axis);
  }
  return addend;
}

// Element `index` of an addend: small, so that sums are exact in every type.
double ValueOf(int64_t addend, int64_t index) {
  return static_cast<double>((index * 7 + addend * 13 + index / 11) % 15 - 7);
}

// The row-major numbers in the whole tensor of a box's elements.
std::vector<int64_t> NumbersOf(const Box& box, const Dims& shape) {
  std::vector<int64_t> numbers = {0};
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    std::vector<int64_t> next;
    for (const int64_t number : numbers) {
      for (int64_t i = box.ranges[dim].begin; i < box.ranges[dim].end; ++i) {
        next.push_back(number * shape[dim] + i);
      }
    }
    numbers = std::move(next);
  }
  return numbers;
}

std::vector<std::byte> Encode(const Values& values, DType dtype) {
  return DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    for (size_t i = 0; i < values.size(); ++i) {
      const T value = ConvertValue<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
    }
    return bytes;
  });
}

Values Decode(const std::vector<std::byte>& bytes, DType dtype) {
  return DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
    Values values(bytes.size() / sizeof(T));
    for (size_t i = 0; i < values.size(); ++i) {
      T value;
      std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = ConvertValue<double>(value);
    }
    return values;
  });
}

absl::StatusOr<Values> Download(Queue& queue, const Tensor& tensor) {
  std::vector<std::byte> bytes(tensor.buffer().size());
  TESSERA_RETURN_IF_ERROR(queue.Copy(tensor.buffer().bytes(), bytes));
  TESSERA_RETURN_IF_ERROR(queue.Synchronize());
  return Decode(bytes, tensor.dtype());
}

absl::StatusOr<DistributedTensor> MakeSource(const ShardedLayout& layout,
                                             DType dtype, topology::Rank rank,
                                             Queue& queue) {
  Values values;
  for (const int64_t number : NumbersOf(layout.BoxOf(rank), layout.shape())) {
    values.push_back(ValueOf(AddendOf(layout, rank), number));
  }
  TESSERA_ASSIGN_OR_RETURN(
      DistributedTensor tensor,
      DistributedTensor::Create(layout, rank, dtype, queue.device().memory()));
  const std::vector<std::byte> bytes = Encode(values, dtype);
  TESSERA_RETURN_IF_ERROR(
      queue.Copy(bytes, {tensor.local().view().data(), bytes.size()}));
  TESSERA_RETURN_IF_ERROR(queue.Synchronize());
  return tensor;
}

// Adds the ranks' shards along partial axes, and compares them with the sum of
// the source's addends, element by element. `results` is by rank.
void ExpectRight(const Case& c, const std::vector<Values>& results) {
  const topology::Mesh& mesh = c.from.mesh();
  int64_t addends = 1;
  for (const Placement& placement : c.from.placements()) {
    if (placement.is_partial()) addends *= mesh.SizeOf(placement.axis)->value();
  }
  std::vector<std::string> partial;
  for (const Placement& placement : c.to.placements()) {
    if (placement.is_partial()) partial.push_back(placement.axis);
  }
  for (int64_t r = 0; r < mesh.world_size(); ++r) {
    const topology::Rank rank = mesh.first_rank() + r;
    std::vector<topology::Rank> group = {rank};
    if (!partial.empty()) {
      group = *mesh.GroupsAlong(partial)->MembersWith(rank);
    }
    const auto numbers = NumbersOf(c.to.BoxOf(rank), c.to.shape());
    for (size_t i = 0; i < numbers.size(); ++i) {
      double expected = 0;
      for (int64_t a = 0; a < addends; ++a) expected += ValueOf(a, numbers[i]);
      double sum = 0;
      for (const topology::Rank member : group) {
        const Values& shard =
            results[static_cast<size_t>(member - mesh.first_rank())];
        ASSERT_EQ(shard.size(), numbers.size());
        sum += shard[i];
      }
      ASSERT_EQ(sum, expected) << "rank " << rank << " element " << numbers[i];
    }
  }
}

// The bytes that the communicators of a plan's steps have counted.
absl::StatusOr<int64_t> CountedBytes(GroupManager& groups, MemoryKind kind,
                                     const RedistributionPlan& plan) {
  std::set<Communicator*> communicators;
  for (const RedistributionStep& step : plan.steps) {
    if (IsLocal(step.kind)) continue;
    TESSERA_ASSIGN_OR_RETURN(Communicator* const group,
                             groups.Group(absl::StrJoin(step.axes, ",")));
    communicators.insert(IsHostAccessible(kind) ? &group->host() : group);
  }
  int64_t bytes = 0;
  for (const Communicator* communicator : communicators) {
    for (const auto& [key, totals] : communicator->Statistics()) {
      bytes += totals.bytes;
    }
  }
  return bytes;
}

absl::Status RunCase(GroupManager& groups, Queue& queue, const Case& c,
                     const RedistributionPlan& plan, Values& result) {
  TESSERA_ASSIGN_OR_RETURN(
      const DistributedTensor source,
      MakeSource(c.from, c.dtype, groups.mesh_rank(), queue));
  const MemoryKind kind = source.local().kind();
  TESSERA_ASSIGN_OR_RETURN(const StepBytes predicted,
                           plan.BytesOf(groups.mesh_rank()));
  TESSERA_ASSIGN_OR_RETURN(const int64_t before,
                           CountedBytes(groups, kind, plan));
  TESSERA_ASSIGN_OR_RETURN(const DistributedTensor moved,
                           Redistribute(groups, queue, source, plan));
  TESSERA_ASSIGN_OR_RETURN(const int64_t after,
                           CountedBytes(groups, kind, plan));
  if (after - before != predicted.counted || !(moved.layout() == c.to) ||
      moved.local().kind() != kind) {
    return absl::InternalError(
        absl::StrCat(after - before, " bytes moved, ", predicted.counted,
                     " predicted; ", moved.ToString(), "\n", plan.ToString()));
  }
  TESSERA_ASSIGN_OR_RETURN(result, Download(queue, moved.local()));
  return absl::OkStatus();
}

void RunCases(const topology::Mesh& mesh, const std::vector<Case>& cases,
              void (*run)(const topology::Mesh&, const RankTest&)) {
  std::vector<RedistributionPlan> plans;
  for (const Case& c : cases) {
    TESSERA_ASSERT_OK_AND_ASSIGN(RedistributionPlan plan,
                                 PlanRedistribution(c.from, c.to, c.dtype));
    plans.push_back(std::move(plan));
  }
  std::vector<std::vector<Values>> results(
      cases.size(),
      std::vector<Values>(static_cast<size_t>(mesh.world_size())));
  run(mesh, [&](GroupManager& groups, Queue& queue) -> absl::Status {
    const auto self =
        static_cast<size_t>(groups.mesh_rank() - mesh.first_rank());
    for (size_t i = 0; i < cases.size(); ++i) {
      TESSERA_RETURN_IF_ERROR(
          RunCase(groups, queue, cases[i], plans[i], results[i][self]),
          Annotate(_, cases[i].ToString()));
    }
    return absl::OkStatus();
  });
  for (size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(cases[i].ToString());
    ExpectRight(cases[i], results[i]);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

std::vector<Case> RandomCases(const topology::Mesh& mesh, int count) {
  constexpr DType kTypes[] = {DType::kF32, DType::kF64, DType::kBF16,
                              DType::kI32};
  RandomLayouts random(static_cast<uint64_t>(mesh.world_size()) * 31 +
                       mesh.axes().size());
  std::vector<Case> cases;
  for (int i = 0; i < count; ++i) {
    const Dims shape = random.Shape();
    cases.push_back({kTypes[i % 4], random.Layout(mesh, shape),
                     random.Layout(mesh, shape)});
  }
  return cases;
}

class RedistributeTest : public ::testing::TestWithParam<const char*> {};

// Compares values, and counted with predicted bytes.
TEST_P(RedistributeTest, EqualsGatheringAddingAndSlicing) {
  const topology::Mesh mesh = MeshOf(GetParam(), topology::Rank(3));
  RunCases(mesh, RandomCases(mesh, 100), RunOnHost);
}

TEST_P(RedistributeTest, EqualsGatheringAddingAndSlicingOnDevices) {
  const topology::Mesh mesh = MeshOf(GetParam());
  RunCases(mesh, RandomCases(mesh, 25), RunOnDevices);
}

TEST_P(RedistributeTest, EqualsGatheringAddingAndSlicingOnCuda) {
  const topology::Mesh mesh = MeshOf(GetParam());
  RunCases(mesh, RandomCases(mesh, 10), RunOnCuda);
}

INSTANTIATE_TEST_SUITE_P(Meshes, RedistributeTest,
                         ::testing::Values("tp1", "tp2", "tp3", "tp5", "tp8",
                                           "tp2,dp2", "tp3,dp2", "dp4,tp3",
                                           "tp2,cp2,dp2", "tp2,cp3,dp2",
                                           "tp2,ep1,dp3"));

TEST(RedistributeAllPairsTest, EveryPairOfLayoutsOfAMatrix) {
  const topology::Mesh mesh = MeshOf("tp2,dp3");
  std::vector<ShardedLayout> layouts;
  for (const char* placements :
       {"replicated", "tp:0", "tp:1", "tp:sum", "dp:0", "dp:1", "dp:sum",
        "tp:0,dp:0", "dp:0,tp:0", "tp:0,dp:1", "tp:1,dp:0", "tp:1,dp:1",
        "dp:1,tp:1", "tp:sum,dp:0", "tp:sum,dp:1", "tp:0,dp:sum", "tp:1,dp:sum",
        "tp:sum,dp:sum"}) {
    layouts.push_back(LayoutOf(mesh, {7, 4}, placements));
  }
  std::vector<Case> cases;
  for (const ShardedLayout& from : layouts) {
    for (const ShardedLayout& to : layouts) {
      cases.push_back({DType::kF64, from, to});
    }
  }
  RunCases(mesh, cases, RunOnHost);
}

absl::Status ExpectShard(const DistributedTensor& tensor, Queue& queue,
                         std::string_view placements, int64_t addends) {
  TESSERA_ASSIGN_OR_RETURN(const Values values,
                           Download(queue, tensor.local()));
  Values expected;
  for (const int64_t number : NumbersOf(tensor.box(), tensor.shape())) {
    double& sum = expected.emplace_back();
    for (int64_t addend = 0; addend < addends; ++addend) {
      sum += ValueOf(addend, number);
    }
  }
  EXPECT_EQ(FormatPlacements(tensor.layout().placements()), placements);
  EXPECT_EQ(values, expected) << tensor.ToString();
  return absl::OkStatus();
}

// Gather, Scatter and Reduce along each dimension.
void GatherScatterAndReduce(void (*run)(const topology::Mesh&,
                                        const RankTest&)) {
  const topology::Mesh mesh = MeshOf("tp2,dp3");
  run(mesh, [&](GroupManager& groups, Queue& queue) -> absl::Status {
    const auto source = [&](const char* placements) {
      return MakeSource(LayoutOf(mesh, {7, 5, 2}, placements), DType::kF32,
                        groups.mesh_rank(), queue);
    };
    for (int dim = 0; dim < 3; ++dim) {
      TESSERA_ASSIGN_OR_RETURN(const auto shard,
                               source(absl::StrCat("tp:", dim).c_str()));
      TESSERA_ASSIGN_OR_RETURN(const auto whole,
                               Gather(groups, queue, shard, dim));
      TESSERA_RETURN_IF_ERROR(ExpectShard(whole, queue, "replicated", 1));
      TESSERA_ASSIGN_OR_RETURN(const auto again,
                               Scatter(groups, queue, whole, "tp", dim));
      TESSERA_RETURN_IF_ERROR(
          ExpectShard(again, queue, absl::StrCat("tp:", dim), 1));
      TESSERA_ASSIGN_OR_RETURN(const auto addends, source("tp:sum"));
      TESSERA_ASSIGN_OR_RETURN(const auto scattered,
                               Scatter(groups, queue, addends, "tp", dim));
      TESSERA_RETURN_IF_ERROR(
          ExpectShard(scattered, queue, absl::StrCat("tp:", dim), 2));
      TESSERA_ASSIGN_OR_RETURN(const auto sum, Reduce(groups, queue, addends));
      TESSERA_RETURN_IF_ERROR(ExpectShard(sum, queue, "replicated", 2));
    }
    TESSERA_ASSIGN_OR_RETURN(const auto grid, source("dp:0,tp:1"));
    TESSERA_ASSIGN_OR_RETURN(const auto rows, Gather(groups, queue, grid, 1));
    return ExpectShard(rows, queue, "dp:0", 1);
  });
}

TEST(GatherScatterReduceTest, WorksAlongEveryDimension) {
  GatherScatterAndReduce(RunOnHost);
}

TEST(GatherScatterReduceTest, WorksAlongEveryDimensionOnDevices) {
  GatherScatterAndReduce(RunOnDevices);
}

// [128, 512] on 4 ranks, divided at dimension 0: rank 0 has rows 0 to 32.
void DivideAWholeTensor(void (*run)(const topology::Mesh&, const RankTest&)) {
  const topology::Mesh mesh = MeshOf("tp4");
  const ShardedLayout layout = LayoutOf(mesh, {128, 512}, "tp:0");
  run(mesh, [&](GroupManager& groups, Queue& queue) -> absl::Status {
    std::vector<float> values(128 * 512);
    std::iota(values.begin(), values.end(), 0.0f);
    TESSERA_ASSIGN_OR_RETURN(
        const ConstTensorView whole,
        ConstTensorView::Of(std::span<const float>(values), {{128, 512}}));
    const topology::Rank rank = groups.mesh_rank();
    TESSERA_ASSIGN_OR_RETURN(
        const auto tensor,
        DistributedTensor::FromWhole(layout, rank, whole, queue));
    EXPECT_EQ(tensor.local_shape(), (Dims{32, 512}));
    EXPECT_EQ(tensor.shape(), (Dims{128, 512}));
    EXPECT_EQ(tensor.box().ranges[0].begin, 32 * rank.value());
    EXPECT_EQ(tensor.box().ranges[0].end, 32 * rank.value() + 32);
    EXPECT_TRUE(tensor.is_sharded());
    EXPECT_TRUE(tensor.requires_communication());
    EXPECT_EQ(tensor.device_id(), queue.device().memory()->device_ordinal());
    EXPECT_EQ(tensor.ToString(),
              absl::StrCat("f32 [128,512] as tp:0; rank ", rank.value(),
                           " holds [", 32 * rank.value(), ", ",
                           32 * rank.value() + 32, ") x [0, 512)"));
    TESSERA_ASSIGN_OR_RETURN(const Values shard,
                             Download(queue, tensor.local()));
    for (size_t i = 0; i < shard.size(); ++i) {
      if (shard[i] != static_cast<double>(i) + 16384.0 * rank.value()) {
        return absl::InternalError(absl::StrCat("element ", i));
      }
    }
    // A whole tensor as addends: its sum is the tensor.
    TESSERA_ASSIGN_OR_RETURN(
        const auto addend,
        DistributedTensor::FromWhole(LayoutOf(mesh, {128, 512}, "tp:sum"), rank,
                                     whole, queue));
    TESSERA_ASSIGN_OR_RETURN(const auto sum, Reduce(groups, queue, addend));
    TESSERA_ASSIGN_OR_RETURN(const Values all, Download(queue, sum.local()));
    EXPECT_EQ(all, Values(values.begin(), values.end()));
    return absl::OkStatus();
  });
}

TEST(DistributedTensorTest, DividesAWholeTensor) {
  DivideAWholeTensor(RunOnHost);
}

TEST(DistributedTensorTest, DividesAWholeTensorOnDevices) {
  DivideAWholeTensor(RunOnDevices);
}

TEST(DistributedTensorTest, RejectsOtherShapesAndRanks) {
  const ShardedLayout layout = LayoutOf(MeshOf("tp4"), {128, 512}, "tp:0");
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor local,
                               Tensor::Create(DType::kF32, {{128, 128}}));
  EXPECT_THAT(DistributedTensor::FromWhole(layout, topology::Rank(0),
                                           local.view(), HostQueue()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("a whole tensor of shape [128,128]"),
                             HasSubstr("give [128,512]"))));
  EXPECT_THAT(DistributedTensor::Create(layout, topology::Rank(4), DType::kF32),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("4")));
  EXPECT_THAT(
      DistributedTensor::FromLocal(layout, topology::Rank(1), std::move(local)),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("a shard of shape [128,128]"),
                     HasSubstr("rank 1 holds [32, 64) x [0, 512)"),
                     HasSubstr("give [32,512]"))));
}

TEST(RedistributeRejectionTest, SendsNothingAndLosesNothing) {
  const topology::Mesh mesh = MeshOf("tp2");
  RunOnHost(mesh, [&](GroupManager& groups, Queue& queue) -> absl::Status {
    const topology::Rank rank = groups.mesh_rank();
    const ShardedLayout layout = LayoutOf(mesh, {4, 1}, "tp:0");
    const ShardedLayout whole = LayoutOf(mesh, {4, 1}, "replicated");
    TESSERA_ASSIGN_OR_RETURN(const auto tensor,
                             MakeSource(layout, DType::kF32, rank, queue));
    const auto expect = [](const auto& result, auto says) {
      EXPECT_THAT(result, StatusIs(absl::StatusCode::kInvalidArgument, says));
    };
    TESSERA_ASSIGN_OR_RETURN(const RedistributionPlan other,
                             PlanRedistribution(layout, whole, DType::kF64));
    expect(Redistribute(groups, queue, tensor, other),
           AllOf(HasSubstr("the plan is for f64 [4,1] as tp:0"),
                 HasSubstr("the tensor is f32 [4,1] as tp:0; rank")));
    TESSERA_ASSIGN_OR_RETURN(
        const auto of_other_rank,
        MakeSource(layout, DType::kF32, topology::Rank(1 - rank.value()),
                   queue));
    expect(Reduce(groups, queue, of_other_rank),
           HasSubstr("give those of one mesh and rank"));
    TESSERA_ASSIGN_OR_RETURN(const auto of_other_mesh,
                             MakeSource(LayoutOf(MeshOf("dp2"), {4, 1}, "dp:0"),
                                        DType::kF32, rank, queue));
    expect(Gather(groups, queue, of_other_mesh, 0),
           HasSubstr("of mesh dp2, the group manager"));
    expect(Gather(groups, queue, tensor, 2),
           AllOf(HasSubstr("dimension 2 of f32 [4,1]"), HasSubstr("0 to 1")));
    expect(Gather(groups, queue, tensor, -1), HasSubstr("dimension -1"));
    expect(Scatter(groups, queue, tensor, "tp", 2), HasSubstr("dimension 2"));
    expect(Scatter(groups, queue, tensor, "tp", -1), HasSubstr("dimension -1"));
    expect(Scatter(groups, queue, tensor, "xp", 0), HasSubstr("xp"));
    expect(Redistribute(groups, queue, tensor, {{"tp", 5}}),
           HasSubstr("dimension 5"));
    TESSERA_ASSIGN_OR_RETURN(
        const ShardedLayout strict,
        ShardedLayout::Create(mesh, {{4, 1}}, {{"tp", 0}}));
    TESSERA_ASSIGN_OR_RETURN(const auto strict_tensor,
                             MakeSource(strict, DType::kF32, rank, queue));
    expect(Scatter(groups, queue, strict_tensor, "tp", 1),
           HasSubstr("some would have none"));
    TESSERA_ASSIGN_OR_RETURN(const auto all, Gather(groups, queue, tensor, 0));
    return ExpectShard(all, queue, "replicated", 1);
  });
}

// Device memory needs a communicator on the device.
TEST(RedistributeRejectionTest, HostGroupsDoNotTakeDeviceMemory) {
  const topology::Mesh mesh = MeshOf("tp2");
  EXPECT_THAT(collectives::RunEmulated(
                  2, /*seed=*/1,
                  [&](collectives::EmulatedRank& rank) -> absl::Status {
                    TESSERA_ASSIGN_OR_RETURN(
                        auto groups,
                        GroupManager::Create(rank.communicator.host(), mesh));
                    TESSERA_ASSIGN_OR_RETURN(
                        const auto tensor,
                        MakeSource(LayoutOf(mesh, {4}, "tp:0"), DType::kF32,
                                   groups->mesh_rank(), rank.queue));
                    EXPECT_THAT(
                        Gather(*groups, rank.queue, tensor, 0),
                        StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("the tensor is in device memory")));
                    return absl::OkStatus();
                  }),
              Each(IsOk()));
}

// A large world, of which one rank runs and no byte is moved.
TEST(RedistributeCountingTest, CountsThePredictedBytesOfALargeWorld) {
  const topology::Mesh mesh = MeshOf("tp8,dp16");
  const ShardedLayout from =
      LayoutOf(mesh, {1000, 2000}, "dp:0,tp:1:blocks128");
  for (const char* target :
       {"replicated", "tp:0", "tp:0,dp:1:ceil", "dp:1", "dp:0"}) {
    const ShardedLayout to = LayoutOf(mesh, {1000, 2000}, target);
    TESSERA_ASSERT_OK_AND_ASSIGN(const RedistributionPlan plan,
                                 PlanRedistribution(from, to, DType::kBF16));
    for (const int64_t r : {0, 77, 127}) {
      const auto memory =
          std::make_shared<CountingMemory>(CountingMemory::Access::kTrapped);
      TESSERA_ASSERT_OK_AND_ASSIGN(
          auto engine,
          collectives::CreateCountingEngine({.rank = topology::Rank(r),
                                             .ranks = mesh.world_size(),
                                             .memory = memory}));
      TESSERA_ASSERT_OK_AND_ASSIGN(auto world,
                                   Communicator::Create(std::move(engine)));
      TESSERA_ASSERT_OK_AND_ASSIGN(auto groups,
                                   GroupManager::Create(*world, mesh));
      CountingDevice device(memory, memory);
      TESSERA_ASSERT_OK_AND_ASSIGN(auto queue, device.CreateQueue("counting"));
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const auto tensor, DistributedTensor::Create(from, topology::Rank(r),
                                                       DType::kBF16, memory));
      const auto bytes = [&] {
        return collectives::Total(world->StatisticsWithSubgroups()).bytes;
      };
      const int64_t before = bytes();
      TESSERA_ASSERT_OK(Redistribute(*groups, *queue, tensor, plan));
      EXPECT_EQ(bytes() - before, plan.BytesOf(topology::Rank(r))->counted)
          << target << "\n"
          << plan.ToString();
    }
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel

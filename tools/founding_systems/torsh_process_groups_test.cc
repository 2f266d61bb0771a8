// The expectations of torsh's three_d_parallelism process groups, with bytes
// that move where the original sleeps.
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/groups/group_manager.h"
#include "collectives/record/flight_recorder.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"
#include "topology/mesh.h"

namespace tessera::collectives {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

absl::Status Expect(bool holds, std::string_view what) {
  return holds ? absl::OkStatus() : absl::InternalError(what);
}

// Runs `body` on the eight ranks of its example mesh.
template <typename Body>
std::vector<absl::Status> OnMesh(const Body& body) {
  const topology::Mesh mesh =
      *topology::Mesh::Create(*topology::ParseAxes("pp2,tp2,dp2"));
  return RunRanks(8, [&](Communicator& world) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(auto groups, GroupManager::Create(world, mesh));
    return body(*groups);
  });
}

TEST(TorshProcessGroupsTest, EachAlgorithmAddsOverTheDataGroup) {
  EXPECT_THAT(
      OnMesh([](GroupManager& groups) -> absl::Status {
        for (const Algorithm algorithm :
             {Algorithm::kEngine, Algorithm::kRing, Algorithm::kTree,
              Algorithm::kHierarchical}) {
          std::vector<float> gradient(
              1000, static_cast<float>(groups.mesh_rank().value()));
          TESSERA_RETURN_IF_ERROR(groups.Run(
              "dp",
              AllReduceOf(ConstBuffer(std::span<const float>(gradient)),
                          Buffer(std::span(gradient)), Reduction::Sum()),
              {.algorithm = algorithm}));
          // The other rank of the group is 4 away.
          const auto own = static_cast<float>(groups.mesh_rank().value() % 4);
          TESSERA_RETURN_IF_ERROR(
              Expect(gradient == std::vector<float>(1000, 2 * own + 4),
                     absl::StrCat("algorithm ", static_cast<int>(algorithm))));
        }
        return absl::OkStatus();
      }),
      Each(IsOk()));
}

TEST(TorshProcessGroupsTest, AllGatherMultipliesTheFirstDimension) {
  EXPECT_THAT(
      OnMesh([](GroupManager& groups) -> absl::Status {
        const std::vector<int64_t> own(6, groups.mesh_rank().value());
        std::vector<int64_t> all(12);
        TESSERA_RETURN_IF_ERROR(groups.Run(
            "tp",
            AllGatherOf(ConstBuffer(std::span(own)), Buffer(std::span(all)))));
        TESSERA_ASSIGN_OR_RETURN(Communicator* const tp, groups.Group("tp"));
        const int64_t first =
            groups.mesh_rank().value() - 2 * tp->rank().value();
        return Expect(all[0] == first && all[5] == first &&
                          all[6] == first + 2 && all[11] == first + 2,
                      "gathered values");
      }),
      Each(IsOk()));
}

TEST(TorshProcessGroupsTest, ReduceScatterDividesTheFirstDimension) {
  EXPECT_THAT(
      OnMesh([](GroupManager& groups) -> absl::Status {
        std::vector<int64_t> input(8);
        std::iota(input.begin(), input.end(), 0);
        std::vector<int64_t> output(4);
        TESSERA_RETURN_IF_ERROR(groups.Run(
            "tp",
            ReduceScatterOf(ConstBuffer(std::span(input)),
                            Buffer(std::span(output)), Reduction::Sum())));
        TESSERA_ASSIGN_OR_RETURN(Communicator* const tp, groups.Group("tp"));
        const int64_t first = 8 * tp->rank().value();
        return Expect(output == std::vector<int64_t>(
                                    {first, first + 2, first + 4, first + 6}),
                      "scattered sums");
      }),
      Each(IsOk()));
}

TEST(TorshProcessGroupsTest, StagesExchangeMicroBatchesByNumber) {
  EXPECT_THAT(
      OnMesh([](GroupManager& groups) -> absl::Status {
        for (const int32_t micro : {1, 0}) {
          int64_t value = 100 * micro + groups.mesh_rank().value();
          if (groups.IsFirstStage()) {
            TESSERA_RETURN_IF_ERROR(groups.SendToNextStage(
                ConstBuffer(std::span<const int64_t>(&value, 1)), micro));
          }
        }
        if (!groups.IsFirstStage()) {
          for (const int32_t micro : {0, 1}) {
            int64_t value = -1;
            TESSERA_RETURN_IF_ERROR(groups.ReceiveFromPreviousStage(
                Buffer(std::span(&value, 1)), micro));
            TESSERA_RETURN_IF_ERROR(
                Expect(value == 100 * micro + groups.mesh_rank().value() - 1,
                       "activations"));
            value = -value;
            TESSERA_RETURN_IF_ERROR(groups.SendToPreviousStage(
                ConstBuffer(std::span<const int64_t>(&value, 1)), micro));
          }
          return absl::OkStatus();
        }
        for (const int32_t micro : {1, 0}) {
          int64_t value = 0;
          TESSERA_RETURN_IF_ERROR(
              groups.ReceiveFromNextStage(Buffer(std::span(&value, 1)), micro));
          TESSERA_RETURN_IF_ERROR(
              Expect(value == -(100 * micro + groups.mesh_rank().value()),
                     "gradients"));
        }
        return absl::OkStatus();
      }),
      Each(IsOk()));
}

TEST(TorshProcessGroupsTest, ThereIsNoStageAfterTheLast) {
  EXPECT_THAT(OnMesh([](GroupManager& groups) -> absl::Status {
                if (!groups.IsLastStage()) return absl::OkStatus();
                const int64_t value = 0;
                const absl::Status status = groups.SendToNextStage(
                    ConstBuffer(std::span<const int64_t>(&value, 1)));
                return Expect(absl::IsInvalidArgument(status),
                              status.message());
              }),
              Each(IsOk()));
}

TEST(TorshProcessGroupsTest, StatisticsAreMeasured) {
  EXPECT_THAT(
      OnMesh([](GroupManager& groups) -> absl::Status {
        std::vector<float> gradient(1000);
        for (int i = 0; i < 3; ++i) {
          TESSERA_RETURN_IF_ERROR(groups.Run(
              "dp",
              AllReduceOf(ConstBuffer(std::span<const float>(gradient)),
                          Buffer(std::span(gradient)), Reduction::Sum())));
        }
        TESSERA_ASSIGN_OR_RETURN(Communicator* const dp, groups.Group("dp"));
        const OperationTotals total = Total(dp->Statistics());
        TESSERA_RETURN_IF_ERROR(
            Expect(total.count == 3, absl::StrCat(total.count, " operations")));
        TESSERA_RETURN_IF_ERROR(
            Expect(total.bytes == 3 * 4000, absl::StrCat(total.bytes, " B")));
        return Expect(total.MeanNanos() > 0, "no time was measured");
      }),
      Each(IsOk()));
}

}  // namespace
}  // namespace tessera::collectives

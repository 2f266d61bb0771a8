#include "tools/train/checkpoint/memory_copies.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/optimizer/parameter_range.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/testing/mesh_run.h"
#include "topology/config/parallel_config.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_manifest.h"

namespace tessera::train {
namespace {

using collectives::RankLocation;
using ::testing::Each;
using ::testing::HasSubstr;
using testing::IdentityOf;
using testing::NewRunDirectory;
using testing::OnEachRank;
using testing::OnRanks;
using ::testing::SizeIs;
using testing::SmallMixture;
using testing::SmallRun;
using testing::TrainTo;
using ::testing::UnorderedElementsAreArray;
using testing::WholeBits;
using testing::WholeState;

TEST(PartnerDistanceTest, PartnersAreOnOtherHosts) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 500; ++round) {
    const size_t ranks = 1 + random() % 12, hosts = 1 + random() % 4;
    std::vector<RankLocation> locations;
    for (size_t r = 0; r < ranks; ++r) {
      locations.push_back({absl::StrCat("host", random() % hosts), {}});
    }
    std::vector<size_t> possible;
    for (size_t distance = 1; distance < ranks; ++distance) {
      size_t apart = 0;
      for (size_t r = 0; r < ranks; ++r) {
        apart += locations[r].host != locations[(r + distance) % ranks].host;
      }
      if (apart == ranks) possible.push_back(distance);
    }
    EXPECT_EQ(PartnerDistance(locations),
              static_cast<int64_t>(possible.empty() ? 1 : possible.front()));
  }
  EXPECT_EQ(PartnerDistance({}), 1);
}

// The copies of the ranks of a run, which has several worlds.
class CopiedRun {
 public:
  explicit CopiedRun(const RunOptions& options) : options_(options) {
    for (int64_t r = 0; r < options.mesh.world_size(); ++r) {
      copies_.push_back(std::make_unique<MemoryCopies>());
    }
  }

  // A new process takes the place of the rank.
  void Lose(size_t rank) { copies_[rank] = std::make_unique<MemoryCopies>(); }

  // A world of all ranks. `body` is called after Restore, with what it
  // returned.
  using Body = std::function<absl::Status(
      TrainRank&, MemoryCopies&,
      const std::optional<zero3::CheckpointMetadata>& restored)>;
  std::vector<absl::Status> InWorld(const Body& body,
                                    const RunOptions* options = nullptr) {
    return OnEachRank(
        options == nullptr ? options_ : *options,
        [&](TrainRank& rank) -> absl::Status {
          const auto index = static_cast<size_t>(rank.world().rank().value());
          MemoryCopies& copies = *copies_[index];
          absl::Status status = copies.Join(rank.world(), locations_).status();
          if (status.ok()) {
            auto restored = copies.Restore(rank);
            status = restored.status();
            if (restored.ok()) status = body(rank, copies, *restored);
          }
          if (!status.ok()) rank.world().Abort(status.message());
          copies.Leave();
          return status;
        });
  }

  absl::Status Take(TrainRank& rank, MemoryCopies& copies) const {
    zero3::CheckpointMetadata metadata;
    TESSERA_RETURN_IF_ERROR(AddTo(IdentityOf(options_), metadata));
    return copies.Take(rank, metadata);
  }

  static absl::Status FinishAndCommit(TrainRank& rank, MemoryCopies& copies) {
    TESSERA_RETURN_IF_ERROR(copies.Finish());
    TESSERA_RETURN_IF_ERROR(rank.world().Barrier());
    copies.Commit();
    return absl::OkStatus();
  }

  // The ranks end with a checkpoint of their copies.
  absl::Status Save(const std::string& directory, std::string& path) {
    return OnRanks(options_, [&](TrainRank& rank) -> absl::Status {
      const auto index = static_cast<size_t>(rank.world().rank().value());
      MemoryCopies& copies = *copies_[index];
      TESSERA_RETURN_IF_ERROR(copies.Join(rank.world(), locations_).status());
      const auto saved = copies.Save({.directory = directory});
      if (!saved.ok()) rank.world().Abort(saved.status().message());
      if (index == 0 && saved.ok()) path = *saved;
      copies.Leave();
      return saved.status();
    });
  }

  MemoryCopies& of(size_t rank) { return *copies_[rank]; }
  // The hosts of the ranks of the next world.
  void MoveTo(std::vector<RankLocation> locations) {
    locations_ = std::move(locations);
  }

 private:
  const RunOptions options_;
  std::vector<RankLocation> locations_;
  std::vector<std::unique_ptr<MemoryCopies>> copies_;
};

RunOptions With(RunOptions options, std::string_view mesh, int stage) {
  options.mesh = *topology::MeshSizes::Parse(mesh);
  options.state.stage = stage;
  options.batch = 12;
  return options;
}

struct Case {
  std::string name;
  RunOptions options;

  friend std::ostream& operator<<(std::ostream& out, const Case& one) {
    return out << one.name;
  }
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const int stage : {0, 1, 2, 3}) {
    cases.push_back(
        {absl::StrCat("dp3_stage", stage), With(SmallRun(), "dp3", stage)});
  }
  cases.push_back({"dp2_pp2", With(SmallRun(), "dp2,pp2", 3)});
  cases.push_back({"dp2_tp2", With(SmallRun(), "dp2,tp2", 1)});
  cases.push_back({"cp2_tp2", With(SmallRun(), "cp2,tp2", 2)});
  cases.push_back({"replicas", With(SmallRun(), "dp4,dp_replicate2", 3)});
  cases.push_back({"experts", With(SmallMixture(), "dp4,ep2", 3)});
  RunOptions int8 = With(SmallRun(), "dp2", 3);
  int8.state.moments = offload::MomentFormat::Blockwise8(64);
  int8.state.alignment = 64;
  cases.push_back({"int8", int8});
  RunOptions fp8 = With(SmallRun(), "pp2,tp2", 1);
  fp8.dtype = DType::kBF16;
  fp8.fp8 = true;
  cases.push_back({"fp8", fp8});
  return cases;
}

void ExpectSameCheckpoints(const std::string& expected,
                           const std::string& actual) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto manifest,
                               zero3::ReadManifest(expected));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto other, zero3::ReadManifest(actual));
  EXPECT_EQ(other.step, manifest.step);
  // In the order of the ranks that wrote them.
  EXPECT_THAT(other.parts, UnorderedElementsAreArray(manifest.parts));
  for (const zero3::CheckpointPart& part : manifest.parts) {
    for (size_t rank = 0; rank < part.files.size(); ++rank) {
      const std::string name =
          zero3::ShardFileName(part.name, static_cast<int64_t>(rank));
      constexpr int64_t kMost = int64_t{1} << 30;
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const std::string bytes,
          ReadFile(absl::StrCat(expected, "/", name), kMost));
      EXPECT_TRUE(
          ReadFile(absl::StrCat(actual, "/", name), kMost).value_or("") ==
          bytes)
          << name;
    }
  }
}

class MemoryCopiesTest : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Runs, MemoryCopiesTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

// Every rank is lost once. The losses are those of an undisturbed run.
TEST_P(MemoryCopiesTest, RestoresStepOfLostRank) {
  const RunOptions& options = GetParam().options;
  constexpr int64_t kCopied = 2, kSteps = 4;
  CopiedRun run(options);
  WholeState expected;
  std::vector<double> losses;
  ASSERT_THAT(run.InWorld([&](TrainRank& rank, MemoryCopies& copies,
                              const auto& restored) -> absl::Status {
    EXPECT_FALSE(restored.has_value());
    EXPECT_FALSE(copies.were_taken());
    TESSERA_RETURN_IF_ERROR(TrainTo(rank, kCopied).status());
    TESSERA_RETURN_IF_ERROR(expected.Add(rank));
    TESSERA_RETURN_IF_ERROR(run.Take(rank, copies));
    // While the copies are exchanged.
    TESSERA_ASSIGN_OR_RETURN(const auto later, TrainTo(rank, kSteps));
    if (rank.world().rank().value() == 0) losses = later;
    return CopiedRun::FinishAndCommit(rank, copies);
  }),
              Each(IsOk()));
  for (int64_t lost = 0; lost < options.mesh.world_size(); ++lost) {
    SCOPED_TRACE(absl::StrCat("rank ", lost));
    run.Lose(static_cast<size_t>(lost));
    WholeState actual;
    ASSERT_THAT(run.InWorld([&](TrainRank& rank, MemoryCopies& copies,
                                const auto& restored) -> absl::Status {
      EXPECT_TRUE(copies.were_taken());
      if (!restored.has_value()) return absl::NotFoundError("nothing restored");
      EXPECT_EQ(rank.steps(), kCopied);
      EXPECT_EQ(*IdentityFrom(*restored), IdentityOf(options));
      TESSERA_RETURN_IF_ERROR(actual.Add(rank));
      TESSERA_RETURN_IF_ERROR(run.Take(rank, copies));
      TESSERA_ASSIGN_OR_RETURN(const auto later, TrainTo(rank, kSteps));
      EXPECT_EQ(later, losses);
      return CopiedRun::FinishAndCommit(rank, copies);
    }),
                Each(IsOk()));
    EXPECT_EQ(*actual.bits(), *expected.bits());
  }
}

// The files are those of a checkpoint that the ranks wrote after that step.
TEST_P(MemoryCopiesTest, SavesCheckpointWithoutLostRank) {
  const RunOptions& options = GetParam().options;
  const auto last = static_cast<size_t>(options.mesh.world_size() - 1);
  const std::string expected = NewRunDirectory("expected");
  for (const std::optional<size_t> lost :
       {std::optional<size_t>(), std::optional<size_t>(0),
        std::optional<size_t>(last)}) {
    SCOPED_TRACE(absl::StrCat("lost: ", lost.has_value() ? *lost : 99));
    CopiedRun run(options);
    ASSERT_THAT(run.InWorld([&](TrainRank& rank, MemoryCopies& copies,
                                const auto&) -> absl::Status {
      TESSERA_RETURN_IF_ERROR(TrainTo(rank, 2).status());
      TESSERA_RETURN_IF_ERROR(run.Take(rank, copies));
      if (!lost.has_value()) {
        TESSERA_ASSIGN_OR_RETURN(
            const auto checkpoints,
            RunCheckpoints::Create(rank, {.directory = expected,
                                          .identity = IdentityOf(options)}));
        TESSERA_RETURN_IF_ERROR(checkpoints->Save().status());
      }
      TESSERA_RETURN_IF_ERROR(TrainTo(rank, 3).status());
      return CopiedRun::FinishAndCommit(rank, copies);
    }),
                Each(IsOk()));
    if (lost.has_value()) run.Lose(*lost);
    const std::string actual = NewRunDirectory("actual");
    std::string path;
    TESSERA_ASSERT_OK(run.Save(actual, path));
    EXPECT_EQ(path, actual + "/step-00000002");
    ExpectSameCheckpoints(expected + "/step-00000002", path);
  }
}

// The account has the complete copies and those on their way.
TEST_P(MemoryCopiesTest, CountsFourCopies) {
  CopiedRun run(GetParam().options);
  std::vector<int64_t> bytes(
      static_cast<size_t>(GetParam().options.mesh.world_size()));
  ASSERT_THAT(run.InWorld([&](TrainRank& rank, MemoryCopies& copies,
                              const auto&) -> absl::Status {
    const auto index = static_cast<size_t>(rank.world().rank().value());
    for (const ShardedModel::Part& part : rank.model().parts()) {
      for (const auto& block : BlocksToCopy(*part.state)) {
        bytes[index] += block.bytes();
      }
    }
    if (rank.fp8() != nullptr) {
      bytes[index] += static_cast<int64_t>(rank.fp8()->state().size());
    }
    for (int take = 0; take < 3; ++take) {
      TESSERA_RETURN_IF_ERROR(run.Take(rank, copies));
      TESSERA_RETURN_IF_ERROR(CopiedRun::FinishAndCommit(rank, copies));
    }
    return absl::OkStatus();
  }),
              Each(IsOk()));
  for (size_t r = 0; r < bytes.size(); ++r) {
    const size_t held = (r + bytes.size() - 1) % bytes.size();
    // The memory of the earlier copies is used again.
    EXPECT_EQ(run.of(r).usage().current, 2 * (bytes[r] + bytes[held]));
    EXPECT_EQ(run.of(r).usage().peak, 2 * (bytes[r] + bytes[held]));
  }
}

TEST(MemoryCopiesFaultTest, LosesCopiesTogetherWithPartner) {
  const RunOptions options = With(SmallRun(), "dp4", 3);
  for (const size_t other : {1, 2, 3}) {
    CopiedRun run(options);
    ASSERT_THAT(run.InWorld([&](TrainRank& rank, MemoryCopies& copies,
                                const auto&) -> absl::Status {
      TESSERA_RETURN_IF_ERROR(TrainTo(rank, 1).status());
      TESSERA_RETURN_IF_ERROR(run.Take(rank, copies));
      return CopiedRun::FinishAndCommit(rank, copies);
    }),
                Each(IsOk()));
    run.Lose(0);
    run.Lose(other);
    // Rank 1 holds the copy of rank 0, and rank 0 that of rank 3.
    const bool is_lost = other != 2;
    ASSERT_THAT(run.InWorld([&](TrainRank& rank, MemoryCopies& copies,
                                const auto& restored) -> absl::Status {
      EXPECT_TRUE(copies.were_taken());
      EXPECT_EQ(restored.has_value(), !is_lost);
      EXPECT_EQ(rank.steps(), is_lost ? 0 : 1);
      return absl::OkStatus();
    }),
                Each(IsOk()));
    // Without copies a new run begins.
    ASSERT_THAT(run.InWorld([&](TrainRank&, MemoryCopies& copies,
                                const auto& restored) -> absl::Status {
      EXPECT_EQ(copies.were_taken(), true);
      EXPECT_EQ(restored.has_value(), !is_lost);
      return absl::OkStatus();
    }),
                Each(IsOk()));
  }
}

// If a host is lost, its ranks continue on another one, and have other partners
// from then on.
TEST(MemoryCopiesFaultTest, RestoresRanksOnAnotherHost) {
  const RunOptions options = With(SmallRun(), "dp4", 3);
  CopiedRun run(options);
  run.MoveTo({{"a", {}}, {"a", {}}, {"b", {}}, {"b", {}}});
  WholeState expected;
  for (const int64_t step : {1, 2, 3}) {
    SCOPED_TRACE(step);
    ASSERT_THAT(run.InWorld([&](TrainRank& rank, MemoryCopies& copies,
                                const auto& restored) -> absl::Status {
      EXPECT_EQ(restored.has_value(), step > 1);
      EXPECT_EQ(rank.steps(), step - 1);
      TESSERA_RETURN_IF_ERROR(TrainTo(rank, step).status());
      TESSERA_RETURN_IF_ERROR(run.Take(rank, copies));
      TESSERA_RETURN_IF_ERROR(CopiedRun::FinishAndCommit(rank, copies));
      return step == 3 ? expected.Add(rank) : absl::OkStatus();
    }),
                Each(IsOk()));
    if (step == 1) {
      run.Lose(2);
      run.Lose(3);
      run.MoveTo({{"a", {}}, {"a", {}}, {"a", {}}, {"a", {}}});
    } else {
      // Without its partner of before, and with that of now.
      run.Lose(0);
      run.Lose(2);
    }
  }
  WholeState actual;
  ASSERT_THAT(OnEachRank(options,
                         [&](TrainRank& rank) -> absl::Status {
                           TESSERA_RETURN_IF_ERROR(TrainTo(rank, 3).status());
                           return actual.Add(rank);
                         }),
              Each(IsOk()));
  EXPECT_EQ(*actual.bits(), *expected.bits());
}

// Rank 1 dies before it takes part in the second exchange: the ranks have the
// first copies. If it dies after the exchange, they have the second ones,
// whether they know that all ranks have them or not.
TEST(MemoryCopiesFaultTest, RestoresNewestCompleteCopies) {
  const RunOptions options = With(SmallRun(), "dp3", 3);
  for (const bool dies_early : {true, false}) {
    for (const bool commits : {false, true}) {
      if (dies_early && commits) continue;
      SCOPED_TRACE(absl::StrCat(dies_early, commits));
      CopiedRun run(options);
      const auto statuses =
          run.InWorld([&](TrainRank& rank, MemoryCopies& copies,
                          const auto&) -> absl::Status {
            TESSERA_RETURN_IF_ERROR(TrainTo(rank, 1).status());
            TESSERA_RETURN_IF_ERROR(run.Take(rank, copies));
            TESSERA_RETURN_IF_ERROR(CopiedRun::FinishAndCommit(rank, copies));
            TESSERA_RETURN_IF_ERROR(TrainTo(rank, 2).status());
            TESSERA_RETURN_IF_ERROR(rank.world().Barrier());
            const bool is_victim = rank.world().rank().value() == 1;
            if (is_victim && dies_early) return absl::InternalError("dies");
            TESSERA_RETURN_IF_ERROR(run.Take(rank, copies));
            TESSERA_RETURN_IF_ERROR(copies.Finish());
            TESSERA_RETURN_IF_ERROR(rank.world().Barrier());
            if (commits && rank.world().rank().value() == 0) copies.Commit();
            return absl::OkStatus();
          });
      EXPECT_EQ(statuses[0].ok(), !dies_early) << statuses[0];
      run.Lose(1);
      ASSERT_THAT(run.InWorld([&](TrainRank& rank, MemoryCopies&,
                                  const auto& restored) -> absl::Status {
        EXPECT_TRUE(restored.has_value());
        EXPECT_EQ(rank.steps(), dies_early ? 1 : 2);
        return absl::OkStatus();
      }),
                  Each(IsOk()));
    }
  }
}

// As after a change of the memory strategy.
TEST(MemoryCopiesFaultTest, DropsCopiesOfAnotherForm) {
  const RunOptions options = With(SmallRun(), "dp2", 1);
  const RunOptions other = With(SmallRun(), "dp2", 0);
  CopiedRun run(options);
  ASSERT_THAT(run.InWorld([&](TrainRank& rank, MemoryCopies& copies,
                              const auto&) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(run.Take(rank, copies));
    return CopiedRun::FinishAndCommit(rank, copies);
  }),
              Each(IsOk()));
  run.Lose(1);
  ASSERT_THAT(run.InWorld(
                  [&](TrainRank&, MemoryCopies& copies,
                      const auto& restored) -> absl::Status {
                    EXPECT_FALSE(restored.has_value());
                    EXPECT_EQ(copies.usage().current, 0);
                    return absl::OkStatus();
                  },
                  &other),
              Each(IsOk()));
}

// Save writes no file without copies, or if a checkpoint is not older.
TEST(MemoryCopiesFaultTest, SavesOnlyNewState) {
  const RunOptions options = With(SmallRun(), "dp2", 1);
  const std::string directory = NewRunDirectory("saves");
  CopiedRun run(options);
  std::string path;
  TESSERA_ASSERT_OK(run.Save(directory, path));
  EXPECT_EQ(path, "");
  ASSERT_THAT(run.InWorld([&](TrainRank& rank, MemoryCopies& copies,
                              const auto&) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(TrainTo(rank, 1).status());
    TESSERA_RETURN_IF_ERROR(run.Take(rank, copies));
    TESSERA_RETURN_IF_ERROR(CopiedRun::FinishAndCommit(rank, copies));
    TESSERA_RETURN_IF_ERROR(TrainTo(rank, 2).status());
    TESSERA_ASSIGN_OR_RETURN(
        const auto checkpoints,
        RunCheckpoints::Create(
            rank, {.directory = directory, .identity = IdentityOf(options)}));
    return checkpoints->Save().status();
  }),
              Each(IsOk()));
  run.Lose(1);
  TESSERA_ASSERT_OK(run.Save(directory, path));
  EXPECT_EQ(path, directory + "/step-00000002");
  EXPECT_THAT(zero3::CompleteCheckpoints(directory), IsOkAndHolds(SizeIs(1)));
}

// The ranks get the same error, and no checkpoint is left.
TEST(MemoryCopiesFaultTest, ReportsUnwritableDirectory) {
  CopiedRun run(With(SmallRun(), "dp2", 1));
  ASSERT_THAT(run.InWorld([&](TrainRank& rank, MemoryCopies& copies,
                              const auto&) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(run.Take(rank, copies));
    return CopiedRun::FinishAndCommit(rank, copies);
  }),
              Each(IsOk()));
  const std::string file = NewRunDirectory("unwritable") + "/file";
  TESSERA_ASSERT_OK(WriteFile(file, "not a directory"));
  std::string path;
  EXPECT_THAT(std::string(run.Save(file, path).message()), HasSubstr(file));
}

TEST(MemoryCopiesFaultTest, RejectsSingleRank) {
  CopiedRun run(With(SmallRun(), "dp1", 0));
  const auto statuses =
      run.InWorld([](TrainRank&, MemoryCopies&, const auto&) -> absl::Status {
        return absl::OkStatus();
      });
  EXPECT_TRUE(absl::IsInvalidArgument(statuses[0]));
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("two ranks"));
}

}  // namespace
}  // namespace tessera::train

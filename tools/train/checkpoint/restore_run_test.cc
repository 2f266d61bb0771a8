// Trains on one mesh, saves a checkpoint and resumes on another mesh: the state
// agrees bit for bit and the losses are those of an uninterrupted run.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/dtype/convert.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/tier/accounting.h"
#include "offload/tier/host_tier.h"
#include "tools/text/corpus.h"
#include "tools/text/samples.h"
#include "tools/text/tokenizer.h"
#include "tools/train/checkpoint/fp8_scales.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/testing/mesh_run.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IdentityOf;
using testing::NewRunDirectory;
using testing::OnEachRank;
using testing::OnRanks;
using testing::SmallMixture;
using testing::SmallRun;
using testing::TrainTo;
using testing::WholeBits;
using testing::WholeState;
using topology::AxisOrder;
using zero3::StatePart;

constexpr int64_t kSavedStep = 3;

RunOptions With(RunOptions options, const MeshSizes& mesh, int stage) {
  options.mesh = mesh;
  options.state.stage = stage;
  return options;
}

struct Uninterrupted {
  std::string path;            // Of kSavedStep.
  WholeBits bits;              // After kSavedStep.
  std::vector<double> losses;  // After kSavedStep.
};

absl::StatusOr<Uninterrupted> TrainAndSave(const RunOptions& options,
                                           const std::string& name) {
  Uninterrupted run;
  WholeState state;
  const std::string directory = NewRunDirectory(name);
  TESSERA_RETURN_IF_ERROR(
      OnRanks(options, [&](TrainRank& rank) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(
            auto checkpoints,
            RunCheckpoints::Create(rank, {.directory = directory,
                                          .identity = IdentityOf(options)}));
        TESSERA_RETURN_IF_ERROR(TrainTo(rank, kSavedStep).status());
        TESSERA_RETURN_IF_ERROR(state.Add(rank));
        TESSERA_RETURN_IF_ERROR(checkpoints->Start());
        // Runs while the checkpoint is written.
        TESSERA_ASSIGN_OR_RETURN(const auto losses,
                                 TrainTo(rank, options.steps));
        TESSERA_ASSIGN_OR_RETURN(const std::string path, checkpoints->Wait());
        if (rank.world().rank() == collectives::Rank(0)) {
          run.path = path;
          run.losses = losses;
        }
        return absl::OkStatus();
      }));
  TESSERA_ASSIGN_OR_RETURN(run.bits, state.bits());
  return run;
}

// Resumes and compares; a tolerance of 0 requires equality.
void ExpectResumes(const Uninterrupted& run, const RunOptions& options,
                   double tolerance) {
  SCOPED_TRACE(absl::StrCat("dp", options.mesh.dp, ",pp", options.mesh.pp,
                            ",cp", options.mesh.cp, ",tp", options.mesh.tp,
                            ",ep", options.mesh.ep, " zero ",
                            options.state.stage));
  WholeState state;
  std::vector<double> losses;
  ASSERT_THAT(OnRanks(options,
                      [&](TrainRank& rank) -> absl::Status {
                        TESSERA_RETURN_IF_ERROR(
                            RestoreRun(run.path, IdentityOf(options), rank));
                        EXPECT_EQ(rank.steps(), kSavedStep);
                        EXPECT_EQ(rank.state().steps(), kSavedStep);
                        TESSERA_RETURN_IF_ERROR(state.Add(rank));
                        TESSERA_ASSIGN_OR_RETURN(const auto mine,
                                                 TrainTo(rank, options.steps));
                        if (rank.world().rank() == collectives::Rank(0))
                          losses = mine;
                        return absl::OkStatus();
                      }),
              IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const WholeBits bits, state.bits());
  EXPECT_EQ(bits.size(), run.bits.size());
  for (const auto& [key, expected] : run.bits) {
    ASSERT_TRUE(bits.count(key)) << key.first;
    EXPECT_EQ(bits.at(key), expected)
        << key.first << ", " << zero3::StatePartName(key.second);
  }
  ASSERT_EQ(losses.size(), run.losses.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], run.losses[i], tolerance * std::abs(run.losses[i]));
  }
}

TEST(RestoreRunTest, RestoresStateAndLossesOnEveryMesh) {
  const RunOptions options = With(SmallRun(), {.dp = 2, .pp = 2, .tp = 2}, 3);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                               TrainAndSave(options, "meshes"));
  EXPECT_EQ(std::filesystem::path(run.path).filename(), "step-00000003");
  ExpectResumes(run, options, 0);
  for (const auto& [mesh, stage] :
       std::vector<std::pair<MeshSizes, int>>{{{.tp = 4}, 1},
                                              {{}, 0},
                                              {{.dp = 8}, 2},
                                              {{.dp = 2, .cp = 2, .tp = 2}, 3},
                                              {{.pp = 4, .tp = 2}, 0}}) {
    ExpectResumes(run, With(options, mesh, stage), 1e-5);
  }
}

// The checkpoint is written between batches of 4 sequences; the next batches
// have 6 and 8.
TEST(RestoreRunTest, GrowingBatchResumesWithSameSamples) {
  RunOptions options = With(SmallRun(), {.dp = 2, .pp = 2, .tp = 2}, 3);
  options.first_batch = 2;
  options.batch_warmup_steps = 5;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                               TrainAndSave(options, "growing"));
  ExpectResumes(run, options, 0);
  for (const auto& [mesh, stage] :
       std::vector<std::pair<MeshSizes, int>>{{{.tp = 4}, 1},
                                              {{}, 0},
                                              {{.dp = 2, .cp = 2}, 2},
                                              {{.pp = 4, .tp = 2}, 0}}) {
    ExpectResumes(run, With(options, mesh, stage), 1e-5);
  }
  options.batch_warmup_steps = 4;
  EXPECT_THAT(
      OnRanks(options,
              [&](TrainRank& rank) {
                return RestoreRun(run.path, IdentityOf(options), rank);
              }),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("batch_warmup is \"2:5\" there and \"2:4\" here")));
}

TEST(RestoreRunTest, RestoresExpertsOnOtherMeshes) {
  for (const auto& [saved, saved_stage] :
       std::vector<std::pair<MeshSizes, int>>{{{.dp = 4, .pp = 2, .ep = 2}, 3},
                                              {{}, 0}}) {
    const RunOptions options = With(SmallMixture(), saved, saved_stage);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                                 TrainAndSave(options, "experts"));
    ExpectResumes(run, options, 0);
    for (const auto& [mesh, stage] : std::vector<std::pair<MeshSizes, int>>{
             {{}, 1},
             {{.dp = 8, .ep = 8}, 1},
             {{.dp = 2, .cp = 2, .tp = 2, .ep = 4}, 3},
             {{.pp = 2, .tp = 4}, 0},
             {{.dp = 4, .dp_replicate = 2, .ep = 2}, 3},
             {{.dp = 4, .pp = 2}, 3}}) {
      ExpectResumes(run, With(options, mesh, stage), 1e-5);
    }
  }
}

// Texts of random letters, so that other tokens give other losses.
std::shared_ptr<const text::Corpus> RandomText(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string letters(4000, ' ');
  for (char& letter : letters) {
    letter = static_cast<char>('a' + random() % 26);
  }
  return *text::Corpus::FromTexts({{letters}}, text::ByteTokenizer());
}

TEST(RestoreRunTest, BlendResumesWithSameTokensOnAnotherMesh) {
  const auto samples_of = [](const RunOptions& options, uint64_t seed) {
    const text::Samples::Part parts[] = {{RandomText(1), 0.7},
                                         {RandomText(2), 0.3}};
    return *text::Samples::Create(parts,
                                  {.sequence = options.length, .seed = seed});
  };
  const auto train = [](const RunOptions& options, const std::string& from,
                        const std::string& to, const text::Samples& samples,
                        int64_t end) -> absl::StatusOr<std::vector<double>> {
    std::vector<double> losses;
    TESSERA_RETURN_IF_ERROR(OnRanks(
        options,
        [&](TrainRank& rank) -> absl::Status {
          if (!from.empty()) {
            TESSERA_RETURN_IF_ERROR(
                RestoreRun(from, IdentityOf(options), rank));
          }
          TESSERA_ASSIGN_OR_RETURN(const auto mine, TrainTo(rank, end));
          if (rank.world().rank() == collectives::Rank(0)) losses = mine;
          if (to.empty()) return absl::OkStatus();
          TESSERA_ASSIGN_OR_RETURN(
              auto checkpoints,
              RunCheckpoints::Create(
                  rank, {.directory = to, .identity = IdentityOf(options)}));
          return checkpoints->Save().status();
        },
        &samples));
    return losses;
  };
  RunOptions options = SmallRun();
  const text::Samples samples = samples_of(options, 7);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<double> expected,
                               train(options, "", "", samples, options.steps));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::vector<double> others,
      train(options, "", "", samples_of(options, 8), options.steps));
  const std::string directory = NewRunDirectory("blend");
  options.mesh = {.dp = 2, .pp = 2, .tp = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      std::vector<double> losses,
      train(options, "", directory, samples, kSavedStep));
  options.mesh = {.dp = 4, .cp = 2};
  options.micro_batch = 2;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::vector<double> later,
      train(options, directory, "", samples, options.steps));
  losses.insert(losses.end(), later.begin(), later.end());
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], expected[i], 1e-5 * expected[i]) << i;
    EXPECT_GT(std::abs(others[i] - expected[i]), 1e-4 * expected[i]) << i;
  }
}

AxisOrder OrderOf(const MeshSizes& mesh, std::string_view text) {
  return *mesh.ParseOrder(text);
}

// Muon's matrices have only one moment, so their files have another layout.
TEST(RestoreRunTest, RestoresMuonOnOtherMeshes) {
  for (const bool is_mixture : {false, true}) {
    RunOptions options =
        With(is_mixture ? SmallMixture() : SmallRun(), {.dp = 2, .tp = 2}, 3);
    options.state.optimizer = zero3::OptimizerKind::kMuon;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                                 TrainAndSave(options, "muon"));
    EXPECT_TRUE(run.bits.contains(
        {"layers.1.attention.qkv.weight", zero3::StatePart::kFirstMoment}));
    EXPECT_FALSE(run.bits.contains(
        {"layers.1.attention.qkv.weight", zero3::StatePart::kSecondMoment}));
    EXPECT_TRUE(run.bits.contains(
        {"embedding.weight", zero3::StatePart::kSecondMoment}));
    ExpectResumes(run, options, 0);
    MeshSizes other = {.dp = 2, .pp = 2};
    if (is_mixture) other.ep = 2;
    ExpectResumes(run, With(options, other, 1), 1e-5);
  }
}

// A tied table has a copy on another stage, and stages of a two-way pipeline
// have two, with copies of the moments.
TEST(RestoreRunTest, RestoresCopiedMomentsOfAdafactor) {
  RunOptions options = With(SmallRun(), {.dp = 2, .pp = 2, .tp = 2}, 2);
  options.state.optimizer = zero3::OptimizerKind::kAdafactor;
  options.model.tied_embeddings = true;
  for (const char* const schedule : {"1f1b", "dualpipe"}) {
    options.schedule = schedule;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                                 TrainAndSave(options, "copies"));
    ExpectResumes(run, options, 0);
    RunOptions other = With(options, {.tp = 2}, 0);
    other.schedule = "1f1b";
    ExpectResumes(run, other, 1e-4);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted back,
                                 TrainAndSave(other, "one"));
    ExpectResumes(back, options, 1e-4);
  }
}

// The moments of rows and columns are tensors of their own.
TEST(RestoreRunTest, RestoresMomentsOfAdafactorOnOtherMeshes) {
  for (const bool is_mixture : {false, true}) {
    RunOptions options =
        With(is_mixture ? SmallMixture() : SmallRun(), {.dp = 2, .tp = 2}, 3);
    options.state.optimizer = zero3::OptimizerKind::kAdafactor;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                                 TrainAndSave(options, "adafactor"));
    EXPECT_TRUE(
        run.bits.contains({"layers.1.attention.qkv.weight.second_moment",
                           zero3::StatePart::kValue}));
    EXPECT_FALSE(run.bits.contains(
        {"embedding.weight", zero3::StatePart::kFirstMoment}));
    ExpectResumes(run, options, 0);
    MeshSizes other = {.dp = 2, .pp = 2};
    if (is_mixture) other.ep = 2;
    ExpectResumes(run, With(options, other, 1), 1e-4);
  }
}

// Statistics are saved by the owners of matrices, which differ between meshes.
TEST(RestoreRunTest, RestoresStatisticsOfShampooOnOtherMeshes) {
  for (const bool is_mixture : {false, true}) {
    RunOptions options =
        With(is_mixture ? SmallMixture() : SmallRun(), {.dp = 2, .tp = 2}, 3);
    options.dtype = DType::kF64;
    options.state.optimizer = zero3::OptimizerKind::kShampoo;
    options.state.shampoo = {.block = 5, .every = 2};
    TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                                 TrainAndSave(options, "shampoo"));
    EXPECT_TRUE(
        run.bits.contains({"layers.1.attention.output.weight.0.statistics",
                           zero3::StatePart::kValue}));
    EXPECT_TRUE(run.bits.contains(
        {"layers.1.attention.output.weight", zero3::StatePart::kSecondMoment}));
    ExpectResumes(run, options, 0);
    MeshSizes other = {.dp = 2, .pp = 2};
    if (is_mixture) other.ep = 2;
    for (const int stage : {0, 1}) {
      ExpectResumes(run, With(options, other, stage), 1e-10);
    }
  }
}

TEST(RestoreRunTest, RestoresTheOneMomentOfLion) {
  RunOptions options = With(SmallRun(), {.dp = 2, .tp = 2}, 3);
  options.state.optimizer = zero3::OptimizerKind::kLion;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                               TrainAndSave(options, "lion"));
  EXPECT_TRUE(
      run.bits.contains({"embedding.weight", zero3::StatePart::kFirstMoment}));
  EXPECT_FALSE(
      run.bits.contains({"embedding.weight", zero3::StatePart::kSecondMoment}));
  ExpectResumes(run, options, 0);
  ExpectResumes(run, With(options, {.dp = 2, .pp = 2}, 1), 1e-3);
}

TEST(RestoreRunTest, RestoresAdaptersOnOtherMeshes) {
  for (const bool is_mixture : {false, true}) {
    RunOptions options =
        With(is_mixture ? SmallMixture() : SmallRun(), {.dp = 2, .tp = 2}, 3);
    options.lora = {.rank = 3, .alpha = 6};
    TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                                 TrainAndSave(options, "lora"));
    std::set<std::string> trained;
    for (const auto& [key, bits] : run.bits) {
      if (key.second == zero3::StatePart::kFirstMoment) {
        trained.insert(key.first);
      }
    }
    EXPECT_THAT(TrainedTensors(options.model, {.rank = 3, .targets = "all"}),
                ::testing::UnorderedElementsAreArray(trained));
    // Frozen weights have no optimizer state.
    EXPECT_TRUE(run.bits.contains(
        {"layers.1.attention.qkv.lora_b", zero3::StatePart::kFirstMoment}));
    EXPECT_FALSE(run.bits.contains(
        {"layers.1.attention.qkv.weight", zero3::StatePart::kFirstMoment}));
    EXPECT_TRUE(run.bits.contains(
        {"layers.1.attention.qkv.weight", zero3::StatePart::kValue}));
    ExpectResumes(run, options, 0);
    MeshSizes other = {.dp = 2, .pp = 2};
    if (is_mixture) other.ep = 2;
    ExpectResumes(run, With(options, other, 1), 1e-5);
  }
}

TEST(RestoreRunTest, RestoresQuantizedBasesOnOtherMeshes) {
  RunOptions options = With(SmallRun(), {.dp = 2, .tp = 2}, 3);
  options.model.hidden = 64;
  options.model.intermediate = 128;
  options.model.heads = 4;
  options.model.kv_heads = 2;
  options.model.head_size = 32;
  options.lora = {.rank = 3, .alpha = 6};
  options.base_codec = "nf4";
  TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                               TrainAndSave(options, "qlora"));
  ExpectResumes(run, options, 0);
  ExpectResumes(run, With(options, {.dp = 2, .pp = 2}, 3), 1e-5);
  // The checkpoint has the rounded weights.
  options.base_codec = "";
  ExpectResumes(run, With(options, {.tp = 2}, 1), 1e-5);
}

// The first loss with adapters equals the loss of the base weights.
TEST(RestoreRunTest, AdaptersStartFromBaseWeights) {
  RunOptions base = With(SmallRun(), {.dp = 2}, 1);
  base.model.initializer_range *= 2;
  const std::string directory = NewRunDirectory("lora_base");
  std::string path;
  std::vector<double> base_losses;
  ASSERT_THAT(OnRanks(base,
                      [&](TrainRank& rank) -> absl::Status {
                        TESSERA_ASSIGN_OR_RETURN(
                            auto checkpoints,
                            RunCheckpoints::Create(
                                rank, {.directory = directory,
                                       .identity = IdentityOf(base)}));
                        TESSERA_ASSIGN_OR_RETURN(const std::string saved,
                                                 checkpoints->Save());
                        TESSERA_ASSIGN_OR_RETURN(const auto losses,
                                                 TrainTo(rank, 1));
                        if (rank.world().rank() == collectives::Rank(0)) {
                          path = saved;
                          base_losses = losses;
                        }
                        return absl::OkStatus();
                      }),
              IsOk());
  RunOptions options = With(SmallRun(), {.pp = 2, .tp = 2}, 3);
  options.lora = {.rank = 3, .alpha = 6};
  for (const bool restores : {true, false}) {
    std::vector<double> losses;
    ASSERT_THAT(OnRanks(options,
                        [&](TrainRank& rank) -> absl::Status {
                          if (restores) {
                            TESSERA_RETURN_IF_ERROR(
                                RestoreRun(path, IdentityOf(options), rank));
                          }
                          TESSERA_ASSIGN_OR_RETURN(const auto mine,
                                                   TrainTo(rank, 4));
                          if (rank.world().rank() == collectives::Rank(0)) {
                            losses = mine;
                          }
                          return absl::OkStatus();
                        }),
                IsOk());
    const double difference = std::abs(losses[0] / base_losses[0] - 1);
    if (restores) {
      EXPECT_LT(difference, 1e-6);
    } else {
      EXPECT_GT(difference, 1e-4);
    }
  }
}

// Sums are computed in the order of ranks. The members of a group along two
// axes keep their order if the axes do.
TEST(RestoreRunTest, EveryOrderOfAxesHasTheSameLosses) {
  const MeshSizes mesh = {.dp = 2, .pp = 2, .cp = 2};
  const RunOptions options = With(SmallRun(), mesh, 3);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                               TrainAndSave(options, "orders"));
  for (const auto& [order, tolerance] :
       std::map<std::string, double>{{"pp-cp-dp", 0},
                                     {"cp-pp-dp-tp", 0},
                                     {"dp-cp-pp", 1e-5},
                                     {"dp-pp-cp", 1e-5}}) {
    RunOptions other = options;
    other.mesh.order = OrderOf(mesh, order);
    ExpectResumes(run, other, tolerance);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted trained,
                                 TrainAndSave(other, "order"));
    ASSERT_EQ(trained.losses.size(), run.losses.size());
    for (size_t i = 0; i < run.losses.size(); ++i) {
      EXPECT_NEAR(trained.losses[i], run.losses[i],
                  tolerance * std::abs(run.losses[i]))
          << order;
    }
    ExpectResumes(trained, options, 1e-5);
  }
}

TEST(RestoreRunTest, RestoresReplicasInOtherOrder) {
  MeshSizes mesh = {.dp = 4, .tp = 2, .dp_replicate = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Uninterrupted run,
      TrainAndSave(With(SmallRun(), mesh, 3), "replicas"));
  mesh.order = OrderOf(mesh, "dp-tp");
  ExpectResumes(run, With(SmallRun(), mesh, 3), 0);
}

// Hybrid sharding: the first replica writes, every replica reads.
TEST(RestoreRunTest, RestoresReplicatedShardsOnOtherMeshes) {
  const MeshSizes hybrid = {.dp = 4, .dp_replicate = 2};
  for (const int stage : {1, 3}) {
    const RunOptions options = With(SmallRun(), hybrid, stage);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                                 TrainAndSave(options, "hybrid"));
    int files = 0;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(run.path)) {
      files += entry.path().extension() == ".state";
    }
    EXPECT_EQ(files, 2) << "one for each rank of a shard group";
    ExpectResumes(run, options, 0);
    for (const MeshSizes& mesh :
         {MeshSizes{.dp = 4}, MeshSizes{},
          MeshSizes{.dp = 4, .dp_replicate = 4},
          MeshSizes{.dp = 4, .pp = 2, .dp_replicate = 2}}) {
      ExpectResumes(run, With(options, mesh, 3), 1e-5);
    }
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Uninterrupted plain,
      TrainAndSave(With(SmallRun(), {.dp = 4}, 3), "plain"));
  ExpectResumes(plain, With(SmallRun(), hybrid, 3), 1e-5);
  ExpectResumes(
      plain, With(SmallRun(), {.dp = 4, .cp = 2, .dp_replicate = 2}, 2), 1e-5);
}

TEST(RestoreRunTest, RestoresOneRankOnMany) {
  for (const int stage : {0, 2}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Uninterrupted run,
        TrainAndSave(With(SmallRun(), {}, stage), "one"));
    ExpectResumes(run, With(SmallRun(), {}, stage), 0);
    ExpectResumes(run, With(SmallRun(), {.dp = 2, .pp = 2, .tp = 2}, 3), 1e-5);
  }
}

TEST(RestoreRunTest, TiedEmbeddingsAreOneTensor) {
  RunOptions options = SmallRun();
  options.model.tied_embeddings = true;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Uninterrupted run,
      TrainAndSave(With(options, {.pp = 2, .tp = 2}, 1), "tied"));
  ExpectResumes(run, With(options, {.pp = 2, .tp = 2}, 1), 0);
  ExpectResumes(run, With(options, {.dp = 2, .tp = 2}, 3), 1e-5);
  ExpectResumes(run, With(options, {}, 0), 1e-5);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Uninterrupted one,
      TrainAndSave(With(options, {.tp = 4}, 0), "tied_one"));
  ExpectResumes(one, With(options, {.pp = 2, .tp = 2}, 3), 1e-5);
}

TEST(RestoreRunTest, SixteenBitWeightsHaveTheirMasters) {
  RunOptions options = SmallRun();
  options.dtype = DType::kBF16;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Uninterrupted run,
      TrainAndSave(With(options, {.dp = 2, .pp = 2}, 3), "bf16"));
  ExpectResumes(run, With(options, {.dp = 2, .pp = 2}, 3), 0);
  ExpectResumes(run, With(options, {.tp = 4}, 1), 2e-2);
}

TEST(RestoreRunTest, RestoresScalesOfFp8OnEveryMesh) {
  for (RunOptions options : {SmallRun(), SmallMixture()}) {
    options.dtype = DType::kBF16;
    options.fp8 = true;
    options = With(options, {.dp = 2, .pp = 2, .tp = 2}, 3);
    TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                                 TrainAndSave(options, "fp8"));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto saved, SavedRun::Open(run.path));
    const auto lines = [](std::string_view text) {
      return std::set<std::string>(absl::StrSplit(text, '\n'));
    };
    EXPECT_EQ(lines(saved->fp8_scales()).size(), 4 + 1);
    ExpectResumes(run, options, 0);
    for (const MeshSizes& mesh :
         {MeshSizes{}, MeshSizes{.dp = 4}, MeshSizes{.pp = 4, .tp = 2},
          MeshSizes{.cp = 2, .tp = 2}}) {
      const RunOptions other = With(options, mesh, 2);
      ExpectResumes(run, other, 2e-2);
      std::mutex mutex;
      std::set<std::string> restored;
      ASSERT_THAT(OnRanks(other,
                          [&](TrainRank& rank) -> absl::Status {
                            TESSERA_RETURN_IF_ERROR(
                                RestoreRun(run.path, IdentityOf(other), rank));
                            TESSERA_ASSIGN_OR_RETURN(const std::string own,
                                                     FormatFp8Scales(rank));
                            const std::lock_guard lock(mutex);
                            restored.merge(lines(own));
                            return absl::OkStatus();
                          }),
                  IsOk());
      EXPECT_EQ(restored, lines(saved->fp8_scales()));
    }
  }
}

TEST(RestoreRunTest, Fp8ScalesBeginAnewIfCheckpointHasNone) {
  RunOptions options = With(SmallRun(), {.dp = 2}, 1);
  options.dtype = DType::kBF16;
  TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                               TrainAndSave(options, "bf16_to_fp8"));
  options.fp8 = true;
  ExpectResumes(run, options, 5e-2);
  ASSERT_THAT(
      OnRanks(options,
              [&](TrainRank& rank) -> absl::Status {
                TESSERA_RETURN_IF_ERROR(
                    RestoreRun(run.path, IdentityOf(options), rank));
                EXPECT_FALSE(rank.fp8()->has_history());
                const int64_t layer = rank.fp8()->LayerBytes();
                const std::string zeros = absl::Base64Escape(
                    std::string(static_cast<size_t>(4 * layer), '\0'));
                for (const std::string& invalid :
                     {std::string("0 0-\n"), absl::StrCat("x ", zeros),
                      absl::StrCat("0 ", zeros, "\n"),
                      absl::StrCat("0 ", zeros, "\n0 ", zeros),
                      absl::StrCat("0 AA==\n1 AA==\n2 AA==\n3 AA==\n")}) {
                  EXPECT_THAT(Fp8ScalesFor(rank, invalid),
                              StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("its scales of fp8")));
                }
                return absl::OkStatus();
              }),
      IsOk());
}

// The bits of f32 numbers, rounded to `type`.
std::vector<uint64_t> BitsAs(DType type, const std::vector<uint64_t>& bits) {
  const std::vector<uint32_t> precise(bits.begin(), bits.end());
  const auto width = static_cast<size_t>(SizeInBytes(type));
  std::vector<std::byte> rounded(bits.size() * width);
  TESSERA_EXPECT_OK(
      Convert(DType::kF32, std::as_bytes(std::span(precise)), type, rounded));
  std::vector<uint64_t> result(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    std::memcpy(&result[i], rounded.data() + i * width, width);
  }
  return result;
}

// The weights of each type are those of the most precise type before, exactly
// or rounded.
TEST(RestoreRunTest, ConvertsWeightsOfAnotherType) {
  for (const auto& [before, after] : {std::pair(DType::kF32, DType::kBF16),
                                      {DType::kBF16, DType::kF32},
                                      {DType::kBF16, DType::kF16}}) {
    RunOptions options = SmallRun();
    options.dtype = before;
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const Uninterrupted run,
        TrainAndSave(
            With(options, {.dp = 2, .pp = 2}, 3),
            absl::StrCat("type", DTypeName(before), DTypeName(after))));
    options.dtype = after;
    for (const MeshSizes& mesh : {MeshSizes{.dp = 2, .pp = 2}, {.tp = 4}}) {
      const RunOptions now = With(options, mesh, 1);
      WholeState state;
      ASSERT_THAT(OnRanks(now,
                          [&](TrainRank& rank) -> absl::Status {
                            TESSERA_RETURN_IF_ERROR(
                                RestoreRun(run.path, IdentityOf(now), rank));
                            EXPECT_EQ(rank.steps(), kSavedStep);
                            TESSERA_RETURN_IF_ERROR(state.Add(rank));
                            return TrainTo(rank, now.steps).status();
                          }),
                  IsOk());
      TESSERA_ASSERT_OK_AND_ASSIGN(const WholeBits bits, state.bits());
      EXPECT_FALSE(bits.empty());
      for (const auto& [key, found] : bits) {
        const auto& [name, part] = key;
        const bool is_weight =
            part == StatePart::kValue || part == StatePart::kMaster;
        if (!is_weight) {
          EXPECT_EQ(found, run.bits.at(key)) << name;
          continue;
        }
        const auto master = run.bits.find({name, StatePart::kMaster});
        const std::vector<uint64_t>& precise =
            master != run.bits.end() ? master->second
                                     : run.bits.at({name, StatePart::kValue});
        const DType type = part == StatePart::kMaster ? DType::kF32 : after;
        EXPECT_EQ(found, BitsAs(type, precise))
            << name << ", " << zero3::StatePartName(part);
      }
    }
  }
}

// A checkpoint without steps, as after an import.
TEST(RestoreRunTest, ZeroMomentsHaveAnyType) {
  const RunOptions saved = With(SmallRun(), {.tp = 2}, 1);
  const std::string directory = NewRunDirectory("zero_moments");
  ASSERT_THAT(OnRanks(saved,
                      [&](TrainRank& rank) -> absl::Status {
                        TESSERA_ASSIGN_OR_RETURN(
                            auto checkpoints,
                            RunCheckpoints::Create(
                                rank, {.directory = directory,
                                       .identity = IdentityOf(saved)}));
                        return checkpoints->Save().status();
                      }),
              IsOk());
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto opened,
                               SavedRun::Open(*ResolveCheckpoint(directory)));
  EXPECT_TRUE(opened->has_zero_moments());
  EXPECT_THAT(opened->dtype(), IsOkAndHolds(DType::kF32));
  for (const std::string_view name :
       {"bf16", "int8", "f32", "adafactor", "shampoo"}) {
    RunOptions options = With(SmallRun(), {.dp = 2}, 3);
    if (name == "adafactor") {
      options.state.optimizer = zero3::OptimizerKind::kAdafactor;
    } else if (name == "shampoo") {
      options.state.optimizer = zero3::OptimizerKind::kShampoo;
    } else {
      options.state.moments = *offload::ParseMomentFormat(name);
    }
    std::vector<double> resumed, fresh;
    ASSERT_THAT(OnRanks(options,
                        [&](TrainRank& rank) -> absl::Status {
                          TESSERA_RETURN_IF_ERROR(
                              RestoreRun(directory, IdentityOf(options), rank));
                          TESSERA_ASSIGN_OR_RETURN(const auto mine,
                                                   TrainTo(rank, 3));
                          if (rank.world().rank() == collectives::Rank(0)) {
                            resumed = mine;
                          }
                          return absl::OkStatus();
                        }),
                IsOk());
    ASSERT_THAT(OnRanks(options,
                        [&](TrainRank& rank) -> absl::Status {
                          TESSERA_ASSIGN_OR_RETURN(const auto mine,
                                                   TrainTo(rank, 3));
                          if (rank.world().rank() == collectives::Rank(0)) {
                            fresh = mine;
                          }
                          return absl::OkStatus();
                        }),
                IsOk());
    EXPECT_EQ(resumed, fresh) << name;
  }
}

TEST(RestoreRunTest, RestoresLossScaleOnAnotherMesh) {
  RunOptions options = With(SmallRun(), {.dp = 2, .tp = 2}, 3);
  options.dtype = DType::kF16;
  // It doubles once before the checkpoint.
  options.state.loss_scale = {
      .dynamic = true, .initial = 1024, .growth_interval = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                               TrainAndSave(options, "f16"));
  ExpectResumes(run, options, 0);
  const RunOptions other = With(options, {.pp = 2, .tp = 2}, 1);
  ExpectResumes(run, other, 2e-2);
  for (RunOptions resumed : {options, other}) {
    EXPECT_THAT(OnRanks(resumed,
                        [&](TrainRank& rank) -> absl::Status {
                          TESSERA_RETURN_IF_ERROR(
                              RestoreRun(run.path, IdentityOf(resumed), rank));
                          EXPECT_EQ(rank.model().loss_scale(), 2048);
                          TESSERA_RETURN_IF_ERROR(
                              TrainTo(rank, kSavedStep + 1).status());
                          EXPECT_EQ(rank.model().loss_scale(), 4096);
                          return absl::OkStatus();
                        }),
                IsOk());
    resumed.state.loss_scale = {.initial = 64};
    EXPECT_THAT(OnRanks(resumed,
                        [&](TrainRank& rank) -> absl::Status {
                          TESSERA_RETURN_IF_ERROR(
                              RestoreRun(run.path, IdentityOf(resumed), rank));
                          EXPECT_EQ(rank.model().loss_scale(), 64);
                          return absl::OkStatus();
                        }),
                IsOk());
  }
}

TEST(RestoreRunTest, RestoresWithTiersLayoutsAndSchedules) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Uninterrupted run,
      TrainAndSave(With(SmallRun(), {.dp = 2, .tp = 2}, 2), "tier"));
  offload::HostTier tier(
      std::make_shared<offload::Accounting>("host", offload::kUnlimited));
  RunOptions options = With(SmallRun(), {.dp = 4, .pp = 2}, 3);
  options.state.optimizer_tier = &tier;
  options.state.parameter_tier = &tier;
  options.state.layout = zero3::LayoutKind::kBalanced;
  options.schedule = "interleaved_1f1b";
  options.chunks = 2;
  ExpectResumes(run, options, 1e-5);
}

TEST(RestoreRunTest, SavesSharedStagesOnce) {
  RunOptions options = With(SmallRun(), {.dp = 2, .pp = 2, .tp = 2}, 2);
  options.schedule = "dualpipe";
  for (const bool tied : {false, true}) {
    options.model.tied_embeddings = tied;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                                 TrainAndSave(options, "two_way"));
    ExpectResumes(run, options, 0);
    RunOptions others = With(options, {.tp = 2}, 0);
    others.schedule = "1f1b";
    ExpectResumes(run, others, 1e-5);
  }
}

TEST(RestoreRunTest, RestoresEightBitMomentsIfNoBlockIsSplit) {
  RunOptions options = With(SmallRun(), {.dp = 2, .pp = 2, .tp = 2}, 3);
  options.state.moments = offload::MomentFormat::Blockwise8(64);
  TESSERA_ASSERT_OK_AND_ASSIGN(const Uninterrupted run,
                               TrainAndSave(options, "eight_bits"));
  ExpectResumes(run, options, 0);
  ExpectResumes(run, With(options, {.dp = 4, .tp = 2}, 1), 1e-5);
  for (const absl::Status& status :
       OnEachRank(With(options, {.tp = 4}, 1), [&](TrainRank& rank) {
         return RestoreRun(run.path, IdentityOf(options), rank);
       })) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("rank 0 of"), HasSubstr("8-bit/64"),
                               HasSubstr("resume with the tp"))));
  }
}

class RestoreRunErrorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = NewRunDirectory(
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_THAT(OnRanks(saved_,
                        [&](TrainRank& rank) -> absl::Status {
                          TESSERA_ASSIGN_OR_RETURN(
                              auto checkpoints,
                              RunCheckpoints::Create(
                                  rank, {.directory = directory_,
                                         .identity = IdentityOf(saved_)}));
                          TESSERA_RETURN_IF_ERROR(TrainTo(rank, 1).status());
                          TESSERA_RETURN_IF_ERROR(checkpoints->Start());
                          return checkpoints->Wait().status();
                        }),
                IsOk());
  }

  // Every rank returns the same error and keeps its state.
  void ExpectRefused(const std::string& path, const RunOptions& options,
                     const RunIdentity& identity, absl::StatusCode code,
                     const std::string& message) {
    WholeState before, after;
    const auto statuses = OnEachRank(options, [&](TrainRank& rank) {
      TESSERA_RETURN_IF_ERROR(before.Add(rank));
      const absl::Status status = RestoreRun(path, identity, rank);
      EXPECT_EQ(rank.steps(), 0);
      EXPECT_THAT(after.Add(rank), IsOk());
      return status;
    });
    for (const absl::Status& status : statuses) {
      EXPECT_THAT(status, StatusIs(code, HasSubstr(message)));
      EXPECT_EQ(status, statuses[0]);
    }
    EXPECT_EQ(*before.bits(), *after.bits());
  }

  const RunOptions saved_ = With(SmallRun(), {.tp = 2}, 1);
  std::string directory_;
};

TEST_F(RestoreRunErrorTest, OtherModelsDataAndTypes) {
  RunOptions options = With(SmallRun(), {.dp = 2}, 1);
  RunIdentity identity = IdentityOf(options);
  identity.batch = 4;
  ExpectRefused(directory_, options, identity,
                absl::StatusCode::kInvalidArgument,
                "batch is 8 there and 4 here");
  RunOptions smaller = options;
  smaller.model.layers = 3;
  ExpectRefused(directory_, smaller, IdentityOf(smaller),
                absl::StatusCode::kInvalidArgument,
                "layers is 4 there and 3 here");
  RunOptions moments = options;
  moments.state.moments = offload::MomentFormat::BF16();
  ExpectRefused(directory_, moments, IdentityOf(moments),
                absl::StatusCode::kInvalidArgument, "first_moment");
  RunOptions muon = options;
  muon.state.optimizer = zero3::OptimizerKind::kMuon;
  ExpectRefused(directory_, muon, IdentityOf(muon),
                absl::StatusCode::kInvalidArgument,
                "with --optimizer=muon; give --optimizer=adamw");
  RunOptions lora = options;
  lora.lora = {.rank = 2, .alpha = 4};
  ExpectRefused(directory_, lora, IdentityOf(lora),
                absl::StatusCode::kInvalidArgument,
                "adapters: none, which cannot continue after step 1 with rank "
                "2, alpha 4, all");
}

TEST_F(RestoreRunErrorTest, MissingAndDamagedCheckpoints) {
  const RunOptions options = With(SmallRun(), {.dp = 2}, 1);
  const RunIdentity identity = IdentityOf(options);
  ExpectRefused(directory_ + "/no", options, identity,
                absl::StatusCode::kNotFound, "/no");
  const std::string empty = NewRunDirectory("empty");
  ExpectRefused(empty, options, identity, absl::StatusCode::kNotFound, empty);
  const std::string manifest = directory_ + "/step-00000001/manifest.json";
  {
    std::fstream file(manifest, std::ios::in | std::ios::out);
    file.seekp(200);
    file.put('#');
  }
  ExpectRefused(directory_ + "/step-00000001", options, identity,
                absl::StatusCode::kDataLoss, "checksum");
  // A search of the directory skips it.
  ExpectRefused(directory_, options, identity, absl::StatusCode::kNotFound,
                "checksum");
}

TEST_F(RestoreRunErrorTest, DamagedFilesAreNamed) {
  const std::string file =
      directory_ + "/step-00000001/tp1-pp0.rank-00000.state";
  {
    std::fstream stream(file, std::ios::in | std::ios::out);
    stream.seekp(100);
    stream.put('#');
  }
  const RunOptions options = With(SmallRun(), {.dp = 2}, 1);
  for (const absl::Status& status : OnEachRank(options, [&](TrainRank& rank) {
         return RestoreRun(directory_, IdentityOf(options), rank);
       })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                 AllOf(HasSubstr("rank "), HasSubstr(file))));
  }
}

// Save, which copies no state, writes the same files as Start.
TEST(RunCheckpointsTest, SaveMatchesStartWithoutCopies) {
  RunOptions options = With(SmallRun(), {.dp = 2, .tp = 2}, 3);
  const std::string started = NewRunDirectory("started");
  const std::string saved = NewRunDirectory("saved");
  std::mutex mutex;
  std::set<std::string> paths;
  TESSERA_ASSERT_OK(OnRanks(options, [&](TrainRank& rank) -> absl::Status {
    const auto memory =
        std::make_shared<offload::Accounting>("snapshots", offload::kUnlimited);
    TESSERA_ASSIGN_OR_RETURN(
        auto first,
        RunCheckpoints::Create(
            rank, {.directory = started, .identity = IdentityOf(options)}));
    TESSERA_ASSIGN_OR_RETURN(
        auto second,
        RunCheckpoints::Create(rank, {.directory = saved,
                                      .identity = IdentityOf(options),
                                      .snapshot_memory = memory}));
    TESSERA_RETURN_IF_ERROR(TrainTo(rank, 2).status());
    TESSERA_RETURN_IF_ERROR(first->Start());
    TESSERA_RETURN_IF_ERROR(first->Wait().status());
    TESSERA_ASSIGN_OR_RETURN(const std::string path, second->Save());
    EXPECT_EQ(second->last_path(), path);
    EXPECT_THAT(second->Wait(), IsOkAndHolds(path));
    EXPECT_EQ(memory->usage().peak, 0);
    const std::lock_guard lock(mutex);
    paths.insert(path);
    return absl::OkStatus();
  }));
  ASSERT_EQ(paths.size(), 1u);
  const std::filesystem::path written = *paths.begin();
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(written)) {
    const auto other = std::filesystem::path(started) / written.filename() /
                       entry.path().filename();
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string a,
                                 ReadFile(entry.path().string(), 1 << 24));
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string b,
                                 ReadFile(other.string(), 1 << 24));
    EXPECT_EQ(a, b) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 5);  // 4 ranks and the manifest.
}

TEST_F(RestoreRunErrorTest, UnwritableDirectoryDoesNotStopRun) {
  const std::string file = directory_ + "/file";
  std::ofstream(file) << "x";
  for (const absl::Status& status :
       OnEachRank(saved_, [&](TrainRank& rank) -> absl::Status {
         TESSERA_ASSIGN_OR_RETURN(
             auto checkpoints,
             RunCheckpoints::Create(rank, {.directory = file + "/ckpt",
                                           .identity = IdentityOf(saved_)}));
         TESSERA_RETURN_IF_ERROR(checkpoints->Start());
         EXPECT_THAT(TrainTo(rank, 1), IsOk());
         const absl::Status status = checkpoints->Wait().status();
         EXPECT_EQ(checkpoints->last_path(), "");
         EXPECT_THAT(checkpoints->Wait(), IsOkAndHolds(std::string()));
         EXPECT_EQ(checkpoints->Save().status().code(), status.code());
         return status;
       })) {
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("rank 0 of"), HasSubstr(file)));
  }
}

}  // namespace
}  // namespace tessera::train

// Compares checkpoints written by one process with those written by ranks.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/checkpoint/inspect_runs.h"
#include "tools/checkpoint/write_run.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/run_checkpoints.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/testing/mesh_run.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/layout/state_format.h"
#include "zero3/layout/state_layout.h"

namespace tessera::tools {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using train::HeldTensor;
using train::MeshSizes;
using train::RunOptions;
using train::TrainRank;
using train::testing::IdentityOf;
using train::testing::NewRunDirectory;
using train::testing::OnRanks;
using train::testing::SmallMixture;
using train::testing::SmallRun;
using train::testing::WholeState;

RunOptions With(RunOptions options, const MeshSizes& mesh, int stage) {
  options.mesh = mesh;
  options.state.stage = stage;
  return options;
}

// Trains two steps and saves a checkpoint; returns its path.
absl::StatusOr<std::string> SaveRun(const RunOptions& options,
                                    const std::string& name,
                                    WholeState* state = nullptr) {
  const std::string directory = NewRunDirectory(name);
  TESSERA_RETURN_IF_ERROR(
      OnRanks(options, [&](TrainRank& rank) -> absl::Status {
        TESSERA_ASSIGN_OR_RETURN(auto checkpoints,
                                 train::RunCheckpoints::Create(
                                     rank, {.directory = directory,
                                            .identity = IdentityOf(options)}));
        TESSERA_RETURN_IF_ERROR(train::testing::TrainTo(rank, 2).status());
        if (state != nullptr) TESSERA_RETURN_IF_ERROR(state->Add(rank));
        TESSERA_RETURN_IF_ERROR(checkpoints->Start());
        return checkpoints->Wait().status();
      }));
  return directory + "/step-00000002";
}

absl::StatusOr<zero3::VerifiedBytes> Verify(const std::string& path) {
  return VerifyRun(path, [](const zero3::VerifiedBytes&) {});
}

TEST(RunPlanTest, PartsMatchRanks) {
  for (const bool is_tied : {false, true}) {
    for (const MeshSizes mesh :
         {MeshSizes{}, MeshSizes{.tp = 4}, MeshSizes{.pp = 2, .tp = 2},
          MeshSizes{.dp = 2, .pp = 3}}) {
      RunOptions options = With(SmallRun(), mesh, 1);
      options.model.tied_embeddings = is_tied;
      options.batch = 12;
      absl::Mutex mutex;
      std::map<std::string, std::vector<HeldTensor>> expected;
      ASSERT_THAT(
          OnRanks(options,
                  [&](TrainRank& rank) {
                    std::vector<HeldTensor> held;
                    for (const auto* parameter : rank.model().parameters()) {
                      held.push_back(train::HeldTensorOf(*parameter));
                    }
                    const absl::MutexLock lock(&mutex);
                    expected[train::CheckpointGroupsOf(rank)[0].part] = held;
                    return absl::OkStatus();
                  }),
          IsOk());
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const std::vector<PlannedPart> parts,
          PlanParts({.identity = IdentityOf(options), .mesh = mesh}));
      ASSERT_EQ(parts.size(), expected.size());
      for (const PlannedPart& part : parts) {
        EXPECT_EQ(part.tensors, expected[part.part.name]) << part.part.name;
      }
    }
  }
}

TEST(RunPlanTest, ExpertsHaveTheirOwnParts) {
  for (const MeshSizes mesh : {MeshSizes{.dp = 4, .tp = 2, .ep = 4},
                               MeshSizes{.dp = 2, .pp = 2, .cp = 2, .ep = 2},
                               MeshSizes{.dp = 2, .tp = 2}}) {
    const RunOptions options = With(SmallMixture(), mesh, 1);
    absl::Mutex mutex;
    std::map<std::string, std::vector<HeldTensor>> expected;
    ASSERT_THAT(OnRanks(options,
                        [&](TrainRank& rank) {
                          const auto groups = train::CheckpointGroupsOf(rank);
                          const auto parts = rank.model().parts();
                          EXPECT_EQ(groups.size(), parts.size());
                          for (size_t i = 0; i < parts.size(); ++i) {
                            std::vector<HeldTensor> held;
                            for (const auto* parameter : parts[i].parameters) {
                              held.push_back(train::HeldTensorOf(*parameter));
                            }
                            const absl::MutexLock lock(&mutex);
                            expected[groups[i].part] = held;
                          }
                          return absl::OkStatus();
                        }),
                IsOk());
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const std::vector<PlannedPart> parts,
        PlanParts({.identity = IdentityOf(options), .mesh = mesh}));
    ASSERT_EQ(parts.size(), expected.size());
    for (const PlannedPart& part : parts) {
      EXPECT_EQ(part.tensors, expected[part.part.name]) << part.part.name;
    }
  }
}

TEST(RunPlanTest, RejectsIncompatibleMeshes) {
  const train::RunIdentity identity = IdentityOf(SmallRun());
  EXPECT_THAT(PlanParts({.identity = identity, .mesh = {.pp = 5}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("pp5 for 4 layers")));
  EXPECT_THAT(PlanParts({.identity = identity, .mesh = {.tp = 3}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(
      PlanParts(
          {.identity = IdentityOf(SmallMixture()), .mesh = {.dp = 3, .ep = 3}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("8 experts")));
  EXPECT_THAT(PlanParts({.identity = identity, .mesh = {.dp = 2, .ep = 2}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(PlanParts({}), StatusIs(absl::StatusCode::kInvalidArgument));
}

// Reshards the checkpoint of a run for each mesh and ZeRO stage, resumes from
// the result, and reshards it back.
void ExpectReshards(const RunOptions& options,
                    const std::vector<std::pair<MeshSizes, int>>& targets) {
  WholeState before;
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path,
                               SaveRun(options, "reshard", &before));
  const std::string directory = NewRunDirectory("resharded");
  for (const auto& [mesh, zero] : targets) {
    SCOPED_TRACE(mesh.ToFlag());
    const std::string to = absl::StrCat(directory, "/", mesh.ToFlag());
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const std::string resharded,
        ReshardRun(path, to, {.mesh = mesh, .zero = zero}));
    EXPECT_EQ(resharded, to + "/step-00000002");
    EXPECT_THAT(Verify(resharded), IsOk());
    WholeState after;
    RunOptions other = With(options, mesh, zero);
    other.batch = 24;  // Divisible by three data ranks.
    train::RunIdentity identity = IdentityOf(options);
    ASSERT_THAT(OnRanks(other,
                        [&](TrainRank& rank) -> absl::Status {
                          TESSERA_RETURN_IF_ERROR(
                              train::RestoreRun(resharded, identity, rank));
                          EXPECT_EQ(rank.steps(), 2);
                          return after.Add(rank);
                        }),
                IsOk());
    EXPECT_EQ(*before.bits(), *after.bits());
    // Resharding back gives the same files byte for byte.
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const std::string again,
        ReshardRun(resharded, to + "/back",
                   {.mesh = options.mesh, .zero = options.state.stage}));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto first, zero3::ReadManifest(path));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto last, zero3::ReadManifest(again));
    ASSERT_EQ(first.parts.size(), last.parts.size());
    for (const zero3::CheckpointPart& part : first.parts) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto* same, last.Find(part.name));
      EXPECT_EQ(part.files, same->files);
      EXPECT_EQ(part.metadata, same->metadata);
    }
  }
}

TEST(ReshardRunTest, RanksLoadReshardedCheckpoint) {
  ExpectReshards(With(SmallRun(), {.dp = 2, .pp = 2, .tp = 2}, 3),
                 {{{.tp = 4}, 0}, {{.dp = 3, .pp = 4}, 1}});
}

TEST(ReshardRunTest, ExpertsMoveBetweenRanks) {
  ExpectReshards(With(SmallMixture(), {.dp = 4, .pp = 2, .ep = 2}, 3),
                 {{{}, 0},
                  {{.dp = 4, .tp = 2, .ep = 4}, 1},
                  {{.dp = 2, .pp = 2, .cp = 2, .ep = 4}, 3}});
  ExpectReshards(With(SmallMixture(), {.tp = 2}, 1),
                 {{{.dp = 8, .ep = 8}, 2}, {{.dp = 3, .pp = 2}, 3}});
}

TEST(ReshardRunTest, KeepsExistingFiles) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path,
                               SaveRun(With(SmallRun(), {}, 1), "there"));
  EXPECT_THAT(ReshardRun(path, fs::path(path).parent_path(), {}),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("give another directory")));
  EXPECT_THAT(Verify(path), IsOk());
  EXPECT_THAT(ReshardRun(path, path + "/manifest.json/to", {}), Not(IsOk()));
  EXPECT_THAT(ReshardRun(path + "/no", NewRunDirectory("to"), {}),
              StatusIs(absl::StatusCode::kNotFound));
  // Nothing is left behind if the source cannot be read.
  const std::string to = NewRunDirectory("failed");
  int blocks = 0;
  EXPECT_THAT(
      WriteRun(
          zero3::FileCalls::System(), to, {.identity = IdentityOf(SmallRun())},
          [&](const HeldTensor&, zero3::StatePart, const zero3::StateArray&) {
            return ++blocks < 9 ? absl::OkStatus()
                                : absl::DataLossError("no more");
          }),
      StatusIs(absl::StatusCode::kDataLoss, "no more"));
  EXPECT_TRUE(fs::is_empty(to));
}

// The resharded state equals the state that ranks of the other mesh write.
TEST(ReshardRunTest, OptimizersKeepTheirMoments) {
  for (const auto kind :
       {zero3::OptimizerKind::kLion, zero3::OptimizerKind::kMuon,
        zero3::OptimizerKind::kAdafactor, zero3::OptimizerKind::kShampoo}) {
    RunOptions options = With(SmallRun(), {.pp = 2}, 1);
    options.state.optimizer = kind;
    const std::string name = IdentityOf(options).optimizer;
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path,
                                 SaveRun(options, name));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const std::string other,
        ReshardRun(path, NewRunDirectory(absl::StrCat(name, "_to")),
                   {.mesh = {.tp = 2}}));
    EXPECT_THAT(Verify(other), IsOk());
    EXPECT_THAT(OnRanks(With(options, {.tp = 2}, 1),
                        [&](train::TrainRank& rank) {
                          return train::RestoreRun(other, IdentityOf(options),
                                                   rank);
                        }),
                IsOk());
  }
}

TEST(ReshardRunTest, AdaptersAreLeftToTheTrainer) {
  RunOptions options = With(SmallRun(), {.pp = 2}, 1);
  options.lora = {.rank = 2, .alpha = 4};
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path,
                               SaveRun(options, "lora"));
  const std::string to = NewRunDirectory("lora_to");
  EXPECT_THAT(ReshardRun(path, to, {.mesh = {.tp = 2}}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("rank 2, alpha 4, all")));
  EXPECT_TRUE(fs::is_empty(to));
}

TEST(ReshardRunTest, EightBitMomentsAreNotCut) {
  RunOptions options = With(SmallRun(), {.pp = 2}, 1);
  options.state.moments = offload::MomentFormat::Blockwise8(64);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path,
                               SaveRun(options, "eight"));
  const std::string to = NewRunDirectory("eight_to");
  EXPECT_THAT(
      ReshardRun(path, to, {.mesh = {.tp = 2}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("8-bit/64")));
  EXPECT_TRUE(fs::is_empty(to));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string other,
                               ReshardRun(path, to, {.mesh = {.dp = 3}}));
  EXPECT_THAT(Verify(other), IsOk());
}

TEST(ListRunsTest, ListsCompleteAndIncompleteRuns) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string path,
      SaveRun(With(SmallRun(), {.dp = 2, .tp = 2}, 2), "list"));
  const std::string directory = fs::path(path).parent_path();
  fs::copy(path, directory + "/step-00000004");
  fs::resize_file(directory + "/step-00000004/tp0-pp0.rank-00001.state", 10);
  fs::create_directory(directory + "/step-00000006.writing");
  fs::create_directory(directory + "/other");
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<ListedRun> runs,
                               ListRuns(directory));
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].path, path);
  EXPECT_EQ(runs[0].state, "complete");
  EXPECT_EQ(runs[0].step, 2);
  EXPECT_EQ(runs[0].ranks, 4);
  EXPECT_EQ(runs[0].mesh, "dp2,pp1,cp1,tp2");
  EXPECT_EQ(runs[0].zero, 2);
  EXPECT_EQ(runs[0].parameters, SmallRun().model.ParameterCount());
  EXPECT_GT(runs[0].bytes, 12 * runs[0].parameters);
  EXPECT_THAT(runs[1].state, HasSubstr("tp0-pp0.rank-00001.state"));
  EXPECT_THAT(runs[2].state, HasSubstr("interrupted"));
  EXPECT_THAT(ListRuns(path), IsOkAndHolds(std::vector<ListedRun>{runs[0]}));
  const std::string run = NewRunDirectory("of_run");
  fs::rename(directory, run + "/checkpoints");
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<ListedRun> of_run,
                               ListRuns(run));
  ASSERT_EQ(of_run.size(), 3u);
  EXPECT_EQ(of_run[0].path, run + "/checkpoints/step-00000002");
  fs::rename(run + "/checkpoints", directory);
  EXPECT_THAT(
      ListRuns(directory + "/other"),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("contains none")));

  std::ostringstream text, json, csv;
  PrintRuns(runs, OutputFormat::kText, text);
  EXPECT_THAT(text.str(), AllOf(HasSubstr("dp2,pp1,cp1,tp2"),
                                HasSubstr("step-00000006.writing: interr")));
  PrintRuns(runs, OutputFormat::kJson, json);
  const auto parsed = nlohmann::json::parse(json.str());
  ASSERT_EQ(parsed.size(), 3u);
  EXPECT_EQ(parsed[0]["bytes"], runs[0].bytes);
  EXPECT_EQ(parsed[0]["state"], "complete");
  PrintRuns(runs, OutputFormat::kCsv, csv);
  EXPECT_THAT(csv.str(), HasSubstr("2,4,\"dp2,pp1,cp1,tp2\",2,"));
}

// The elements in the files together are those of the tensors, and a file is
// named only if it has some of them.
TEST(HoldersOfTest, FilesTogetherHoldEachTensorOnce) {
  for (const zero3::LayoutKind layout :
       {zero3::LayoutKind::kChunks, zero3::LayoutKind::kRoundRobin}) {
    RunOptions options = With(SmallRun(), {.dp = 3, .pp = 2, .tp = 1}, 3);
    options.batch = 12;
    options.state.layout = layout;
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path,
                                 SaveRun(options, "holders"));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto saved, train::SavedRun::Open(path));
    int64_t elements = 0, of_layer = 0;
    for (const auto& [name, tensor] : saved->tensors()) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<TensorHolder> holders,
                                   HoldersOf(path, name));
      const size_t most = layout == zero3::LayoutKind::kChunks ? 3 : 1;
      EXPECT_LE(holders.size(), most) << name;
      int64_t found = 0;
      for (const TensorHolder& holder : holders) {
        EXPECT_TRUE(fs::exists(absl::StrCat(path, "/", holder.file)));
        EXPECT_GT(holder.elements, 0);
        found += holder.elements;
      }
      int64_t whole = 1;
      for (const int64_t size : tensor.shape) whole *= size;
      EXPECT_EQ(found, whole) << name;
      if (name.starts_with("layers.1.")) elements += whole;
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<TensorHolder> holders,
                                 HoldersOf(path, "layers.1"));
    for (const TensorHolder& holder : holders) of_layer += holder.elements;
    EXPECT_EQ(of_layer, elements);
    EXPECT_THAT(
        HoldersOf(path, "layers.1.mlp.down.weigh"),
        StatusIs(absl::StatusCode::kNotFound,
                 HasSubstr("the nearest name is layers.1.mlp.down.weight")));
  }
}

TEST(VerifyRunTest, DetectsChangedBytesAndStrayFiles) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string path,
      SaveRun(With(SmallRun(), {.dp = 2, .tp = 2}, 3), "verify"));
  std::vector<zero3::VerifiedBytes> seen;
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const zero3::VerifiedBytes all,
      VerifyRun(path, [&](const zero3::VerifiedBytes& so_far) {
        seen.push_back(so_far);
      }));
  ASSERT_EQ(seen.size(), 4u);
  EXPECT_EQ(all.files, 4);
  EXPECT_EQ(all.bytes, all.all_bytes);
  EXPECT_EQ(seen[0].files, 1);
  EXPECT_EQ(seen[0].all_files, 4);
  EXPECT_LT(seen[0].bytes, all.bytes);
  std::ofstream(path + "/stray") << "x";
  EXPECT_THAT(Verify(path),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("\"stray\"")));
  fs::remove(path + "/stray");
  for (const char* file :
       {"/tp0-pp0.rank-00000.state", "/tp1-pp0.rank-00001.state"}) {
    std::fstream stream(path + file, std::ios::in | std::ios::out);
    stream.seekg(500);
    const char old = static_cast<char>(stream.get());
    stream.seekp(500);
    stream.put(static_cast<char>(old ^ 1));
  }
  EXPECT_THAT(Verify(path),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("tp0-pp0.rank-00000.state"),
                             HasSubstr("2 files are damaged"))));
  EXPECT_THAT(Verify(path + "/no"), StatusIs(absl::StatusCode::kNotFound));
}

// The file that holds an element of a part.
std::string FileOf(const train::SavedRun& saved,
                   const train::SavedTensor::Holder& holder, int64_t element) {
  const auto& part = saved.manifest().parts[holder.part];
  return zero3::ShardFileName(
      part.name, part.layout.LocalOf(holder.id, element)->rank.value());
}

// The file that holds each element of each tensor, found element by element.
std::map<std::string, std::vector<std::string>> FilesOfElements(
    const train::SavedRun& saved) {
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [name, tensor] : saved.tensors()) {
    if (tensor.name != name) continue;  // A tied head.
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    const HeldTensor whole = train::WholeTensor(name, tensor.shape);
    for (int64_t i = 0; i < elements; ++i) {
      const auto copies =
          *saved.CopiesOf(tensor, zero3::StatePart::kValue, whole, i, i + 1);
      files[name].push_back(
          FileOf(saved, tensor.holders[copies.at(0).source], copies[0].from));
    }
  }
  return files;
}

TEST(PlanReshardTest, MovesEqualThoseOfElements) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    RunOptions options = With(SmallRun(), {.dp = 2, .pp = 2}, 3);
    options.dtype = dtype;
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path,
                                 SaveRun(options, "moved"));
    TESSERA_ASSERT_OK_AND_ASSIGN(const auto saved, train::SavedRun::Open(path));
    for (const MeshSizes mesh : {MeshSizes{}, MeshSizes{.dp = 3, .tp = 2},
                                 MeshSizes{.dp = 2, .pp = 2}}) {
      const ReshardOptions reshard = {.mesh = mesh, .zero = 1};
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const std::string written,
          ReshardRun(path, NewRunDirectory("moved_to"), reshard));
      TESSERA_ASSERT_OK_AND_ASSIGN(const auto target,
                                   train::SavedRun::Open(written));
      // Every holder of the target takes each of its elements.
      std::map<std::pair<std::string, std::string>, int64_t> expected;
      for (const auto& [name, to] : target->tensors()) {
        if (to.name != name) continue;  // A tied head.
        const train::SavedTensor& tensor = saved->tensors().at(name);
        for (const train::SavedTensor::Holder& holder : to.holders) {
          const auto& part = target->manifest().parts[holder.part];
          const int64_t elements = part.model()[holder.id].elements;
          for (int64_t i = 0; i < elements; ++i) {
            const std::string file = FileOf(*target, holder, i);
            const auto copies = *saved->CopiesOf(
                tensor, zero3::StatePart::kValue, holder.held, i, i + 1);
            const std::string from = FileOf(
                *saved, tensor.holders[copies.at(0).source], copies[0].from);
            for (const zero3::StatePart state : zero3::kAllStateParts) {
              const auto format = saved->FormatOf(tensor, state);
              if (format) expected[{file, from}] += format->BytesOf(1);
            }
          }
        }
      }
      std::vector<FileMove> moves;
      for (const auto& [pair, bytes] : expected) {
        moves.push_back({pair.second, pair.first, bytes});
      }
      EXPECT_THAT(PlanReshard(path, reshard), IsOkAndHolds(moves));
    }
  }
}

TEST(PlaceOfTest, ElementsAreFoundAndLedBack) {
  const RunOptions options = With(SmallRun(), {.dp = 2, .pp = 2, .tp = 2}, 3);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path,
                               SaveRun(options, "placed"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto saved, train::SavedRun::Open(path));
  for (const auto& [name, files] : FilesOfElements(*saved)) {
    for (size_t i = 0; i < files.size(); i += 1 + files.size() / 7) {
      const auto index = static_cast<int64_t>(i);
      TESSERA_ASSERT_OK_AND_ASSIGN(const ElementPlace place,
                                   PlaceOf(path, name, index));
      EXPECT_EQ(place.file, files[i]);
      EXPECT_THAT(place.parts, ElementsAre("value f32", "first_moment f32",
                                           "second_moment f32"));
      EXPECT_THAT(ElementAt(path, place.file, place.offset),
                  IsOkAndHolds(place));
    }
  }
  EXPECT_THAT(PlaceOf(path, "embedding.weights", 0),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("the nearest name is embedding.weight")));
  EXPECT_THAT(PlaceOf(path, "embedding.weight", -1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has no element -1; allowed: 0 to below ")));
  EXPECT_THAT(ElementAt(path, "tp9-pp0.rank-00000.state", 0),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no file")));
  EXPECT_THAT(
      ElementAt(path, saved->manifest().parts[0].name + ".rank-00000.state",
                int64_t{1} << 40),
      StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tessera::tools

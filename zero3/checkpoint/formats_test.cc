// Every type of parameter, every format of moments, tiers, replicas and parts:
// loaded state equals saved state, by global element.
#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/tier/host_tier.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_reader.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/checkpoint/testing/state.h"

namespace tessera::zero3 {
namespace {

using offload::MomentFormat;
using ::testing::AllOf;
using testing::AllOk;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::NewDirectory;
using testing::OnRanks;
using testing::RankGroups;

// All trainable types, odd sizes, frozen integers, and an empty parameter.
ModelParameters MixedModel() {
  return *ModelParameters::Builder()
              .Add({.name = "half", .shape = {37, 31}, .dtype = DType::kBF16})
              .Add({.name = "f16", .shape = {130}, .dtype = DType::kF16})
              .Add({.name = "single", .shape = {65, 5}})
              .Add({.name = "double", .shape = {300}, .dtype = DType::kF64})
              .Add({.name = "one", .dtype = DType::kBF16})
              .Add({.name = "none", .shape = {0, 7}})
              .Add({.name = "table",
                    .shape = {77},
                    .dtype = DType::kI64,
                    .trainable = false})
              .Add({.name = "ice",
                    .shape = {3, 50},
                    .dtype = DType::kBF16,
                    .trainable = false})
              .Build();
}

ModelParameters Reversed(const ModelParameters& model) {
  ModelParameters::Builder builder;
  for (int64_t i = model.count() - 1; i >= 0; --i) {
    builder.Add(model[ParameterId(i)].spec);
  }
  return *builder.Build();
}

struct Setting {
  int64_t ranks = 1;
  int64_t groups = 1;
  ShardedStateOptions state = {};
  ModelParameters model = MixedModel();
  int64_t block_elements = 100;
};

absl::Status Save(const Setting& setting, const std::string& directory,
                  int64_t seed) {
  return AllOk(OnRanks(
      setting.ranks, setting.groups,
      [&](const RankGroups& groups) -> absl::Status {
        ShardedStateOptions options = setting.state;
        options.key_prefix = absl::StrCat(groups.rank, "/");
        TESSERA_ASSIGN_OR_RETURN(
            auto state,
            ShardedState::Create(setting.model, options, groups.of_state()));
        TESSERA_RETURN_IF_ERROR(testing::Stamp(*state, seed));
        return SaveCheckpoint(groups.of_checkpoint(),
                              {.directory = directory,
                               .block_elements = setting.block_elements},
                              *state)
            .status();
      }));
}

absl::Status Check(const Setting& setting, const std::string& directory,
                   int64_t seed) {
  TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoint latest,
                           LatestCheckpoint(directory));
  TESSERA_RETURN_IF_ERROR(VerifyCheckpoint(latest.path));
  return AllOk(OnRanks(
      setting.ranks, setting.groups,
      [&](const RankGroups& groups) -> absl::Status {
        ShardedStateOptions options = setting.state;
        options.key_prefix = absl::StrCat(groups.rank, "/");
        TESSERA_ASSIGN_OR_RETURN(
            auto state,
            ShardedState::Create(setting.model, options, groups.of_state()));
        TESSERA_RETURN_IF_ERROR(
            LoadCheckpoint(latest.path, groups.of_checkpoint(), *state)
                .status());
        return testing::CheckStamp(*state, seed);
      }));
}

TEST(FormatsTest, RoundTripsEveryMomentFormat) {
  int64_t seed = 1;
  for (const MomentFormat& moments : {MomentFormat::F32(), MomentFormat::BF16(),
                                      MomentFormat::Blockwise8(64)}) {
    for (int stage = 0; stage < 4; ++stage) {
      const std::string directory = NewDirectory("formats");
      Setting from = {.ranks = 3};
      from.state = {.stage = stage, .moments = moments};
      TESSERA_ASSERT_OK(Save(from, directory, ++seed));
      for (const int64_t ranks : {1, 2, 5}) {
        Setting to = {.ranks = ranks, .model = Reversed(MixedModel())};
        // Different alignments: extents begin at other multiples of the block.
        to.state = {
            .stage = static_cast<int>((stage + ranks) % 4),
            .layout = ranks == 2 ? LayoutKind::kBalanced : LayoutKind::kChunks,
            .alignment = ranks,
            .persistence_threshold = 60,
            .moments = moments};
        EXPECT_THAT(Check(to, directory, seed), IsOk())
            << moments.ToString() << " stage " << stage << ", " << ranks;
      }
    }
  }
}

TEST(FormatsTest, RoundTripsSgdStateOnlyForSgd) {
  int64_t seed = 40;
  for (const double momentum : {0.0, 0.9}) {
    for (int stage = 0; stage < 4; ++stage) {
      const std::string directory = NewDirectory("formats");
      Setting from = {.ranks = 3};
      from.state = {.stage = stage, .optimizer = OptimizerKind::kSgd};
      from.state.sgd.momentum = momentum;
      TESSERA_ASSERT_OK(Save(from, directory, ++seed));
      Setting to = from;
      to.ranks = 2;
      to.state.stage = (stage + 1) % 4;
      EXPECT_THAT(Check(to, directory, seed), IsOk());
      to.state.optimizer = OptimizerKind::kAdamW;
      EXPECT_THAT(Check(to, directory, seed),
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           HasSubstr(momentum == 0 ? "has 0 moments"
                                                   : "has 1 moments")));
    }
  }
}

TEST(FormatsTest, BlocksMayHaveAnySize) {
  const std::string directory = NewDirectory("formats");
  int64_t seed = 10;
  for (const int64_t elements : {1, 64, 99, 1 << 20}) {
    Setting setting = {.ranks = 2, .block_elements = elements};
    setting.state.moments = MomentFormat::Blockwise8(64);
    TESSERA_ASSERT_OK(Save(setting, directory, ++seed));
    EXPECT_THAT(Check(setting, directory, seed), IsOk()) << elements;
  }
}

TEST(FormatsTest, StateInTiersIsSavedAndLoaded) {
  offload::HostTier tier(
      std::make_shared<offload::Accounting>("host", 1 << 20));
  const std::string directory = NewDirectory("formats");
  Setting in_tier = {.ranks = 2};
  in_tier.state = {.stage = 3,
                   .moments = MomentFormat::Blockwise8(64),
                   .parameter_tier = &tier,
                   .gradient_tier = &tier,
                   .optimizer_tier = &tier};
  Setting in_memory = {.ranks = 3};
  in_memory.state.moments = in_tier.state.moments;
  TESSERA_ASSERT_OK(Save(in_tier, directory, 3));
  EXPECT_THAT(Check(in_memory, directory, 3), IsOk());
  TESSERA_ASSERT_OK(Save(in_memory, directory, 4));
  EXPECT_THAT(Check(in_tier, directory, 4), IsOk());
  EXPECT_TRUE(tier.Keys().empty());
}

TEST(FormatsTest, OneGroupOfReplicasWrites) {
  for (int stage = 0; stage < 4; ++stage) {
    const std::string directory = NewDirectory("formats");
    Setting hybrid = {.ranks = 2, .groups = 3};
    hybrid.state.stage = stage;
    TESSERA_ASSERT_OK(Save(hybrid, directory, 7));
    const std::string path = absl::StrCat(directory, "/step-00000007");
    EXPECT_THAT(ListDirectory(path),
                IsOkAndHolds(ElementsAre("manifest.json", "rank-00000.state",
                                         "rank-00001.state")));
    TESSERA_ASSERT_OK_AND_ASSIGN(const CheckpointManifest manifest,
                                 ReadManifest(path));
    EXPECT_EQ(manifest.world, 6);
    EXPECT_EQ(manifest.parts[0].replicas, 3);
    EXPECT_THAT(Check(hybrid, directory, 7), IsOk());
    EXPECT_THAT(Check({.ranks = 4}, directory, 7), IsOk());
  }
}

// Files contain no padding, and at stage 0 every rank writes an equal part.
TEST(FormatsTest, FilesHoldStateExactlyOnce) {
  const ModelParameters model =
      *ModelParameters::Builder()
           .Add({.name = "a", .shape = {1001}, .dtype = DType::kBF16})
           .Build();
  for (int stage = 0; stage < 4; ++stage) {
    const std::string directory = NewDirectory("formats");
    Setting setting = {.ranks = 4, .model = model, .block_elements = 1 << 20};
    setting.state.stage = stage;
    TESSERA_ASSERT_OK(Save(setting, directory, 1));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const CheckpointManifest manifest,
        ReadManifest(absl::StrCat(directory, "/step-00000001")));
    int64_t bytes = 0;
    for (const CheckpointFile& file : manifest.parts[0].files) {
      bytes += file.bytes;
      EXPECT_LE(file.bytes, 14 * 251 + 64 + 4 * 48);
    }
    EXPECT_EQ(bytes, 14 * 1001 + 4 * (32 + 32 + 4 * 48));
  }
}

// Four ranks: two parts of the model, each sharded over two.
absl::Status OnParts(
    const std::function<absl::Status(ShardedState&, const CheckpointGroups&)>&
        body) {
  return AllOk(OnRanks(2, 2, [&](const RankGroups& groups) -> absl::Status {
    const bool is_first = groups.rank < 2;
    const ModelParameters model =
        *ModelParameters::Builder()
             .Add({.name = "weight", .shape = {is_first ? 40 : 70}})
             .Add({.name = is_first ? "embedding" : "head", .shape = {33}})
             .Build();
    TESSERA_ASSIGN_OR_RETURN(
        auto state, ShardedState::Create(model, {}, {.shard = groups.shard}));
    return body(*state, {.shard = groups.shard,
                         .world = groups.world,
                         .part = is_first ? "tp0-pp0" : "tp0-pp1"});
  }));
}

TEST(FormatsTest, PartsOfAModelLieSideBySide) {
  const std::string directory = NewDirectory("formats");
  TESSERA_ASSERT_OK(
      OnParts([&](ShardedState& state, const CheckpointGroups& checkpoint) {
        absl::Status status = testing::Stamp(state, 5);
        status.Update(SaveCheckpoint(checkpoint, {.directory = directory},
                                     state, {{"part", checkpoint.part}})
                          .status());
        return status;
      }));
  const std::string path = absl::StrCat(directory, "/step-00000005");
  TESSERA_EXPECT_OK(VerifyCheckpoint(path));
  EXPECT_THAT(ListDirectory(path),
              IsOkAndHolds(ElementsAre(
                  "manifest.json", "tp0-pp0.rank-00000.state",
                  "tp0-pp0.rank-00001.state", "tp0-pp1.rank-00000.state",
                  "tp0-pp1.rank-00001.state")));
  TESSERA_ASSERT_OK(
      OnParts([&](ShardedState& state, const CheckpointGroups& checkpoint) {
        auto loaded = LoadCheckpoint(path, checkpoint, state);
        TESSERA_RETURN_IF_ERROR(loaded.status());
        if (loaded->metadata.at("part") != checkpoint.part) {
          return absl::UnavailableError("metadata of another part");
        }
        return testing::CheckStamp(state, 5);
      }));
  EXPECT_THAT(CheckpointReader::Open(path, "tp1"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no part \"tp1\"; it has \"tp0-pp0\", "
                                 "\"tp0-pp1\"")));
}

TEST(FormatsTest, ReadsAnyElementsAndRejectsSplitBlocks) {
  const std::string directory = NewDirectory("formats");
  Setting setting = {.ranks = 3};
  setting.state.moments = MomentFormat::Blockwise8(64);
  TESSERA_ASSERT_OK(Save(setting, directory, 2));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto reader,
      CheckpointReader::Open(absl::StrCat(directory, "/step-00000002"), ""));
  const ParameterId half(0);
  const StateFormat bf16 = {.dtype = DType::kBF16};
  std::vector<std::byte> whole(2 * 1147), some(2 * 1147);
  TESSERA_ASSERT_OK(reader->Read(half, StatePart::kValue, 0, 1147,
                                 {bf16, 0, 1147, whole.data()}));
  for (int64_t begin = 0; begin < 1147; begin += 101) {
    for (int64_t end = begin; end < 1147; end += 211) {
      TESSERA_ASSERT_OK(reader->Read(half, StatePart::kValue, begin, end,
                                     {bf16, begin, end - begin, some.data()}));
      ASSERT_TRUE(std::equal(some.begin(), some.begin() + 2 * (end - begin),
                             whole.begin() + 2 * begin));
    }
  }
  const StateFormat blockwise = {.dtype = DType::kU8, .block = 64};
  const auto refusal = [&](ParameterId id, StatePart part, int64_t begin,
                           int64_t end, const StateArray& to) {
    return std::string(reader->Read(id, part, begin, end, to).message());
  };
  const StateArray moment = {blockwise, 0, 1147, some.data()};
  TESSERA_EXPECT_OK(
      reader->Read(half, StatePart::kFirstMoment, 64, 1147, moment));
  EXPECT_THAT(refusal(half, StatePart::kFirstMoment, 0, 100, moment),
              HasSubstr("blocks of 64 cannot be cut"));
  EXPECT_THAT(refusal(half, StatePart::kFirstMoment, 1, 128, moment),
              HasSubstr("blocks of 64 cannot be cut"));
  EXPECT_THAT(refusal(half, StatePart::kValue, 0, 64, moment),
              HasSubstr("stored as bf16, not as 8-bit/64"));
  EXPECT_THAT(refusal(half, StatePart::kFirstMoment, 0, 2000, moment),
              HasSubstr("it has elements 0 to 1147"));
  EXPECT_THAT(refusal(half, StatePart::kValue, 0, 9, {bf16, 0, 8, nullptr}),
              HasSubstr("the array is for elements 0 to 8"));
  EXPECT_THAT(refusal(ParameterId(7), StatePart::kMaster, 0, 9, moment),
              HasSubstr("the master of parameter \"ice\": the checkpoint has"));
  EXPECT_THAT(refusal(ParameterId(8), StatePart::kMaster, 0, 9, moment),
              HasSubstr("no parameter with the id 8"));
}

}  // namespace
}  // namespace tessera::zero3

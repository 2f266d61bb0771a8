#include "tools/train/checkpoint/run_identity.h"

#include <limits>
#include <string>

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

RunIdentity Identity() {
  RunIdentity identity = {
      .model = *model_files::PresetConfig("smollm2-135m"),
      .seed = std::numeric_limits<uint64_t>::max(),
      .batch = 16,
      .batch_warmup = "4:100",
      .length = 128,
      .corpus = 0x8000000000000001,
      .vocabulary = 49152,
      .validation_samples = 12,
      .test_samples = 5,
      .decay = "all",
      .optimizer = "muon",
      .lora = {8, 1.0 / 3, "mlp"},
      .source = {.config = "{\"a\": \"\u00e9\"}", .generation_config = "{}"}};
  identity.model.rotary.base = 100000.1;
  identity.model.norm_epsilon = 1.1e-5;
  return identity;
}

TEST(RunIdentityTest, ReadsBackFromMetadata) {
  zero3::CheckpointMetadata metadata = {{"other", "kept"}};
  TESSERA_ASSERT_OK(AddTo(Identity(), metadata));
  EXPECT_THAT(IdentityFrom(metadata), IsOkAndHolds(Identity()));
  EXPECT_EQ(metadata.at("other"), "kept");
  RunIdentity without_source = Identity();
  without_source.source = {};
  TESSERA_EXPECT_OK(CheckSameRun(Identity(), /*steps=*/3, without_source));
  zero3::CheckpointMetadata less;
  TESSERA_ASSERT_OK(AddTo(without_source, less));
  EXPECT_FALSE(less.contains("source_config"));
  EXPECT_THAT(IdentityFrom(less), IsOkAndHolds(without_source));
  EXPECT_THAT(AddTo({}, metadata),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RunIdentityTest, RejectsForeignMetadataByKey) {
  zero3::CheckpointMetadata metadata;
  EXPECT_THAT(
      IdentityFrom(metadata),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("not a checkpoint of a training run: it has no "
                         "\"model\"")));
  TESSERA_ASSERT_OK(AddTo(Identity(), metadata));
  for (const char* key : {"seed", "batch", "length", "corpus", "vocabulary",
                          "validation_samples", "test_samples"}) {
    for (const char* value :
         {"", "-1", "x", "99999999999999999999999", "1.5"}) {
      zero3::CheckpointMetadata other = metadata;
      other[key] = value;
      EXPECT_THAT(IdentityFrom(other),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)));
    }
    zero3::CheckpointMetadata less = metadata;
    less.erase(key);
    if (key == std::string_view("validation_samples") ||
        key == std::string_view("test_samples")) {  // Then there are none.
      EXPECT_THAT(IdentityFrom(less), IsOk());
      continue;
    }
    EXPECT_THAT(IdentityFrom(less),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)));
  }
  metadata["batch"] = "9223372036854775808";
  EXPECT_THAT(IdentityFrom(metadata),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(RunIdentityFuzzTest, DamagedModelsAreRejectedOrRoundTrip) {
  zero3::CheckpointMetadata metadata;
  TESSERA_ASSERT_OK(AddTo(Identity(), metadata));
  TextMutator mutator({metadata.at("model")},
                      {"[", "{", "\"", "1e400", "-", "null", "0"}, 9);
  for (int round = 0; round < 4000; ++round) {
    metadata["model"] = mutator.Next();
    const auto identity = IdentityFrom(metadata);
    if (!identity.ok()) {
      ASSERT_EQ(identity.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_THAT(std::string(identity.status().message()),
                  HasSubstr("\"model\""));
      continue;
    }
    zero3::CheckpointMetadata again;
    ASSERT_THAT(AddTo(*identity, again), IsOk());
    ASSERT_THAT(IdentityFrom(again), IsOkAndHolds(*identity));
  }
}

TEST(RunIdentityTest, RejectsAnotherModelAtAnyStep) {
  RunIdentity other = Identity();
  other.model.layers = 31;
  other.model.rotary.base = 5;
  for (const int64_t steps : {0, 7}) {
    EXPECT_THAT(
        CheckSameRun(Identity(), steps, other),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr("another model"),
                       HasSubstr("layers is 30 there and 31 here"),
                       HasSubstr("rope_theta is"), Not(HasSubstr("hidden")))));
  }
}

TEST(RunIdentityTest, RejectsOtherDataAfterFirstStep) {
  RunIdentity other = Identity();
  other.seed = 2;
  other.batch = 8;
  other.length = 64;
  other.corpus = 5;
  other.vocabulary = 257;
  EXPECT_THAT(CheckSameRun(Identity(), 0, other), IsOk());
  EXPECT_THAT(
      CheckSameRun(Identity(), 20, other),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("continue after step 20"), HasSubstr("seed is"),
                     HasSubstr("batch is 16 there and 8 here"),
                     HasSubstr("length is 128 there and 64 here"),
                     HasSubstr("fingerprint of the data is"),
                     HasSubstr("tokenizer is 49152 there and 257 here"))));
}

TEST(RunIdentityTest, RunsOfEarlierVersionsDecayedAllParameters) {
  RunIdentity identity = Identity();
  identity.decay = "matrices";
  zero3::CheckpointMetadata metadata;
  TESSERA_ASSERT_OK(AddTo(identity, metadata));
  EXPECT_THAT(IdentityFrom(metadata), IsOkAndHolds(identity));
  metadata["decay"] = "vectors";
  EXPECT_THAT(IdentityFrom(metadata),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has \"vectors\" as \"decay\"")));
  metadata.erase("decay");
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunIdentity old, IdentityFrom(metadata));
  EXPECT_EQ(old.decay, "all");
  EXPECT_THAT(CheckSameRun(old, 0, identity), IsOk());
  EXPECT_THAT(CheckSameRun(old, 3, identity),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("after step 3 with --decay=matrices; give "
                                 "--decay=all")));
}

TEST(RunIdentityTest, OtherOptimizersHaveOtherState) {
  RunIdentity identity = Identity();
  zero3::CheckpointMetadata metadata;
  TESSERA_ASSERT_OK(AddTo(identity, metadata));
  metadata["optimizer"] = "lamb";
  EXPECT_THAT(IdentityFrom(metadata),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has \"lamb\" as \"optimizer\"")));
  metadata.erase("optimizer");
  TESSERA_ASSERT_OK_AND_ASSIGN(const RunIdentity old, IdentityFrom(metadata));
  EXPECT_EQ(old.optimizer, "adamw");
  EXPECT_THAT(CheckSameRun(old, 0, identity), IsOk());
  EXPECT_THAT(CheckSameRun(old, 3, identity),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("with --optimizer=adamw, whose state cannot "
                                 "continue after step 3 with "
                                 "--optimizer=muon; give --optimizer=adamw")));
}

TEST(RunIdentityTest, StatisticsOfShampooHaveBlocks) {
  RunIdentity identity = Identity();
  identity.optimizer = "shampoo";
  identity.shampoo_block = 64;
  zero3::CheckpointMetadata metadata;
  TESSERA_ASSERT_OK(AddTo(identity, metadata));
  EXPECT_THAT(IdentityFrom(metadata), IsOkAndHolds(identity));
  RunIdentity other = identity;
  other.shampoo_block = 32;
  EXPECT_THAT(CheckSameRun(identity, 0, other), IsOk());
  EXPECT_THAT(CheckSameRun(identity, 3, other),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("with --shampoo_block=64, whose state cannot "
                                 "continue after step 3 with "
                                 "--shampoo_block=32; give "
                                 "--shampoo_block=64")));
  metadata.erase("shampoo_block");
  EXPECT_THAT(
      IdentityFrom(metadata),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("shampoo_block")));
}

TEST(RunIdentityTest, RejectsChangedAdapters) {
  const RunIdentity identity = Identity();
  RunIdentity base = identity;
  base.lora = {};
  EXPECT_THAT(CheckSameRun(base, 0, identity), IsOk());
  for (const auto& [saved, now] :
       {std::pair(base, identity), std::pair(identity, base)}) {
    EXPECT_THAT(CheckSameRun(saved, 3, now),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("give the same --lora_rank")));
  }
  RunIdentity other = identity;
  other.lora.alpha = 2;
  EXPECT_THAT(CheckSameRun(identity, 0, other),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("rank 8, alpha 2, mlp")));
  for (const auto& [key, value] :
       {std::pair("lora_rank", "-1"), std::pair("lora_rank", "99999999"),
        std::pair("lora_alpha", "inf"), std::pair("lora_targets", "heads")}) {
    zero3::CheckpointMetadata metadata;
    TESSERA_ASSERT_OK(AddTo(identity, metadata));
    metadata[key] = value;
    EXPECT_THAT(IdentityFrom(metadata),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(key)));
  }
}

TEST(RunIdentityTest, IgnoresFieldsWithoutEffect) {
  RunIdentity other = Identity();
  other.model.max_positions = 77;
  other.model.initializer_range = 0.5;
  EXPECT_THAT(CheckSameRun(Identity(), 20, other), IsOk());
}

}  // namespace
}  // namespace tessera::train

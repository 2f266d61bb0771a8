#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/file/crc32c.h"
#include "zero3/checkpoint/checkpoint_manifest.h"

namespace tessera::zero3 {
namespace {

using ::testing::HasSubstr;

CheckpointPart PartOf(std::string name, int64_t ranks) {
  const ModelParameters model =
      *ModelParameters::Builder()
           .Add({.name = "a\n\"", .shape = {5, 0, 7}, .dtype = DType::kBF16})
           .Add({.name = "b", .trainable = false, .group = 12})
           .Add({.name = "c", .shape = {2, 3}, .orthogonalized = true})
           .Build();
  CheckpointPart part = {
      .name = std::move(name),
      .stage = 2,
      .replicas = 3,
      .layout = *StateLayout::Create(
          model,
          {.kind = LayoutKind::kBalanced, .ranks = ranks, .alignment = 64}),
      .moments = offload::MomentFormat::Blockwise8(64),
      .moment_count = ranks == 1 ? 0 : 1,
      .loss_scale = 0.1,
      .steps_since_scale_change = 17,
      .metadata = {{"data", "position 7"}, {"caf\xc3\xa9", ""}}};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    part.files.push_back({1000 + rank, 0xdeadbeef, 7});
  }
  return part;
}

CheckpointManifest Sample() {
  return {.step = int64_t{1} << 40,
          .world = 9,
          .parts = {PartOf("tp0-pp1", 2), PartOf("", 1)}};
}

TEST(ManifestJsonTest, ReadsBack) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string text,
                               FormatManifest(Sample()));
  EXPECT_THAT(ParseManifest(text), IsOkAndHolds(Sample()));
  EXPECT_THAT(text, HasSubstr("\"tp0-pp1.rank-00001.state\""));
  EXPECT_THAT(text, HasSubstr("\"rank-00000.state\""));
  EXPECT_THAT(text, HasSubstr("\"8-bit/64\""));
}

TEST(ManifestJsonTest, DefaultsToTwoMoments) {
  TESSERA_ASSERT_OK_AND_ASSIGN(std::string text, FormatPart(PartOf("", 2)));
  const std::string count = "\"moment_count\": 1,";
  const size_t at = text.find(count);
  ASSERT_NE(at, std::string::npos);
  std::string wrong = text;
  wrong[at + count.size() - 2] = '3';
  EXPECT_THAT(ParsePart(wrong), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("moment_count")));
  text.erase(at, count.size());
  TESSERA_ASSERT_OK_AND_ASSIGN(const CheckpointPart part, ParsePart(text));
  EXPECT_EQ(part.moment_count, 2);
}

TEST(ManifestJsonTest, EveryFlippedBitIsDataLoss) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string text,
                               FormatManifest(Sample()));
  for (size_t i = 0; i < text.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      ASSERT_THAT(ParseManifest(damaged),
                  StatusIs(absl::StatusCode::kDataLoss));
    }
    ASSERT_THAT(ParseManifest(text.substr(0, i)),
                StatusIs(absl::StatusCode::kDataLoss));
  }
}

// Recomputes the checksum.
std::string Sealed(std::string text) {
  const std::string_view rest = std::string_view(text).substr(26);
  const uint32_t crc =
      offload::Crc32c(std::as_bytes(std::span(rest.data(), rest.size())));
  return text.replace(15, 8, absl::StrFormat("%08x", crc));
}

void ExpectRefused(const std::string& from, const std::string& to,
                   const std::string& message) {
  const std::string text = *FormatManifest(Sample());
  const std::string changed = absl::StrReplaceAll(text, {{from, to}});
  ASSERT_NE(changed, text) << from;
  EXPECT_THAT(ParseManifest(Sealed(changed)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
}

TEST(ManifestJsonTest, RejectsAndNamesInvalidValues) {
  EXPECT_THAT(ParseManifest(Sealed(*FormatManifest(Sample()))), IsOk());
  ExpectRefused("\"version\": 1", "\"version\": 2",
                "version: 2 is not known; 1 can be read");
  ExpectRefused("tessera checkpoint", "other", "format: it must be");
  ExpectRefused("\"step\"", "\"stop\"", "step is missing");
  ExpectRefused("1099511627776", "-1",
                "step is -1; use a whole number from 0 to");
  ExpectRefused("1099511627776", "18446744073709551615", "step is 1844");
  ExpectRefused("1099511627776", "1.5", "step is 1.5; use a whole number");
  ExpectRefused("tp0-pp1", "../x", "part \"../x\"; allowed");
  ExpectRefused("rank-00001", "rank-00002", "it must be \"tp0-pp1.rank-00001");
  ExpectRefused("\"stage\": 2", "\"stage\": 4",
                "parts[0].stage is 4; use a whole number from 0 to 3");
  ExpectRefused("balanced", "chunky", "unknown layout");
  ExpectRefused("\"ranks\": 2", "\"ranks\": 3", "2 files for the 3 ranks");
  ExpectRefused("8-bit/64", "8-bit/63", "unknown moment format");
  ExpectRefused("\"moment_block\": 64", "\"moment_block\": 63",
                "unknown moment format");
  ExpectRefused("0.1", "-0.1", "it must be positive and finite");
  ExpectRefused("\"position 7\"", "7", "the value of \"data\" is not a text");
  ExpectRefused("\"bf16\"", "\"bf17\"", "bf17");
  ExpectRefused("\"b\"", "\"a\\n\\\"\"", "the name is taken");
  ExpectRefused("\"shape\": [\n      5", "\"shape\": [\n      -5",
                "parts[0].parameters[0].shape[0] is -5");
  ExpectRefused("deadbeef", "DEADBEEF", "8 digits of 0-9a-f");
  ExpectRefused("\"world\": 9", "\"world\": [[[[[[[[[[9]]]]]]]]]]",
                "nested more than 8 deep");
  ExpectRefused("\"world\": 9", "\"world\": 9,,", "invalid JSON");
}

TEST(ManifestJsonTest, RejectsNonUtf8Texts) {
  CheckpointManifest manifest = Sample();
  manifest.parts[0].metadata["x"] = "\xff";
  EXPECT_THAT(
      FormatManifest(manifest),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must be UTF-8")));
  EXPECT_THAT(
      FormatPart(manifest.parts[0]),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("must be UTF-8")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string text,
                               FormatPart(Sample().parts[0]));
  EXPECT_THAT(ParsePart(text), IsOkAndHolds(Sample().parts[0]));
}

TEST(ManifestJsonTest, PartsHaveNamesOfTheirOwn) {
  CheckpointManifest manifest = Sample();
  manifest.parts.push_back(manifest.parts[0]);
  EXPECT_THAT(FormatManifest(manifest),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("part \"tp0-pp1\" comes twice")));
}

TEST(ManifestJsonTest, AManifestHasParts) {
  EXPECT_THAT(FormatManifest({.step = 1}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("it has no parts")));
}

TEST(CheckpointManifestTest, NamesOfFilesAndParts) {
  EXPECT_EQ(ShardFileName("", 3), "rank-00003.state");
  EXPECT_EQ(ShardFileName("tp1", 123456), "tp1.rank-123456.state");
  TESSERA_EXPECT_OK(CheckPartName(""));
  TESSERA_EXPECT_OK(CheckPartName("Tp0_pp-1"));
  for (const char* name : {".", "..", "a/b", "a b", "a.b", "\xc3\xa9"}) {
    EXPECT_THAT(CheckPartName(name),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
  EXPECT_THAT(CheckPartName(std::string(65, 'a')),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tessera::zero3

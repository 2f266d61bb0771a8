// Mutated manifests with recomputed checksums: each is rejected with an error
// or gives a manifest that survives a round trip.
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "offload/file/crc32c.h"
#include "zero3/checkpoint/checkpoint_manifest.h"

namespace tessera::zero3 {
namespace {

std::vector<std::string> EdgeTokens() {
  return {"9223372036854775807",
          "9223372036854775808",
          "-9223372036854775808",
          "1e308",
          "1e309",
          "-1",
          "null",
          "[]",
          "{}",
          "\"\"",
          "\"files\": [],",
          "\"ranks\": 1000000000,",
          std::string(2000, '['),
          std::string(2000, '{'),
          std::string(500, '"')};
}

std::string Sealed(const std::string& rest) {
  const uint32_t crc =
      offload::Crc32c(std::as_bytes(std::span(rest.data(), rest.size())));
  return "{\n  \"crc32c\": \"" + FormatHex32(crc) + "\",\n" + rest;
}

TEST(ManifestJsonFuzzTest, Documents) {
  const ModelParameters model =
      *ModelParameters::Builder()
           .Add({.name = "a", .shape = {4, 3}, .dtype = DType::kBF16})
           .Add({.name = "b", .trainable = false, .group = 2})
           .Build();
  CheckpointManifest small = {.step = 3};
  small.parts.push_back(
      {.layout = *StateLayout::Create(model, {}), .files = {{100, 1, 2}}});
  CheckpointManifest large = small;
  large.parts.push_back({.name = "tp1",
                         .layout = *StateLayout::Create(model, {.ranks = 2}),
                         .moments = offload::MomentFormat::BF16(),
                         .metadata = {{"k", "v\xc3\xa9\n"}},
                         .files = {{1, 2, 3}, {4, 5, 6}}});
  // Starts after the line with the checksum.
  TextMutator mutator(
      {FormatManifest(small)->substr(26), FormatManifest(large)->substr(26)},
      EdgeTokens(), 5);
  int valid = 0;
  for (int round = 0; round < 25'000; ++round) {
    const std::string text = Sealed(mutator.Next());
    const absl::StatusOr<CheckpointManifest> manifest = ParseManifest(text);
    if (!manifest.ok()) {
      ASSERT_EQ(manifest.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(manifest.status().message().empty());
      ASSERT_LT(manifest.status().message().size(), 5000u);
      continue;
    }
    ++valid;
    const absl::StatusOr<std::string> again = FormatManifest(*manifest);
    ASSERT_THAT(again, IsOk()) << text;
    ASSERT_THAT(ParseManifest(*again), IsOkAndHolds(*manifest));
  }
  EXPECT_GT(valid, 500);
}

}  // namespace
}  // namespace tessera::zero3

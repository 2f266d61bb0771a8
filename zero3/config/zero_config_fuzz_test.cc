// Mutated documents: each is refused with a message, or gives a configuration
// that survives writing, reading and checking.
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "base/text_mutator.h"
#include "gtest/gtest.h"
#include "zero3/config/zero_config_json.h"

namespace tessera::zero3 {
namespace {

std::vector<std::string> EdgeTokens() {
  return {"9223372036854775807",
          "9223372036854775808",
          "18446744073709551616",
          "-9223372036854775808",
          "-0",
          "-0.0",
          "1e308",
          "1e309",
          "4.9e-324",
          "00",
          "-1",
          std::string(2000, '['),
          std::string(2000, '{'),
          "\"",
          "null",
          "\"stage\": 2,",
          "\"loss_scale\":",
          "\"16EiB\"",
          "true"};
}

TEST(ZeroConfigFuzzTest, Json) {
  ZeroConfig full;
  full.swap_directory = "/t\xc3\xa9p-\"\\";
  full.loss_scale = 0.1;
  TextMutator mutator(
      {"{}", R"({"stage": 2, "cpu_budget":"4GiB"})", FormatZeroConfig(full),
       R"({"min_loss_scale": 1.5e1, "device_parameter_budget": 80})",
       R"({"strategy": "extreme", "swap_directory": "\u0064\n"})"},
      EdgeTokens(), 21);
  int valid = 0;
  for (int round = 0; round < 60'000; ++round) {
    const std::string text = mutator.Next();
    const absl::StatusOr<ZeroConfig> config = ParseZeroConfig(text);
    if (!config.ok()) {
      ASSERT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(config.status().message().empty());
      ASSERT_LT(config.status().message().size(), 1500u);
      continue;
    }
    ++valid;
    ASSERT_THAT(ParseZeroConfig(FormatZeroConfig(*config)),
                IsOkAndHolds(*config))
        << text;
    ASSERT_EQ(config->Validate().ok(), config->Problems().empty());
  }
  EXPECT_GT(valid, 500);
}

}  // namespace
}  // namespace tessera::zero3

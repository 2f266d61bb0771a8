#include "zero3/config/zero_config_json.h"

#include <cstdint>
#include <random>
#include <set>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/config/internal/config_fields.h"

namespace tessera::zero3 {
namespace {

using ::testing::HasSubstr;

// A configuration in which every field differs from its default.
ZeroConfig Unusual() {
  return {.stage = 1,
          .layout = LayoutKind::kRoundRobin,
          .alignment = 2048,
          .offload_parameters = false,
          .offload_gradients = false,
          .offload_optimizer = false,
          .cpu_budget = ByteSize(1001),
          .device_parameter_budget = ByteSize(-5),
          .swap_directory = "/sw\xc3\xa9\"p\n",
          .compression = Compression::kLossless,
          .strategy = Strategy::kExtreme,
          .prefetch_buffer = 1,
          .async_prefetch = false,
          .overlap = false,
          .pin_memory = false,
          .reduce_bucket_size = ByteSize(1 << 20),
          .parameter_persistence_threshold = 0,
          .max_live_parameters = 7,
          .max_reuse_distance = 8,
          .allow_unused_parameters = true,
          .gradient_accumulation_steps = 9,
          .gradient_type = GradientType::kFp32,
          .gradient_clipping = 0.1,
          .loss_scale = 1e300,
          .initial_scale_power = 3,
          .loss_scale_window = 4,
          .hysteresis = 5,
          .min_loss_scale = 0.125};
}

TEST(ZeroConfigJsonTest, ReadsWhatItWrote) {
  EXPECT_THAT(ParseZeroConfig(FormatZeroConfig(ZeroConfig())),
              IsOkAndHolds(ZeroConfig()));
  EXPECT_THAT(ParseZeroConfig(FormatZeroConfig(Unusual())),
              IsOkAndHolds(Unusual()));
}

// Each field goes alone from one configuration to the other: none is
// forgotten, none is set by another's key.
TEST(ZeroConfigJsonTest, EveryFieldIsInTheTable) {
  const ZeroConfig unusual = Unusual();
  ZeroConfig config;
  std::set<std::string> names;
  for (const internal::ConfigField& field : internal::ConfigFields()) {
    const ZeroConfig before = config;
    TESSERA_ASSERT_OK(field.set(field.get(unusual), config));
    EXPECT_FALSE(config == before) << field.name;
    EXPECT_TRUE(names.insert(std::string(field.name)).second);
  }
  EXPECT_EQ(config, unusual);
}

TEST(ZeroConfigJsonTest, AcceptsUnitsIntegersAndWholeNumbers) {
  ZeroConfig wanted;
  wanted.cpu_budget = ByteSize(int64_t{64} << 30);
  wanted.reduce_bucket_size = ByteSize(12345);
  wanted.loss_scale = 128;
  wanted.min_loss_scale = 18446744073709551615.0;
  EXPECT_THAT(ParseZeroConfig(R"({"cpu_budget": "64 GiB", "loss_scale": 128,
                                  "reduce_bucket_size": 12345,
                                  "min_loss_scale": 18446744073709551615})"),
              IsOkAndHolds(wanted));
}

void ExpectRefused(std::string_view json, std::string_view message) {
  EXPECT_THAT(ParseZeroConfig(json),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(std::string(message))));
}

TEST(ZeroConfigJsonTest, WrongDocumentsAreRefused) {
  ExpectRefused("", "no JSON at byte 1");
  ExpectRefused("{", "no JSON at byte 2");
  ExpectRefused("[]",
                "expected an object such as {\"stage\": 3}, found an arr");
  ExpectRefused("3", "found the integer 3");
  ExpectRefused("{} {}", "no JSON");
  ExpectRefused(R"({"stage": {}})", "key \"stage\": expected a single value");
  ExpectRefused(R"({"stage": [3]})", "found an array");
  ExpectRefused(R"({"stage": 3, "stage": 3})", "\"stage\" comes twice");
  ExpectRefused(std::string(kMaxZeroConfigBytes + 1, ' '), "at most 65536");
}

TEST(ZeroConfigJsonTest, WrongTypesAreRefused) {
  ExpectRefused(R"({"stage": 2.5})",
                "expected an integer below 2^63, found the number 2.5");
  ExpectRefused(R"({"stage": "3"})", "found the string \"3\"");
  ExpectRefused(R"({"stage": 9223372036854775808})", "found the integer 92233");
  ExpectRefused(R"({"overlap": 1})", "expected true or false");
  ExpectRefused(R"({"cpu_budget": "32 parsecs"})", "unknown unit");
  ExpectRefused(R"({"cpu_budget": 1.5})", "a string such as \"32GiB\"");
  ExpectRefused(R"({"loss_scale": null})", "expected a number, found null");
  ExpectRefused(R"({"swap_directory": 1})", "expected a string");
  ExpectRefused(R"({"strategy": "brutal"})",
                "unknown offload strategy \"brutal\"; allowed: conservative");
  ExpectRefused(R"({"compression": 4})", "one of the strings none, fp16");
}

TEST(ZeroConfigJsonTest, UnknownKeysNameTheNearest) {
  ExpectRefused(R"({"stagee": 3})", "did you mean \"stage\"?");
  ExpectRefused(R"({"CPU_Budget": 3})", "did you mean \"cpu_budget\"?");
  ExpectRefused(R"({"stage3_max_live_parameters": 3})",
                "did you mean \"max_live_parameters\"?");
  ExpectRefused(R"({"param_persistence_threshold": 3})",
                "did you mean \"parameter_persistence_threshold\"?");
}

TEST(ZeroConfigJsonTest, FilesKeepTheConfiguration) {
  const std::string path = ::testing::TempDir() + "/zero.json";
  TESSERA_ASSERT_OK(SaveZeroConfig(Unusual(), path));
  EXPECT_THAT(LoadZeroConfig(path), IsOkAndHolds(Unusual()));
  EXPECT_THAT(LoadZeroConfig(path + ".no").status().message(),
              HasSubstr("zero.json.no"));
  EXPECT_FALSE(SaveZeroConfig(Unusual(), "/no/such/directory/x").ok());
}

}  // namespace
}  // namespace tessera::zero3

// Tests flags, files and their common fields.
#include "tools/train/settings/settings.h"

#include <unistd.h>

#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/byte_size.h"
#include "base/dtype/dtype.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "tools/cli/cli.h"
#include "tools/train/settings/settings_flags.h"
#include "tools/train/settings/settings_table.h"
#include "topology/config/parallel_config.h"

namespace tessera::train {
namespace {

using ::testing::Field;
using ::testing::HasSubstr;
using topology::ParallelConfig;

auto Refused(const std::string& words) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(words));
}

// Converts to any type, to count an aggregate's fields.
struct AnyMember {
  template <typename T>
  operator T() const;
};

template <typename Aggregate, typename... Values>
constexpr size_t CountFields() {
  if constexpr (requires { Aggregate{Values()..., AnyMember()}; }) {
    return CountFields<Aggregate, Values..., AnyMember>();
  } else {
    return sizeof...(Values);
  }
}

// Settings in which every field differs from its default.
Settings Others() {
  Settings settings;
  int64_t number = 2;
  for (const SettingsField& field : SettingsFields()) {
    std::visit(
        [&](const auto& member) {
          auto value = GetField(member, settings);
          using T = decltype(value);
          if constexpr (std::is_same_v<T, bool>) {
            value = !value;
          } else if constexpr (std::is_same_v<T, std::string>) {
            value = absl::StrCat("r\u00e9sum\u00e9 \"", number, "\"\n");
          } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            value = {"a b", "\u4e2d", absl::StrCat(number)};
          } else {
            value = static_cast<T>(1e15 / 7 + static_cast<double>(number));
          }
          // Some fields reject invalid text.
          SetField(value, member, settings).IgnoreError();
          ++number;
        },
        field.member);
  }
  settings.parallel.mesh = {.dp = 4, .tp = 3, .dp_replicate = 2};
  settings.parallel.dtype = DType::kBF16;
  settings.parallel.split = {.counts = {3, 5}};
  settings.parallel.memory_strategy = topology::MemoryStrategy::kAggressive;
  settings.parallel.device_budget = ByteSize(1);
  settings.host_budget = ByteSize(5);
  settings.snapshot_every = kAutomatic;
  settings.parallel.strategy = topology::CommunicationStrategy::kTree;
  settings.parallel.memory_limit = ByteSize((int64_t{3} << 30) + 7);
  return settings;
}

tools::Tool TrainTool(SettingsFlags& flags) {
  return {.name = "train",
          .summary = "Trains.",
          .example = "--steps=3",
          .flags = flags.Flags()};
}

absl::Status ParseInto(const std::vector<std::string>& arguments,
                       SettingsFlags& flags) {
  return tools::ParseFlags(TrainTool(flags), arguments);
}

class SettingsTest : public ::testing::Test {
 protected:
  // Adds to the flags that were given before.
  absl::Status Parse(const std::vector<std::string>& arguments) {
    return ParseInto(arguments, flags_);
  }

  std::string Path(const std::string& name) {
    return absl::StrCat(::testing::TempDir(), "/", getpid(), name);
  }

  SettingsFlags flags_;
};

TEST_F(SettingsTest, NumbersMayBeAutomatic) {
  EXPECT_THAT(ParseSettings("{\"snapshot_every\": 3}"),
              IsOkAndHolds(Field(&Settings::snapshot_every, 3)));
  EXPECT_THAT(ParseSettings("{\"snapshot_every\": \"auto\"}"),
              IsOkAndHolds(Field(&Settings::snapshot_every, kAutomatic)));
  EXPECT_THAT(ParseSettings("{\"snapshot_every\": true}"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  Settings settings;
  for (const auto& [number, text] :
       {std::pair<int64_t, std::string>(7, "\"snapshot_every\": 7,"),
        {kAutomatic, "\"snapshot_every\": \"auto\","}}) {
    settings.snapshot_every = number;
    EXPECT_THAT(FormatSettings(settings), IsOkAndHolds(HasSubstr(text)));
  }
  TESSERA_ASSERT_OK(Parse({"--snapshot_every=auto"}));
  EXPECT_EQ(flags_.Read()->snapshot_every, kAutomatic);
  EXPECT_THAT(Parse({"--snapshot_every=often"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--snapshot_every=often: expected a whole "
                                 "number or auto, such as "
                                 "--snapshot_every=auto")));
}

TEST_F(SettingsTest, TheTableHasEveryField) {
  // `parallel` is not a field of the table; its own are, but for `fp8`, which
  // --dtype sets, and `layers`, which --model determines.
  EXPECT_EQ(SettingsFields().size(),
            CountFields<Settings>() - 1 + CountFields<ParallelConfig>() - 2);
  const Settings others = Others(), defaults;
  for (const SettingsField& field : SettingsFields()) {
    std::visit(
        [&](const auto& member) {
          EXPECT_TRUE(GetField(member, others) != GetField(member, defaults))
              << field.name;
        },
        field.member);
    EXPECT_EQ(FindSettingsField(field.name), &field);
    EXPECT_FALSE(field.help.empty());
  }
  EXPECT_EQ(FindSettingsField("nothing"), nullptr);
}

TEST(ParseTimeSpanTest, ReadsUnitsAndSlurmTimes) {
  const std::pair<std::string_view, absl::Duration> valid[] = {
      {"90s", absl::Seconds(90)},
      {"1h30m", absl::Minutes(90)},
      {"05:30", absl::Seconds(330)},
      {"2:00:01", absl::Hours(2) + absl::Seconds(1)},
      {"1-12:00:00", absl::Hours(36)}};
  for (const auto& [text, time] : valid) {
    EXPECT_THAT(ParseTimeSpan(text), IsOkAndHolds(time)) << text;
  }
  for (const std::string_view text :
       {"", "0s", "-5s", "30", "inf", "UNLIMITED", "1-12", "1-2:3", "-1:00",
        "1:-1", "1:2:3:4", "1-1-1:00:00", "a:b", "99999999999:00"}) {
    EXPECT_THAT(ParseTimeSpan(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("90s, 1h30m or 1-12:00:00")))
        << text;
  }
}

TEST_F(SettingsTest, EveryFieldHasAFlagWithItsDefault) {
  EXPECT_THAT(flags_.Read(), IsOkAndHolds(Settings()));
  std::map<std::string_view, std::string> defaults;
  for (const tools::Flag& flag : flags_.Flags()) {
    EXPECT_FALSE(flag.help.empty()) << flag.name;
    defaults[flag.name] = flag.default_value;
  }
  EXPECT_EQ(defaults.size(), SettingsFields().size() + 1);
  EXPECT_EQ(defaults["steps"], "240");
  EXPECT_EQ(defaults["quiet"], "false");
  EXPECT_EQ(defaults["mesh"], "dp2,pp2,tp2");
  EXPECT_EQ(defaults["learning_rate"], "0.003");
  const std::vector<tools::Flag> two = flags_.Flags({"steps", "model"});
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1].name, "model");
}

// Integers are WholeRange, numbers RealRange: CheckAllowed relies on it. The
// fields of `parallel` are checked by ParallelConfig. A section is contiguous.
TEST_F(SettingsTest, RowsMatchTheirTypes) {
  std::vector<std::string_view> sections;
  for (const SettingsField& field : SettingsFields()) {
    if (sections.empty() || sections.back() != field.section) {
      EXPECT_FALSE(absl::c_linear_search(sections, field.section))
          << field.name;
      sections.push_back(field.section);
    }
    EXPECT_EQ(std::holds_alternative<int64_t Settings::*>(field.member) ||
                  std::holds_alternative<AutomaticField>(field.member),
              std::holds_alternative<WholeRange>(field.allowed))
        << field.name;
    EXPECT_EQ(std::holds_alternative<double Settings::*>(field.member),
              std::holds_alternative<RealRange>(field.allowed))
        << field.name;
    TESSERA_EXPECT_OK(CheckAllowed(field, Settings()));
  }
}

TEST_F(SettingsTest, FlagsSetFields) {
  TESSERA_EXPECT_OK(Parse({"--data=docs,src/*.cc", "--steps=-3", "--quiet",
                           "--learning_rate", "1e-3", "--noverify", "--mesh",
                           "tp4", "--sample_prompt", "--quiet", "--report"}));
  Settings expected;
  expected.data = {"docs", "src/*.cc"};
  expected.steps = -3;
  expected.quiet = true;
  expected.learning_rate = 1e-3;
  expected.parallel.mesh = {.tp = 4};
  expected.sample_prompt = "--quiet";
  expected.report = true;
  EXPECT_THAT(flags_.Read(), IsOkAndHolds(expected));
  TESSERA_EXPECT_OK(Parse({"--data=", "--quiet=false"}));
  expected.data = {};
  expected.quiet = false;
  EXPECT_THAT(flags_.Read(), IsOkAndHolds(expected));
}

TEST_F(SettingsTest, TokensDetermineTheSteps) {
  Settings settings;
  settings.batch = 3;
  settings.length = 7;
  EXPECT_EQ(StepsOfTokens(0, settings), 0);
  EXPECT_EQ(StepsOfTokens(-5, settings), 0);
  EXPECT_EQ(StepsOfTokens(1, settings), 1);
  EXPECT_EQ(StepsOfTokens(21, settings), 1);
  EXPECT_EQ(StepsOfTokens(22, settings), 2);
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(StepsOfTokens(kMost, settings), kMost / 21 + 1);
  // 1, 2 and 3 sequences of 7 tokens in two steps each at first.
  settings.batch_warmup = "1:4";
  EXPECT_EQ(StepsOfTokens(6 * 7, settings), 4);
  EXPECT_EQ(StepsOfTokens(6 * 7 + 1, settings), 5);
  EXPECT_EQ(StepsOfTokens((6 + 3) * 7 + 1, settings), 6);
  settings.batch_warmup = "";
  settings.batch = settings.length = kMost;
  EXPECT_EQ(StepsOfTokens(kMost, settings), 1);
  settings.batch = 0;
  EXPECT_EQ(StepsOfTokens(1, settings), 0);

  const std::string path = Path("tokens.json");
  {
    SettingsFlags flags;
    TESSERA_EXPECT_OK(
        ParseInto({"--train_tokens=1000", "--batch=3", "--length=7"}, flags));
    TESSERA_ASSERT_OK_AND_ASSIGN(settings, flags.Read());
    EXPECT_EQ(settings.steps, 48);
    TESSERA_EXPECT_OK(WriteSettings(settings, path));
    TESSERA_EXPECT_OK(ParseInto({"--steps=5"}, flags));
    EXPECT_THAT(flags.Read(),
                Refused("--train_tokens=1000: determines the number of steps, "
                        "and --steps=5 is also given; use only one of them"));
  }
  // The file alone gives the same run; a flag for steps or tokens overrides the
  // tokens of the file.
  TESSERA_EXPECT_OK(Parse({"--config", path}));
  EXPECT_THAT(flags_.Read(), IsOkAndHolds(settings));
  {
    SettingsFlags flags;
    TESSERA_EXPECT_OK(
        ParseInto({"--config", path, "--train_tokens=22"}, flags));
    EXPECT_EQ(flags.Read()->steps, 2);
  }
  TESSERA_EXPECT_OK(Parse({"--steps=5"}));
  TESSERA_ASSERT_OK_AND_ASSIGN(settings, flags_.Read());
  EXPECT_EQ(settings.steps, 5);
  EXPECT_EQ(settings.train_tokens, 0);
}

TEST_F(SettingsTest, ExactNumbersComeThroughFlags) {
  TESSERA_EXPECT_OK(Parse({"--seed=9223372036854775807", "--beta1=0.1"}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Settings settings, flags_.Read());
  EXPECT_EQ(settings.seed, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(settings.beta1, 0.1);
}

TEST_F(SettingsTest, SizesMayHaveUnits) {
  TESSERA_EXPECT_OK(Parse({"--bucket_bytes=4Mi", "--speculative_bytes=1.5GB",
                           "--max_gathered_bytes=64", "--host_budget=8Gi"}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Settings settings, flags_.Read());
  EXPECT_EQ(settings.bucket_bytes, 4 << 20);
  EXPECT_EQ(settings.speculative_bytes, 1'500'000'000);
  EXPECT_EQ(settings.max_gathered_bytes, 64);
  EXPECT_THAT(Parse({"--bucket_bytes=4X"}),
              Refused("--bucket_bytes=4X: byte size \"4X\""));
  EXPECT_THAT(Parse({"--steps=4Ki"}), Refused("--steps=4Ki: expected a whole"));
}

TEST_F(SettingsTest, ExplainsMalformedFlags) {
  EXPECT_THAT(Parse({"--steps=many"}),
              Refused("--steps=many: expected a whole number"));
  EXPECT_THAT(Parse({"--steps=9223372036854775808"}),
              Refused("--steps=9223372036854775808: expected a whole number"));
  EXPECT_THAT(Parse({"--beta1=x"}), Refused("--beta1=x: expected a number"));
  EXPECT_THAT(Parse({"--quiet=maybe"}),
              Refused("--quiet=maybe: expected true or false"));
  EXPECT_THAT(Parse({"--data=a,,b"}),
              Refused("--data=a,,b: expected names separated by commas"));
  for (const auto& [argument, message] :
       {std::pair("--mesh=dp0", "--mesh=dp0: axis \"dp\" has size 0"),
        std::pair("--dtype=fp4",
                  "--dtype=fp4: must be one of fp32, bf16, fp16, fp8, such"),
        std::pair("--strategy=", "--strategy=: must be one of all_reduce"),
        std::pair("--memory_limit=0", "must be a number of bytes above 0")}) {
    EXPECT_THAT(Parse({argument}), Refused(message));
  }
  EXPECT_THAT(Parse({"--step=3"}), Refused("did you mean --steps"));
  EXPECT_THAT(Parse({"--nosteps"}), Refused("--steps=false"));
}

TEST_F(SettingsTest, GivenFlagsOverrideTheFileAndOthersDoNot) {
  Settings file;
  file.steps = 7;
  file.quiet = true;
  file.parallel.mesh = {.dp = 4};
  file.data = {"with,comma"};
  const std::string path = Path("config.json");
  TESSERA_EXPECT_OK(WriteSettings(file, path));
  TESSERA_EXPECT_OK(Parse({"--config", path}));
  EXPECT_THAT(flags_.Read(), IsOkAndHolds(file));
  // Flags that equal the default override the file, too.
  TESSERA_EXPECT_OK(Parse({"--steps=60", "--noquiet", "--data="}));
  file.steps = 60;
  file.quiet = false;
  file.data = {};
  EXPECT_THAT(flags_.Read(), IsOkAndHolds(file));
}

TEST_F(SettingsTest, FileErrorsNameFlagOrKey) {
  TESSERA_EXPECT_OK(Parse({"--config=/does/not/exist"}));
  EXPECT_THAT(flags_.Read(), Refused("--config=/does/not/exist: "));
  const std::string path = Path("bad.json");
  TESSERA_EXPECT_OK(WriteFile(path, R"({"step": 3})"));
  TESSERA_EXPECT_OK(Parse({absl::StrCat("--config=", path)}));
  EXPECT_THAT(flags_.Read(),
              Refused("unknown key \"step\"; the nearest there is: \"steps\""));
  EXPECT_EQ(ParseSettings(R"({"elastic": true})")->min_dp, 1);
  EXPECT_EQ(ParseSettings(R"({"elastic": false})")->min_dp, 0);
}

TEST_F(SettingsTest, ReadsFilesOfRunsThatHadNoPrometheusPort) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const Settings settings,
      ParseSettings(R"({"steps": 3, "prometheus_port": 0})"));
  EXPECT_EQ(settings.steps, 3);
  EXPECT_THAT(ParseSettings(R"({"prometheus_port": 9400})").status(),
              Refused("unknown key \"prometheus_port\"; the nearest there is: "
                      "\"prometheus_file\""));
}

TEST_F(SettingsTest, HelpListsCommonFlagsAndHelpAllEveryFlag) {
  const auto help = [&](const std::string& argument) {
    std::ostringstream out, err;
    EXPECT_EQ(tools::RunTool(TrainTool(flags_), {argument}, out, err,
                             [] { return absl::OkStatus(); }),
              0);
    return out.str();
  };
  const std::string common = help("--help"), all = help("--help=all");
  int common_fields = 0;
  for (const SettingsField& field : SettingsFields()) {
    const std::string line = absl::StrCat("\n  --", field.name);
    EXPECT_THAT(all, HasSubstr(line));
    EXPECT_THAT(all, HasSubstr(absl::StrCat("\n", field.section, ":\n")));
    EXPECT_EQ(absl::StrContains(common, absl::StrCat(line, "=")) ||
                  absl::StrContains(common, absl::StrCat(line, "\n")),
              field.is_common)
        << field.name;
    common_fields += field.is_common ? 1 : 0;
  }
  EXPECT_GT(common_fields, 15);
  EXPECT_LT(common_fields, 35);
  EXPECT_THAT(common, HasSubstr("--help=all lists all"));
}

TEST_F(SettingsTest, JsonHasEveryFieldBitForBit) {
  for (const Settings& settings : {Settings(), Others()}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string json,
                                 FormatSettings(settings));
    EXPECT_THAT(ParseSettings(json), IsOkAndHolds(settings)) << json;
    const std::string path = Path("settings.json");
    TESSERA_EXPECT_OK(WriteSettings(settings, path));
    EXPECT_THAT(ReadSettings(path), IsOkAndHolds(settings));
  }
  EXPECT_THAT(ParseSettings("{}"), IsOkAndHolds(Settings()));
}

// Files from before `parallel` existed.
TEST_F(SettingsTest, ReadsOldFiles) {
  Settings expected;
  expected.parallel = {.mesh = {.dp = 4, .tp = 2, .dp_replicate = 2},
                       .schedule = "zb_v",
                       .chunks = 2,
                       .micro_batch = 4,
                       .strategy = topology::CommunicationStrategy::kRing,
                       .dtype = DType::kBF16,
                       .memory_limit = ByteSize(int64_t{300} << 20),
                       .timeout = absl::Seconds(5)};
  EXPECT_THAT(ParseSettings(R"({"dtype": "bf16", "micro_batch": 4,
                        "mesh": "tp2, dp_replicate2,dp_shard2",
                        "strategy": "ring", "schedule": "zb_v", "chunks": 2,
                        "timeout_seconds": 5, "memory_limit": "300MiB"})"),
              IsOkAndHolds(expected));
  EXPECT_THAT(ParseSettings(R"({"memory_limit": "", "mesh": "dp2,pp2,tp2"})"),
              IsOkAndHolds(Settings()));
}

TEST_F(SettingsTest, Fp8IsBf16WithProductsInFp8) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Settings settings,
                               ParseSettings(R"({"dtype": "fp8"})"));
  EXPECT_EQ(settings.parallel.dtype, DType::kBF16);
  EXPECT_TRUE(settings.parallel.fp8);
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string json,
                               FormatSettings(settings));
  EXPECT_THAT(json, HasSubstr("\"dtype\": \"fp8\""));
  EXPECT_THAT(ParseSettings(json), IsOkAndHolds(settings));
}

// Text in any field survives a round trip through a file.
TEST_F(SettingsTest, WritesValuesAsFlags) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string json,
                               FormatSettings(Others()));
  for (const char* line :
       {"\"mesh\": \"dp_replicate2,dp_shard2,tp3\"", "\"dtype\": \"bf16\"",
        "\"strategy\": \"tree\"", "\"memory_limit\": \"3221225479B\""}) {
    EXPECT_THAT(json, HasSubstr(line));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string defaults,
                               FormatSettings(Settings()));
  for (const char* line :
       {"\"mesh\": \"dp2,pp2,tp2\"", "\"dtype\": \"fp32\"",
        "\"schedule\": \"1f1b\"", "\"chunks\": 1", "\"micro_batch\": 1",
        "\"strategy\": \"adaptive\"", "\"memory_limit\": \"\"",
        "\"timeout_seconds\": 60"}) {
    EXPECT_THAT(defaults, HasSubstr(line));
  }
}

TEST_F(SettingsTest, RandomNumbersRoundTrip) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    Settings settings;
    settings.seed = static_cast<int64_t>(random());
    double value = std::bit_cast<double>(random());
    if (!std::isfinite(value)) continue;
    settings.epsilon = value;
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string json,
                                 FormatSettings(settings));
    TESSERA_ASSERT_OK_AND_ASSIGN(const Settings back, ParseSettings(json));
    ASSERT_EQ(back.seed, settings.seed);
    ASSERT_EQ(std::bit_cast<uint64_t>(back.epsilon),
              std::bit_cast<uint64_t>(value))
        << json;
  }
}

TEST_F(SettingsTest, RejectsInvalidJson) {
  EXPECT_THAT(ParseSettings(""), Refused("settings: invalid JSON at byte"));
  EXPECT_THAT(ParseSettings("[]"), Refused("expected an object such as"));
  EXPECT_THAT(ParseSettings(R"({"steps": "3"})"),
              Refused("key \"steps\": expected a whole number, -2^63 to "
                      "2^63-1, found \"3\""));
  EXPECT_THAT(ParseSettings(R"({"steps": 3.0})"), Refused("a whole number"));
  EXPECT_THAT(ParseSettings(R"({"steps": 9223372036854775808})"),
              Refused("a whole number"));
  EXPECT_THAT(ParseSettings(R"({"beta1": "x"})"), Refused("a number"));
  EXPECT_THAT(ParseSettings(R"({"quiet": 1})"), Refused("true or false"));
  EXPECT_THAT(ParseSettings(R"({"mesh": 8})"), Refused("a text in quotes"));
  EXPECT_THAT(ParseSettings(R"({"mesh": "dp0"})"),
              Refused("key \"mesh\": --mesh=dp0: axis \"dp\" has size 0"));
  EXPECT_THAT(
      ParseSettings(R"({"dtype": "f32"})"),
      Refused(
          "key \"dtype\": --dtype=f32: must be one of fp32, bf16, fp16, fp8"));
  EXPECT_THAT(
      ParseSettings(R"({"data": "docs"})"),
      Refused("expected a list of texts such as [\"docs\"], found \"docs\""));
  EXPECT_THAT(ParseSettings(R"({"data": ["a", 3]})"), Refused("found 3"));
  EXPECT_THAT(ParseSettings(R"({"data": [["a"]]})"), Refused("found an array"));
  EXPECT_THAT(ParseSettings(R"({"data": [[["a"]]]})"), Refused("3 deep"));
  EXPECT_THAT(ParseSettings(R"({"steps": 3, "steps": 3})"), Refused("twice"));
  EXPECT_THAT(ParseSettings(R"({"Steps": 3})"), Refused("is: \"steps\""));
  EXPECT_THAT(ParseSettings(R"({"config": "x"})"), Refused("unknown key"));
  EXPECT_THAT(ParseSettings(std::string(kMaxSettingsBytes + 1, ' ')),
              Refused("bytes of JSON; at most"));
}

// Names of files may have any bytes, and JSON has only UTF-8.
TEST_F(SettingsTest, KeepsBytesThatAreNotUtf8) {
  Settings settings;
  settings.model = "m\xc3\xa9%41";  // UTF-8, as it is.
  settings.run_dir = "50%\xe9\xff\"\\\n";
  settings.data = {"a%", "\xc3", ""};
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string text,
                               FormatSettings(settings));
  EXPECT_THAT(text, HasSubstr("\"m\xc3\xa9%41\""));
  EXPECT_THAT(text, HasSubstr(R"({"percent_encoded":"50%25%e9%ff\"\\\n"})"));
  EXPECT_THAT(text,
              HasSubstr(R"("data": ["a%",{"percent_encoded":"%c3"},""])"));
  EXPECT_THAT(ParseSettings(text), IsOkAndHolds(settings));
  for (const std::string end : {"%", "%4", "%zz", "%4%41"}) {
    EXPECT_THAT(
        ParseSettings("{\"model\": {\"percent_encoded\": \"a" + end + "\"}}"),
        Refused("two hexadecimal digits"));
  }
  EXPECT_THAT(ParseSettings(R"({"model": {"percent": "a"}})"),
              Refused("expected a text in quotes"));
  EXPECT_THAT(ParseSettings(R"({"data": [{"percent_encoded": 1}]})"),
              Refused("expected a text in quotes"));
}

TEST_F(SettingsTest, RejectsUnwritableValuesAndKeepsOldFile) {
  const std::string path = Path("kept.json");
  TESSERA_EXPECT_OK(WriteSettings(Settings(), path));
  Settings settings;
  settings.epsilon = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(WriteSettings(settings, path),
              Refused("key \"epsilon\": nan cannot be written as JSON"));
  settings = {};
  settings.sample_prompt = std::string(kMaxSettingsBytes, 'x');
  EXPECT_THAT(WriteSettings(settings, path), Refused("at most"));
  EXPECT_THAT(ReadSettings(path), IsOkAndHolds(Settings()));
  EXPECT_FALSE(WriteSettings(Settings(), "/does/not/exist/x.json").ok());
}

TEST_F(SettingsTest, DamagedJsonIsRejectedOrRoundTrips) {
  TextMutator mutator(
      {*FormatSettings(Settings()), *FormatSettings(Others()),
       R"({"mesh": "dp2,tp2", "data": ["docs", "more.u16"], "beta1": 0.25})"},
      {"[", "{", "\"steps\":", "\\u", "\xc3\xa9", "1e400", "null", "-0.0"}, 11);
  int valid = 0;
  for (int round = 0; round < 20'000; ++round) {
    const absl::StatusOr<Settings> settings = ParseSettings(mutator.Next());
    if (!settings.ok()) {
      ASSERT_THAT(settings, Refused(" "));
      ASSERT_LT(settings.status().message().size(), 1000u);
      continue;
    }
    ++valid;
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string json,
                                 FormatSettings(*settings));
    ASSERT_THAT(ParseSettings(json), IsOkAndHolds(*settings));
  }
  EXPECT_GT(valid, 500);
}

TEST_F(SettingsTest, TheReadmeHasTheTableOfFlags) {
  std::string table = "| flag | default | what |\n| --- | --- | --- |\n";
  std::string_view section;
  for (const tools::Flag& flag : flags_.Flags()) {
    if (flag.section != section) {
      section = flag.section;
      absl::StrAppend(&table, "| **", section, "** | | |\n");
    }
    absl::StrAppend(&table, "| `--", flag.name, "` | ",
                    flag.default_value.empty()
                        ? ""
                        : absl::StrCat("`", flag.default_value, "` "),
                    "| ", flag.help, " |\n");
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const std::string readme,
      ReadFile("tools/train/settings/README.md", 1 << 20));
  EXPECT_THAT(readme, HasSubstr(table));
}

}  // namespace
}  // namespace tessera::train

#include "tools/cli/cli.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/cli/typed_flags.h"

namespace tessera::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct Values {
  int stages = 4;
  std::string schedule = "1f1b";
  bool quiet = false;
  OutputFormat format = OutputFormat::kText;
};

Tool DemoTool(Values& values) {
  return {
      .name = "demo",
      .summary = "Shows flags.",
      .example = "--stages=4",
      .flags = {FieldFlag("stages", "how many stages", values.stages),
                FieldFlag("schedule", "the schedule's name", values.schedule),
                FieldFlag("quiet", "prints no progress", values.quiet),
                FieldFlag("format", "text, json or csv", values.format)},
      .short_flags = {{'s', "stages"}, {'q', "quiet"}}};
}

class CliTest : public ::testing::Test {
 protected:
  int Run(std::vector<std::string> arguments,
          absl::Status result = absl::OkStatus()) {
    out_.str("");
    err_.str("");
    ran_ = false;
    return RunTool(tool_, arguments, out_, err_, [&] {
      ran_ = true;
      return result;
    });
  }

  Values values_;
  const Tool tool_ = DemoTool(values_);
  std::ostringstream out_;
  std::ostringstream err_;
  bool ran_ = false;
};

TEST_F(CliTest, SetsFlagsInEveryForm) {
  EXPECT_EQ(Run({"--stages=8", "--schedule", "gpipe", "--quiet"}), 0);
  EXPECT_TRUE(ran_);
  EXPECT_EQ(values_.stages, 8);
  EXPECT_EQ(values_.schedule, "gpipe");
  EXPECT_TRUE(values_.quiet);
  EXPECT_EQ(Run({"--quiet", "0", "--stages=8"}), 0);
  EXPECT_FALSE(values_.quiet);
  EXPECT_EQ(Run({"--quiet", "true"}), 0);
  EXPECT_TRUE(values_.quiet);
  EXPECT_EQ(Run({"--noquiet", "--format=csv", "--schedule=a=b"}), 0);
  EXPECT_FALSE(values_.quiet);
  EXPECT_EQ(values_.format, OutputFormat::kCsv);
  EXPECT_EQ(values_.schedule, "a=b");
}

TEST_F(CliTest, ShortFlagsTakeAJoinedOrASeparateValue) {
  EXPECT_EQ(Run({"-s", "8", "-q", "1"}), 0);
  EXPECT_EQ(values_.stages, 8);
  EXPECT_TRUE(values_.quiet);
  EXPECT_EQ(Run({"-s9", "-q=0"}), 0);
  EXPECT_EQ(values_.stages, 9);
  EXPECT_FALSE(values_.quiet);
  EXPECT_EQ(Run({"-s=7"}), 0);
  EXPECT_EQ(values_.stages, 7);
}

TEST_F(CliTest, RangesAreCheckedWithTheFlagsName) {
  EXPECT_THAT(CheckFlagRange("stages", 1, 1, 4), IsOk());
  EXPECT_THAT(CheckFlagRange("stages", 4, 1, 4), IsOk());
  for (const int64_t value : {0, 5}) {
    EXPECT_THAT(CheckFlagRange("stages", value, 1, 4),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "--stages=" + std::to_string(value) +
                             ": expected a number from 1 to 4"));
  }
}

TEST_F(CliTest, BadUsageExitsWith2AndOneLine) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--stage=8"}, "unknown flag --stage; did you mean --stages;"},
      {{"--zzzzzzzzzz=8"}, "unknown flag --zzzzzzzzzz; --help lists"},
      {{"--stages=x"}, "--stages=x: "},
      {{"--stages"}, "--stages has no value"},
      {{"-s"}, "--stages has no value"},
      {{"-x"}, "unexpected argument \"-x\""},
      {{"--format=yaml"}, "--format=yaml: expected text, json or csv"},
      {{"--nostages"}, "--stages=false: "},
      {{"stages"}, "unexpected argument \"stages\""},
      {{"--"}, "unknown flag --"},
      {{"--" + std::string(5000, 'x')}, "unknown flag --xxx"},
  };
  for (const auto& [arguments, message] : cases) {
    EXPECT_EQ(Run(arguments), 2) << message;
    EXPECT_FALSE(ran_);
    const std::string line = err_.str();
    EXPECT_THAT(line, StartsWith("demo: " + message));
    EXPECT_THAT(line, HasSubstr("./bazelw run //tools/demo -- --stages=4\n"));
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
    EXPECT_LT(line.size(), 500u);
    EXPECT_EQ(out_.str(), "");
  }
}

TEST_F(CliTest, MapsErrorsToExitCodes) {
  EXPECT_EQ(Run({}, FlagError("stages", "0",
                              absl::OutOfRangeError("expected 1 or more"))),
            2);
  EXPECT_THAT(err_.str(), HasSubstr("--stages=0: expected 1 or more; for"));
  EXPECT_EQ(Run({}, absl::UnavailableError("rank 3\nis \x1b gone")), 1);
  EXPECT_EQ(err_.str(), "demo: rank 3 is \\x1b gone\n");
}

TEST_F(CliTest, HelpNamesEveryFlagAndExitsWith0) {
  EXPECT_EQ(Run({"--stages=x", "--help"}), 0);
  EXPECT_FALSE(ran_);
  for (const char* part : {"Shows flags.", "--stages=4", "how many stages",
                           "--schedule=1f1b", "--format=text"}) {
    EXPECT_THAT(out_.str(), HasSubstr(part));
  }
  EXPECT_EQ(err_.str(), "");
}

// A tool whose flags keep their values in an object.
class OwnFlagsTest : public ::testing::Test {
 protected:
  OwnFlagsTest() {
    Flag depth = {.name = "depth",
                  .help =
                      "a help that is longer than one line of a terminal, "
                      "which wraps it at spaces and indents every line",
                  .default_value = "2"};
    depth.set = [this](std::string_view value) {
      if (value == "deep") {
        return FlagError("depth", value,
                         absl::InvalidArgumentError("use a number"));
      }
      depth_ = value;
      return absl::OkStatus();
    };
    depth.section = "Shape";
    depth.is_common = true;
    Flag loud = depth;
    loud.name = "loud";
    loud.help = "prints more";
    loud.is_boolean = true;
    loud.set = [this](std::string_view value) {
      loud_ = value;
      return absl::OkStatus();
    };
    loud.section = "Output";
    loud.is_common = false;
    tool_ = {.name = "own",
             .summary = "Owns flags.",
             .example = "--depth=3",
             .flags = {depth, loud, FieldFlag("stages", "", stages_)}};
  }

  std::string Help(const std::string& argument) {
    std::ostringstream out, err;
    EXPECT_EQ(
        RunTool(tool_, {argument}, out, err, [] { return absl::OkStatus(); }),
        0);
    return out.str();
  }

  std::string depth_, loud_;
  int stages_ = 4;
  Tool tool_;
};

TEST_F(OwnFlagsTest, StoresValuesInEveryForm) {
  TESSERA_EXPECT_OK(
      ParseFlags(tool_, {"--depth", "5", "--loud", "--stages=6"}));
  EXPECT_EQ(depth_, "5");
  EXPECT_EQ(loud_, "true");
  EXPECT_EQ(stages_, 6);
  TESSERA_EXPECT_OK(ParseFlags(tool_, {"--depth=--loud", "--noloud"}));
  EXPECT_EQ(depth_, "--loud");
  EXPECT_EQ(loud_, "false");
  EXPECT_THAT(ParseFlags(tool_, {"--depth=deep"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--depth=deep: use a number"));
  EXPECT_THAT(ParseFlags(tool_, {"--depht=1"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("did you mean --depth")));
  EXPECT_THAT(ParseFlags(tool_, {"--depth"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("--depth has no value; expected")));
}

TEST_F(OwnFlagsTest, HelpListsCommonFlagsAndHelpAllTheSections) {
  EXPECT_EQ(Help("--help"),
            "own: Owns flags.\n\n  ./bazelw run //tools/own -- --depth=3\n\n"
            "Common flags; --help=all lists all 3:\n\nShape:\n"
            "  --depth=2\n"
            "      a help that is longer than one line of a terminal, which "
            "wraps it at\n      spaces and indents every line\n");
  const std::string all = Help("--help=all");
  EXPECT_THAT(all, HasSubstr("\nOutput:\n  --loud=2\n      prints more\n"));
  EXPECT_THAT(all, ::testing::Not(HasSubstr("--stages")));  // No help.
}

class VerbTest : public ::testing::Test {
 protected:
  int Run(std::vector<std::string> arguments) {
    out_.str("");
    err_.str("");
    operands_.clear();
    const auto keep = [this](const std::vector<std::string>& operands) {
      operands_ = operands;
      return absl::OkStatus();
    };
    return RunVerb({.name = "demo",
                    .summary = "Has verbs.",
                    .example = "draw a.svg",
                    .flags = {}},
                   {{.name = "draw",
                     .operands = {"FROM", "TO"},
                     .summary = "Draws a schedule.",
                     .example = "draw a.csv a.svg",
                     .flags = {FieldFlag("stages", "how many", values_.stages)},
                     .body = keep},
                    {.name = "list",
                     .operands = {},
                     .summary = "Lists schedules.",
                     .example = "list",
                     .flags = {FieldFlag("format", "text", values_.format)},
                     .body = keep}},
                   arguments, out_, err_);
  }

  Values values_;
  std::ostringstream out_;
  std::ostringstream err_;
  std::vector<std::string> operands_;
};

TEST_F(VerbTest, TakesOperandsAndFlagsInAnyOrder) {
  EXPECT_EQ(Run({"draw", "x", "--stages", "9", "y"}), 0);
  EXPECT_EQ(operands_, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(values_.stages, 9);
  EXPECT_EQ(Run({"list", "--format=json"}), 0);
  EXPECT_EQ(values_.format, OutputFormat::kJson);
}

TEST_F(VerbTest, BadUsageExitsWith2AndTheExampleOfTheVerb) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{},
       "no verb; expected draw, list; for example: ./bazelw run "
       "//tools/demo -- draw a.svg\n"},
      {{"paint"}, "unknown verb \"paint\"; expected draw, list; "},
      {{"--stages=4"}, "unknown verb \"--stages=4\""},
      {{"draw", "x"},
       "draw takes FROM and TO, got \"x\"; for example: "
       "./bazelw run //tools/demo -- draw a.csv a.svg\n"},
      {{"draw"}, "draw takes FROM and TO, got none; "},
      {{"list", "x"}, "list takes no operands, got \"x\"; "},
      {{"list", "--stages=4"}, "unknown flag --stages; --help lists"},
  };
  for (const auto& [arguments, message] : cases) {
    EXPECT_EQ(Run(arguments), 2) << message;
    EXPECT_THAT(err_.str(), StartsWith("demo: " + message));
    EXPECT_EQ(out_.str(), "");
    EXPECT_TRUE(operands_.empty());
  }
}

TEST_F(VerbTest, HelpOfAVerbNamesOnlyItsFlags) {
  EXPECT_EQ(Run({"--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("draw FROM TO"));
  EXPECT_THAT(out_.str(), HasSubstr("Lists schedules."));
  EXPECT_THAT(out_.str(), ::testing::Not(HasSubstr("--stages")));
  EXPECT_EQ(Run({"draw", "--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("--stages=4"));
  EXPECT_THAT(out_.str(), ::testing::Not(HasSubstr("--format")));
}

}  // namespace
}  // namespace tessera::tools

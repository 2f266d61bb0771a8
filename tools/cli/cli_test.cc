#include "tools/cli/cli.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

ABSL_FLAG(int, stages, 4, "how many stages");
ABSL_FLAG(std::string, schedule, "1f1b", "the schedule's name");
ABSL_FLAG(bool, quiet, false, "prints no progress");
ABSL_FLAG(tessera::tools::OutputFormat, format,
          tessera::tools::OutputFormat::kText, "text, json or csv");
ABSL_FLAG(int, hidden, 0, "not one of the tool's");

namespace tessera::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

const Tool kTool = {.name = "demo",
                    .summary = "Shows flags.",
                    .example = "--stages=4",
                    .flags = {"stages", "schedule", "quiet", "format"}};

class CliTest : public ::testing::Test {
 protected:
  int Run(std::vector<std::string> arguments,
          absl::Status result = absl::OkStatus()) {
    out_.str("");
    err_.str("");
    ran_ = false;
    return RunTool(kTool, arguments, out_, err_, [&] {
      ran_ = true;
      return result;
    });
  }

  absl::FlagSaver saver_;
  std::ostringstream out_;
  std::ostringstream err_;
  bool ran_ = false;
};

TEST_F(CliTest, SetsFlagsInEveryForm) {
  EXPECT_EQ(Run({"--stages=8", "--schedule", "gpipe", "--quiet"}), 0);
  EXPECT_TRUE(ran_);
  EXPECT_EQ(absl::GetFlag(FLAGS_stages), 8);
  EXPECT_EQ(absl::GetFlag(FLAGS_schedule), "gpipe");
  EXPECT_TRUE(absl::GetFlag(FLAGS_quiet));
  EXPECT_EQ(Run({"--noquiet", "--format=csv", "--schedule=a=b"}), 0);
  EXPECT_FALSE(absl::GetFlag(FLAGS_quiet));
  EXPECT_EQ(absl::GetFlag(FLAGS_format), OutputFormat::kCsv);
  EXPECT_EQ(absl::GetFlag(FLAGS_schedule), "a=b");
}

TEST_F(CliTest, BadUsageExitsWith2AndOneLineThatSaysWhatToDo) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"--stage=8"}, "unknown flag --stage; did you mean --stages;"},
      {{"--zzzzzzzzzz=8"}, "unknown flag --zzzzzzzzzz; --help lists"},
      {{"--hidden=8"}, "unknown flag --hidden"},
      {{"--stages=x"}, "--stages=x: "},
      {{"--stages"}, "--stages has no value"},
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

TEST_F(CliTest, TheBodysErrorsBecomeExitCodes) {
  EXPECT_EQ(Run({}, FlagError("stages", "0",
                              absl::OutOfRangeError("expected 1 or more"))),
            2);
  EXPECT_THAT(err_.str(), HasSubstr("--stages=0: expected 1 or more; for"));
  EXPECT_EQ(Run({}, absl::UnavailableError("rank 3\nis gone")), 1);
  EXPECT_EQ(err_.str(), "demo: rank 3 is gone\n");
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

}  // namespace
}  // namespace tessera::tools

#include "tools/launch/launch_command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(LaunchCommandTest, RanksDoNotInheritLauncherVariables) {
  setenv("RANK", "3", 1);
  setenv("OMPI_COMM_WORLD_RANK", "3", 1);
  setenv("OMPI_MCA_btl", "self", 1);
  const std::vector<std::string> environment = CleanEnvironment();
  EXPECT_THAT(environment, Not(Contains(StartsWith("RANK="))));
  EXPECT_THAT(environment, Not(Contains(StartsWith("OMPI_COMM"))));
  EXPECT_THAT(environment, Contains("OMPI_MCA_btl=self"));
}

TEST(LaunchCommandTest, FindsMpirunOrNamesFlag) {
  const auto command = MpirunCommand(4, "/bin/true", {"x"});
  if (command.ok()) {
    EXPECT_EQ(command->arguments.back(), "x");
    EXPECT_THAT(command->arguments, Contains("4"));
    EXPECT_THAT(command->environment, Not(Contains(StartsWith("RANK="))));
  } else {
    EXPECT_THAT(command, StatusIs(absl::StatusCode::kNotFound,
                                  HasSubstr("leave mpi out of --engine")));
  }
}

TEST(LaunchCommandTest, FindsOwnPath) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string path, OwnPath());
  EXPECT_THAT(path, HasSubstr("launch_command_test"));
}

class FindProgramTest : public ::testing::Test {
 protected:
  FindProgramTest() : directory_(testing::TempDir() + "/path_XXXXXX") {
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
  }

  std::string Make(const std::string& name, mode_t mode) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n";
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }

  std::string directory_;
};

TEST_F(FindProgramTest, SearchesThePathInOrder) {
  const std::string path = Make("tool", 0755);
  EXPECT_THAT(FindProgram("tool", "/nowhere:" + directory_ + ":/bin"),
              IsOkAndHolds(path));
  EXPECT_THAT(FindProgram("sh", directory_ + ":/bin"), IsOkAndHolds("/bin/sh"));
  EXPECT_THAT(FindProgram(path, ""), IsOkAndHolds(path));
}

TEST_F(FindProgramTest, AnEmptyDirectoryIsTheWorkingDirectory) {
  Make("tool", 0755);
  char before[4096];
  ASSERT_NE(getcwd(before, sizeof(before)), nullptr);
  ASSERT_EQ(chdir(directory_.c_str()), 0);
  EXPECT_THAT(FindProgram("tool", "/nowhere:"), IsOkAndHolds("./tool"));
  EXPECT_THAT(FindProgram("./tool", ""), IsOkAndHolds("./tool"));
  ASSERT_EQ(chdir(before), 0);
}

TEST_F(FindProgramTest, ExplainsMissingProgram) {
  const std::string plain = Make("plain", 0644);
  const auto refused = [](std::string_view message) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    HasSubstr(std::string(message)));
  };
  EXPECT_THAT(FindProgram("", "/bin"), refused("the name is empty"));
  EXPECT_THAT(FindProgram("zzz", "/bin"),
              refused("not found in PATH=/bin; a program of this directory is "
                      "./zzz"));
  EXPECT_THAT(FindProgram(plain, ""), refused("is it executable (chmod +x)?"));
  EXPECT_THAT(FindProgram("plain", directory_), refused("chmod +x"));
  EXPECT_THAT(FindProgram(directory_, ""), refused("Is a directory"));
  EXPECT_THAT(FindProgram(directory_ + "/none", ""), refused("No such file"));
  const auto long_name = FindProgram(std::string(100000, 'x'), "/bin");
  EXPECT_LT(long_name.status().message().size(), 600u);
}

}  // namespace
}  // namespace tessera::tools

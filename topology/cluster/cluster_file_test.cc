#include "topology/cluster/cluster_file.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "topology/cluster/cluster_spec.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class ClusterFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = absl::StrCat(
        ::testing::TempDir(), "/",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }

  std::string Path(std::string_view name) const {
    return absl::StrCat(directory_, "/", name);
  }
  size_t FileCount() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry :
         std::filesystem::directory_iterator(directory_)) {
      ++count;
    }
    return count;
  }

  std::string directory_;
};

std::string Content(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST_F(ClusterFileTest, SavesAndLoads) {
  const Cluster cluster = *ParseCluster("hosts=3,gpus=2");
  TESSERA_ASSERT_OK(SaveCluster(cluster, Path("cluster.json")));
  EXPECT_THAT(LoadCluster(Path("cluster.json")), IsOkAndHolds(cluster));
  EXPECT_EQ(FileCount(), 1u);
}

TEST_F(ClusterFileTest, ReplacesWhatWasThere) {
  const Cluster cluster = *ParseCluster("hosts=3,gpus=2");
  std::ofstream(Path("c")) << std::string(100'000, 'x');
  TESSERA_ASSERT_OK(SaveCluster(cluster, Path("c")));
  EXPECT_THAT(LoadCluster(Path("c")), IsOkAndHolds(cluster));
  EXPECT_EQ(FileCount(), 1u);
}

TEST_F(ClusterFileTest, ALeftoverOfACrashIsNoHindrance) {
  const std::string leftover = absl::StrCat(Path("c"), ".", getpid(), ".0.tmp");
  std::ofstream(leftover) << "half";
  TESSERA_ASSERT_OK(SaveCluster(*ParseCluster("gpus=1"), Path("c")));
  TESSERA_EXPECT_OK(LoadCluster(Path("c")));
  EXPECT_EQ(Content(leftover), "half");
}

TEST_F(ClusterFileTest, TheFileHasTheModeOfAnyOther) {
  TESSERA_ASSERT_OK(SaveCluster(*ParseCluster("gpus=1"), Path("c")));
  std::ofstream(Path("other")) << "x";
  EXPECT_EQ(std::filesystem::status(Path("c")).permissions(),
            std::filesystem::status(Path("other")).permissions());
}

TEST_F(ClusterFileTest, AFailureLeavesEverythingAsItWas) {
  const Cluster cluster = *ParseCluster("gpus=1");
  EXPECT_THAT(SaveCluster(cluster, Path("missing/c")),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("cannot make a new file beside")));
  // The target is a directory, so that the last step fails.
  std::filesystem::create_directory(Path("taken"));
  std::ofstream(Path("taken/inside")) << "kept";
  EXPECT_THAT(
      SaveCluster(cluster, Path("taken")).message(),
      HasSubstr(absl::StrCat("cannot replace \"", Path("taken"), "\"")));
  EXPECT_EQ(Content(Path("taken/inside")), "kept");
  EXPECT_EQ(FileCount(), 1u);
}

TEST_F(ClusterFileTest, LoadSaysWhatIsWrongAndNamesTheFile) {
  EXPECT_THAT(LoadCluster(Path("none")),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr(absl::StrCat("\"", Path("none"), "\""))));
  EXPECT_THAT(LoadCluster(directory_).status().message(),
              HasSubstr("cannot read"));
  std::ofstream(Path("bad")) << "{\"hosts\": [}";
  EXPECT_THAT(LoadCluster(Path("bad")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr(Path("bad")), HasSubstr("line 1"))));
}

TEST_F(ClusterFileTest, AnEndlessFileIsRefused) {
  EXPECT_THAT(
      LoadCluster("/dev/zero"),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("use at most")));
}

}  // namespace
}  // namespace tessera::topology

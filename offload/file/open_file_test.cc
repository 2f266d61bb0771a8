#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/file/async_file.h"

namespace tessera::offload {
namespace {

using ::testing::HasSubstr;

int64_t FilesIn(const std::string& directory) {
  DIR* listing = opendir(directory.c_str());
  int64_t files = 0;
  while (readdir(listing) != nullptr) ++files;
  closedir(listing);
  return files - 2;
}

// A direct write with the stated alignment succeeds.
void ExpectDirectWorks(const OpenedFile& file) {
  if (!file.direct) {
    EXPECT_FALSE(file.why_not_direct.empty());
    EXPECT_EQ(file.alignment, IoAlignment{});
    return;
  }
  EXPECT_NE(fcntl(file.fd.get(), F_GETFL) & O_DIRECT, 0);
  void* buffer = nullptr;
  ASSERT_EQ(posix_memalign(&buffer, file.alignment.memory, 4096), 0);
  const auto bytes = static_cast<size_t>(file.alignment.offset);
  EXPECT_EQ(pwrite(file.fd.get(), buffer, bytes, file.alignment.offset),
            file.alignment.offset);
  free(buffer);
}

TEST(OpenFileTest, AScratchFileHasNoName) {
  const std::string directory = testing::TempDir() + "/scratch";
  mkdir(directory.c_str(), 0700);
  TESSERA_ASSERT_OK_AND_ASSIGN(const OpenedFile file,
                               OpenScratchFile(directory, true));
  EXPECT_EQ(FilesIn(directory), 0);
  EXPECT_EQ(file.path, directory + "/(scratch)");
  ExpectDirectWorks(file);
  TESSERA_ASSERT_OK_AND_ASSIGN(const OpenedFile cached,
                               OpenScratchFile(directory, false));
  EXPECT_FALSE(cached.direct);
  EXPECT_EQ(cached.alignment, IoAlignment{});
}

TEST(OpenFileTest, WorksOnTmpfs) {
  if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm";
  TESSERA_ASSERT_OK_AND_ASSIGN(const OpenedFile file,
                               OpenScratchFile("/dev/shm", true));
  ExpectDirectWorks(file);
}

TEST(OpenFileTest, NamesUnopenableFile) {
  EXPECT_THAT(
      OpenScratchFile("/no/such/place", true),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"/no/such/place\"")));
}

}  // namespace
}  // namespace tessera::offload

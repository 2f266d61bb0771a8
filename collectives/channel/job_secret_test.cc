#include "collectives/channel/job_secret.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "collectives/bootstrap/testing/ranks.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

TEST(RandomTest, ReturnsRequestedSizeAndNeverRepeats) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string bytes, RandomBytes(16));
    EXPECT_EQ(bytes.size(), 16u);
    EXPECT_TRUE(seen.insert(bytes).second);
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string large, RandomBytes(100'000));
  EXPECT_EQ(std::set<char>(large.begin(), large.end()).size(), 256u);
  EXPECT_THAT(RandomBytes(0), IsOkAndHolds(std::string()));
}

TEST(RandomTest, HexHasTwoDigitsForAByte) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string hex, RandomHex(32));
  EXPECT_EQ(hex.size(), 64u);
  EXPECT_EQ(hex.find_first_not_of("0123456789abcdef"), std::string::npos);
}

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSecret[] = "0123456789abcdef";

class JobSecretTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = absl::StrCat(::testing::TempDir(), "/secretXXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    path_ = absl::StrCat(directory_, "/file");
  }

  void Write(std::string_view text, mode_t mode = 0600) {
    std::ofstream(path_) << text;
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
  }

  EnvironmentVariable Lookup() const {
    return [this](std::string_view name) -> std::optional<std::string> {
      const auto it = variables_.find(std::string(name));
      if (it == variables_.end()) return std::nullopt;
      return it->second;
    };
  }

  std::string directory_, path_;
  std::map<std::string, std::string> variables_;
};

auto Invalid(const std::string& text) {
  return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
}

TEST_F(JobSecretTest, VariableTakesPrecedence) {
  variables_ = {{kJobSecretVariable, kSecret}, {kJobSecretFileVariable, "/x"}};
  EXPECT_THAT(FindJobSecret(Lookup(), false),
              IsOkAndHolds(std::string(kSecret)));
}

TEST_F(JobSecretTest, RejectsInvalidLengthWithoutPrintingSecret) {
  variables_[kJobSecretVariable] = "0123456789abcde";
  EXPECT_THAT(FindJobSecret(Lookup(), true),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("TESSERA_JOB_SECRET has 15 bytes; use "
                                       "16 to 4096"),
                             Not(HasSubstr("01234567")))));
  variables_[kJobSecretVariable] = std::string(4097, 's');
  EXPECT_THAT(FindJobSecret(Lookup(), true), Invalid("more than 4096 bytes"));
}

TEST_F(JobSecretTest, ReadsSecretFromFile) {
  Write(absl::StrCat(kSecret, " \n\n"));
  variables_[kJobSecretFileVariable] = path_;
  EXPECT_THAT(FindJobSecret(Lookup(), false),
              IsOkAndHolds(std::string(kSecret)));
  Write(std::string(4096, 's') + "\n");
  EXPECT_THAT(ReadSecretFile(path_), IsOkAndHolds(std::string(4096, 's')));
  Write(kSecret, 0400);
  EXPECT_THAT(ReadSecretFile(path_), IsOkAndHolds(std::string(kSecret)));
}

TEST_F(JobSecretTest, RejectsFileAccessibleToOthers) {
  for (const mode_t mode : {0601, 0604, 0610, 0640, 0620, 0602, 0644, 0777}) {
    Write(kSecret, mode);
    EXPECT_THAT(
        ReadSecretFile(path_),
        StatusIs(absl::StatusCode::kPermissionDenied,
                 AllOf(HasSubstr("is open to others"), HasSubstr("chmod 600"),
                       HasSubstr(path_), Not(HasSubstr(kSecret)))))
        << mode;
  }
}

TEST_F(JobSecretTest, RejectsFileOfAnotherUser) {
  Write(kSecret);
  if (chown(path_.c_str(), 12345, 12345) != 0) path_ = "/etc/passwd";
  struct stat info;
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  if (info.st_uid == geteuid()) GTEST_SKIP() << "every file is this user's";
  EXPECT_THAT(
      ReadSecretFile(path_),
      StatusIs(absl::StatusCode::kPermissionDenied,
               HasSubstr(absl::StrCat("belongs to uid ", info.st_uid))));
}

TEST_F(JobSecretTest, RejectsNonFilesAndWrongSizes) {
  EXPECT_THAT(ReadSecretFile(path_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(path_)));
  EXPECT_THAT(ReadSecretFile(directory_), Invalid("is not a regular file"));
  EXPECT_THAT(ReadSecretFile("/dev/zero"), Invalid("is not a regular file"));
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(ReadSecretFile(path_), Invalid("is not a regular file"));
  ASSERT_EQ(unlink(path_.c_str()), 0);
  Write("short\n");
  EXPECT_THAT(ReadSecretFile(path_), Invalid("has 5 bytes"));
  Write("");
  EXPECT_THAT(ReadSecretFile(path_), Invalid("has 0 bytes"));
  Write(std::string(1'000'000, 's'));
  EXPECT_THAT(ReadSecretFile(path_), Invalid("more than 4096 bytes"));
}

TEST_F(JobSecretTest, CreatesUserFileOnce) {
  variables_ = {{"XDG_CACHE_HOME", directory_}, {"HOME", "/nowhere"}};
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string secret,
                               FindJobSecret(Lookup(), true));
  EXPECT_EQ(secret.size(), 64u);
  struct stat info;
  const std::string made = directory_ + "/tessera/job_secret";
  ASSERT_EQ(stat(made.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  ASSERT_EQ(stat((directory_ + "/tessera").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  EXPECT_THAT(FindJobSecret(Lookup(), true), IsOkAndHolds(secret));
  variables_ = {{"HOME", directory_}};
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string other,
                               FindJobSecret(Lookup(), true));
  EXPECT_NE(other, secret);
  EXPECT_EQ(stat((directory_ + "/.cache/tessera/job_secret").c_str(), &info),
            0);
}

TEST_F(JobSecretTest, ConcurrentCreatorsGetSameSecret) {
  for (int round = 0; round < 50; ++round) {
    const std::string directory = absl::StrCat(directory_, "/", round);
    std::vector<std::string> secrets(8);
    RunThreads(8, [&](int i) {
      TESSERA_ASSERT_OK_AND_ASSIGN(secrets[i], ReadOrMakeSecretFile(directory));
    });
    EXPECT_EQ(secrets, std::vector<std::string>(8, secrets[0]));
  }
}

TEST_F(JobSecretTest, DoesNotReplaceInvalidUserFile) {
  path_ = directory_ + "/job_secret";
  Write(kSecret, 0644);
  EXPECT_THAT(ReadOrMakeSecretFile(directory_),
              StatusIs(absl::StatusCode::kPermissionDenied));
  Write("short");
  EXPECT_THAT(ReadOrMakeSecretFile(directory_), Invalid("has 5 bytes"));
}

TEST_F(JobSecretTest, NamesVariablesToSet) {
  EXPECT_THAT(FindJobSecret(Lookup(), false),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("TESSERA_JOB_SECRET "),
                             HasSubstr("TESSERA_JOB_SECRET_FILE"))));
  EXPECT_THAT(FindJobSecret(Lookup(), true),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("cannot store the job's secret")));
  variables_["HOME"] = "/proc/nowhere";
  EXPECT_FALSE(FindJobSecret(Lookup(), true).ok());
}

}  // namespace

}  // namespace tessera::collectives

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/model_files/safetensors_file.h"

namespace tessera::model_files {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string NewDirectory(std::string_view name) {
  std::string path = absl::StrCat(::testing::TempDir(), "/writer_", name);
  EXPECT_EQ(mkdir(path.c_str(), 0755), 0);
  return path;
}

std::vector<std::string> FilesOf(const std::string& directory) {
  std::vector<std::string> names;
  DIR* const open = opendir(directory.c_str());
  while (const dirent* entry = readdir(open)) {
    if (entry->d_name[0] != '.') names.push_back(entry->d_name);
  }
  closedir(open);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::byte> Numbers(size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i * 7);
  return bytes;
}

TEST(SafetensorsWriterTest, PiecesInAnyOrderMakeTheFile) {
  const std::string path = NewDirectory("pieces") + "/w.safetensors";
  const std::vector<std::byte> data = Numbers(5 * 8);
  std::mt19937_64 random(9);
  for (int round = 0; round < 10; ++round) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        auto writer,
        SafetensorsWriter::Create(path,
                                  {{"a", ElementType::kU8, {3}},
                                   {"w", ElementType::kF64, {5}},
                                   {"none", ElementType::kF32, {2, 0}}},
                                  {{"round", absl::StrCat(round)}}));
    // Writes every byte or run of bytes once, in random order.
    std::vector<std::pair<size_t, size_t>> pieces;
    for (size_t begin = 0; begin < data.size();) {
      const size_t size =
          std::min<size_t>(data.size() - begin, 1 + random() % 9);
      pieces.push_back({begin, size});
      begin += size;
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    for (const auto& [begin, size] : pieces) {
      EXPECT_THAT(writer.CheckComplete(),
                  StatusIs(absl::StatusCode::kFailedPrecondition));
      TESSERA_ASSERT_OK(writer.Write("w", static_cast<int64_t>(begin),
                                     std::span(data).subspan(begin, size)));
    }
    TESSERA_ASSERT_OK(writer.Write("a", std::span(data).first(3)));
    TESSERA_ASSERT_OK(writer.Commit());

    TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(path));
    EXPECT_EQ(file.header().metadata.at("round"), absl::StrCat(round));
    std::vector<std::byte> back(data.size());
    TESSERA_ASSERT_OK(file.Read("w", back));
    EXPECT_EQ(back, data);
  }
  EXPECT_THAT(FilesOf(path.substr(0, path.rfind('/'))),
              ElementsAre("w.safetensors"));
}

TEST(SafetensorsWriterTest, TheOldFileStaysUntilCommit) {
  const std::string directory = NewDirectory("old");
  const std::string path = directory + "/w.safetensors";
  std::ofstream(path) << "old";
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        auto writer,
        SafetensorsWriter::Create(path, {{"w", ElementType::kU8, {4}}}));
    TESSERA_ASSERT_OK(writer.Write("w", 0, Numbers(2)));
    EXPECT_EQ(FilesOf(directory).size(), 2u);
    EXPECT_THAT(
        writer.Commit(),
        StatusIs(absl::StatusCode::kFailedPrecondition,
                 AllOf(HasSubstr("w.safetensors"), HasSubstr("tensor \"w\""),
                       HasSubstr("byte 2 of 4 has not been written"))));
  }
  EXPECT_THAT(FilesOf(directory), ElementsAre("w.safetensors"));
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "old");
}

TEST(SafetensorsWriterTest, RejectedWritesLoseNothing) {
  const std::string path = NewDirectory("refusals") + "/w.safetensors";
  TESSERA_ASSERT_OK_AND_ASSIGN(
      auto writer,
      SafetensorsWriter::Create(path, {{"w", ElementType::kU8, {8}}}));
  const std::vector<std::byte> data = Numbers(9);
  const auto part = [&](size_t begin, size_t size) {
    return std::span(data).subspan(begin, size);
  };
  TESSERA_ASSERT_OK(writer.Write("w", 2, part(2, 3)));
  for (const auto& [begin, size] :
       {std::pair<int64_t, size_t>{0, 3}, {4, 1}, {4, 3}, {2, 1}, {0, 8}}) {
    EXPECT_THAT(writer.Write("w", begin, std::span(data).first(size)),
                StatusIs(absl::StatusCode::kAlreadyExists,
                         HasSubstr("written before")));
  }
  for (const auto& [begin, size] : {std::pair<int64_t, size_t>{-1, 1},
                                    {0, 9},
                                    {7, 2},
                                    {int64_t{1} << 62, 1}}) {
    EXPECT_THAT(
        writer.Write("w", begin, std::span(data).first(size)),
        StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("not inside its 8")));
  }
  EXPECT_THAT(writer.Write("v", data),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("tensor \"v\" was not declared")));
  EXPECT_THAT(writer.Write("w", data),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("has 8 bytes, 9 were given")));
  TESSERA_ASSERT_OK(writer.Write("w", 0, part(0, 2)));
  TESSERA_ASSERT_OK(writer.Write("w", 5, part(5, 3)));
  TESSERA_ASSERT_OK(writer.Commit());
  EXPECT_THAT(writer.Write("w", data),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(writer.Commit(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr("committed already")));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(path));
  std::vector<std::byte> back(8);
  TESSERA_ASSERT_OK(file.Read("w", back));
  EXPECT_TRUE(std::equal(back.begin(), back.end(), data.begin()));
}

TEST(SafetensorsWriterTest, RejectsInvalidPathsAndTensors) {
  EXPECT_THAT(
      SafetensorsWriter::Create("/nix/da/w", {}),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("beside \"/nix/da/w\"")));
  const std::string directory = NewDirectory("cannot");
  EXPECT_THAT(
      SafetensorsWriter::Create(directory + "/w",
                                {{"w", ElementType::kU8, {int64_t{1} << 60}}}),
      testing::Not(IsOk()));
  EXPECT_THAT(
      SafetensorsWriter::Create(directory + "/w",
                                {{"\xff", ElementType::kU8, {1}}}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not UTF-8")));
  EXPECT_THAT(FilesOf(directory), IsEmpty());
}

}  // namespace
}  // namespace tessera::model_files

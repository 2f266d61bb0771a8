#include "zero3/checkpoint/shard_file.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "offload/file/crc32c.h"
#include "zero3/checkpoint/shard_format.h"

namespace tessera::zero3 {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kElements = 300'000;  // 1.2 MB, more than the buffer.
constexpr StateFormat kF32 = {.dtype = DType::kF32};

class ShardFileTest : public ::testing::Test {
 protected:
  ShardFileTest()
      : directory_(absl::StrCat(
            std::getenv("TEST_TMPDIR"), "/",
            ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directory(directory_);
  }

  static CheckpointPart PartOf() {
    const ModelParameters model =
        *ModelParameters::Builder()
             .Add({.name = "a", .shape = {kElements}, .trainable = false})
             .Add({.name = "b", .shape = {3}, .trainable = false})
             .Build();
    return {.layout = *StateLayout::Create(model, {}), .files = {{}}};
  }

  static std::vector<std::byte> BytesOf(const BlockRange& range) {
    std::vector<std::byte> bytes(static_cast<size_t>(range.bytes()));
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(
          (range.begin + range.parameter.value() + static_cast<int64_t>(i)) *
          37);
    }
    return bytes;
  }

  static std::vector<BlockRange> Ranges() {
    return {{ParameterId(0), StatePart::kValue, kF32, 0, 7},
            {ParameterId(0), StatePart::kValue, kF32, 7, 200'000},
            {ParameterId(0), StatePart::kValue, kF32, 200'000, kElements},
            {ParameterId(1), StatePart::kValue, kF32, 0, 3}};
  }

  // Writes `ranges` and stores the file's entry in part_.
  void Write(const std::vector<BlockRange>& ranges) {
    std::filesystem::remove(path());
    auto writer = ShardWriter::Create(FileCalls::System(), path(), {.step = 8});
    ASSERT_THAT(writer, IsOk());
    for (const BlockRange& range : ranges) {
      ASSERT_THAT((*writer)->Add(range, BytesOf(range)), IsOk());
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(part_.files[0], (*writer)->Finish());
  }

  std::string path() const {
    return absl::StrCat(directory_, "/rank-00000.state");
  }
  absl::StatusOr<std::unique_ptr<ShardFile>> Open(int64_t step = 8) {
    return ShardFile::Open(directory_, step, part_, 0);
  }

  const std::string directory_;
  CheckpointPart part_ = PartOf();
};

TEST_F(ShardFileTest, RoundTripsBlocksAndChecksum) {
  ASSERT_NO_FATAL_FAILURE(Write(Ranges()));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, Open());
  ASSERT_EQ(file->entries().size(), 4u);
  EXPECT_EQ(file->Find(ParameterId(0), StatePart::kValue).size(), 3u);
  EXPECT_EQ(file->Find(ParameterId(1), StatePart::kValue).size(), 1u);
  EXPECT_TRUE(file->Find(ParameterId(1), StatePart::kMaster).empty());
  for (const BlockEntry& entry : file->entries()) {
    std::vector<std::byte> bytes(static_cast<size_t>(entry.range.bytes()));
    TESSERA_ASSERT_OK(file->Read(entry, bytes));
    ASSERT_EQ(bytes, BytesOf(entry.range));
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string whole,
                               ReadFile(path(), 1 << 22));
  const uint32_t crc =
      offload::Crc32c(std::as_bytes(std::span(whole.data(), whole.size())));
  EXPECT_EQ(file->Crc32c(), crc);
  EXPECT_EQ(part_.files[0].crc32c, crc);
  EXPECT_EQ(part_.files[0].bytes, static_cast<int64_t>(whole.size()));
}

TEST_F(ShardFileTest, RejectsBlocksThatDoNotMatchLayout) {
  const auto refused = [&](std::vector<BlockRange> ranges,
                           const std::string& message) {
    ASSERT_NO_FATAL_FAILURE(Write(ranges));
    EXPECT_THAT(Open(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(message)));
  };
  auto ranges = Ranges();
  ranges.erase(ranges.begin() + 1);
  refused(ranges, "element 7 of the value of parameter \"a\" as f32");
  ranges = Ranges();
  ranges.pop_back();
  refused(ranges, "element 0 of the value of parameter \"b\"");
  ranges = Ranges();
  ranges[2].end = kElements + 1;
  refused(ranges, "element 200000 of the value");
  ranges = Ranges();
  ranges[3].format.dtype = DType::kI32;
  refused(ranges, "element 0 of the value of parameter \"b\" as f32");
  ranges = Ranges();
  ranges.push_back({ParameterId(2), StatePart::kValue, kF32, 0, 1});
  refused(ranges, "a block that no rank should have");
}

TEST_F(ShardFileTest, RejectsFilesOfOtherSteps) {
  ASSERT_NO_FATAL_FAILURE(Write(Ranges()));
  EXPECT_THAT(Open(9), StatusIs(absl::StatusCode::kDataLoss,
                                HasSubstr("rank 0 of 1 at step 8")));
  part_.files[0].index_crc32c ^= 1;
  EXPECT_THAT(Open(8), StatusIs(absl::StatusCode::kDataLoss,
                                HasSubstr("not the file that the manifest")));
}

TEST_F(ShardFileTest, WriterRejectsWrongLengthsAndExistingFiles) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const auto writer, ShardWriter::Create(FileCalls::System(), path(), {}));
  const std::vector<std::byte> bytes(12);
  EXPECT_THAT(writer->Add(Ranges()[0], bytes),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("12 bytes for elements 0 to 7, which take "
                                 "28")));
  EXPECT_THAT(ShardWriter::Create(FileCalls::System(), path(), {}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(path())));
  EXPECT_THAT(
      ShardWriter::Create(FileCalls::System(), directory_ + "/no/file", {}),
      StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace tessera::zero3

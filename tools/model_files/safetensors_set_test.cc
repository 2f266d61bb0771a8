#include "tools/model_files/safetensors_set.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"

namespace tessera::model_files {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string NewDirectory(std::string_view name) {
  std::string path = absl::StrCat(::testing::TempDir(), "/set_", name);
  EXPECT_EQ(mkdir(path.c_str(), 0755), 0);
  return path;
}

bool Exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

const std::vector<StoredTensor>& Specs() {
  static const auto* const specs = new std::vector<StoredTensor>{
      {"a", ElementType::kF32, {2, 3}},  // 24 bytes
      {"b", ElementType::kU8, {5}},
      {"c", ElementType::kBF16, {50}},  // 100 bytes
      {"d", ElementType::kU8, {0}},
      {"e", ElementType::kU8, {3}}};
  return *specs;
}

std::vector<std::byte> ContentOf(const StoredTensor& spec) {
  std::vector<std::byte> bytes(static_cast<size_t>(*TensorBytes(spec)));
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(spec.name[0] + static_cast<int>(i));
  }
  return bytes;
}

absl::Status WriteSet(const std::string& directory, int64_t max_bytes) {
  TESSERA_ASSIGN_OR_RETURN(
      auto writer, SafetensorsSetWriter::Create(directory, Specs(), max_bytes,
                                                {{"format", "pt"}}));
  for (const StoredTensor& spec : Specs()) {
    TESSERA_RETURN_IF_ERROR(writer.Write(spec.name, ContentOf(spec)));
  }
  return writer.Commit();
}

void ExpectSet(const std::string& path) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto set, SafetensorsSet::Open(path));
  EXPECT_THAT(set.Names(), ElementsAre("a", "b", "c", "d", "e"));
  for (const StoredTensor& spec : Specs()) {
    ASSERT_NE(set.Find(spec.name), nullptr);
    EXPECT_EQ(*set.Find(spec.name), spec);
    std::vector<std::byte> bytes(ContentOf(spec).size());
    TESSERA_ASSERT_OK(set.Read(spec.name, bytes));
    EXPECT_EQ(bytes, ContentOf(spec));
  }
  EXPECT_EQ(set.Find("x"), nullptr);
  std::vector<std::byte> bytes(2);
  EXPECT_THAT(set.Read("x", bytes),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("no tensor \"x\" among the 5")));
  TESSERA_ASSERT_OK(set.ReadBytes("b", 3, bytes));
  EXPECT_EQ(bytes[0], static_cast<std::byte>('b' + 3));
  std::vector<float> row(3);
  TESSERA_ASSERT_OK_AND_ASSIGN(const TensorView view,
                               TensorView::Of(std::span(row), {{1, 3}}));
  TESSERA_EXPECT_OK(set.ReadRows("a", 1, view));
  const std::vector<std::byte> whole = ContentOf(Specs()[0]);
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(row)),
                                 std::span(whole).last(12)));
}

TEST(PlanShardsTest, FillsFilesInOrder) {
  const auto plan = [](int64_t max_bytes) {
    std::vector<std::string> files;
    const auto shards = PlanShards(Specs(), max_bytes);
    for (const ShardPlan& shard : *shards) {
      files.push_back(shard.file + ":");
      for (const StoredTensor& spec : shard.tensors) files.back() += spec.name;
    }
    return files;
  };
  EXPECT_THAT(plan(132), ElementsAre("model.safetensors:abcde"));
  EXPECT_THAT(plan(129), ElementsAre("model-00001-of-00002.safetensors:abcd",
                                     "model-00002-of-00002.safetensors:e"));
  EXPECT_THAT(plan(29), ElementsAre("model-00001-of-00003.safetensors:ab",
                                    "model-00002-of-00003.safetensors:cd",
                                    "model-00003-of-00003.safetensors:e"));
  EXPECT_THAT(plan(1), ElementsAre("model-00001-of-00004.safetensors:a",
                                   "model-00002-of-00004.safetensors:b",
                                   "model-00003-of-00004.safetensors:cd",
                                   "model-00004-of-00004.safetensors:e"));
  EXPECT_THAT(PlanShards(Specs(), 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("at most 0 bytes; allow at least 1")));
}

TEST(SafetensorsSetTest, OneFileOrSeveralReadTheSame) {
  for (const int64_t max_bytes : {1000, 129, 29, 1}) {
    const std::string directory = NewDirectory(absl::StrCat(max_bytes));
    TESSERA_ASSERT_OK(WriteSet(directory, max_bytes));
    ExpectSet(directory);
    EXPECT_EQ(Exists(directory + "/model.safetensors"), max_bytes == 1000);
    EXPECT_EQ(Exists(directory + "/model.safetensors.index.json"),
              max_bytes != 1000);
  }
  ExpectSet(absl::StrCat(::testing::TempDir(), "/set_1000/model.safetensors"));
}

TEST(SafetensorsSetTest, ANewSetReplacesAnOldOneOfTheOtherForm) {
  const std::string directory = NewDirectory("both");
  for (const int64_t max_bytes : {1000, 29, 1000, 1}) {
    TESSERA_ASSERT_OK(WriteSet(directory, max_bytes));
    ExpectSet(directory);
    EXPECT_NE(Exists(directory + "/model.safetensors"),
              Exists(directory + "/model.safetensors.index.json"));
  }
}

TEST(SafetensorsSetTest, DoesNotCommitIncompleteTensors) {
  const std::string directory = NewDirectory("missing");
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        auto writer, SafetensorsSetWriter::Create(directory, Specs(), 29));
    EXPECT_EQ(writer.file_count(), 3u);
    TESSERA_ASSERT_OK(writer.Write("a", 0, ContentOf(Specs()[0])));
    EXPECT_THAT(writer.Write("x", {}), StatusIs(absl::StatusCode::kNotFound));
    EXPECT_THAT(writer.Write("x", 0, {}),
                StatusIs(absl::StatusCode::kNotFound));
    EXPECT_THAT(writer.Commit(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                          HasSubstr("tensor \"b\"")));
  }
  EXPECT_EQ(rmdir(directory.c_str()), 0) << "something was left behind";
}

TEST(SafetensorsSetTest, RejectsWrongIndices) {
  const std::string directory = NewDirectory("wrong");
  EXPECT_THAT(SafetensorsSet::Open(directory),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("has neither model.safetensors nor")));
  std::ofstream(directory + "/pytorch_model.bin") << "x";
  EXPECT_THAT(SafetensorsSet::Open(directory).status().message(),
              HasSubstr("it has \"pytorch_model.bin\", which is not read; load "
                        "the model with transformers"));
  std::ofstream(directory + "/model.fp16.safetensors") << "x";
  EXPECT_THAT(SafetensorsSet::Open(directory).status().message(),
              HasSubstr("it has \"model.fp16.safetensors\"; rename it"));
  TESSERA_ASSERT_OK(WriteSet(directory, 29));
  const std::string index = directory + "/model.safetensors.index.json";
  std::ofstream(index)
      << R"({"weight_map": {"zz": "model-00001-of-00003.safetensors"}})";
  EXPECT_THAT(SafetensorsSet::Open(directory),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("index.json"), HasSubstr("\"zz\""),
                             HasSubstr("has no such tensor"))));
  std::ofstream(index) << R"({"weight_map": {"a": "none.safetensors"}})";
  EXPECT_THAT(
      SafetensorsSet::Open(directory),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("none.safetensors")));
  std::ofstream(index) << "{}";
  EXPECT_THAT(
      SafetensorsSet::Open(directory),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("index.json"), HasSubstr("weight_map"))));
  EXPECT_THAT(
      SafetensorsSetWriter::Create(directory, {Specs()[0], Specs()[0]}, 1),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("\"a\" comes twice")));
}

TEST(ShardIndexTest, RejectsPathsAsFileNames) {
  for (const char* name : {"", ".", "..", "a/b", "/etc/passwd", "../x"}) {
    EXPECT_THAT(FormatShardIndex({{{"w", name}}, 1}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("is not a file name")))
        << name;
  }
  EXPECT_THAT(ParseShardIndex(R"({"weight_map": {"w": 3}})"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tensor \"w\" must be a string, found 3")));
  EXPECT_THAT(
      FormatShardIndex({{{"\xff", "x"}}, 1}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not UTF-8")));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const ShardIndex index,
      ParseShardIndex(
          R"({"metadata": {"total_size": 9.5}, "weight_map": {}})"));
  EXPECT_EQ(index.total_size, std::nullopt);
}

TEST(ShardIndexFuzzTest, DamagedIndicesAreRejectedOrRoundTrip) {
  TextMutator mutator(
      {R"({"metadata":{"total_size":96},"weight_map":{"a":"b.c","d":"e"}})",
       R"({"weight_map": {}, "x": [1, {"y": null}]})"},
      {"/", "..", "\"a\":", "{", "18446744073709551615", "-1", "\\u0000"}, 4);
  int valid = 0;
  for (int round = 0; round < 40'000; ++round) {
    const auto index = ParseShardIndex(mutator.Next());
    if (!index.ok()) {
      ASSERT_EQ(index.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(index.status().message().empty());
      continue;
    }
    ++valid;
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string json,
                                 FormatShardIndex(*index));
    ASSERT_THAT(ParseShardIndex(json), IsOkAndHolds(*index));
  }
  EXPECT_GT(valid, 500);
}

}  // namespace
}  // namespace tessera::model_files

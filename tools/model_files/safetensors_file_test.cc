#include "tools/model_files/safetensors_file.h"

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype/small_float.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor_view.h"
#include "gtest/gtest.h"

namespace tessera::model_files {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kReference[] =
    "tools/model_files/testdata/reference.safetensors";

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string WriteTemporary(std::string_view name, std::string_view bytes) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/", name);
  unlink(path.c_str());  // Truncating a file would wait for the disk.
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string WithHeader(std::string_view json, std::string_view data) {
  uint64_t length = json.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return absl::StrCat(bytes, json, data);
}

template <typename T>
std::vector<T> ReadValues(const SafetensorsFile& file, std::string_view name) {
  std::vector<T> values(static_cast<size_t>(file.Find(name)->bytes()) /
                        sizeof(T));
  TESSERA_EXPECT_OK(file.Read(name, std::as_writable_bytes(std::span(values))));
  return values;
}

TEST(SafetensorsFileTest, ReadsFileOfReferencePackage) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file,
                               SafetensorsFile::Open(kReference));
  EXPECT_EQ(file.header().tensors.size(), 8u);
  EXPECT_EQ(file.header().metadata.at("note"), "é\n");
  EXPECT_THAT(ReadValues<float>(file, "bias"), ElementsAre(0.5f, 1.5f, 2.5f));
  EXPECT_THAT(ReadValues<int64_t>(file, "ids"),
              ElementsAre(1, -2, 3, int64_t{1} << 40));
  EXPECT_THAT(ReadValues<int32_t>(file, "é/ü"), ElementsAre(-3));
  EXPECT_THAT(ReadValues<uint8_t>(file, "flags"), ElementsAre(1, 0, 1));
  EXPECT_THAT(ReadValues<uint8_t>(file, "scalar"), ElementsAre(7));
  EXPECT_THAT(file.Find("none")->spec.shape, ElementsAre(0, 5));
  EXPECT_EQ(file.Find("weight")->spec.type, ElementType::kBF16);
  EXPECT_EQ(file.Find("other"), nullptr);
}

TEST(SafetensorsFileTest, ReadsPartsAndConvertsRows) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file,
                               SafetensorsFile::Open(kReference));
  BF16 two[2];
  TESSERA_EXPECT_OK(
      file.ReadBytes("weight", 4 * 2, std::as_writable_bytes(std::span(two))));
  EXPECT_EQ(static_cast<float>(two[0]), 0.0f);
  EXPECT_EQ(static_cast<float>(two[1]), 0.25f);

  for (const int64_t first : {0, 1, 3}) {
    for (int64_t rows = 0; rows <= 4 - first; ++rows) {
      std::vector<float> values(static_cast<size_t>(rows * 3), -9);
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const TensorView view,
          TensorView::Of(std::span(values), {{rows, 3}}));
      TESSERA_ASSERT_OK(file.ReadRows("weight", first, view));
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_EQ(
            values[i],
            static_cast<float>(first * 3 + static_cast<int64_t>(i)) / 4 - 1);
      }
    }
  }
  std::vector<BF16> same(3);
  TESSERA_ASSERT_OK_AND_ASSIGN(const TensorView view,
                               TensorView::Of(std::span(same), {{1, 3}}));
  TESSERA_ASSERT_OK(file.ReadRows("weight", 2, view));
  EXPECT_EQ(static_cast<float>(same[2]), 1.0f);
}

TEST(SafetensorsFileTest, ConvertsMoreThanOneBufferful) {
  constexpr int64_t kRows = 700'001;  // More than 1 MiB of BF16.
  std::vector<BF16> stored(kRows);
  for (size_t i = 0; i < stored.size(); ++i) stored[i] = BF16(float(i % 251));
  const std::string path = WriteTemporary(
      "large.safetensors",
      WithHeader(absl::StrCat(R"({"w":{"dtype":"BF16","shape":[)", kRows,
                              R"(],"data_offsets":[0,)", kRows * 2, "]}}"),
                 std::string_view(reinterpret_cast<const char*>(stored.data()),
                                  kRows * 2)));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(path));
  std::vector<float> values(kRows - 2);
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const TensorView view, TensorView::Of(std::span(values), {{kRows - 2}}));
  TESSERA_ASSERT_OK(file.ReadRows("w", 2, view));
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], static_cast<float>((i + 2) % 251));
  }
}

TEST(SafetensorsFileTest, ReadsStackedMatricesAsRows) {
  std::vector<float> stored(2 * 3 * 4);
  std::iota(stored.begin(), stored.end(), 0.0f);
  const std::string path = WriteTemporary(
      "stacked.safetensors",
      WithHeader(
          R"({"w":{"dtype":"F32","shape":[2,3,4],"data_offsets":[0,96]}})",
          std::string_view(reinterpret_cast<const char*>(stored.data()), 96)));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(path));
  for (int64_t first = 0; first < 6; ++first) {
    for (int64_t rows = 0; rows <= 6 - first; ++rows) {
      std::vector<float> values(static_cast<size_t>(rows * 4));
      TESSERA_ASSERT_OK_AND_ASSIGN(
          const TensorView view,
          TensorView::Of(std::span(values), {{rows, 4}}));
      TESSERA_ASSERT_OK(file.ReadRows("w", first, view));
      EXPECT_TRUE(
          std::equal(values.begin(), values.end(), stored.begin() + first * 4));
    }
  }
  std::vector<float> one(4);
  EXPECT_THAT(file.ReadRows("w", 6, *TensorView::Of(std::span(one), {{1, 4}})),
              StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(file.ReadRows("w", 0, *TensorView::Of(std::span(one), {{4}})),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(SafetensorsFileTest, ErrorsNameFileAndTensor) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file,
                               SafetensorsFile::Open(kReference));
  std::vector<float> values(6, -9);
  const auto bytes = std::as_writable_bytes(std::span(values));
  const auto says = [](auto... words) {
    return AllOf(HasSubstr("reference.safetensors"), HasSubstr(words)...);
  };
  EXPECT_THAT(file.Read("nix", bytes),
              StatusIs(absl::StatusCode::kNotFound,
                       says("no tensor \"nix\" among the 8")));
  EXPECT_THAT(file.Read("bias", bytes),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       says("tensor \"bias\" has 12 bytes, the target 24")));
  for (const int64_t begin : {int64_t{-1}, int64_t{1}, int64_t{1} << 62}) {
    EXPECT_THAT(file.ReadBytes("bias", begin, bytes.first(12)),
                StatusIs(absl::StatusCode::kOutOfRange,
                         says("tensor \"bias\": 12 bytes from byte ")));
  }
  const auto view = [&](std::vector<int64_t> shape) {
    return *TensorView::Of(std::span(values).first(3), shape);
  };
  EXPECT_THAT(file.ReadRows("weight", 4, view({1, 3})),
              StatusIs(absl::StatusCode::kOutOfRange,
                       says("tensor \"weight\": rows [4, 4 + 1)")));
  EXPECT_THAT(file.ReadRows("weight", -1, view({1, 3})),
              StatusIs(absl::StatusCode::kOutOfRange));
  for (const auto& shape : {std::vector<int64_t>{3}, {3, 1}, {1, 3, 1}}) {
    EXPECT_THAT(file.ReadRows("weight", 0, view(shape)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         says("rows of shape [4, 3] do not fit")));
  }
  EXPECT_THAT(file.ReadRows("scalar", 0, view({3})),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(file.ReadRows("flags", 0, view({3})),
              StatusIs(absl::StatusCode::kUnimplemented,
                       says("tensor \"flags\"", "BOOL")));
  // Two rows of three elements, as columns of a larger tensor.
  TESSERA_ASSERT_OK_AND_ASSIGN(const TensorView wide,
                               TensorView::Of(std::span(values), {{3, 2}}));
  EXPECT_THAT(file.ReadRows("weight", 0, *wide.Transpose(0, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       says("contiguous and on the host")));
  EXPECT_EQ(values, std::vector<float>(6, -9));
}

TEST(SafetensorsFileTest, RejectsInvalidFiles) {
  EXPECT_THAT(SafetensorsFile::Open("/nix/da"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("cannot open \"/nix/da\"")));
  EXPECT_THAT(SafetensorsFile::Open(::testing::TempDir()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("not a regular file")));
  const auto open = [](std::string_view bytes) {
    return SafetensorsFile::Open(WriteTemporary("bad.safetensors", bytes));
  };
  const auto refused = [](auto... words) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr("bad.safetensors"), HasSubstr(words)...));
  };
  EXPECT_THAT(open(""), refused("it has 0 bytes"));
  EXPECT_THAT(open(std::string(8, '\xff')),
              refused("would take 18446744073709551615 bytes"));
  EXPECT_THAT(open("version https://git-lfs.github.com/spec/v1\noid sha256:0"),
              refused("Git LFS's pointer"));
  EXPECT_THAT(open(WithHeader("{}", "").substr(0, 9)),
              refused("would take 2 bytes; the file has 9"));
  EXPECT_THAT(open(WithHeader("{}", "x")), refused("header", "holds 1 bytes"));
  EXPECT_THAT(open(WithHeader("{\"w\": 3}", "")),
              refused("header: tensor \"w\""));
}

TEST(SafetensorsFileTest, DetectsTruncatedFile) {
  const std::string path =
      WriteTemporary("cut.safetensors", ReadAll(kReference));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(path));
  ASSERT_EQ(truncate(path.c_str(), 100), 0);
  std::vector<float> values(3);
  EXPECT_THAT(file.Read("bias", std::as_writable_bytes(std::span(values))),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("cut.safetensors"),
                             HasSubstr("\"bias\""), HasSubstr("too early"))));
}

TEST(SafetensorsFileFuzzTest, DamagedFilesAreRejectedOrReadable) {
  const std::string reference = ReadAll(kReference);
  const uint64_t header_end = 8 + static_cast<unsigned char>(reference[0]) +
                              256u * static_cast<unsigned char>(reference[1]);
  std::mt19937_64 random(5);
  int valid = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = reference;
    // Mostly in the header; the first eight bytes are its length.
    const uint64_t bound = round % 4 == 0 ? 8 : header_end;
    for (uint64_t i = 0; i <= random() % 2; ++i) {
      bytes[random() % bound] ^= static_cast<char>(1 << (random() % 8));
    }
    if (round % 8 == 0) bytes.resize(random() % (bytes.size() + 1));
    const auto file =
        SafetensorsFile::Open(WriteTemporary("fuzz.safetensors", bytes));
    if (!file.ok()) {
      ASSERT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(file.status().message().empty());
      continue;
    }
    ++valid;
    for (const TensorEntry& entry : file->header().tensors) {
      std::vector<std::byte> data(static_cast<size_t>(entry.bytes()));
      TESSERA_ASSERT_OK(file->Read(entry.spec.name, data));
    }
  }
  EXPECT_GT(valid, 50);
}

}  // namespace
}  // namespace tessera::model_files

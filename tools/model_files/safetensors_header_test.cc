#include "tools/model_files/safetensors_header.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"

namespace tessera::model_files {

namespace {

using ::testing::HasSubstr;

TEST(ElementTypeTest, NamesReadBack) {
  for (int i = 0; i <= static_cast<int>(ElementType::kF64); ++i) {
    const auto type = static_cast<ElementType>(i);
    EXPECT_THAT(ParseElementType(ElementTypeName(type)), IsOkAndHolds(type));
  }
}

TEST(ElementTypeTest, EveryDTypeHasOneOfTheSameSize) {
  for (const DType dtype : kAllDTypes) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const ElementType type, FromDType(dtype));
    EXPECT_THAT(DTypeOf({.name = "w", .type = type}), IsOkAndHolds(dtype));
    EXPECT_EQ(ElementBytes(type), SizeInBytes(dtype));
  }
  EXPECT_EQ(ElementTypeName(*FromDType(DType::kF8E4M3)), "F8_E4M3");
}

TEST(ElementTypeTest, RejectsUnknownTypes) {
  EXPECT_THAT(DTypeOf({.name = "w", .type = ElementType::kBool}),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("BOOL")));
  EXPECT_THAT(FromDType(static_cast<DType>(99)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("99")));
  EXPECT_THAT(ParseElementType("bf16"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"bf16\" is not known; the known ones are "
                                 "BOOL U8 I8")));
}

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Pair;

template <typename... Words>
auto Refused(Words... words) {
  return StatusIs(absl::StatusCode::kInvalidArgument,
                  AllOf(HasSubstr(words)...));
}

constexpr char kTwo[] = R"({"__metadata__": {"format": "pt"},
  "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [4, 16]},
  "a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}})";

TEST(HeaderTest, ReadsTensorsInTheOrderOfTheData) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Header header, ParseHeader(kTwo, 16));
  EXPECT_THAT(
      header.tensors,
      ElementsAre(TensorEntry{{"a", ElementType::kF32, {}}, 0, 4},
                  TensorEntry{{"b", ElementType::kBF16, {2, 3}}, 4, 16}));
  EXPECT_THAT(header.metadata, ElementsAre(Pair("format", "pt")));
  EXPECT_EQ(header.data_bytes(), 16);
  EXPECT_THAT(ParseHeader("{}  ", 0), IsOkAndHolds(Header{}));
}

TEST(HeaderTest, RejectsOverlapsHolesAndAnotherLength) {
  const auto two = [](std::string_view a, std::string_view b) {
    return absl::StrCat(
        R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": )", a,
        R"(}, "b": {"dtype": "U8", "shape": [4],)", R"("data_offsets": )", b,
        "}}");
  };
  TESSERA_EXPECT_OK(ParseHeader(two("[0,4]", "[4,8]"), 8));
  TESSERA_EXPECT_OK(ParseHeader(two("[4,8]", "[0,4]"), 8));
  EXPECT_THAT(ParseHeader(two("[0,4]", "[3,7]"), 7),
              Refused("tensor \"b\"", "byte 3", "inside", "ends at 4"));
  EXPECT_THAT(ParseHeader(two("[0,4]", "[5,9]"), 9),
              Refused("tensor \"b\"", "byte 5", "gap", "ends at 4"));
  EXPECT_THAT(ParseHeader(two("[1,5]", "[5,9]"), 9),
              Refused("tensor \"a\"", "gap"));
  EXPECT_THAT(ParseHeader(two("[0,4]", "[4,8]"), 7),
              Refused("take 8 bytes", "holds 7", "cut short"));
  EXPECT_THAT(ParseHeader(two("[0,4]", "[4,8]"), 9), Refused("too long"));
  EXPECT_THAT(ParseHeader(two("[0,5]", "[5,9]"), 9),
              Refused("tensor \"a\"", "shape [4] of U8 takes 4", "[0, 5)"));
  EXPECT_THAT(ParseHeader(two("[4,0]", "[4,8]"), 8), Refused("tensor \"a\""));
}

TEST(HeaderTest, ListsTensorsOfOtherTypes) {
  constexpr int64_t kBytes = 20;
  for (const char* type : {"C64", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F4",
                           "F6_E2M3", "F6_E3M2", "I128", ""}) {
    const std::string json = absl::StrCat(
        R"({"a": {"dtype": "F32", "shape": [4], "data_offsets": [4, 20]},
            "w": {"dtype": ")",
        type, R"(", "shape": [3, 2], "data_offsets": [0, 4]}})");
    TESSERA_ASSERT_OK_AND_ASSIGN(const Header header,
                                 ParseHeader(json, kBytes));
    ASSERT_EQ(header.tensors.size(), 2u);
    const TensorEntry& other = header.tensors[0];
    EXPECT_EQ(other.spec.type, ElementType::kOther);
    EXPECT_EQ(other.spec.type_name(), type);
    EXPECT_EQ(other.bytes(), 4);
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string written,
                                 FormatHeader(header));
    EXPECT_THAT(ParseHeader(written, kBytes), IsOkAndHolds(header));
    EXPECT_THAT(DTypeOf(other.spec),
                StatusIs(absl::StatusCode::kUnimplemented,
                         AllOf(HasSubstr("tensor \"w\""),
                               HasSubstr(absl::StrCat("\"", type, "\"")))));
    EXPECT_THAT(LayOut({other.spec}, {}),
                Refused("tensor \"w\"", "is not known"));
  }
  EXPECT_THAT(
      ParseHeader(
          R"({"w": {"dtype": "C64", "shape": [1], "data_offsets": [8, 0]}})",
          8),
      Refused("tensor \"w\""));
}

TEST(HeaderTest, RejectsWrongShapesTypesAndNumbers) {
  const auto one = [](std::string_view dtype, std::string_view shape,
                      std::string_view offsets) {
    return absl::StrCat(R"({"w": {"dtype": )", dtype, R"(, "shape": )", shape,
                        R"(, "data_offsets": )", offsets, "}}");
  };
  EXPECT_THAT(ParseHeader(one("3", "[1]", "[0,4]"), 4),
              Refused("\"dtype\" must be a string"));
  EXPECT_THAT(ParseHeader(one("\"F32\"", "[-1]", "[0,4]"), 4),
              Refused("\"shape\"", "found -1"));
  EXPECT_THAT(ParseHeader(one("\"F32\"", "[1.0]", "[0,4]"), 4),
              Refused("\"shape\"", "found 1.0"));
  EXPECT_THAT(ParseHeader(one("\"F32\"", "[9223372036854775808]", "[0,4]"), 4),
              Refused("2^63-1", "found 9223372036854775808"));
  EXPECT_THAT(
      ParseHeader(one("\"F32\"", "[4294967296, 4294967296]", "[0,0]"), 0),
      Refused("more than 2^63-1 bytes"));
  EXPECT_THAT(ParseHeader(one("\"F32\"", "3", "[0,4]"), 4),
              Refused("\"shape\" must be an array", "found 3"));
  EXPECT_THAT(ParseHeader(one("\"F32\"", "[1]", "[0,4,8]"), 4),
              Refused("data_offsets has 3 numbers"));
  EXPECT_THAT(ParseHeader(one("\"F32\"", "[1], \"x\": 1", "[0,4]"), 4),
              Refused("unknown key \"x\""));
  // Empty tensors are valid, however large the other sizes are.
  TESSERA_EXPECT_OK(
      ParseHeader(one("\"F64\"", "[4294967296,4294967296,0]", "[0,0]"), 0));
}

TEST(HeaderTest, RejectsOtherDocuments) {
  EXPECT_THAT(ParseHeader("[]", 0), Refused("expected an object of tensors"));
  EXPECT_THAT(ParseHeader("{\"w\": 1}", 0), Refused("tensor \"w\"", "found 1"));
  EXPECT_THAT(ParseHeader("{", 0), Refused("invalid JSON"));
  EXPECT_THAT(ParseHeader("{\"w\": {}, \"w\": {}}", 0), Refused("comes twice"));
  EXPECT_THAT(ParseHeader("{\"__metadata__\": {\"a\": 1}}", 0),
              Refused("__metadata__ \"a\" must be a string, found 1"));
  EXPECT_THAT(ParseHeader("{\"__metadata__\": []}", 0),
              Refused("must be an object of strings"));
  EXPECT_THAT(ParseHeader(std::string(kMaxHeaderBytes + 1, ' '), 0),
              Refused("at most 100000000"));
}

TEST(LayOutTest, WiderElementsComeFirstAndAllAreAligned) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const Header header,
                               LayOut({{"a", ElementType::kU8, {3}},
                                       {"b", ElementType::kF32, {1}},
                                       {"c", ElementType::kBF16, {5}},
                                       {"d", ElementType::kF32, {0, 7}},
                                       {"e", ElementType::kI64, {2}}},
                                      {{"k", "v"}}));
  std::vector<std::string> names;
  for (const TensorEntry& entry : header.tensors) {
    names.push_back(entry.spec.name);
    EXPECT_EQ(entry.begin % ElementBytes(entry.spec.type), 0);
  }
  EXPECT_THAT(names, ElementsAre("e", "b", "d", "c", "a"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::string json, FormatHeader(header));
  EXPECT_EQ(json.size() % 8, 0u);
  EXPECT_THAT(ParseHeader(json, header.data_bytes()), IsOkAndHolds(header));
}

TEST(LayOutTest, RejectsInvalidTensors) {
  const StoredTensor w = {"w", ElementType::kU8, {4}};
  EXPECT_THAT(LayOut({w, w}, {}), Refused("tensor \"w\": comes twice"));
  EXPECT_THAT(LayOut({{"__metadata__", ElementType::kU8, {}}}, {}),
              Refused("reserves this name"));
  EXPECT_THAT(LayOut({{"w", ElementType::kU8, {-1}}}, {}),
              Refused("tensor \"w\": size -1 is negative"));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(LayOut({{"w", ElementType::kBF16, {kMost}}}, {}),
              Refused("more than 2^63-1 bytes"));
  EXPECT_THAT(LayOut({w, {"v", ElementType::kU8, {kMost}}}, {}),
              Refused("the file would exceed"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const Header header,
                               LayOut({{"\xff", ElementType::kU8, {4}}}, {}));
  EXPECT_THAT(FormatHeader(header), Refused("not UTF-8"));
}

TEST(HeaderFuzzTest, DamagedHeadersAreRejectedOrRoundTrip) {
  TextMutator mutator(
      {kTwo, "{}",
       R"({"w":{"dtype":"F16","shape":[0,5],"data_offsets":[0,0]},)"
       R"("v":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})"},
      {"9223372036854775807", "4294967296,", "-1", "1e3", "0.5",
       std::string(3000, '['), "{\"a\":", "\"w\":{}", "\"I64\"", "\"BOOL\"",
       "null", "[0,16]", "\"__metadata__\":{}", "\xc3\xa9", "\\ud800"},
      3);
  int valid = 0;
  for (int round = 0; round < 60'000; ++round) {
    const std::string json = mutator.Next();
    const int64_t data_bytes = round % 3 == 0 ? 0 : 16;
    const auto header = ParseHeader(json, data_bytes);
    if (!header.ok()) {
      ASSERT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
      ASSERT_FALSE(header.status().message().empty());
      ASSERT_LT(header.status().message().size(), 2000u);
      continue;
    }
    ++valid;
    ASSERT_EQ(header->data_bytes(), data_bytes);
    TESSERA_ASSERT_OK_AND_ASSIGN(const std::string again,
                                 FormatHeader(*header));
    ASSERT_THAT(ParseHeader(again, data_bytes), IsOkAndHolds(*header));
  }
  EXPECT_GT(valid, 500);
}

}  // namespace

}  // namespace tessera::model_files

#include "tools/text/indexed_dataset.h"

#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/text/corpus.h"
#include "tools/text/data_files.h"
#include "tools/text/token_file.h"
#include "tools/text/token_ranges.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int64_t kMost = int64_t{1} << 24;

std::string Path(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/", name);
}

// Writes without a sync, for tests that write thousands of files.
void Overwrite(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

template <typename T>
void Append(std::string& bytes, std::vector<T> values) {
  bytes.append(reinterpret_cast<const char*>(values.data()),
               values.size() * sizeof(T));
}

// An index as Megatron-LM's indexed_dataset.py writes it.
std::string IndexBytes(uint8_t code, const std::vector<int32_t>& lengths,
                       const std::vector<int64_t>& pointers,
                       const std::vector<int64_t>& documents) {
  std::string bytes("MMIDIDX\0\0", 9);
  Append<uint64_t>(bytes, {1});
  Append<uint8_t>(bytes, {code});
  Append<uint64_t>(bytes, {lengths.size(), documents.size()});
  Append(bytes, lengths);
  Append(bytes, pointers);
  Append(bytes, documents);
  return bytes;
}

std::vector<TokenId> AllOf(const TokenFile& file) {
  std::vector<TokenId> ids(static_cast<size_t>(file.token_count()));
  TESSERA_EXPECT_OK(file.Read(0, ids));
  return ids;
}

TEST(IndexedDatasetTest, WritesMegatronFormat) {
  const std::string prefix = Path("small");
  TESSERA_ASSERT_OK_AND_ASSIGN(auto writer,
                               IndexedDatasetWriter::Create(prefix, 300));
  const std::vector<TokenId> first = {1, 299, 0}, third = {7};
  TESSERA_ASSERT_OK(writer.AddDocument(first));
  TESSERA_ASSERT_OK(writer.AddDocument({}));
  TESSERA_ASSERT_OK(writer.AddDocument(third));
  TESSERA_ASSERT_OK(writer.Finish());
  EXPECT_EQ(*ReadFile(prefix + ".bin", kMost),
            std::string("\x01\0\x2b\x01\0\0\x07\0", 8));
  EXPECT_EQ(*ReadFile(prefix + ".idx", kMost),
            IndexBytes(8, {3, 0, 1}, {0, 6, 6}, {0, 1, 2, 3}));
  EXPECT_THAT(ReadTokenIndex(prefix + ".idx"),
              IsOkAndHolds(IndexedTokens{TokenType::kU16, 4, 3, 3}));
}

TEST(IndexedDatasetTest, PromptsAreSequencesOfModeOne) {
  const std::string prefix = Path("prompts");
  TESSERA_ASSERT_OK_AND_ASSIGN(auto writer,
                               IndexedDatasetWriter::Create(prefix, 300));
  const std::vector<TokenId> ids = {1, 2, 3};
  using Ranges = std::vector<TokenRange>;
  TESSERA_ASSERT_OK(writer.AddDocument(ids, Ranges{{0, 2}}));
  TESSERA_ASSERT_OK(writer.AddDocument(ids));
  TESSERA_ASSERT_OK(writer.AddDocument(ids, Ranges{{0, 3}}));
  for (const Ranges& prompts : {Ranges{{-1, 2}}, Ranges{{0, 4}}, Ranges{{1, 1}},
                                Ranges{{2, 1}}, Ranges{{0, 2}, {1, 3}}}) {
    EXPECT_THAT(
        writer.AddDocument(ids, prompts),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 ::testing::AllOf(HasSubstr("document 3 of"),
                                  HasSubstr("3 tokens"), HasSubstr("to 3"))));
  }
  EXPECT_EQ(writer.documents(), 3);
  TESSERA_ASSERT_OK(writer.Finish());
  std::string expected =
      IndexBytes(8, {2, 1, 3, 3, 0}, {0, 4, 6, 12, 18}, {0, 2, 3, 5});
  Append<int8_t>(expected, {1, 0, 0, 1, 0});
  EXPECT_EQ(*ReadFile(prefix + ".idx", kMost), expected);
  TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file,
                               TokenFile::Open(prefix + ".bin", 300));
  EXPECT_THAT(AllOf(file), ElementsAre(1, 2, 3, 1, 2, 3, 1, 2, 3));
  EXPECT_THAT(file.prompts().ranges(),
              ElementsAre(TokenRange{0, 2}, TokenRange{6, 9}));
  expected.back() = 2;
  TESSERA_ASSERT_OK(WriteFile(prefix + ".idx", expected));
  EXPECT_THAT(ReadTokenIndex(prefix + ".idx"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("the mode of sequence 4 is 2; it must be 0, "
                                 "or 1 for a prompt")));
}

TEST(IndexedDatasetTest, ReadsBackRandomPrompts) {
  const std::string prefix = Path("random_prompts");
  std::mt19937_64 random(3);
  TESSERA_ASSERT_OK_AND_ASSIGN(auto writer,
                               IndexedDatasetWriter::Create(prefix, 300));
  TokenRanges expected;
  int64_t tokens = 0;
  for (int document = 0; document < 500; ++document) {
    const std::vector<TokenId> ids(random() % 12, 5);
    TokenRanges prompts;
    for (int64_t i = 0; i < std::ssize(ids); ++i) {
      if (random() % 2 == 0) prompts.Append({i, i + 1});
    }
    TESSERA_ASSERT_OK(writer.AddDocument(ids, prompts.ranges()));
    for (const TokenRange& prompt : prompts.ranges()) {
      expected.Append({tokens + prompt.begin, tokens + prompt.end});
    }
    tokens += std::ssize(ids);
  }
  TESSERA_ASSERT_OK(writer.Finish());
  TESSERA_ASSERT_OK_AND_ASSIGN(const IndexedTokens index,
                               ReadTokenIndex(prefix + ".idx"));
  EXPECT_EQ(index.documents, 500);
  EXPECT_EQ(index.tokens, tokens);
  EXPECT_EQ(index.prompts, expected);
}

TEST(IndexedDatasetTest, ReadsBackRandomDocumentsOfBothWidths) {
  std::mt19937_64 random(1);
  for (const int64_t vocabulary :
       {int64_t{1}, int64_t{65499}, int64_t{65500}, int64_t{2147483647}}) {
    const std::string prefix = Path(absl::StrCat("random", vocabulary));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        auto writer, IndexedDatasetWriter::Create(prefix, vocabulary));
    std::vector<TokenId> all;
    for (int document = 0; document < 300; ++document) {
      std::vector<TokenId> ids(random() % 3 == 0 ? 0 : random() % 9000);
      for (TokenId& id : ids) {
        id = static_cast<TokenId>(random() % static_cast<uint64_t>(vocabulary));
      }
      TESSERA_ASSERT_OK(writer.AddDocument(ids));
      all.insert(all.end(), ids.begin(), ids.end());
    }
    EXPECT_EQ(writer.tokens(), static_cast<int64_t>(all.size()));
    TESSERA_ASSERT_OK(writer.Finish());
    for (const char* end : {".bin", ".idx"}) {
      TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file,
                                   TokenFile::Open(prefix + end, vocabulary));
      EXPECT_EQ(AllOf(file), all);
    }
  }
}

TEST(IndexedDatasetTest, ReadsEveryTypeOfInteger) {
  const std::string prefix = Path("types");
  const auto expect = [&](uint8_t code, const auto& tokens) {
    std::string bin;
    Append(bin, tokens);
    TESSERA_ASSERT_OK(WriteFile(prefix + ".bin", bin));
    const auto width = static_cast<int64_t>(bin.size() / 3);
    TESSERA_ASSERT_OK(WriteFile(prefix + ".idx",
                                IndexBytes(code, {1, 2}, {0, width}, {0, 2})));
    TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file,
                                 TokenFile::Open(prefix + ".bin", 300));
    EXPECT_EQ(AllOf(file), (std::vector<TokenId>{5, 100, 0})) << int{code};
  };
  expect(1, std::vector<uint8_t>{5, 100, 0});
  expect(2, std::vector<int8_t>{5, 100, 0});
  expect(3, std::vector<int16_t>{5, 100, 0});
  expect(4, std::vector<int32_t>{5, 100, 0});
  expect(5, std::vector<int64_t>{5, 100, 0});
  expect(8, std::vector<uint16_t>{5, 100, 0});
}

TEST(IndexedDatasetTest, RejectsInvalidIndices) {
  const std::string path = Path("bad.idx");
  const auto refused = [&](const std::string& bytes, const char* words,
                           absl::StatusCode code =
                               absl::StatusCode::kInvalidArgument) {
    TESSERA_ASSERT_OK(WriteFile(path, bytes));
    EXPECT_THAT(ReadTokenIndex(path),
                StatusIs(code, AllOf(StartsWith("index "), HasSubstr("bad.idx"),
                                     HasSubstr(words))));
  };
  const std::string good = IndexBytes(4, {2, 3}, {0, 8}, {0, 1, 2});
  TESSERA_ASSERT_OK(WriteFile(path, good));
  TESSERA_EXPECT_OK(ReadTokenIndex(path));
  refused("", "it has 0 bytes; its header takes 34");
  refused(good.substr(0, 33), "it has 33 bytes");
  refused(good.substr(0, good.size() - 1), "is not what 2 sequences and 3");
  refused(good + "x", "is not what 2 sequences and 3");
  refused("X" + good.substr(1), "does not begin with \"MMIDIDX\"");
  std::string other = good;
  other[9] = 2;
  refused(other, "version 2; version 1");
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  refused(IndexBytes(7, {2}, {0}, {0, 1}), "floating-point", unimplemented);
  refused(IndexBytes(9, {2}, {0}, {0, 1}), "type 9 is none of 1 to 8");
  refused(IndexBytes(4, {2, -1}, {0, 8}, {0, 2}),
          "the length of sequence 1 is -1; it must be 0 or more");
  refused(IndexBytes(4, {2, 3}, {0, 9}, {0, 2}),
          "the first byte of sequence 1 is 9; it must be 8, the end");
  refused(IndexBytes(4, {2, 3}, {0, 8}, {1, 2}),
          "the first sequence of document 0 is 1; it must be 0");
  refused(IndexBytes(4, {2, 3}, {0, 8}, {0, 3}),
          "document 1 is 3; it must be 0 to 2");
  refused(IndexBytes(4, {2, 3}, {0, 8}, {0, 1}),
          "the end of document 0 is 1; it must be 2");
  refused(IndexBytes(4, {}, {}, {}), "1 bound or more");
  std::string huge = good;
  std::memset(huge.data() + 18, 0xff, 16);
  refused(huge, "is not what 18446744073709551615 sequences");
  EXPECT_THAT(ReadTokenIndex(Path("missing.idx")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("missing.idx")));
}

TEST(IndexedDatasetTest, RejectsTruncatedDataFile) {
  const std::string prefix = Path("cut");
  TESSERA_ASSERT_OK(
      WriteFile(prefix + ".idx", IndexBytes(8, {2, 3}, {0, 4}, {0, 2})));
  TESSERA_ASSERT_OK(WriteFile(prefix + ".bin", std::string(8, '\0')));
  EXPECT_THAT(TokenFile::Open(prefix + ".bin", 10),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("cut.bin\" has 8 bytes"),
                             HasSubstr("a regular file of 5 tokens"))));
}

TEST(IndexedDatasetTest, WriterRejectsInvalidTokensWithoutLeftovers) {
  const std::string prefix = Path("refused");
  EXPECT_THAT(IndexedDatasetWriter::Create(prefix, 0),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("a vocabulary of 0")));
  {
    TESSERA_ASSERT_OK_AND_ASSIGN(auto writer,
                                 IndexedDatasetWriter::Create(prefix, 10));
    for (const TokenId id : {-1, 10}) {
      const std::vector<TokenId> ids = {3, id};
      EXPECT_THAT(
          writer.AddDocument(ids),
          StatusIs(absl::StatusCode::kInvalidArgument,
                   HasSubstr(absl::StrCat("token 1 of document 0 of"))));
    }
    EXPECT_EQ(writer.documents(), 0);
  }
  EXPECT_FALSE(ReadFile(prefix + ".bin", kMost).ok());
  EXPECT_FALSE(ReadFile(prefix + ".idx", kMost).ok());
}

// Damaged indices are rejected, or describe the data that exists.
TEST(IndexedDatasetFuzzTest, DamagedIndicesAreRejectedOrFitTheirData) {
  const std::string prefix = Path("fuzz");
  TESSERA_ASSERT_OK(WriteFile(prefix + ".bin", std::string(24, '\1')));
  std::string modes = IndexBytes(8, {3, 4, 5}, {0, 6, 14}, {0, 2, 3});
  Append<int8_t>(modes, {1, 0, 0});
  TextMutator mutator(
      {IndexBytes(8, {3, 4, 5}, {0, 6, 14}, {0, 1, 3}), modes,
       IndexBytes(4, {6}, {0}, {0, 1}), IndexBytes(5, {3}, {0}, {0, 1})},
      {std::string("MMIDIDX\0\0", 9), std::string(8, '\xff')}, 1);
  int accepted = 0;
  for (int i = 0; i < 6000; ++i) {
    Overwrite(prefix + ".idx", mutator.Next());
    const absl::StatusOr<TokenFile> file =
        TokenFile::Open(prefix + ".bin", int64_t{1} << 31);
    if (!file.ok()) continue;
    ++accepted;
    std::vector<TokenId> ids(static_cast<size_t>(file->token_count()));
    EXPECT_LE(file->token_count(), 24);
    file->Read(0, ids).IgnoreError();
  }
  EXPECT_GT(accepted, 0);
}

std::string Npy(std::string header, const std::string& data, int version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += static_cast<char>(version);
  bytes += '\0';
  const size_t start = version == 1 ? 10 : 12;
  while ((start + header.size() + 1) % 64 != 0) header += ' ';
  header += '\n';
  if (version == 1) {
    Append<uint16_t>(bytes, {static_cast<uint16_t>(header.size())});
  } else {
    Append<uint32_t>(bytes, {static_cast<uint32_t>(header.size())});
  }
  return bytes + header + data;
}

std::string Header(std::string_view descr, std::string_view shape) {
  return absl::StrCat("{'descr': '", descr,
                      "', 'fortran_order': False, 'shape': ", shape, ", }");
}

TEST(NpyTest, ReadsArraysOfIntegers) {
  const std::string path = Path("array.npy");
  const auto expect = [&](std::string_view descr, const auto& tokens) {
    std::string data;
    Append(data, tokens);
    for (const int version : {1, 2, 3}) {
      TESSERA_ASSERT_OK(
          WriteFile(path, Npy(Header(descr, "(3,)"), data, version)));
      TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file,
                                   TokenFile::Open(path, 300));
      EXPECT_EQ(AllOf(file), (std::vector<TokenId>{5, 100, 0})) << descr;
    }
  };
  expect("|u1", std::vector<uint8_t>{5, 100, 0});
  expect("|i1", std::vector<int8_t>{5, 100, 0});
  expect("<u2", std::vector<uint16_t>{5, 100, 0});
  expect("<i2", std::vector<int16_t>{5, 100, 0});
  expect("<u4", std::vector<uint32_t>{5, 100, 0});
  expect("<i4", std::vector<int32_t>{5, 100, 0});
  expect("<i8", std::vector<int64_t>{5, 100, 0});
  // A token that is larger than any id.
  std::string data;
  Append<int64_t>(data, {int64_t{1} << 40});
  TESSERA_ASSERT_OK(WriteFile(path, Npy(Header("<i8", "(1,)"), data)));
  TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file,
                               TokenFile::Open(path, 300));
  std::vector<TokenId> ids(1);
  EXPECT_THAT(file.Read(0, ids),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("token 0 is 1099511627776")));
}

TEST(NpyTest, RejectsOtherFiles) {
  const std::string path = Path("other.npy");
  const std::string data(6, '\1');
  const auto refused = [&](const std::string& bytes, const char* words,
                           absl::StatusCode code =
                               absl::StatusCode::kInvalidArgument) {
    TESSERA_ASSERT_OK(WriteFile(path, bytes));
    EXPECT_THAT(
        TokenFile::Open(path, 10),
        StatusIs(code, AllOf(HasSubstr("other.npy"), HasSubstr(words))));
  };
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  refused("", "no array of NumPy");
  refused("abc", "no array of NumPy");
  refused(Npy(Header("<f4", "(3,)"), data), "its 'descr' is", unimplemented);
  refused(Npy(Header(">u2", "(3,)"), data), "its 'descr' is", unimplemented);
  refused(Npy(Header("<u2", "(3, 1)"), data), "its 'shape' is \"(3, 1)");
  refused(Npy(Header("<u2", "()"), data), "its 'shape' is \"()");
  refused(Npy(Header("<u2", "(-3,)"), data), "its 'shape' is");
  refused(Npy("{'descr': '<u2'}", data), "no 'shape'");
  refused(Npy("{}", data), "no 'descr'");
  refused(Npy(Header("<u2", "(4,)"), data), "a regular file of 4 tokens");
  refused(Npy(Header("<u2", "(0,)"), ""), "a regular file of 0 tokens");
  refused(Npy(Header("<u2", "(3,)"), data, 9), "no array of NumPy");
  std::string huge = Npy(Header("<u2", "(3,)"), data, 2);
  std::memset(huge.data() + 8, 0x7f, 4);
  refused(huge, "65536 is the most");
}

TEST(NpyFuzzTest, DamagedArraysAreRejectedOrFitTheirFile) {
  const std::string path = Path("fuzz.npy");
  TextMutator mutator({Npy(Header("<u2", "(3,)"), std::string(6, '\1')),
                       Npy(Header("<i8", "(2,)"), std::string(16, '\1'), 2)},
                      {"'shape':", "(", ",)", "'descr':", "99999999999"}, 1);
  int accepted = 0;
  for (int i = 0; i < 6000; ++i) {
    Overwrite(path, mutator.Next());
    const absl::StatusOr<TokenFile> file = TokenFile::Open(path, 1000);
    if (!file.ok()) continue;
    ++accepted;
    std::vector<TokenId> ids(static_cast<size_t>(file->token_count()));
    EXPECT_LE(file->token_count(), 256);
    file->Read(0, ids).IgnoreError();
  }
  EXPECT_GT(accepted, 0);
}

TEST(JsonLinesTest, EachLineIsADocument) {
  const std::string path = Path("documents.jsonl");
  TESSERA_ASSERT_OK(WriteFile(
      path,
      "{\"text\": \"ab\", \"id\": 1}\n\n{\"text\": \"\"}\r\n{\"text\": "
      "\"c\\u00e9\"}"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto corpus,
                               Corpus::Open({{path}}, ByteTokenizer()));
  std::vector<TokenId> ids(static_cast<size_t>(corpus->token_count()));
  TESSERA_ASSERT_OK(corpus->Read(0, ids));
  EXPECT_EQ(ids,
            (std::vector<TokenId>{'a', 'b', 256, 256, 'c', 0xc3, 0xa9, 256}));
  EXPECT_EQ(corpus->file_count(), 1);
}

// The tokens of the documents in a file, and the masked ones.
struct Contents {
  std::vector<TokenId> ids;
  std::vector<TokenRange> masked;

  friend bool operator==(const Contents&, const Contents&) = default;
};

absl::StatusOr<Contents> ContentsOf(const std::string& bytes) {
  const std::string path = Path("contents.jsonl");
  TESSERA_RETURN_IF_ERROR(WriteFile(path, bytes));
  TESSERA_ASSIGN_OR_RETURN(const auto corpus,
                           Corpus::Open({{path}}, ByteTokenizer()));
  Contents contents;
  contents.ids.resize(static_cast<size_t>(corpus->token_count()));
  TESSERA_RETURN_IF_ERROR(corpus->Read(0, contents.ids));
  const auto ranges = corpus->prompts().ranges();
  contents.masked.assign(ranges.begin(), ranges.end());
  return contents;
}

TEST(JsonLinesTest, LinesMayHaveTokens) {
  using Pairs = std::vector<std::pair<std::string, Contents>>;
  for (const auto& [line, expected] :
       Pairs{{R"({"input_ids": [5, 256, 0]})", {{5, 256, 0}, {}}},
             {R"({"input_ids": [1, 2, 3, 4, 5], "id": "x", )"
              R"("labels": [-100, 2, -100, -100, 5]})",
              {{1, 2, 3, 4, 5}, {{0, 1}, {2, 4}}}},
             {R"({"input_ids": [1, 2], "labels": null, )"
              R"("attention_mask": [1, 1], "token_type_ids": [0, 0]})",
              {{1, 2}, {}}},
             {R"({"input_ids": [1, 2, 9, 9], "attention_mask": [1, 1, 0, 0], )"
              R"("labels": [-100, 2, -100, -100]})",
              {{1, 2}, {{0, 1}}}},
             {R"({"input_ids": [1, 9, 999], "attention_mask": [1, 0, 0]})",
              {{1}, {}}},
             {R"({"input_ids": [9, 999, 1, 2, 0], "labels": [-100, -100, )"
              R"(-100, 2, -100], "attention_mask": [0, 0, 1, 1, 0]})",
              {{1, 2}, {{0, 1}}}},
             {R"({"text": "ab", "input_ids": [7], "labels": [-100]})",
              {{7}, {{0, 1}}}},
             {R"({"text": "a", "labels": 3})", {{'a', 256}, {}}}}) {
    EXPECT_THAT(ContentsOf(line), IsOkAndHolds(expected)) << line;
  }
  EXPECT_THAT(ContentsOf("{\"input_ids\": [1, 2], \"labels\": [1, -100]}\n"
                         "{\"input_ids\": []}\n{\"text\": \"a\"}\n"
                         "{\"input_ids\": [3], \"labels\": [-100]}\n"),
              IsOkAndHolds(Contents{{1, 2, 'a', 256, 3}, {{1, 2}, {4, 5}}}));
}

TEST(JsonLinesTest, RejectsInvalidTokens) {
  const auto refused = [](const std::string& line, auto... words) {
    EXPECT_THAT(ContentsOf("{\"input_ids\": [1]}\n" + line),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         ::testing::AllOf(HasSubstr("contents.jsonl\", line 2"),
                                          HasSubstr(words)...)))
        << line;
  };
  refused(R"({"input_ids": [1, 257]})", "\"input_ids\"[1] is 257",
          "from 0 to 256");
  refused(R"({"input_ids": [-1]})", "\"input_ids\"[0] is -1");
  refused(R"({"input_ids": [[1, 2]]})", "[0] is an array");
  refused(R"({"input_ids": [1.0]})", "[0] is 1.0");
  refused(R"({"input_ids": [NaN]})", "[0] is null");
  refused(R"({"input_ids": "1 2"})", "\"input_ids\" is \"1 2\"",
          "an array of ids");
  refused(R"({"input_ids": [1, 2], "labels": [1]})",
          "\"labels\" is an array of 1", "an array of 2");
  refused(R"({"input_ids": [1], "labels": 1})", "\"labels\" is 1");
  refused(R"({"input_ids": [1, 2, 3], "labels": [2, 3, -100]})",
          "\"labels\"[0] is 2; it must be the id 1", "shifts", "-100");
  refused(R"({"input_ids": [1], "labels": [-1]})", "\"labels\"[0] is -1");
  refused(R"({"input_ids": [1], "labels": ["1"]})", "\"labels\"[0] is \"1\"");
  refused(R"({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]})",
          "\"attention_mask\" has 1 at 2 after 0 at 1",
          "only padding before and after");
  refused(R"({"input_ids": [1], "attention_mask": [2]})",
          "\"attention_mask\"[0] is 2; it must be 0 or 1");
  refused(R"({"input_ids": [1], "attention_mask": [1, 1]})",
          "\"attention_mask\" is an array of 2");
}

TEST(JsonLinesTest, RejectsArraysOfSeveralLines) {
  EXPECT_THAT(ContentsOf("[\n  {\n    \"text\": \"a\"\n  }\n]\n"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::AllOf(HasSubstr("line 1"),
                                        HasSubstr("jq -c '.[]' FILE"))));
}

TEST(JsonLinesTest, ReadsWhatPythonReads) {
  const Contents a = {{'a', 256}, {}};
  const std::string deep = std::string(900, '[') + std::string(900, ']');
  for (const std::string& line : std::vector<std::string>{
           R"({"text": "a", "score": NaN, "loss": [-Infinity, 1e999]})",
           R"({"text": "b", "meta": {"x": 1, "x": 2}, "text": "a"})",
           R"({"text": "a", "title": "\udc00"})",
           R"({"text": "a", "tree": )" + deep + "}",
           "\xef\xbb\xbf{\"text\": \"a\"}\r\n\r\n"}) {
    EXPECT_THAT(ContentsOf(line), IsOkAndHolds(a)) << line;
  }
  EXPECT_THAT(ContentsOf(R"({"text": "\ud83d"})"),
              IsOkAndHolds(Contents{{0xef, 0xbf, 0xbd, 256}, {}}));
}

TEST(JsonLinesTest, SkipsAsManyInvalidLinesAsAllowed) {
  const std::string path = Path("some_bad.jsonl");
  TESSERA_ASSERT_OK(WriteFile(path,
                              "{\"text\": \"a\"}\n{\n{\"body\": 1}\n"
                              "{\"input_ids\": [9]}\n\n{\"text\": \"b\"}\n"));
  const auto read = [&](int64_t& left, absl::Status result = {}) {
    return ForEachDocument({path, DataKind::kJsonLines},
                           [&](const Document&) { return result; },
                           {.vocabulary = 9, .bad_lines = &left});
  };
  for (const int64_t allowed : {3, 5}) {
    int64_t left = allowed;
    TESSERA_EXPECT_OK(read(left));
    EXPECT_EQ(left, allowed - 3);
  }
  int64_t left = 2;
  EXPECT_THAT(read(left), StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("line 4: \"input_ids\"[0] is 9")));
  EXPECT_EQ(left, 0);
  // Errors of `add` are not skipped.
  left = 5;
  EXPECT_THAT(read(left, absl::ResourceExhaustedError("full")),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(left, 5);
}

TEST(JsonLinesTest, ErrorsNameLine) {
  const std::string path = Path("bad.jsonl");
  const auto refused = [&](const std::string& bytes, const char* words) {
    TESSERA_ASSERT_OK(WriteFile(path, bytes));
    EXPECT_THAT(Corpus::Open({{path}}, ByteTokenizer()),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("bad.jsonl"), HasSubstr(words))));
  };
  refused("{\"text\": \"a\"}\n{\"text\": 1}\n", "line 2: expected an object");
  refused("{\"body\": \"a\"}\n", "line 1: expected an object");
  refused("[1]\n", "line 1: expected an object");
  refused("{\"text\": \"a\"\n", "line 1: ");
  const char* const pair = "line 1: expected the strings \"prompt\" and";
  refused(R"({"prompt": "a"})", pair);
  refused(R"({"completion": "a"})", pair);
  refused(R"({"prompt": "a", "completion": 1})", pair);
  refused(R"({"prompt": null, "completion": "a"})", pair);
  refused(R"({"text": "a", "completion": "b"})",
          "line 1: it has \"text\" and \"completion\"");
  refused(R"({"text": 1, "prompt": "b"})", "line 1: expected an object");
  refused(R"({"messages": []})", "line 1: \"messages\" need the template");
  refused("{\"text\": \"a\"}\n{\"prompt\": \"b\"}\n", "line 2: expected");
}

// Some data sets contain the prompt with which a text was generated.
TEST(JsonLinesTest, IgnoresPromptNextToText) {
  const std::string path = Path("beside.jsonl");
  TESSERA_ASSERT_OK(WriteFile(path, R"({"prompt": "a", "text": "b"})"));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto corpus,
                               Corpus::Open({{path}}, ByteTokenizer()));
  EXPECT_EQ(corpus->token_count(), 2);
  EXPECT_TRUE(corpus->prompts().empty());
}

TEST(JsonLinesFuzzTest, DamagedLinesAreRejectedOrHaveDocuments) {
  const std::string path = Path("fuzz.jsonl");
  TextMutator mutator({R"({"prompt": "2 + 2 =", "completion": " 4"})",
                       R"({"text": "a"})", R"({"messages": [{"role": "b"}]})",
                       R"({"input_ids": [1, 2], "labels": [-100, 2]})"},
                      {"\"prompt\":", "\"attention_mask\": [1, 0],", "-100",
                       "NaN", "\"completion\":", "\"text\":", "\"messages\":",
                       "\n", "null", "{", "}", ","},
                      1);
  int accepted = 0, with_prompts = 0;
  for (int i = 0; i < 6000; ++i) {
    Overwrite(path, mutator.Next());
    int64_t tokens = 0, prompts = 0;
    const absl::Status status =
        ForEachDocument({path, DataKind::kJsonLines},
                        [&](const Document& document) {
                          const bool has_ids = !document.ids.empty();
                          tokens += has_ids ? std::ssize(document.ids)
                                            : std::ssize(document.prompt) +
                                                  std::ssize(document.text) + 1;
                          prompts += std::ssize(document.prompt);
                          for (const TokenRange& range : document.masked) {
                            prompts += range.end - range.begin;
                          }
                          return absl::OkStatus();
                        },
                        {.vocabulary = 257});
    const auto corpus = Corpus::Open({{path}}, ByteTokenizer());
    if (!status.ok()) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                   HasSubstr("fuzz.jsonl\", line ")));
      EXPECT_FALSE(corpus.ok());
      continue;
    }
    // Empty files are rejected with their name.
    if (!corpus.ok()) continue;
    ++accepted;
    with_prompts += prompts > 0 ? 1 : 0;
    EXPECT_EQ((*corpus)->token_count(), tokens);
    EXPECT_EQ((*corpus)->prompts().CountIn({0, tokens}), prompts);
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(with_prompts, 0);
}

// Covers lines that end exactly at the end of a part of the file that is read
// at once.
TEST(JsonLinesTest, LinesOfAllLengthsAreRead) {
  const std::string path = Path("lengths.jsonl");
  std::mt19937_64 random(1);
  std::string bytes;
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) {
    texts.emplace_back(random() % (i % 50 == 0 ? 900'000 : 3000),
                       static_cast<char>('a' + i % 26));
    absl::StrAppend(&bytes, "{\"text\": \"", texts.back(), "\"}\n");
  }
  TESSERA_ASSERT_OK(WriteFile(path, bytes));
  size_t next = 0;
  TESSERA_ASSERT_OK(
      ForEachDocument({path, DataKind::kJsonLines}, [&](const Document& line) {
        EXPECT_EQ(line.text, texts[next]) << next;
        ++next;
        return absl::OkStatus();
      }));
  EXPECT_EQ(next, texts.size());
}

}  // namespace
}  // namespace tessera::text

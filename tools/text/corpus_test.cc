#include "tools/text/corpus.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/text/data_files.h"
#include "tools/text/testing/token_files.h"
#include "tools/text/token_file.h"
#include "tools/text/token_ranges.h"
#include "tools/text/tokenizer.h"

namespace tessera::text {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Creates a directory; Write adds files.
class CorpusTest : public ::testing::Test {
 protected:
  CorpusTest()
      : directory_(absl::StrCat(
            ::testing::TempDir(), "/",
            ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(directory_);
  }

  std::string Path(std::string_view name) {
    return absl::StrCat(directory_, "/", name);
  }
  std::string Write(std::string_view name, std::string_view text) {
    const std::string path = Path(name);
    std::filesystem::create_directories(path.substr(0, path.rfind('/')));
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  // The files found, relative to the directory.
  std::string Found(const std::vector<std::string>& paths) {
    const auto files = FindDataFiles(paths);
    if (!files.ok()) return std::string(files.status().message());
    std::string names;
    for (const DataFile& file : *files) {
      absl::StrAppend(&names, file.path.substr(directory_.size() + 1), " ");
    }
    return names;
  }

  std::string directory_;
};

std::vector<TokenId> ReadAll(const Corpus& corpus) {
  std::vector<TokenId> tokens(static_cast<size_t>(corpus.token_count()));
  TESSERA_EXPECT_OK(corpus.Read(0, tokens));
  return tokens;
}

TEST_F(CorpusTest, DirectoriesAreSearchedInTheOrderOfNames) {
  Write("b.txt", "b");
  Write("a/z.cc", "z");
  Write("a/b/c.h", "c");
  Write("a-1", "dash");  // '-' comes before '/'.
  Write(".hidden", "h");
  Write(".git/config", "h");
  Write("binary", std::string_view("a\0b", 3));
  Write("late_zero", std::string(8000, 'x') + std::string(1, '\0'));
  Write("empty", "");
  Write("tokens.u16", "abcd");
  Write("tokens.bin", "abcd");
  std::filesystem::create_directory_symlink(directory_, Path("loop"));
  std::filesystem::create_symlink(Path("b.txt"), Path("link.txt"));
  std::filesystem::create_symlink(Path("nix"), Path("dangling"));
  EXPECT_EQ(Found({directory_}),
            "a-1 a/b/c.h a/z.cc b.txt late_zero link.txt ");
  EXPECT_EQ(Found({directory_ + "/a", Path("b.txt")}), "a/b/c.h a/z.cc b.txt ");
  EXPECT_EQ(Found({Path("b.txt"), directory_ + "/a"}), "b.txt a/b/c.h a/z.cc ");
  EXPECT_EQ(Found({Path("b.txt"), Path("b.txt")}), "b.txt ");
  EXPECT_EQ(Found({Path("tokens.*"), Path("b*")}),
            "tokens.bin tokens.u16 b.txt ");
  EXPECT_EQ(Found({Path("[ae]*")}), "a/b/c.h a/z.cc a-1 ");
}

TEST_F(CorpusTest, PrefersLiteralNameOverPattern) {
  Write("a*", "star");
  Write("ab", "b");
  EXPECT_EQ(Found({Path("a*")}), "a* ");
  EXPECT_EQ(Found({Path("[a]*")}), "a* ab ");
}

TEST_F(CorpusTest, ErrorsNamePath) {
  const auto refused = [&](const std::vector<std::string>& paths,
                           absl::StatusCode code, auto... words) {
    EXPECT_THAT(FindDataFiles(paths),
                StatusIs(code, AllOf(HasSubstr(words)...)));
  };
  using enum absl::StatusCode;
  refused({Path("nix")}, kNotFound, "no data file or directory", "nix\"");
  refused({Path("*.cc")}, kNotFound, "*.cc\"", "pattern");
  refused({Write("empty", "")}, kInvalidArgument, "empty\" is empty");
  refused({directory_}, kInvalidArgument, "has no text");
  refused({Path("emp*")}, kInvalidArgument, "has no text");
  refused({Write("binary", std::string_view("\0", 1))}, kInvalidArgument,
          "binary\" is binary", ".u16");
  refused({"/dev/null"}, kInvalidArgument, "not a regular file");
  refused({}, kInvalidArgument, "no data; give files");
  refused({Write("ok", "x"), Path("nix")}, kNotFound, "nix\"");
  if (geteuid() != 0) {
    chmod(Write("secret", "x").c_str(), 0);
    refused({Path("secret")}, kPermissionDenied, "secret\"");
  }
}

TEST_F(CorpusTest, AppendsEndOfTextToEachText) {
  Write("a", "xy");
  Write("b", "z\xff");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto corpus,
                               Corpus::Open({{directory_}}, ByteTokenizer()));
  EXPECT_EQ(corpus->file_count(), 2);
  EXPECT_THAT(ReadAll(*corpus), ElementsAre('x', 'y', 256, 'z', 255, 256));
}

TEST_F(CorpusTest, TokenFilesAndTextsAreOneRow) {
  TESSERA_ASSERT_OK(
      WriteTokenFile(Path("one.u16"), std::vector<TokenId>{1, 2, 3}));
  TESSERA_ASSERT_OK(WriteTokenFile(Path("two.u32"), std::vector<TokenId>{4}));
  TESSERA_ASSERT_OK(
      WriteTokenFile(Path("three.bin"), std::vector<TokenId>{5, 256}));
  const std::vector<std::string> paths = {Path("one.u16"),   Write("t", "ab"),
                                          Write("v", "c"),   Path("two.u32"),
                                          Path("three.bin"), Write("w", "d")};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto corpus,
                               Corpus::Open(paths, ByteTokenizer()));
  const std::vector<TokenId> all = {1,   2, 3, 'a', 'b', 256, 'c',
                                    256, 4, 5, 256, 'd', 256};
  EXPECT_EQ(ReadAll(*corpus), all);
  EXPECT_EQ(corpus->memory_bytes(), 2 * 7);  // The texts only.
  for (size_t begin = 0; begin <= all.size(); ++begin) {
    for (size_t size = 0; size <= all.size() - begin; ++size) {
      std::vector<TokenId> part(size);
      TESSERA_ASSERT_OK(corpus->Read(static_cast<int64_t>(begin), part));
      const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
      ASSERT_TRUE(std::equal(part.begin(), part.end(), first));
    }
  }
  std::vector<TokenId> two(2);
  for (const int64_t begin : {int64_t{-1}, int64_t{12}, int64_t{1} << 62}) {
    EXPECT_THAT(corpus->Read(begin, two),
                StatusIs(absl::StatusCode::kOutOfRange,
                         HasSubstr("not among the 13 of the data")));
  }
}

TEST_F(CorpusTest, PromptsHaveTheirPlaces) {
  Write("a.jsonl", R"({"prompt": "ab", "completion": "c"})"
                   "\n"
                   R"({"text": "d"})"
                   "\n"
                   R"({"prompt": "", "completion": "e"})"
                   "\n"
                   R"({"prompt": "f", "completion": ""})");
  Write("b.jsonl", R"({"prompt": "gh", "completion": "i", "id": 7})");
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto corpus,
                               Corpus::Open({{directory_}}, ByteTokenizer()));
  EXPECT_THAT(ReadAll(*corpus), ElementsAre('a', 'b', 'c', 256, 'd', 256, 'e',
                                            256, 'f', 256, 'g', 'h', 'i', 256));
  EXPECT_THAT(
      corpus->prompts().ranges(),
      ElementsAre(TokenRange{0, 2}, TokenRange{8, 9}, TokenRange{10, 12}));
  EXPECT_EQ(corpus->memory_bytes(), 2 * 14 + corpus->prompts().memory_bytes());
}

// Encodes pairs of characters, so that a pair may cross the end of a prompt.
TEST_F(CorpusTest, DocumentsBeginWithTheTokensOfTheirPrompt) {
  class Pairs : public ByteTokenizer {
    int64_t vocabulary_size() const override { return 1 << 20; }
    void AppendTokens(std::string_view text, SpecialTokens,
                      std::vector<TokenId>& ids) const override {
      for (size_t i = 0; i < text.size(); i += 2) {
        ids.push_back(i + 1 < text.size() ? 1000 * text[i] + text[i + 1]
                                          : text[i]);
      }
    }
  };
  const std::vector<Document> documents = {{"0123", "456"}, {"012", "345"}};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto corpus,
                               Corpus::FromDocuments(documents, Pairs()));
  const auto pair = [](char a, char b) { return 1000 * a + b; };
  EXPECT_THAT(ReadAll(*corpus),
              ElementsAre(pair('0', '1'), pair('2', '3'), pair('4', '5'), '6',
                          256, pair('0', '1'), '2', pair('3', '4'), '5', 256));
  EXPECT_THAT(corpus->prompts().ranges(),
              ElementsAre(TokenRange{0, 2}, TokenRange{5, 7}));
}

TEST_F(CorpusTest, FingerprintsDistinguishCorpora) {
  const auto of = [&](const std::vector<std::string>& texts) {
    return (*Corpus::FromTexts(texts, ByteTokenizer()))->fingerprint();
  };
  EXPECT_EQ(of({"ab", "c"}), of({"ab", "c"}));
  EXPECT_NE(of({"ab", "c"}), of({"a", "bc"}));
  EXPECT_NE(of({"ab"}), of({"ba"}));
  EXPECT_NE(of({"ab"}), of({"ab", ""}));
  const auto of_prompt = [&](const Document& document) {
    return (*Corpus::FromDocuments({{document}}, ByteTokenizer()))
        ->fingerprint();
  };
  EXPECT_EQ(of_prompt({"", "abc"}), of({"abc"}));
  EXPECT_EQ(of_prompt({"a", "bc"}), of_prompt({"a", "bc"}));
  EXPECT_NE(of_prompt({"a", "bc"}), of({"abc"}));
  EXPECT_NE(of_prompt({"a", "bc"}), of_prompt({"ab", "c"}));
  const auto of_tokens = [&](const std::vector<TokenId>& tokens) {
    EXPECT_TRUE(WriteTokenFile(Path("f.u16"), tokens).ok());
    return (*Corpus::Open({{Path("f.u16")}}, ByteTokenizer()))->fingerprint();
  };
  EXPECT_EQ(of_tokens({1, 2}), of_tokens({1, 2}));
  EXPECT_NE(of_tokens({1, 2}), of_tokens({1, 2, 3}));
  EXPECT_NE(of_tokens({1, 2}), of_tokens({1, 3}));
}

TEST_F(CorpusTest, KeepsLargeTokenIds) {
  // Token ids with more than 16 bits.
  class Wide : public ByteTokenizer {
    int64_t vocabulary_size() const override { return 1 << 20; }
    void AppendTokens(std::string_view text, SpecialTokens,
                      std::vector<TokenId>& ids) const override {
      for (const char c : text) ids.push_back(1000 * c);
    }
  };
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto corpus,
                               Corpus::FromTexts({{"az"}}, Wide()));
  EXPECT_THAT(ReadAll(*corpus), ElementsAre(97000, 122000, 256));
  EXPECT_EQ(corpus->memory_bytes(), 3 * static_cast<int64_t>(sizeof(TokenId)));
  EXPECT_THAT(Corpus::FromTexts({}, Wide()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("give at least 1")));
}

TEST_F(CorpusTest, TokenFilesRejectInvalidFiles) {
  const auto refused = [](auto... words) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr(words)...));
  };
  EXPECT_THAT(TokenFile::Open(Write("odd.u16", "abc"), 9),
              refused("odd.u16", "has 3 bytes", "2 bytes each"));
  EXPECT_THAT(TokenFile::Open(Write("odd.u32", "abcdef"), 9),
              refused("odd.u32", "has 6 bytes", "4 bytes each"));
  EXPECT_THAT(TokenFile::Open(Write("none.bin", ""), 9), refused("0 bytes"));
  EXPECT_THAT(TokenFile::Open(Write("x.txt", "ab"), 9),
              refused("x.txt", "is not a token file"));
  EXPECT_THAT(TokenFile::Open(Path("nix.u16"), 9),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nix.u16")));
  EXPECT_THAT(WriteTokenFile(Path("x.txt"), {}), refused("not a token file"));
  EXPECT_THAT(WriteTokenFile(Path("x.u16"), std::vector<TokenId>{65536}),
              refused("id 65536 does not fit 2"));
  EXPECT_THAT(WriteTokenFile(Path("x.u32"), std::vector<TokenId>{-1}),
              refused("id -1"));
  TESSERA_EXPECT_OK(WriteTokenFile(Path("x.u16"), std::vector<TokenId>{65535}));

  TESSERA_ASSERT_OK(
      WriteTokenFile(Path("y.u32"), std::vector<TokenId>{1, 2, 300, 4}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const TokenFile file,
                               TokenFile::Open(Path("y.u32"), 257));
  std::vector<TokenId> tokens(2);
  TESSERA_EXPECT_OK(file.Read(0, tokens));
  EXPECT_THAT(file.Read(1, tokens),
              refused("y.u32", "token 2 is 300; the vocabulary has 257"));
  EXPECT_THAT(file.Read(3, tokens), StatusIs(absl::StatusCode::kOutOfRange));
  ASSERT_EQ(truncate(Path("y.u32").c_str(), 4), 0);
  EXPECT_THAT(file.Read(0, tokens), StatusIs(absl::StatusCode::kDataLoss,
                                             HasSubstr("was truncated")));
  // The largest 32-bit value is neither a valid nor a negative id.
  Write("z.u32", "\xff\xff\xff\xff");
  EXPECT_THAT(Corpus::Open({{Path("z.u32")}}, ByteTokenizer()),
              refused("token 0 is 4294967295"));
}

}  // namespace
}  // namespace tessera::text

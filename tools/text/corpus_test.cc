#include "tools/text/corpus.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/text/data_files.h"
#include "tools/text/testing/token_files.h"
#include "tools/text/text_source.h"
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

TEST_F(CorpusTest, FollowsLinksToDirectoriesOnce) {
  Write("outside/x/1.txt", "1");
  Write("outside/2.txt", "2");
  Write("data/real/3.txt", "3");
  for (const auto& [to, link] : {std::pair{"outside", "data/linked"},
                                 {"outside/x", "data/z_inner"},
                                 {"data/real", "data/a_twin"},
                                 {"data", "outside/back"}}) {
    std::filesystem::create_directory_symlink(Path(to), Path(link));
  }
  EXPECT_EQ(Found({Path("data")}),
            "data/linked/2.txt data/linked/x/1.txt data/real/3.txt ");
  for (const char* path : {"data/linked", "data/l*"}) {
    EXPECT_EQ(Found({Path(path)}),
              "data/linked/2.txt data/linked/back/real/3.txt "
              "data/linked/x/1.txt ");
  }
}

TEST_F(CorpusTest, FindsJsonLinesByContent) {
  const auto kind = [&](std::string_view name, std::string_view text) {
    const auto files = FindDataFiles({{Write(name, text)}});
    return files.ok() ? files->at(0).kind : DataKind::kNpy;
  };
  const std::string line = "{\"text\": \"a\"}\n";
  for (const char* name : {"a.json", "a.ndjson", "a.jsonlines", "a.JSONL",
                           "a.jl", "a.txt", "a", "a.Json"}) {
    EXPECT_EQ(kind(name, line), DataKind::kJsonLines) << name;
  }
  for (const std::string& text :
       {"\xef\xbb\xbf" + line, "\r\n \n\n" + line,
        std::string(R"({"meta": {"a": [1, 2]}, "text": "b"})"),
        std::string(R"({"score": NaN, "text": "b"})"),
        std::string(R"({"prompt": "a", "completion": "b"})"),
        std::string(R"({"labels": [1], "input_ids": [1]})"),
        std::string(R"({"messages": [{"role": "user"}]})"),
        std::string(R"([{"instruction": "a", "output": "b"}])"),
        std::string(R"([{"text": "a"}, {"text": "b"}])"),
        std::string("[\n  {\n    \"id\": 1,\n    \"text\": \"a\"\n  }\n]"),
        std::string(100, '\n') + line,
        "{\"text\": \"" + std::string(2 << 20, 'x') + "\"}"}) {
    EXPECT_EQ(kind("a.json", text), DataKind::kJsonLines) << text.substr(0, 40);
  }
  for (const std::string text :
       {"text", "{", "{\n\"text\": \"a\"}", "{\"name\": \"a\"}",
        "{\"x\": {\"text\": \"a\"}}", "{\"text\": 1}", "[\"text\"]", "[[1]]",
        "{\"messages\": {\"en\": \"a\"}}", "{text: \"a\"}", " ",
        "x {\"text\": \"a\"}", "{\"body\": \"a\"}\n{\"text\": \"b\"}"}) {
    EXPECT_EQ(kind("a.json", text), DataKind::kText) << text;
  }
  EXPECT_EQ(kind("a.jsonl", "{}"), DataKind::kJsonLines);
}

// The lines {"text": "a"} and {"text": "b"}, each a member or a frame.
const std::string kGzip(
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xabV*I\xad("
    "Q\xb2RPJT\xaa\xe5\x02\x00\xbd\xd2* "
    "\x0e\x00\x00\x00\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xabV*I\xad("
    "Q\xb2RPJR\xaa\xe5\x02\x00S}\x9f\x32\x0e\x00\x00\x00",
    68);
const std::string kZstd(
    "(\xb5/\xfd\x04Xq\x00\x00{\x22text\x22: "
    "\x22\x61\x22}\x0a\xfc\x0cHX(\xb5/\xfd\x04Xq\x00\x00{\x22text\x22: "
    "\x22\x62\x22}\x0a\x38}G\xc0",
    54);
// The text "a".
const std::string kGzipText(
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03K\x04\x00\x43\xbe\xb7\xe8\x01\x00"
    "\x00\x00",
    21);

TEST_F(CorpusTest, DecompressesText) {
  const auto tokens = [&](std::string_view name, std::string_view text) {
    const auto corpus = Corpus::Open({{Write(name, text)}}, ByteTokenizer());
    return corpus.ok() ? absl::StrCat((*corpus)->token_count())
                       : std::string(corpus.status().message());
  };
  for (const std::string& all : {kGzip, kZstd}) {
    if (!IsReadableCompression(all)) continue;
    const std::string part = all.substr(0, all.size() - 3);
    for (const char* name : {"a.jsonl.gz", "a.json.zst", "a.jsonl", "a"}) {
      EXPECT_EQ(tokens(name, all), "4") << name;
      EXPECT_THAT(tokens(name, part),
                  AllOf(HasSubstr(Path(name)), HasSubstr("damaged: ")));
    }
    EXPECT_EQ(Found({directory_}), "a.json.zst a.jsonl a.jsonl.gz ");
    EXPECT_EQ(Found({Path("*")}), "a.json.zst a.jsonl a.jsonl.gz ");
  }
  if (!IsReadableCompression(kGzipText)) GTEST_SKIP() << "built without zlib";
  EXPECT_EQ(tokens("b.txt.gz", kGzipText), "2");
}

TEST_F(CorpusTest, RejectsCompressedFiles) {
  const auto refused = [](auto... words) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr(words)...));
  };
  EXPECT_THAT(FindDataFiles({{Write("a.jsonl.xz", "\xfd\x37zXZ text")}}),
              refused("a.jsonl.xz", "is compressed; decompress it first (xz"));
  EXPECT_THAT(FindDataFiles({{Write("b.txt", "BZh91AY&SY text")}}),
              refused("b.txt", "bzip2 -dk"));
  EXPECT_THAT(FindDataFiles({{Write("d.txt", "\xff\xfe\x61")}}),
              refused("d.txt", "is UTF-16; convert it first (iconv"));
  EXPECT_THAT(FindDataFiles({{directory_}}), refused("a.jsonl.xz"));
  EXPECT_THAT(FindDataFiles({{Path("*.xz")}}), refused("a.jsonl.xz"));
  std::filesystem::remove(Path("a.jsonl.xz"));
  // Other files that are not skipped silently.
  EXPECT_EQ(FindDataFiles({{Write("n.jsonl", std::string(9, '\0'))}})->size(),
            1u);
  EXPECT_EQ(Found({directory_}), "n.jsonl ");
  std::filesystem::remove(Path("n.jsonl"));
  ASSERT_EQ(symlink("loop", Path("loop").c_str()), 0);
  for (const std::string& path : {directory_, Path("l*"), Path("loop")}) {
    EXPECT_FALSE(FindDataFiles({{path}}).ok());
    EXPECT_THAT(Found({path}), HasSubstr("cannot read data file"));
  }
  std::filesystem::remove(Path("loop"));
  ASSERT_EQ(symlink("missing", Path("dangling").c_str()), 0);
  EXPECT_THAT(Found({Path("dangling")}), HasSubstr("No such file"));
  Write("c.txt", "c");
  EXPECT_EQ(Found({directory_}), "c.txt ");
}

TEST_F(CorpusTest, NamesMayContainAnyCharacters) {
  const std::vector<std::string> names = {"corpus-2024-01-01T10:30.jsonl",
                                          "with space.txt",
                                          "[brackets].txt",
                                          "a,b.txt",
                                          "star*.txt",
                                          "caf\xe9.txt",
                                          "data:0.7"};
  for (const std::string& name : names) {
    Write(name, "x");
    EXPECT_EQ(Found({Path(name)}), name + " ");
    EXPECT_TRUE(NamesData(Path(name)));
  }
  EXPECT_TRUE(NamesData(Path("*T10:30*")));
  EXPECT_FALSE(NamesData(Path("nix*")));
}

TEST(JoinNamesTest, JoinsNamesWithCommas) {
  const std::vector<std::string> names = {"a", "b,c", "d,e,f", "a,b", "c"};
  const auto join = [&](const std::vector<std::string>& parts) {
    return JoinNames(parts, [&](const std::string& name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    });
  };
  using Parts = std::vector<std::string>;
  EXPECT_EQ(join({}), Parts());
  EXPECT_EQ(join({"a", "c"}), (Parts{"a", "c"}));
  EXPECT_EQ(join({"a", "b", "c"}), (Parts{"a", "b,c"}));
  EXPECT_EQ(join({"a", "b"}), (Parts{"a,b"}));
  EXPECT_EQ(join({"d", "e", "f", "a", "b"}), (Parts{"d,e,f", "a,b"}));
  EXPECT_EQ(join({"a", "x", "b", "c"}), (Parts{"a", "x", "b", "c"}));
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
  Write("tokens.idx", "");
  refused({Path("tokens")}, kNotFound, "pattern; give \"", "tokens.idx\"");
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

TEST_F(CorpusTest, PolicyDeterminesWhereSpecialTokensAreIds) {
  // "!" is the special token 7, which is also the end of text.
  class WithSpecial : public ByteTokenizer {
    std::optional<TokenId> end_of_text() const override { return 7; }
    void AppendTokens(std::string_view text, SpecialTokens special,
                      std::vector<TokenId>& ids) const override {
      for (const char c : text) {
        const bool is_id = c == '!' && special == SpecialTokens::kRecognised;
        ids.push_back(is_id ? 7 : c);
      }
    }
  };
  const std::vector<Document> documents = {
      {.text = "a!"}, {"b!", "c!", true}, {"", "!d", true}, {"e!", "", true}};
  const auto ids = [&](SpecialTokenPolicy policy) {
    WithSpecial tokenizer;
    tokenizer.set_special_tokens(policy);
    const auto corpus = Corpus::FromDocuments(documents, tokenizer);
    return ReadAll(**corpus);
  };
  // A text that ends with the end of text gets no second one.
  EXPECT_THAT(ids(SpecialTokenPolicy::kPairs),
              ElementsAre('a', '!', 7, 'b', 7, 'c', 7, 7, 'd', 7, 'e', 7, 7));
  EXPECT_THAT(ids(SpecialTokenPolicy::kAll),
              ElementsAre('a', 7, 'b', 7, 'c', 7, 7, 'd', 7, 'e', 7, 7));
  EXPECT_THAT(ids(SpecialTokenPolicy::kNone),
              ElementsAre('a', '!', 7, 'b', '!', 'c', '!', 7, '!', 'd', 7, 'e',
                          '!', 7));
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
  // Text with the name of a token file.
  const std::string text =
      "Text, not tokens. Na\xc3\xafve caf\xc3\xa9s!\r\n\t\n";
  // Is cut off within a character after 8000 bytes.
  std::string much = "\xc3\xa9.";
  while (much.size() < 16000) much += "\xc3\xa9";
  for (const std::string name : {"t.u16", "t.u32", "t.bin"}) {
    for (const std::string& contents : {text + text, much}) {
      EXPECT_THAT(TokenFile::Open(Write(name, contents), 65536),
                  refused(name, "it is text, not tokens"));
    }
  }
  for (const std::string end : {"\xff\x01", "\x02\x01"}) {
    TESSERA_EXPECT_OK(
        TokenFile::Open(Write("u.u16", text + text + end + text + text), 9));
  }
  // The largest 32-bit value is neither a valid nor a negative id.
  Write("z.u32", "\xff\xff\xff\xff");
  EXPECT_THAT(Corpus::Open({{Path("z.u32")}}, ByteTokenizer()),
              refused("token 0 is 4294967295"));
}

// Source: dev/data/data_common.py of llm.c.
TEST_F(CorpusTest, ReadsTokenFilesOfLlmC) {
  const auto write = [&](std::string_view name, int32_t magic, int32_t version,
                         int32_t count, std::string_view tokens) {
    std::vector<int32_t> header(256);
    header[0] = magic;
    header[1] = version;
    header[2] = count;
    const auto* const bytes = reinterpret_cast<const char*>(header.data());
    return Write(name, absl::StrCat(std::string_view(bytes, 1024), tokens));
  };
  const std::string_view narrow("\x05\0\x01\x01\x07\0", 6);
  const std::string_view wide("\x05\0\0\0\x00\x01\0\0", 8);
  const auto tokens = [&](const std::string& path) {
    const auto corpus = Corpus::Open({{path}}, ByteTokenizer());
    return corpus.ok() ? ReadAll(**corpus) : std::vector<TokenId>();
  };
  for (const char* name : {"gpt2.bin", "gpt2.u16"}) {
    EXPECT_THAT(tokens(write(name, 20240520, 1, 1, narrow.substr(4))),
                ElementsAre(7));
  }
  for (const char* name : {"llama3.bin", "llama3.u16", "llama3.u32"}) {
    EXPECT_THAT(tokens(write(name, 20240801, 7, 2, wide)), ElementsAre(5, 256));
  }
  const auto refused = [](auto... words) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr(words)...));
  };
  EXPECT_THAT(TokenFile::Open(write("v.bin", 20240520, 2, 3, narrow), 300),
              refused("v.bin", "version 2 and 3 tokens; supported is", "1"));
  EXPECT_THAT(TokenFile::Open(write("n.bin", 20240520, 1, -3, narrow), 300),
              refused("-3 tokens"));
  EXPECT_THAT(TokenFile::Open(write("c.bin", 20240520, 1, 4, narrow), 300),
              refused("a regular file of 4 tokens", "from byte 1024"));
  // The ids are checked as in other token files.
  EXPECT_THAT(
      Corpus::Open({{write("o.bin", 20240520, 1, 3, narrow)}}, ByteTokenizer()),
      refused("token 1 is 257; the vocabulary has 257"));
}

}  // namespace
}  // namespace tessera::text

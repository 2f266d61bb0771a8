#include "tools/text/token_cache.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/text/corpus.h"
#include "tools/text/text_hash.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;

// A byte tokenizer that looks as if it was loaded from a file, and counts the
// texts that it encodes.
class CountingTokenizer : public ByteTokenizer {
 public:
  explicit CountingTokenizer(uint64_t fingerprint = 7) {
    set_fingerprint(fingerprint);
  }
  void AppendTokens(std::string_view text, SpecialTokens special,
                    std::vector<TokenId>& ids) const override {
    ++texts_;
    ByteTokenizer::AppendTokens(text, special, ids);
  }
  int texts() const { return texts_; }

 private:
  mutable std::atomic<int> texts_ = 0;
};

class TokenCacheTest : public ::testing::Test {
 protected:
  TokenCacheTest() {
    fs::remove_all(root_);
    fs::create_directory(root_);
  }

  std::string Write(std::string_view name, std::string_view contents) {
    const std::string path = absl::StrCat(root_, "/", name);
    TESSERA_EXPECT_OK(WriteFile(path, contents));
    return path;
  }
  // A text of `kMinTextBytes` that ends in `end`.
  static std::string Long(std::string_view end) {
    const auto size = static_cast<size_t>(TokenCache::kMinTextBytes);
    return absl::StrCat(std::string(size - end.size(), 'x'), end);
  }
  std::vector<std::string> Entries() const {
    std::vector<std::string> paths;
    if (!fs::exists(cache_)) return paths;
    for (const auto& entry : fs::directory_iterator(cache_)) {
      if (entry.path().extension() == ".idx") paths.push_back(entry.path());
    }
    return paths;
  }

  const std::string root_ = absl::StrCat(::testing::TempDir(), "/token_cache");
  const std::string cache_ = root_ + "/deep/tokens";
};

TEST_F(TokenCacheTest, KeepsLongTextsOfTokenizersFromFiles) {
  const TokenCache cache(cache_);
  const CountingTokenizer tokenizer;
  const DataFile text = {Write("a.txt", Long("a")), DataKind::kText};
  EXPECT_TRUE(cache.Keeps(text, tokenizer));
  EXPECT_FALSE(cache.Keeps(text, ByteTokenizer()));
  EXPECT_FALSE(TokenCache("").Keeps(text, tokenizer));
  EXPECT_FALSE(cache.Keeps({text.path, DataKind::kU16}, tokenizer));
  EXPECT_FALSE(cache.Keeps(
      {Write("b.txt", Long("").substr(1)), DataKind::kText}, tokenizer));
  EXPECT_FALSE(cache.Keeps({root_ + "/none", DataKind::kText}, tokenizer));
}

TEST_F(TokenCacheTest, TextsAreTokenisedOnceAndTheCorpusIsTheSame) {
  const CountingTokenizer tokenizer;
  const std::vector<std::string> paths = {
      Write("a.txt", Long("end")), Write("short.txt", "short"),
      Write("b.jsonl", absl::StrCat("{\"text\": \"", Long("1"),
                                    "\"}\n{\"text\": \"\"}\n"
                                    "{\"text\": \"two\"}\n"))};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto plain,
                               Corpus::Open(paths, tokenizer));
  EXPECT_EQ(tokenizer.texts(), 5);
  // The second time it encodes only the short text, which is not cached.
  for (const int texts : {10, 11}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto cached, Corpus::Open(paths, tokenizer, TokenCache(cache_)));
    EXPECT_EQ(tokenizer.texts(), texts);
    EXPECT_EQ(cached->fingerprint(), plain->fingerprint());
    EXPECT_LT(cached->memory_bytes(), 100);
    ASSERT_EQ(cached->token_count(), plain->token_count());
    std::vector<TokenId> want(static_cast<size_t>(plain->token_count()));
    std::vector<TokenId> got(want.size());
    TESSERA_ASSERT_OK(plain->Read(0, want));
    TESSERA_ASSERT_OK(cached->Read(0, got));
    EXPECT_EQ(got, want);
  }
  EXPECT_EQ(Entries().size(), 2u);
}

TEST_F(TokenCacheTest, PromptsMatchText) {
  const CountingTokenizer tokenizer;
  const std::vector<std::string> paths = {
      Write("short.jsonl", R"({"prompt": "a", "completion": "b"})"),
      Write("long.jsonl",
            absl::StrCat(R"({"prompt": "question", "completion": "answer"})",
                         "\n{\"text\": \"", Long("1"), "\"}\n",
                         R"({"prompt": "", "completion": "c"})", "\n",
                         R"({"prompt": "more", "completion": ""})", "\n"))};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto plain,
                               Corpus::Open(paths, tokenizer));
  EXPECT_EQ(plain->prompts().ranges().size(), 3u);
  for (int i = 0; i < 2; ++i) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const auto cached, Corpus::Open(paths, tokenizer, TokenCache(cache_)));
    EXPECT_EQ(cached->prompts(), plain->prompts());
    EXPECT_EQ(cached->fingerprint(), plain->fingerprint());
    EXPECT_LT(cached->memory_bytes(), 200);
  }
  EXPECT_EQ(Entries().size(), 1u);
}

TEST_F(TokenCacheTest, KeyCoversTextTokenizerAndKind) {
  const TokenCache cache(cache_);
  const CountingTokenizer one(1), two(2);
  DataFile file = {Write("a.txt", Long("a")), DataKind::kText};
  TESSERA_ASSERT_OK(cache.Open(file, one));
  TESSERA_ASSERT_OK(cache.Open(file, two));
  EXPECT_EQ(Entries().size(), 2u);
  Write("a.txt", Long("b"));
  TESSERA_ASSERT_OK(cache.Open(file, one));
  EXPECT_EQ(Entries().size(), 3u);
  // A copy has the same entry.
  const DataFile copy = {Write("copy.txt", Long("b")), DataKind::kText};
  TESSERA_ASSERT_OK(cache.Open(copy, one));
  EXPECT_EQ(Entries().size(), 3u);
  EXPECT_EQ(one.texts(), 2);
}

TEST_F(TokenCacheTest, DamagedEntriesAreReplaced) {
  const TokenCache cache(cache_);
  const CountingTokenizer tokenizer;
  const DataFile file = {Write("a.txt", Long("a")), DataKind::kText};
  TESSERA_ASSERT_OK(cache.Open(file, tokenizer));
  ASSERT_EQ(Entries().size(), 1u);
  const std::string index = Entries()[0];
  const std::string tokens =
      absl::StrCat(index.substr(0, index.size() - 4), ".bin");
  int texts = 1;
  for (const std::string& path : {index, tokens}) {
    fs::resize_file(path, fs::file_size(path) - 2);
    TESSERA_ASSERT_OK(cache.Open(file, tokenizer));
    EXPECT_EQ(tokenizer.texts(), ++texts);
  }
  // An id outside the vocabulary is detected when the tokens are read; the
  // texts are used instead.
  std::string bytes = *ReadFile(tokens, 1 << 22);
  bytes[bytes.size() / 2 / 2 * 2 + 1] = '\x7f';
  TESSERA_ASSERT_OK(WriteFile(tokens, bytes));
  const std::vector<std::string> paths = {file.path};
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto plain,
                               Corpus::Open(paths, tokenizer));
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto cached,
                               Corpus::Open(paths, tokenizer, cache));
  EXPECT_EQ(cached->fingerprint(), plain->fingerprint());
  EXPECT_GT(cached->memory_bytes(), 0);
}

TEST_F(TokenCacheTest, TokenisesInMemoryWithoutDirectory) {
  const CountingTokenizer tokenizer;
  const std::vector<std::string> paths = {Write("a.txt", Long("a"))};
  const TokenCache cache(Write("file", "not a directory"));
  EXPECT_FALSE(cache.Open({paths[0], DataKind::kText}, tokenizer).ok());
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto corpus,
                               Corpus::Open(paths, tokenizer, cache));
  EXPECT_EQ(corpus->token_count(), TokenCache::kMinTextBytes + 1);
}

TEST_F(TokenCacheTest, NamesInvalidDocumentsWithoutEntry) {
  const CountingTokenizer tokenizer;
  const std::vector<std::string> paths = {
      Write("b.jsonl", absl::StrCat("{\"text\": \"", Long("1"), "\"}\n{}\n"))};
  EXPECT_THAT(Corpus::Open(paths, tokenizer, TokenCache(cache_)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("b.jsonl\", line 2")));
  EXPECT_TRUE(Entries().empty());
}

// Changes a file while it encodes it.
class ChangingTokenizer : public CountingTokenizer {
 public:
  explicit ChangingTokenizer(std::string path) : path_(std::move(path)) {}
  void AppendTokens(std::string_view text, SpecialTokens special,
                    std::vector<TokenId>& ids) const override {
    TESSERA_EXPECT_OK(WriteFile(path_, absl::StrCat(text, "more")));
    CountingTokenizer::AppendTokens(text, special, ids);
  }

 private:
  std::string path_;
};

TEST_F(TokenCacheTest, ChangedFileLeavesNoEntry) {
  // So long that it is encoded before all of it is read.
  std::string text;
  for (int i = 0; i < 17; ++i) {
    absl::StrAppend(&text, "{\"text\": \"", Long("a"), "\"}\n");
  }
  const std::string path = Write("a.jsonl", text);
  EXPECT_THAT(TokenCache(cache_).Open({path, DataKind::kJsonLines},
                                      ChangingTokenizer(path)),
              StatusIs(absl::StatusCode::kAborted,
                       ::testing::HasSubstr("a.jsonl\" changed")));
  EXPECT_TRUE(Entries().empty());
}

TEST_F(TokenCacheTest, OneOfManyCallersCreatesEntry) {
  const CountingTokenizer tokenizer;
  const DataFile file = {Write("a.txt", Long("a")), DataKind::kText};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto tokens = TokenCache(cache_).Open(file, tokenizer);
      TESSERA_EXPECT_OK(tokens);
      if (tokens.ok()) {
        EXPECT_EQ(tokens->token_count(), TokenCache::kMinTextBytes + 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tokenizer.texts(), 1);
}

TEST(TextHashTest, DependsOnEveryByteAndNotOnTheParts) {
  const auto hash_of = [](std::initializer_list<std::string_view> parts) {
    TextHash hash;
    for (const std::string_view part : parts) hash.Add(part);
    return hash.value();
  };
  const std::string_view text = "The loss of every step is 1.25";
  const uint64_t whole = hash_of({text});
  for (size_t i = 0; i <= text.size(); ++i) {
    EXPECT_EQ(hash_of({text.substr(0, i), text.substr(i)}), whole);
    EXPECT_NE(hash_of({text.substr(0, i), "!", text.substr(i)}), whole);
  }
  EXPECT_NE(hash_of({std::string_view("a\0", 2)}), hash_of({"a"}));
  EXPECT_NE(hash_of({}), hash_of({std::string_view("\0", 1)}));
}

}  // namespace
}  // namespace tessera::text

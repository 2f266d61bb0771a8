#include "tools/text/bpe_tokenizer.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tools/text/characters.h"
#include "tools/text/tokenizer.h"
#include "tools/text/word_splitter.h"

namespace tessera::text {

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The definition of BPE: repeatedly applies the first merge of the list that
// fits, at its leftmost position.
std::vector<std::string> SlowMerges(
    std::string_view word,
    const std::vector<std::pair<std::string, std::string>>& merges) {
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    size_t best = merges.size(), at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto pair = std::pair(parts[i], parts[i + 1]);
      const auto rank = static_cast<size_t>(
          std::find(merges.begin(), merges.end(), pair) - merges.begin());
      if (rank < best) best = rank, at = i;
    }
    if (best == merges.size()) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(BpeModelTest, MatchesDefinition) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 300; ++round) {
    BpeModel::Options options;
    std::vector<std::string> tokens = {"a", "b", "c"};
    for (size_t i = 0; i < random() % 30; ++i) {
      const auto pair = std::pair(tokens[random() % tokens.size()],
                                  tokens[random() % tokens.size()]);
      if (std::find(options.merges.begin(), options.merges.end(), pair) !=
          options.merges.end()) {
        continue;
      }
      options.merges.push_back(pair);
      const std::string both = pair.first + pair.second;
      if (std::find(tokens.begin(), tokens.end(), both) == tokens.end()) {
        tokens.push_back(both);
      }
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      options.vocabulary[tokens[i]] = static_cast<TokenId>(i);
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const BpeModel model,
                                 BpeModel::Create(options));
    BpeModel::Scratch scratch;
    for (int text = 0; text < 30; ++text) {
      std::string word;
      for (size_t i = 0; i < random() % 40; ++i) {
        word += static_cast<char>('a' + random() % 3);
      }
      std::vector<TokenId> ids;
      model.AppendWord(word, scratch, ids);
      std::vector<std::string> parts;
      for (const TokenId id : ids) {
        parts.push_back(tokens[static_cast<size_t>(id)]);
      }
      ASSERT_EQ(parts, SlowMerges(word, options.merges)) << word;
    }
  }
}

TEST(BpeModelTest, LongWordsTakeNoQuadraticTime) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const BpeModel model,
      BpeModel::Create({.vocabulary = {{"a", 0}, {"aa", 1}, {"aaaa", 2}},
                        .merges = {{"a", "a"}, {"aa", "aa"}}}));
  BpeModel::Scratch scratch;
  std::vector<TokenId> ids;
  model.AppendWord(std::string(400'003, 'a'), scratch, ids);
  EXPECT_EQ(ids.size(), 100'002u);
  EXPECT_EQ(std::vector<TokenId>(ids.end() - 3, ids.end()),
            (std::vector<TokenId>{2, 1, 0}));
}

TEST(BpeModelTest, OmitsBytesWithoutToken) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const BpeModel model,
      BpeModel::Create({.vocabulary = {{"a", 0}, {"b", 1}, {"ab", 2}},
                        .merges = {{"a", "b"}}}));
  EXPECT_FALSE(model.covers_all_bytes());
  BpeModel::Scratch scratch;
  std::vector<TokenId> ids;
  model.AppendWord("axb", scratch, ids);
  model.AppendWord("xyz", scratch, ids);
  model.AppendWord("", scratch, ids);
  EXPECT_THAT(ids, ElementsAre(2));
}

TEST(BpeModelTest, PrefersWholeWordsIfRequested) {
  BpeModel::Options options = {
      .vocabulary = {{"a", 0}, {"b", 1}, {"aba", 2}, {"ab", 3}},
      .merges = {{"a", "b"}},
      .whole_words_first = true};
  BpeModel::Scratch scratch;
  for (const bool whole : {true, false}) {
    options.whole_words_first = whole;
    TESSERA_ASSERT_OK_AND_ASSIGN(const BpeModel model,
                                 BpeModel::Create(options));
    std::vector<TokenId> ids;
    model.AppendWord("aba", scratch, ids);
    EXPECT_EQ(ids,
              whole ? std::vector<TokenId>{2} : (std::vector<TokenId>{3, 0}));
  }
}

TEST(BpeTokenizerTest, RejectsInvalidIds) {
  const auto create = [](TokenId a, TokenId b) {
    return BpeTokenizer::Create(
        {.model = {.vocabulary = {{"a", a}, {"b", b}}, .merges = {}}});
  };
  TESSERA_EXPECT_OK(create(0, 1000));
  const auto refused = [](std::string_view words) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    HasSubstr(std::string(words)));
  };
  EXPECT_THAT(create(-1, 0), refused("token \"a\" has id -1"));
  EXPECT_THAT(create(0, std::numeric_limits<TokenId>::max()),
              refused("token \"b\" has id 2147483647"));
  EXPECT_THAT(create(3, 3), refused("have the same id, 3"));
  EXPECT_THAT(BpeTokenizer::Create({.end_of_text = 7}),
              refused("the end-of-text id 7 is not a token's id"));
}

TEST(BpeTokenizerTest, ManyDifferentWordsOutgrowTheCache) {
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const BpeTokenizer tokenizer,
      BpeTokenizer::Create(
          {.model = {.vocabulary = {{"0", 0}, {"1", 1}, {" ", 2}, {"01", 3}},
                     .merges = {{"0", "1"}}},
           .last_rule = SplitRule::kGpt2}));
  std::string text;
  for (uint32_t i = 0; i < 100'000; ++i) {
    text += ' ';
    for (int bit = 0; bit < 17; ++bit) text += (i >> bit & 1) != 0 ? '1' : '0';
  }
  EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text)), text);
}

TEST(AddedTokensTest, FindsLeftmostLongestToken) {
  const AddedTokens added(
      {{1, "<a>", false}, {2, "<a><b>", true}, {3, "b", true}});
  const auto find = [&](std::string_view text, size_t begin, bool special) {
    const AddedTokens::Match match = added.Find(text, begin, special);
    return std::pair(match.begin,
                     match.token == nullptr ? -1 : match.token->id);
  };
  EXPECT_EQ(find("x<a><b>", 0, true), std::pair(size_t{1}, 2));
  EXPECT_EQ(find("x<a><b>", 0, false), std::pair(size_t{1}, 1));
  EXPECT_EQ(find("x<a><b>", 2, true), std::pair(size_t{5}, 3));
  EXPECT_EQ(find("x<a><b>", 2, false), std::pair(size_t{7}, -1));
  EXPECT_EQ(find("<a", 0, true), std::pair(size_t{2}, -1));
  EXPECT_EQ(AddedTokens().Find("abc", 0, true).token, nullptr);
}

TEST(ByteAlphabetTest, EveryByteHasItsOwnCharacter) {
  std::set<std::string> bytes;
  for (uint32_t code = 0; code < 0x800; ++code) {
    std::string character = {static_cast<char>(0xC0 | code >> 6),
                             static_cast<char>(0x80 | (code & 0x3F))};
    if (code < 0x80) character = static_cast<char>(code);
    const std::optional<std::string> read = BytesOfWritten(character);
    if (!read.has_value()) continue;
    EXPECT_EQ(read->size(), 1u) << code;
    EXPECT_TRUE(bytes.insert(*read).second) << code;
  }
  EXPECT_EQ(bytes.size(), 256u);
  EXPECT_EQ(BytesOfWritten("ĠaĊ"), " a\n");
  // The first and the last character past U+00FF: bytes 0 and 0xAD.
  EXPECT_EQ(BytesOfWritten("\u0100\u0143~"), std::string("\0\xad~", 3));
  for (const char* other : {" ", "\n", "\u0144", "\u4e00", "\xff", "a b"}) {
    EXPECT_EQ(BytesOfWritten(other), std::nullopt) << other;
  }
}

TEST(ByteTokenizerTest, RoundTripsAnyBytes) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(tokenizer.vocabulary_size(), 257);
  EXPECT_EQ(tokenizer.end_of_text(), 256);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::vector<TokenId> ids = tokenizer.Encode(all);
  for (size_t i = 0; i < 256; ++i) EXPECT_EQ(ids[i], static_cast<TokenId>(i));
  EXPECT_EQ(tokenizer.Decode(ids), all);
  EXPECT_EQ(tokenizer.Decode(std::vector<TokenId>{-1, 65, 256, 999}), "A");
  EXPECT_THAT(tokenizer.Encode(""), IsEmpty());
}

// Every byte belongs to exactly one word.
TEST(WordSplitterFuzzTest, WordsCoverAnyBytes) {
  std::mt19937_64 random(4);
  const std::string_view pieces[] = {
      " ",  "\n", "\r",   "'s",       "'", "a",      "1", "é",
      "一", "👍",  "\xff", "\xe4\xb8", "ſ", "\u00a0", "!", "½"};
  for (int round = 0; round < 40'000; ++round) {
    std::string text;
    for (size_t i = 0; i <= random() % 12; ++i) {
      text += pieces[random() % std::size(pieces)];
    }
    for (const SplitRule rule :
         {SplitRule::kGpt2, SplitRule::kLlama3, SplitRule::kQwen2,
          SplitRule::kDigits, SplitRule::kDigitRuns}) {
      for (size_t at = 0; at < text.size();) {
        const size_t end = WordEnd(rule, text, at);
        ASSERT_GT(end, at);
        ASSERT_LE(end, text.size());
        at = end;
      }
    }
  }
}

}  // namespace

}  // namespace tessera::text

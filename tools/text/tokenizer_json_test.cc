#include "tools/text/tokenizer_json.h"

#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "base/testing/text_mutator.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/text/characters.h"
#include "tools/text/word_splitter.h"

namespace tessera::text {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr char kDirectory[] = "tools/text/testdata";

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

const Json& Document() {
  static const auto* const document = new Json(
      Json::parse(ReadAll(absl::StrCat(kDirectory, "/tokenizer.json"))));
  return *document;
}

// Compares with the ids of the tokenizers package (make_testdata.py).
TEST(GoldenTest, EveryKindMatchesReferencePackage) {
  const Json golden =
      Json::parse(ReadAll(absl::StrCat(kDirectory, "/golden.json")));
  const std::vector<std::string> texts = golden["texts"];
  ASSERT_GT(texts.size(), 50u);
  ASSERT_EQ(golden["variants"].size(), 7u);
  for (const auto& [name, variant] : golden["variants"].items()) {
    Json document = Document();
    document["pre_tokenizer"] = variant["pre_tokenizer"];
    document["model"]["ignore_merges"] = variant["ignore_merges"];
    document["normalizer"] = variant["normalizer"];
    TESSERA_ASSERT_OK_AND_ASSIGN(const BpeTokenizer tokenizer,
                                 ParseTokenizerJson(document.dump(), ""));
    EXPECT_TRUE(tokenizer.covers_all_bytes());
    const bool adds_spaces = name == "prefix" || name == "digit_runs";
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<TokenId> expected = golden["ids"][name][i];
      const std::vector<TokenId> ids =
          tokenizer.Encode(texts[i], SpecialTokens::kRecognised);
      EXPECT_EQ(ids, expected) << name << ": " << texts[i];
      if (!adds_spaces) {
        EXPECT_EQ(tokenizer.Decode(ids), variant["normalizer"].is_null()
                                             ? texts[i]
                                             : ComposedForm(texts[i]));
      }
    }
    for (const auto& [index, ids] : golden["ids_as_text"][name].items()) {
      size_t i = 0;
      ASSERT_TRUE(absl::SimpleAtoi(index, &i));
      EXPECT_EQ(tokenizer.Encode(texts[i]), ids.get<std::vector<TokenId>>())
          << name << ": " << texts[i];
    }
  }
}

// Compares with the package for BPE of characters and all kinds of added tokens
// (make_marks_testdata.py).
TEST(GoldenTest, MarkedSpacesAndAddedTokensMatchReferencePackage) {
  const Json golden =
      Json::parse(ReadAll(absl::StrCat(kDirectory, "/marks_golden.json")));
  const std::vector<std::string> texts = golden["texts"];
  ASSERT_EQ(golden["variants"].size(), 6u);
  for (const auto& [name, variant] : golden["variants"].items()) {
    Json document = variant["base"] == "bytes" ? Document() : golden["marks"];
    for (const char* key :
         {"added_tokens", "normalizer", "pre_tokenizer", "decoder"}) {
      document[key] = variant[key];
    }
    TESSERA_ASSERT_OK_AND_ASSIGN(const BpeTokenizer tokenizer,
                                 ParseTokenizerJson(document.dump(), ""));
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<TokenId> expected = variant["ids"][i];
      EXPECT_EQ(tokenizer.Encode(texts[i], SpecialTokens::kRecognised),
                expected)
          << name << ": " << texts[i];
      const std::string decoded = variant["decoded"][i];
      // The package decodes accents in added tokens as bytes.
      if (!absl::StrContains(decoded, "\uFFFD")) {
        EXPECT_EQ(tokenizer.Decode(expected), decoded) << name;
      }
    }
  }
}

Json Sequence(const char* list, std::vector<Json> steps) {
  return {{"type", "Sequence"}, {list, std::move(steps)}};
}

// The tokenizers package gives these forms the ids of the plain ones, too
// (make_testdata.py).
TEST(GoldenTest, FormsWithoutEffectHaveIdsOfPlainForms) {
  const Json golden =
      Json::parse(ReadAll(absl::StrCat(kDirectory, "/golden.json")));
  const std::vector<std::string> texts = golden["texts"];
  const auto expect_ids = [&](const Json& document, const char* name) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const BpeTokenizer tokenizer,
                                 ParseTokenizerJson(document.dump(), ""));
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::vector<TokenId> expected = golden["ids"][name][i];
      EXPECT_EQ(tokenizer.Encode(texts[i], SpecialTokens::kRecognised),
                expected)
          << document["normalizer"] << document["pre_tokenizer"] << texts[i];
    }
  };
  const auto normalizers = [](std::vector<Json> steps) {
    return Sequence("normalizers", std::move(steps));
  };
  const auto pre_tokenizers = [](std::vector<Json> steps) {
    return Sequence("pretokenizers", std::move(steps));
  };
  const Json nfc = {{"type", "NFC"}};
  for (const auto& [name, form] : golden["no_ops"].items()) {
    Json document = Document();
    document["normalizer"] = form;
    expect_ids(document, "gpt2");
    document["normalizer"] = normalizers({form, normalizers({nfc}), nfc, form});
    document["pre_tokenizer"] = golden["variants"]["qwen2"]["pre_tokenizer"];
    expect_ids(document, "qwen2_nfc");
  }
  EXPECT_EQ(golden["no_ops"].size(), 6u);
  Json document = Document();
  const Json bytes = document["pre_tokenizer"], empty = pre_tokenizers({});
  for (const Json& form :
       {pre_tokenizers({bytes}), pre_tokenizers({pre_tokenizers({bytes})}),
        pre_tokenizers({empty, bytes, empty})}) {
    document["pre_tokenizer"] = form;
    expect_ids(document, "gpt2");
  }
  for (const char* list : {"decoders", "processors"}) {
    const char* part = *list == 'd' ? "decoder" : "post_processor";
    for (const Json& form :
         {Sequence(list, {}), Sequence(list, {{{"type", "ByteLevel"}}})}) {
      document[part] = form;
      expect_ids(document, "gpt2");
    }
  }
}

TEST(TokenizerJsonTest, DecoderSequencesDecodeBytes) {
  const std::string text = "caf\u00e9 <|endoftext|>\n";
  const Json bytes = {{"type", "ByteLevel"}}, fuse = {{"type", "Fuse"}};
  for (const std::vector<Json>& steps :
       {std::vector<Json>{},
        {bytes},
        {bytes, fuse},
        {fuse, bytes},
        {Sequence("decoders", {bytes}), Sequence("decoders", {})}}) {
    Json document = Document();
    document["decoder"] = Sequence("decoders", steps);
    TESSERA_ASSERT_OK_AND_ASSIGN(const BpeTokenizer tokenizer,
                                 ParseTokenizerJson(document.dump(), ""));
    EXPECT_EQ(tokenizer.Decode(tokenizer.Encode(text)), text);
  }
}

TEST(TokenizerJsonTest, MergesMayBePairsOrTexts) {
  Json document = Document();
  Json& merges = document["model"]["merges"];
  ASSERT_TRUE(merges[0].is_array());
  for (Json& merge : merges) {
    merge = absl::StrCat(merge[0].get<std::string>(), " ",
                         merge[1].get<std::string>());
  }
  TESSERA_ASSERT_OK_AND_ASSIGN(const BpeTokenizer texts,
                               ParseTokenizerJson(document.dump(), ""));
  TESSERA_ASSERT_OK_AND_ASSIGN(const BpeTokenizer pairs,
                               ParseTokenizerJson(Document().dump(), ""));
  const std::string text = ReadAll(absl::StrCat(kDirectory, "/golden.json"));
  EXPECT_EQ(texts.Encode(text), pairs.Encode(text));
  EXPECT_EQ(texts.Decode(texts.Encode(text)), text);
}

TEST(TokenizerJsonTest, EndOfTextIsGivenOrKnown) {
  const std::string json = Document().dump();
  TESSERA_ASSERT_OK_AND_ASSIGN(const BpeTokenizer known,
                               ParseTokenizerJson(json, ""));
  EXPECT_EQ(known.end_of_text(), 0);
  TESSERA_ASSERT_OK_AND_ASSIGN(const BpeTokenizer given,
                               ParseTokenizerJson(json, "<think>"));
  EXPECT_EQ(given.end_of_text(), 768);
  EXPECT_EQ(given.vocabulary_size(), 769);
  EXPECT_THAT(ParseTokenizerJson(json, "<nix>"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"<nix>\", is no token")));
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const BpeTokenizer none,
      ParseTokenizerJson(
          absl::StrReplaceAll(json, {{"<|endoftext|>", "<|x|>"}}), ""));
  EXPECT_EQ(none.end_of_text(), std::nullopt);
}

// Parses the document with `value` at the JSON pointer `where`.
absl::Status With(const char* where, const Json& value) {
  Json document = Document();
  document[Json::json_pointer(where)] = value;
  return ParseTokenizerJson(document.dump(), "").status();
}

TEST(TokenizerJsonTest, RejectsUnsupportedFeaturesAndNamesKey) {
  const auto refused = [](auto... words) {
    return StatusIs(absl::StatusCode::kUnimplemented,
                    AllOf(HasSubstr("supported"), HasSubstr(words)...));
  };
  EXPECT_THAT(With("/model/type", "Unigram"),
              refused("model", "\"type\"", "Unigram", "\"BPE\""));
  EXPECT_THAT(With("/model/dropout", 0.1), refused("\"dropout\": 0.1"));
  EXPECT_THAT(With("/model/byte_fallback", true), refused("byte_fallback"));
  EXPECT_THAT(With("/model/continuing_subword_prefix", "##"),
              refused("continuing_subword_prefix", "##"));
  EXPECT_THAT(With("/model/end_of_word_suffix", "</w>"),
              refused("end_of_word_suffix"));
  EXPECT_THAT(With("/normalizer", {{"type", "NFKC"}}),
              refused("\"NFC\", \"Prepend\" and \"Replace\" of strings"));
  EXPECT_THAT(With("/normalizer", 3), refused("normalizer"));
  EXPECT_THAT(
      With("/normalizer", Sequence("normalizers", {{{"type", "NFC"}},
                                                   {{"type", "Lowercase"}}})),
      refused("normalizer: \"Lowercase\""));
  EXPECT_THAT(With("/normalizer", {{"type", "Strip"}, {"strip_left", true}}),
              refused("normalizer: \"Strip\""));
  EXPECT_THAT(With("/normalizer", {{"type", "Replace"},
                                   {"pattern", {{"Regex", " "}}},
                                   {"content", "_"}}),
              refused("normalizer: \"Replace\""));
  EXPECT_THAT(With("/decoder", {{"type", "Metaspace"}}), refused("decoder"));
  const Json byte_decoder = {{"type", "ByteLevel"}};
  EXPECT_THAT(
      With("/decoder", Sequence("decoders", {byte_decoder, byte_decoder})),
      refused("decoder"));
  EXPECT_THAT(With("/pre_tokenizer", Sequence("pretokenizers", {})),
              refused("model: without \"byte_fallback\": true"));
  EXPECT_THAT(With("/pre_tokenizer", nullptr), refused("pre_tokenizer"));
  EXPECT_THAT(
      With("/pre_tokenizer", {{"type", "Metaspace"}, {"replacement", "_"}}),
      refused("pre_tokenizer", "\"replacement\": \"_\""));
  EXPECT_THAT(With("/pre_tokenizer", {{"type", "Metaspace"},
                                      {"replacement", "\u2581"},
                                      {"prepend_scheme", "last"}}),
              refused("\"prepend_scheme\"", "always, first or never"));
  const auto sequence = [](std::vector<Json> steps) {
    return With("/pre_tokenizer",
                {{"type", "Sequence"}, {"pretokenizers", steps}});
  };
  const Json bytes = {{"type", "ByteLevel"}};
  const Json digits = {{"type", "Digits"}};
  TESSERA_EXPECT_OK(sequence({digits, bytes}));
  EXPECT_THAT(sequence({bytes, digits}), refused("step 0", "ByteLevel"));
  EXPECT_THAT(sequence({digits}), refused("step 0", "\"Digits\" at the end"));
  EXPECT_THAT(sequence({{{"type", "Whitespace"}}, bytes}),
              refused("\"Whitespace\" before the end"));
  const auto split = [&](Json pattern, std::string behavior, bool invert) {
    return sequence({{{"type", "Split"},
                      {"pattern", pattern},
                      {"behavior", behavior},
                      {"invert", invert}},
                     bytes});
  };
  for (const std::string_view known : KnownPatterns()) {
    const Json pattern = {{"Regex", known}};
    TESSERA_EXPECT_OK(split(pattern, "Isolated", false));
    EXPECT_THAT(split(pattern, "Removed", false),
                refused("\"behavior\"", "Removed"));
    EXPECT_THAT(split(pattern, "Isolated", true), refused("\"invert\": true"));
  }
  EXPECT_THAT(split({{"Regex", "\\w+"}}, "Isolated", false),
              refused("\"Regex\"", "\\w+"));
  EXPECT_THAT(split({{"String", " "}}, "Isolated", false),
              refused("\"pattern\""));
}

TEST(TokenizerJsonTest, RejectsWrongDocuments) {
  const auto refused = [](auto... words) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    AllOf(HasSubstr(words)...));
  };
  EXPECT_THAT(ParseTokenizerJson("[]", ""), refused("expected an object"));
  EXPECT_THAT(ParseTokenizerJson("{}", ""), refused("\"model\""));
  EXPECT_THAT(With("/model/vocab", Json::array()),
              refused("model", "\"vocab\""));
  EXPECT_THAT(With("/model/vocab/a", -1), refused("vocab \"a\"", "found -1"));
  EXPECT_THAT(With("/model/vocab/a", 1.5), refused("vocab \"a\"", "found 1.5"));
  EXPECT_THAT(With("/model/vocab/a", 2147483647),
              refused("has id 2147483647; for so many tokens ids are from 0"));
  EXPECT_THAT(With("/model/vocab/a", 300), refused("have the same id, 300"));
  EXPECT_THAT(With("/model/merges", 1), refused("model", "\"merges\""));
  EXPECT_THAT(With("/model/merges/3", "abc"), refused("merge 3", "\"abc\""));
  EXPECT_THAT(With("/model/merges/3", "a b c"), refused("merge 3"));
  EXPECT_THAT(With("/model/merges/3", {"a", ""}), refused("merge 3"));
  EXPECT_THAT(With("/model/merges/3", {"a", "b", "c"}), refused("merge 3"));
  EXPECT_THAT(With("/model/merges/3", {"q", "z"}),
              refused("merge 3: \"qz\" is not in the vocabulary"));
  EXPECT_THAT(With("/added_tokens", 3), refused("\"added_tokens\""));
  EXPECT_THAT(With("/added_tokens/1", {{"id", 1}}), refused("added_tokens 1"));
  EXPECT_THAT(With("/added_tokens/1/id", 5), refused("have the same id, 5"));
  EXPECT_THAT(With("/added_tokens/1/content", "a"),
              refused("\"a\" has id 768, and in the vocabulary id"));
  EXPECT_THAT(With("/added_tokens/1/content", ""), refused("has no text"));
  EXPECT_THAT(With("/added_tokens/1/special", 1), refused("\"special\""));
  EXPECT_THAT(With("/pre_tokenizer", {{"type", "Sequence"}}),
              refused("\"pretokenizers\""));
  EXPECT_THAT(With("/normalizer", {{"type", "Sequence"}, {"normalizers", 1}}),
              refused("normalizer", "\"normalizers\""));
  EXPECT_THAT(With("/pre_tokenizer/use_regex", "x"), refused("\"use_regex\""));
}

TEST(TokenizerJsonFuzzTest, DamagedDocumentsAreRejectedOrEncodeAndDecode) {
  Json small = Document();
  // Keeps only the alphabet and the first merges.
  Json& model = small["model"];
  Json merges = Json::array();
  for (size_t i = 0; i < 12; ++i) merges.push_back(model["merges"][i]);
  model["merges"] = merges;
  for (auto it = model["vocab"].begin(); it != model["vocab"].end();) {
    const bool keep = *it < 257 + 12 || *it == 0;
    it = keep ? std::next(it) : model["vocab"].erase(it);
  }
  small["added_tokens"][1]["id"] = 270;
  TESSERA_ASSERT_OK(ParseTokenizerJson(small.dump(), ""));
  // With a tiny vocabulary most of the damage is outside of it.
  Json tiny = small;
  tiny["model"]["vocab"] = {
      {"a", 1}, {"b", 2}, {"ab", 3}, {"<|endoftext|>", 0}};
  tiny["model"]["merges"] = {"a b"};
  tiny["added_tokens"][1]["id"] = 4;
  TESSERA_ASSERT_OK(ParseTokenizerJson(tiny.dump(), ""));
  TextMutator mutator({small.dump(), tiny.dump(), tiny.dump(), tiny.dump()},
                      {"null", "[]", "{}", "2147483647", "-1", "\"a\":",
                       std::string(100, '['), "\\u0120", "\"\"", "true"},
                      8);
  const std::string text = "abab <|endoftext|> b<think>\xff 12 \n\xc3\xa9";
  int valid = 0;
  for (int round = 0; round < 20'000; ++round) {
    const auto tokenizer = ParseTokenizerJson(mutator.Next(), "");
    if (!tokenizer.ok()) {
      ASSERT_TRUE(absl::IsInvalidArgument(tokenizer.status()) ||
                  absl::IsUnimplemented(tokenizer.status()));
      ASSERT_FALSE(tokenizer.status().message().empty());
      ASSERT_LT(tokenizer.status().message().size(), 3000u);
      continue;
    }
    ++valid;
    for (const auto special :
         {SpecialTokens::kRecognised, SpecialTokens::kAsText}) {
      const std::vector<TokenId> ids = tokenizer->Encode(text, special);
      for (const TokenId id : ids) {
        ASSERT_GE(id, 0);
        ASSERT_LT(id, tokenizer->vocabulary_size());
      }
      const std::string back = tokenizer->Decode(ids);
      if (tokenizer->covers_all_bytes()) {
        // Ignores spaces, because splitting may add some.
        ASSERT_EQ(absl::StrReplaceAll(back, {{" ", ""}}),
                  absl::StrReplaceAll(text, {{" ", ""}}));
      }
    }
  }
  EXPECT_GT(valid, 500);
}

}  // namespace
}  // namespace tessera::text

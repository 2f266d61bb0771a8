#include "tools/text/load_tokenizer.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/text/bpe_tokenizer.h"
#include "tools/text/sentencepiece_tokenizer.h"
#include "tools/text/text_hash.h"
#include "tools/text/tokenizer_files.h"
#include "tools/text/tokenizer_json.h"

namespace tessera::text {
namespace {

using Json = nlohmann::json;
using TokenizerPointer = std::unique_ptr<Tokenizer>;

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

// The object of a tokenizer_config.json; empty if the file is missing.
absl::StatusOr<Json> ReadConfig(const std::string& path) {
  if (!PathExists(path)) return Json::object();
  TESSERA_ASSIGN_OR_RETURN(const std::string json,
                           ReadFile(path, kMaxConfigBytes));
  TESSERA_ASSIGN_OR_RETURN(Json document,
                           ParseJson(json, {.max_bytes = kMaxConfigBytes}),
                           Annotate(_, QuotedPath(path)));
  return document.is_object() ? std::move(document) : Json::object();
}

// The text of a token, which is a string or an object that contains one; "" if
// it is missing.
std::string TokenText(const Json& config, const char* key) {
  Json token = config.value(key, Json());
  if (token.is_object()) token = Json(token.value("content", Json()));
  return token.is_string() ? token.get<std::string>() : "";
}

// The begin of text that a tokenizer_config.json selects; nullopt if it selects
// none, so that the post_processor of the tokenizer.json applies.
absl::StatusOr<std::optional<std::vector<TokenId>>> BeginOfText(
    const Json& config, const Tokenizer& tokenizer) {
  using Ids = std::vector<TokenId>;
  if (!config.contains("add_bos_token") && !config.contains("add_eos_token")) {
    return std::nullopt;
  }
  const std::string bos = TokenText(config, "bos_token");
  if (config.value("add_bos_token", Json()) != true || bos.empty()) {
    return Ids();
  }
  const Json added = config.value("added_tokens_decoder", Json::object());
  for (const auto& [key, token] : added.items()) {
    TokenId id = 0;
    if (token.is_object() && token.value("content", Json()) == bos &&
        absl::SimpleAtoi(key, &id)) {
      return Ids{id};
    }
  }
  Ids ids = tokenizer.Encode(bos, SpecialTokens::kRecognised);
  if (ids.size() == 1) return ids;
  return absl::InvalidArgumentError(absl::StrCat(
      "tokenizer_config.json: the bos_token, ", Quoted(bos), ", is no token"));
}

// The tokens that the files beside a tokenizer.model add to it, with their ids.
absl::StatusOr<std::vector<std::pair<std::string, TokenId>>> AddedBeside(
    const std::string& directory, const Json& config) {
  std::vector<std::pair<std::string, TokenId>> added;
  TESSERA_ASSIGN_OR_RETURN(
      const Json file,
      ReadConfig(absl::StrCat(directory, "added_tokens.json")));
  for (const auto& [content, value] : file.items()) {
    const std::optional<int64_t> id = JsonInteger(value);
    if (id.has_value()) added.emplace_back(content, static_cast<TokenId>(*id));
  }
  const Json decoder = config.value("added_tokens_decoder", Json::object());
  for (const auto& [key, token] : decoder.items()) {
    TokenId id = 0;
    if (!token.is_object() || !absl::SimpleAtoi(key, &id)) continue;
    added.emplace_back(TokenText(decoder, key.c_str()), id);
  }
  return added;
}

// Unimplemented if a token beside a tokenizer.model is not one of its pieces,
// so that it would be split. Padding may be, because no text contains it.
absl::Status CheckAddedBeside(const std::string& directory, const Json& config,
                              const Tokenizer& tokenizer) {
  TESSERA_ASSIGN_OR_RETURN(const auto added, AddedBeside(directory, config));
  for (const auto& [content, id] : added) {
    if (id < tokenizer.vocabulary_size() || content == "<pad>" ||
        content == "[PAD]" || content == TokenText(config, "pad_token")) {
      continue;
    }
    return absl::UnimplementedError(absl::StrCat(
        "its directory adds the token ", Quoted(content), " with id ", id,
        ", which the model does not have; give a tokenizer.json with BPE, "
        "which AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) "
        "writes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenizerPointer> Parse(const std::string& contents,
                                       const std::string& end_of_text,
                                       bool is_sentencepiece) {
  if (is_sentencepiece) {
    return CreateSentencePieceTokenizer(contents, end_of_text);
  }
  TESSERA_ASSIGN_OR_RETURN(BpeTokenizer tokenizer,
                           ParseTokenizerJson(contents, end_of_text));
  return std::make_unique<BpeTokenizer>(std::move(tokenizer));
}

absl::StatusOr<TokenizerPointer> LoadFile(const std::string& file,
                                          SpecialTokenPolicy special) {
  const std::string directory = file.substr(0, file.rfind('/') + 1);
  TESSERA_ASSIGN_OR_RETURN(
      const Json config,
      ReadConfig(absl::StrCat(directory, "tokenizer_config.json")));
  const std::string end_of_text = TokenText(config, "eos_token");
  TESSERA_ASSIGN_OR_RETURN(const std::string contents,
                           ReadFile(file, kMaxTokenizerBytes));
  const bool is_sentencepiece = absl::EndsWith(file, ".model");
  TESSERA_ASSIGN_OR_RETURN(TokenizerPointer tokenizer,
                           Parse(contents, end_of_text, is_sentencepiece),
                           Annotate(_, QuotedPath(file)));
  if (is_sentencepiece) {
    TESSERA_RETURN_IF_ERROR(CheckAddedBeside(directory, config, *tokenizer),
                            Annotate(_, QuotedPath(file)));
  }
  TESSERA_ASSIGN_OR_RETURN(std::optional<std::vector<TokenId>> begin,
                           BeginOfText(config, *tokenizer),
                           Annotate(_, QuotedPath(file)));
  if (begin.has_value()) tokenizer->set_begin_of_text(*std::move(begin));
  TextHash hash;
  hash.Add(contents);
  hash.Add(end_of_text);
  hash.Add(std::string(1, static_cast<char>(special)));
  tokenizer->set_special_tokens(special);
  tokenizer->set_fingerprint(hash.value());
  return tokenizer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& path, SpecialTokenPolicy special) {
  if (!IsDirectory(path)) return LoadFile(path, special);
  const std::string json = absl::StrCat(path, "/", kTokenizerJson);
  const std::string model = absl::StrCat(path, "/", kSentencePieceModel);
  if (!PathExists(model)) return LoadFile(json, special);
  if (!PathExists(json)) return LoadFile(model, special);
  absl::StatusOr<TokenizerPointer> tokenizer = LoadFile(json, special);
  return absl::IsUnimplemented(tokenizer.status()) ? LoadFile(model, special)
                                                   : std::move(tokenizer);
}

absl::StatusOr<SpecialTokenPolicy> ParseSpecialTokens(std::string_view text) {
  if (text == "pairs") return SpecialTokenPolicy::kPairs;
  if (text == "ids") return SpecialTokenPolicy::kAll;
  if (text == "text") return SpecialTokenPolicy::kNone;
  return absl::InvalidArgumentError("allowed: pairs, ids, text");
}

}  // namespace tessera::text

#include "tools/text/tokenizer_json.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/text/characters.h"
#include "tools/text/word_splitter.h"

namespace tessera::text {

namespace {

using Json = nlohmann::json;

absl::StatusOr<TokenId> ReadId(const Json& value) {
  const std::optional<int64_t> id = JsonInteger(value);
  if (id >= 0 && id <= std::numeric_limits<TokenId>::max()) {
    return static_cast<TokenId>(*id);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("an id must be an integer from 0 to 2^31-1, found ",
                   DescribeJson(value)));
}

// Tokens that contain characters outside the byte alphabet are never the result
// of a merge.
absl::Status ReadVocabulary(const Json& model, BpeTokenizerOptions& options) {
  const auto vocabulary = model.find("vocab");
  if (vocabulary == model.end() || !vocabulary->is_object()) {
    return absl::InvalidArgumentError(
        "key \"vocab\" must be an object of ids by token");
  }
  for (const auto& [written, value] : vocabulary->items()) {
    TESSERA_ASSIGN_OR_RETURN(
        const TokenId id, ReadId(value),
        Annotate(_, absl::StrCat("vocab ", Quoted(written))));
    std::optional<std::string> bytes = BytesOfWritten(written);
    if (bytes.has_value()) {
      options.model.vocabulary[*std::move(bytes)] = id;
    } else if (!options.other_texts.try_emplace(id, written).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "vocab ", Quoted(written), ": id ", id, " is another token's"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::pair<std::string, std::string>> ReadMerge(
    const Json& merge) {
  std::string left, right;
  if (merge.is_string()) {
    const auto& both = merge.get_ref<const std::string&>();
    const size_t space = both.find(' ');
    if (space != both.npos && both.find(' ', space + 1) == both.npos) {
      left = both.substr(0, space);
      right = both.substr(space + 1);
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    left = merge[0].get<std::string>();
    right = merge[1].get<std::string>();
  }
  std::optional<std::string> a = BytesOfWritten(left);
  std::optional<std::string> b = BytesOfWritten(right);
  if (left.empty() || right.empty() || !a.has_value() || !b.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "must be two tokens of byte characters, as \"a b\" or [\"a\", \"b\"], "
        "found ",
        DescribeJson(merge)));
  }
  return std::pair(*std::move(a), *std::move(b));
}

absl::Status ReadMerges(const Json& model, BpeTokenizerOptions& options) {
  const auto merges = model.find("merges");
  if (merges == model.end() || !merges->is_array()) {
    return absl::InvalidArgumentError(
        "key \"merges\" must be an array of pairs of tokens");
  }
  for (size_t i = 0; i < merges->size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(auto merge, ReadMerge((*merges)[i]),
                             Annotate(_, absl::StrCat("merge ", i)));
    options.model.merges.push_back(std::move(merge));
  }
  return absl::OkStatus();
}

// Rejects options of the model that change the encoding.
absl::Status CheckModelOptions(const Json& model) {
  for (const auto& [key, value] : model.items()) {
    const bool plain =
        key == "type" ? value == "BPE"
        : key == "dropout" || key == "continuing_subword_prefix" ||
                key == "end_of_word_suffix"
            ? value.is_null() || value == "" || value == 0.0
        : key == "byte_fallback" ? value.is_null() || value == false
                                 : true;
    if (!plain) {
      return absl::UnimplementedError(
          absl::StrCat("key ", Quoted(key), ": ", DescribeJson(value),
                       " is not supported; supported is ",
                       key == "type" ? "\"BPE\"" : "none"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const Json& document, BpeTokenizerOptions& options) {
  const auto model = document.find("model");
  if (model == document.end() || !model->is_object()) {
    return absl::InvalidArgumentError("key \"model\" must be an object");
  }
  TESSERA_RETURN_IF_ERROR(CheckModelOptions(*model), Annotate(_, "model"));
  TESSERA_RETURN_IF_ERROR(ReadVocabulary(*model, options),
                          Annotate(_, "model"));
  TESSERA_RETURN_IF_ERROR(ReadMerges(*model, options), Annotate(_, "model"));
  const auto whole = model->find("ignore_merges");
  options.model.whole_words_first = whole != model->end() && *whole == true;
  const auto unknown = model->find("unk_token");
  if (unknown != model->end() && unknown->is_string() &&
      !BpeModel::Create({.vocabulary = options.model.vocabulary})
           ->covers_all_bytes()) {
    return absl::UnimplementedError(
        "model: unk_token is not supported where bytes have no token");
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> ReadFlag(const Json& object, const char* key,
                              bool missing = false) {
  const auto flag = object.find(key);
  if (flag == object.end()) return missing;
  if (flag->is_boolean()) return flag->get<bool>();
  return absl::InvalidArgumentError(absl::StrCat(
      "key \"", key, "\" must be true or false, found ", DescribeJson(*flag)));
}

absl::Status ReadAddedToken(const Json& value, BpeTokenizerOptions& options) {
  if (!value.is_object() || !value.contains("id") ||
      !value.contains("content") || !value["content"].is_string()) {
    return absl::InvalidArgumentError(
        "must be an object with an \"id\" and a \"content\"");
  }
  AddedToken token = {.content = value["content"].get<std::string>()};
  TESSERA_ASSIGN_OR_RETURN(token.id, ReadId(value["id"]));
  for (const char* key : {"single_word", "lstrip", "rstrip"}) {
    TESSERA_ASSIGN_OR_RETURN(const bool set, ReadFlag(value, key));
    if (set) {
      return absl::UnimplementedError(
          absl::StrCat(Quoted(token.content), ": key \"", key,
                       "\": true is not supported; supported is false"));
    }
  }
  TESSERA_ASSIGN_OR_RETURN(token.special, ReadFlag(value, "special"));
  TESSERA_ASSIGN_OR_RETURN(const bool normalized,
                           ReadFlag(value, "normalized"));
  // The vocabulary contains the same token with this text.
  options.other_texts.erase(token.id);
  (normalized ? options.added_second : options.added_first)
      .push_back(std::move(token));
  return absl::OkStatus();
}

absl::Status ReadAddedTokens(const Json& document,
                             BpeTokenizerOptions& options) {
  const auto added = document.find("added_tokens");
  if (added == document.end() || added->is_null()) return absl::OkStatus();
  if (!added->is_array()) {
    return absl::InvalidArgumentError("key \"added_tokens\" must be an array");
  }
  for (size_t i = 0; i < added->size(); ++i) {
    TESSERA_RETURN_IF_ERROR(ReadAddedToken((*added)[i], options),
                            Annotate(_, absl::StrCat("added_tokens ", i)));
  }
  return absl::OkStatus();
}

std::string TypeOf(const Json& step) {
  if (!step.is_object()) return "";
  const auto type = step.find("type");
  if (type == step.end() || !type->is_string()) return "";
  return type->get<std::string>();
}

// Appends the steps of a normalizer, pre-tokenizer or decoder. Replaces a
// Sequence, which may be empty or contain others, by its steps in the array
// `list`.
absl::Status AppendSteps(const Json& step, const char* list,
                         std::vector<const Json*>& steps) {
  if (TypeOf(step) != "Sequence") {
    steps.push_back(&step);
    return absl::OkStatus();
  }
  const auto inner = step.find(list);
  if (inner == step.end() || !inner->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat("key \"", list, "\" of a Sequence must be an array"));
  }
  for (const Json& one : *inner) {
    TESSERA_RETURN_IF_ERROR(AppendSteps(one, list, steps));
  }
  return absl::OkStatus();
}

// The steps of the part `key` of the document; none if it is missing or null.
absl::StatusOr<std::vector<const Json*>> StepsOf(const Json& document,
                                                 const char* key,
                                                 const char* list) {
  std::vector<const Json*> steps;
  const auto part = document.find(key);
  if (part == document.end() || part->is_null()) return steps;
  TESSERA_RETURN_IF_ERROR(AppendSteps(*part, list, steps), Annotate(_, key));
  return steps;
}

// True for a normalizer that leaves every text unchanged.
bool IsWithoutEffect(const Json& normalizer) {
  const auto is_off = [&](const char* key) {
    const auto flag = normalizer.find(key);
    return flag != normalizer.end() && *flag == false;
  };
  const std::string type = TypeOf(normalizer);
  if (type == "Strip") return is_off("strip_left") && is_off("strip_right");
  if (type == "BertNormalizer") {
    // strip_accents is as lowercase if it is null.
    const Json accents = normalizer.value("strip_accents", Json());
    return is_off("clean_text") && is_off("handle_chinese_chars") &&
           is_off("lowercase") && (accents.is_null() || accents == false);
  }
  const Json content =
      normalizer.is_object() ? normalizer.value("content", Json()) : Json();
  return type == "Replace" && content.is_string() &&
         normalizer.value("pattern", Json()) == Json{{"String", content}};
}

absl::Status ReadNormalizer(const Json& document,
                            BpeTokenizerOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<const Json*> steps,
                           StepsOf(document, "normalizer", "normalizers"));
  for (const Json* step : steps) {
    if (TypeOf(*step) == "NFC") {
      options.composes = true;
    } else if (!IsWithoutEffect(*step)) {
      return absl::UnimplementedError(absl::StrCat(
          "normalizer: ",
          step->is_object() ? Quoted(TypeOf(*step)) : DescribeJson(*step),
          " is not supported; supported is type \"NFC\" or none"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDecoder(const Json& document) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<const Json*> steps,
                           StepsOf(document, "decoder", "decoders"));
  int byte_levels = 0;
  for (const Json* step : steps) {
    const std::string type = TypeOf(*step);
    byte_levels += type == "ByteLevel" ? 1 : 0;
    // Fuse joins texts, as decoding does anyway.
    if ((type == "ByteLevel" && byte_levels == 1) || type == "Fuse") continue;
    return absl::UnimplementedError(
        "decoder: supported is one of type \"ByteLevel\", or none");
  }
  return absl::OkStatus();
}

// The id of the added token or vocabulary entry with this text.
std::optional<TokenId> FindToken(const BpeTokenizerOptions& options,
                                 std::string_view text) {
  for (const auto* tokens : {&options.added_first, &options.added_second}) {
    for (const AddedToken& token : *tokens) {
      if (token.content == text) return token.id;
    }
  }
  const auto found = options.model.vocabulary.find(text);
  if (found == options.model.vocabulary.end()) return std::nullopt;
  return found->second;
}

absl::Status FindEndOfText(std::string_view name,
                           BpeTokenizerOptions& options) {
  if (!name.empty()) {
    options.end_of_text = FindToken(options, name);
    if (options.end_of_text.has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the end of text, ", Quoted(name), ", is no token"));
  }
  for (const std::string_view known :
       {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>"}) {
    options.end_of_text = FindToken(options, known);
    if (options.end_of_text.has_value()) break;
  }
  return absl::OkStatus();
}

// The value of a key; null if `value` is not an object or has no such key.
Json PartOf(const Json& value, const std::string& key) {
  return value.is_object() ? value.value(key, Json()) : Json();
}

// The ids of the special tokens before the text in a TemplateProcessing.
absl::StatusOr<std::vector<TokenId>> ReadTemplate(const Json& processor) {
  std::vector<TokenId> ids;
  const Json tokens = PartOf(processor, "special_tokens");
  for (const Json& piece : PartOf(processor, "single")) {
    if (!piece.is_object() || !piece.contains("SpecialToken")) break;
    const Json name = PartOf(piece["SpecialToken"], "id");
    const Json found =
        name.is_string()
            ? PartOf(PartOf(tokens, name.get<std::string>()), "ids")
            : Json();
    if (!found.is_array()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "key \"special_tokens\" has no ids of ", DescribeJson(name)));
    }
    for (const Json& id : found) {
      TESSERA_ASSIGN_OR_RETURN(ids.emplace_back(), ReadId(id));
    }
  }
  return ids;
}

// The special tokens that a "post_processor" puts before a text.
absl::StatusOr<std::vector<TokenId>> ReadBegin(const Json& processor) {
  const std::string type = TypeOf(processor);
  if (type == "TemplateProcessing") return ReadTemplate(processor);
  if (type != "Sequence") return std::vector<TokenId>();
  for (const Json& one : PartOf(processor, "processors")) {
    if (TypeOf(one) == "TemplateProcessing") return ReadTemplate(one);
  }
  return std::vector<TokenId>();
}

absl::Status NotSupported(std::string_view key, const Json& found,
                          std::string_view supported) {
  return absl::UnimplementedError(
      absl::StrCat("key \"", key, "\": ", DescribeJson(found),
                   " is not supported; supported is ", supported));
}

absl::Status ReadByteLevel(const Json& step, BpeTokenizerOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(options.add_prefix_space,
                           ReadFlag(step, "add_prefix_space", true));
  TESSERA_ASSIGN_OR_RETURN(const bool use_regex,
                           ReadFlag(step, "use_regex", true));
  if (use_regex) options.last_rule = SplitRule::kGpt2;
  return absl::OkStatus();
}

absl::Status ReadSplit(const Json& step, BpeTokenizerOptions& options) {
  const Json pattern = step.value("pattern", Json());
  const Json regex =
      pattern.is_object() ? pattern.value("Regex", Json()) : Json();
  if (!regex.is_string()) {
    return NotSupported("pattern", pattern, "{\"Regex\": \"...\"}");
  }
  const auto rule = RuleOfPattern(regex.get_ref<const std::string&>());
  if (!rule.has_value()) {
    return NotSupported("Regex", regex, absl::StrJoin(KnownPatterns(), " or "));
  }
  const Json behavior = step.value("behavior", Json());
  if (behavior != "Isolated") {
    return NotSupported("behavior", behavior, "\"Isolated\"");
  }
  TESSERA_ASSIGN_OR_RETURN(const bool invert, ReadFlag(step, "invert", false));
  if (invert) return NotSupported("invert", true, "false");
  options.rules.push_back(*rule);
  return absl::OkStatus();
}

absl::Status ReadStep(const Json& step, bool last,
                      BpeTokenizerOptions& options) {
  const std::string type = TypeOf(step);
  if (type == "ByteLevel" && last) return ReadByteLevel(step, options);
  if (type == "Split" && !last) return ReadSplit(step, options);
  if (type == "Digits" && !last) {
    TESSERA_ASSIGN_OR_RETURN(const bool individual,
                             ReadFlag(step, "individual_digits", false));
    options.rules.push_back(individual ? SplitRule::kDigits
                                       : SplitRule::kDigitRuns);
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat(
      "type ", Quoted(type), last ? " at the end" : " before the end",
      " is not supported; supported is ByteLevel, or a Sequence that ends in "
      "it, of Split and Digits"));
}

// Sets the rules of `options` from the "pre_tokenizer". Unimplemented for the
// features that the table in the header lists as refused; the message names the
// key.
absl::Status ReadPreTokenizer(const Json& document,
                              BpeTokenizerOptions& options) {
  constexpr char kKey[] = "pre_tokenizer";
  TESSERA_ASSIGN_OR_RETURN(const std::vector<const Json*> steps,
                           StepsOf(document, kKey, "pretokenizers"));
  if (steps.empty()) {
    return absl::UnimplementedError(
        "pre_tokenizer: none is not supported; supported is ByteLevel, or a "
        "Sequence that ends in it, of Split and Digits");
  }
  for (size_t i = 0; i < steps.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(ReadStep(*steps[i], i + 1 == steps.size(), options),
                            Annotate(_, absl::StrCat(kKey, ": step ", i)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<BpeTokenizer> ParseTokenizerJson(std::string_view json,
                                                std::string_view end_of_text) {
  TESSERA_ASSIGN_OR_RETURN(
      const Json document,
      ParseJson(json, {.max_bytes = kMaxTokenizerBytes, .max_depth = 16}));
  if (!document.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected an object with a \"model\", found ", DescribeJson(document)));
  }
  BpeTokenizerOptions options;
  TESSERA_RETURN_IF_ERROR(ReadModel(document, options));
  TESSERA_RETURN_IF_ERROR(ReadNormalizer(document, options));
  TESSERA_RETURN_IF_ERROR(ReadPreTokenizer(document, options));
  TESSERA_RETURN_IF_ERROR(ReadAddedTokens(document, options));
  for (const AddedToken& token : options.added_second) {
    if (!options.composes || ComposedForm(token.content) == token.content) {
      continue;
    }
    return absl::UnimplementedError(absl::StrCat(
        "added_tokens: ", Quoted(token.content),
        " with \"normalized\": true is not in the form of the normalizer"));
  }
  TESSERA_RETURN_IF_ERROR(CheckDecoder(document));
  TESSERA_RETURN_IF_ERROR(FindEndOfText(end_of_text, options));
  TESSERA_ASSIGN_OR_RETURN(std::vector<TokenId> begin,
                           ReadBegin(document.value("post_processor", Json())),
                           Annotate(_, "post_processor"));
  TESSERA_ASSIGN_OR_RETURN(BpeTokenizer tokenizer,
                           BpeTokenizer::Create(std::move(options)));
  tokenizer.set_begin_of_text(std::move(begin));
  return tokenizer;
}

}  // namespace tessera::text

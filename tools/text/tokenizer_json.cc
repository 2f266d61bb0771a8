#include "tools/text/tokenizer_json.h"

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
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

constexpr std::string_view kSpaceMark = "\u2581";

absl::StatusOr<TokenId> ReadId(const Json& value) {
  const std::optional<int64_t> id = JsonInteger(value);
  if (id >= 0 && id <= std::numeric_limits<TokenId>::max()) {
    return static_cast<TokenId>(*id);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("an id must be an integer from 0 to 2^31-1, found ",
                   DescribeJson(value)));
}

// The text that a token encodes: the bytes that it writes, or in a model of
// characters the token itself.
std::optional<std::string> TextOf(std::string_view token,
                                  const BpeTokenizerOptions& options) {
  if (options.model.byte_fallback) return std::string(token);
  return BytesOfWritten(token);
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
    std::optional<std::string> bytes = TextOf(written, options);
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
    const Json& merge, const BpeTokenizerOptions& options) {
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
  std::optional<std::string> a = TextOf(left, options);
  std::optional<std::string> b = TextOf(right, options);
  if (left.empty() || right.empty() || !a.has_value() || !b.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "must be two tokens, as \"a b\" or [\"a\", \"b\"], and without "
        "byte_fallback of byte characters, found ",
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
    TESSERA_ASSIGN_OR_RETURN(auto merge, ReadMerge((*merges)[i], options),
                             Annotate(_, absl::StrCat("merge ", i)));
    options.model.merges.push_back(std::move(merge));
  }
  return absl::OkStatus();
}

// Rejects options of the model that change the encoding. `byte_fallback`: what
// the pre-tokenizer requires.
absl::Status CheckModelOptions(const Json& model, bool byte_fallback) {
  for (const auto& [key, value] : model.items()) {
    const bool plain = key == "type" ? value == "BPE"
                       : key == "dropout" ||
                               key == "continuing_subword_prefix" ||
                               key == "end_of_word_suffix"
                           ? value.is_null() || value == "" || value == 0.0
                       : key == "byte_fallback" ? byte_fallback || value != true
                                                : true;
    if (!plain) {
      return absl::UnimplementedError(
          absl::StrCat("key ", Quoted(key), ": ", DescribeJson(value),
                       " is not supported; supported is ",
                       key == "type" ? "\"BPE\"" : "none"));
    }
  }
  if (byte_fallback && model.value("byte_fallback", Json()) != true) {
    return absl::UnimplementedError(
        "without \"byte_fallback\": true, supported is only the pre_tokenizer "
        "ByteLevel");
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const Json& document, BpeTokenizerOptions& options) {
  const auto model = document.find("model");
  if (model == document.end() || !model->is_object()) {
    return absl::InvalidArgumentError("key \"model\" must be an object");
  }
  TESSERA_RETURN_IF_ERROR(
      CheckModelOptions(*model, options.model.byte_fallback),
      Annotate(_, "model"));
  TESSERA_RETURN_IF_ERROR(ReadVocabulary(*model, options),
                          Annotate(_, "model"));
  TESSERA_RETURN_IF_ERROR(ReadMerges(*model, options), Annotate(_, "model"));
  const auto whole = model->find("ignore_merges");
  options.model.whole_words_first = whole != model->end() && *whole == true;
  const auto unknown = model->find("unk_token");
  const bool needs_all_bytes =
      options.model.byte_fallback ||
      (unknown != model->end() && unknown->is_string());
  if (needs_all_bytes &&
      !BpeModel::Create({.vocabulary = options.model.vocabulary,
                         .byte_fallback = options.model.byte_fallback})
           ->covers_all_bytes()) {
    return absl::UnimplementedError(
        "model: unk_token and byte_fallback are not supported where bytes have "
        "no token");
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
  TESSERA_ASSIGN_OR_RETURN(token.is_word, ReadFlag(value, "single_word"));
  TESSERA_ASSIGN_OR_RETURN(token.strips_left, ReadFlag(value, "lstrip"));
  TESSERA_ASSIGN_OR_RETURN(token.strips_right, ReadFlag(value, "rstrip"));
  TESSERA_ASSIGN_OR_RETURN(token.special, ReadFlag(value, "special"));
  TESSERA_ASSIGN_OR_RETURN(const bool normalized,
                           ReadFlag(value, "normalized"));
  const auto same = options.model.vocabulary.find(token.content);
  if (same != options.model.vocabulary.end() && same->second != token.id) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(token.content), " has id ", token.id,
                     ", and in the vocabulary id ", same->second));
  }
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

// The value of a key; null if `value` is not an object or has no such key.
Json PartOf(const Json& value, const std::string& key) {
  return value.is_object() ? value.value(key, Json()) : Json();
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

// The string in {"String": "..."}; "" if there is none.
std::string StringPattern(const Json& step) {
  const Json pattern = PartOf(PartOf(step, "pattern"), "String");
  return pattern.is_string() ? pattern.get<std::string>() : "";
}

// The step of a normalizer with this effect; nullopt if it is not supported.
std::optional<NormalizerStep> NormalizerStepOf(const Json& step) {
  using enum NormalizerStep::Kind;
  const std::string type = TypeOf(step), from = StringPattern(step);
  const Json to = PartOf(step, type == "Prepend" ? "prepend" : "content");
  if (type == "NFC") return NormalizerStep{kCompose};
  if (!to.is_string()) return std::nullopt;
  if (type == "Prepend") {
    return NormalizerStep{kPrepend, "", to.get<std::string>()};
  }
  if (type == "Replace" && !from.empty()) {
    return NormalizerStep{kReplace, from, to.get<std::string>()};
  }
  return std::nullopt;
}

absl::Status ReadNormalizer(const Json& document,
                            BpeTokenizerOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<const Json*> steps,
                           StepsOf(document, "normalizer", "normalizers"));
  for (const Json* step : steps) {
    if (IsWithoutEffect(*step)) continue;
    std::optional<NormalizerStep> known = NormalizerStepOf(*step);
    if (!known.has_value()) {
      return absl::UnimplementedError(absl::StrCat(
          "normalizer: ",
          step->is_object() ? Quoted(TypeOf(*step)) : DescribeJson(*step),
          " is not supported; supported are types \"NFC\", \"Prepend\" and "
          "\"Replace\" of strings, or none"));
    }
    options.normalizer.push_back(*std::move(known));
  }
  return absl::OkStatus();
}

absl::Status CheckByteDecoder(const std::vector<const Json*>& steps) {
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

// Reads the decoder of a model of characters.
absl::Status ReadMarkDecoder(const std::vector<const Json*>& steps,
                             BpeTokenizerOptions& options) {
  for (const Json* step : steps) {
    const std::string type = TypeOf(*step);
    const Json content = PartOf(*step, "content");
    const bool is_strip = type == "Strip" && content == " " &&
                          PartOf(*step, "start") == 1 &&
                          PartOf(*step, "stop") == 0;
    const bool is_mark = type == "Metaspace";
    if (is_strip) {
      options.drops_first_space = true;
    } else if (is_mark) {
      options.space_mark = kSpaceMark;
      options.drops_first_space = PartOf(*step, "prepend_scheme") != "never" &&
                                  PartOf(*step, "add_prefix_space") != false;
    } else if (type == "Replace" && content == " ") {
      options.space_mark = StringPattern(*step);
    } else if (type != "ByteFallback" && type != "Fuse") {
      return absl::UnimplementedError(absl::StrCat(
          "decoder: ", DescribeJson(*step), " ", Quoted(type),
          " is not supported; supported are Metaspace, or Replace by a space, "
          "ByteFallback, Fuse and Strip of a leading space"));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadDecoder(const Json& document, BpeTokenizerOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<const Json*> steps,
                           StepsOf(document, "decoder", "decoders"));
  if (!options.model.byte_fallback) return CheckByteDecoder(steps);
  options.space_mark = kSpaceMark;
  return ReadMarkDecoder(steps, options);
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
  std::vector<TokenId> ids;
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    const Json begin = PartOf(processor, "cls");  // [text, id]
    const bool is_pair = begin.is_array() && begin.size() == 2;
    TESSERA_ASSIGN_OR_RETURN(ids.emplace_back(),
                             ReadId(is_pair ? begin[1] : begin),
                             Annotate(_, "key \"cls\""));
  }
  if (type != "Sequence") return ids;
  // Each processor puts its tokens before those of the previous ones.
  for (const Json& one : PartOf(processor, "processors")) {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TokenId> more, ReadBegin(one));
    ids.insert(ids.begin(), more.begin(), more.end());
  }
  return ids;
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

absl::Status ReadMetaspace(const Json& step, BpeTokenizerOptions& options) {
  using enum Metaspace::Prefix;
  Metaspace metaspace;
  const Json mark = PartOf(step, "replacement");
  if (mark != std::string(kSpaceMark)) {
    return NotSupported("replacement", mark, Quoted(kSpaceMark));
  }
  metaspace.mark = kSpaceMark;
  const Json scheme = PartOf(step, "prepend_scheme");
  TESSERA_ASSIGN_OR_RETURN(const bool adds_prefix,
                           ReadFlag(step, "add_prefix_space", true));
  if (!adds_prefix || scheme == "never") {
    metaspace.prefix = kNever;
  } else if (scheme == "first") {
    metaspace.prefix = kFirst;
  } else if (!scheme.is_null() && scheme != "always") {
    return NotSupported("prepend_scheme", scheme, "always, first or never");
  }
  TESSERA_ASSIGN_OR_RETURN(metaspace.splits, ReadFlag(step, "split", true));
  options.metaspace = std::move(metaspace);
  return absl::OkStatus();
}

// True for a Split at a string that a normalizer has replaced everywhere.
bool IsSplitWithoutEffect(const Json& step,
                          const std::vector<NormalizerStep>& normalizer) {
  const std::string pattern = StringPattern(step);
  if (TypeOf(step) != "Split" || pattern.empty() || normalizer.empty()) {
    return false;
  }
  const NormalizerStep& last = normalizer.back();
  return last.kind == NormalizerStep::Kind::kReplace && last.from == pattern &&
         !absl::StrContains(last.to, pattern) && pattern.size() == 1;
}

absl::Status ReadStep(const Json& step, bool last,
                      BpeTokenizerOptions& options) {
  const std::string type = TypeOf(step);
  if (type == "ByteLevel" && last) return ReadByteLevel(step, options);
  if (type == "Metaspace" && last) return ReadMetaspace(step, options);
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
      " is not supported; supported is ByteLevel or Metaspace, or a Sequence "
      "that ends in it, of Split and Digits"));
}

// Sets the rules of `options` from the "pre_tokenizer". Unimplemented for the
// features that the table in the header lists as refused; the message names the
// key. A model without ByteLevel is one of characters.
absl::Status ReadPreTokenizer(const Json& document,
                              BpeTokenizerOptions& options) {
  constexpr char kKey[] = "pre_tokenizer";
  TESSERA_ASSIGN_OR_RETURN(std::vector<const Json*> steps,
                           StepsOf(document, kKey, "pretokenizers"));
  std::erase_if(steps, [&](const Json* step) {
    return IsSplitWithoutEffect(*step, options.normalizer);
  });
  options.model.byte_fallback =
      steps.empty() || TypeOf(*steps.back()) == "Metaspace";
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
  TESSERA_RETURN_IF_ERROR(ReadNormalizer(document, options));
  TESSERA_RETURN_IF_ERROR(ReadPreTokenizer(document, options));
  TESSERA_RETURN_IF_ERROR(ReadModel(document, options));
  TESSERA_RETURN_IF_ERROR(ReadAddedTokens(document, options));
  TESSERA_RETURN_IF_ERROR(ReadDecoder(document, options));
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

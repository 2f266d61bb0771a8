#include "tools/text/pre_tokenizer_json.h"

#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/text/word_splitter.h"

namespace tessera::text {
namespace {

using Json = nlohmann::json;

absl::Status NotSupported(std::string_view key, const Json& found,
                          std::string_view supported) {
  return absl::UnimplementedError(
      absl::StrCat("key \"", key, "\": ", DescribeJson(found),
                   " is not supported; supported is ", supported));
}

std::string TypeOf(const Json& step) {
  if (!step.is_object()) return "";
  const auto type = step.find("type");
  if (type == step.end() || !type->is_string()) return "";
  return type->get<std::string>();
}

// The value of a flag; the package's default where it is missing.
absl::StatusOr<bool> ReadFlag(const Json& step, const char* key, bool missing) {
  const auto flag = step.find(key);
  if (flag == step.end()) return missing;
  if (flag->is_boolean()) return flag->get<bool>();
  return absl::InvalidArgumentError(absl::StrCat(
      "key \"", key, "\" must be true or false, found ", DescribeJson(*flag)));
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

}  // namespace

absl::Status ReadPreTokenizer(const Json& pre_tokenizer,
                              BpeTokenizerOptions& options) {
  if (TypeOf(pre_tokenizer) != "Sequence") {
    return ReadStep(pre_tokenizer, /*last=*/true, options);
  }
  const auto steps = pre_tokenizer.find("pretokenizers");
  if (steps == pre_tokenizer.end() || !steps->is_array() || steps->empty()) {
    return absl::InvalidArgumentError(
        "key \"pretokenizers\" must be an array with at least one");
  }
  for (size_t i = 0; i < steps->size(); ++i) {
    TESSERA_RETURN_IF_ERROR(
        ReadStep((*steps)[i], i + 1 == steps->size(), options),
        Annotate(_, absl::StrCat("step ", i)));
  }
  return absl::OkStatus();
}

}  // namespace tessera::text

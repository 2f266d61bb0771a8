#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/text/tokenizer_json.h"

namespace tessera::text {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

bool IsDirectory(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

// The eos_token of a tokenizer_config.json: a text, or an object with one; ""
// where there is no file or it has none.
absl::StatusOr<std::string> ReadEndOfText(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) return "";
  TESSERA_ASSIGN_OR_RETURN(const std::string json,
                           ReadFile(path, kMaxConfigBytes));
  TESSERA_ASSIGN_OR_RETURN(const Json document,
                           ParseJson(json, {.max_bytes = kMaxConfigBytes}),
                           Annotate(_, QuotedPath(path)));
  Json token =
      document.is_object() ? document.value("eos_token", Json()) : Json();
  if (token.is_object()) token = Json(token.value("content", Json()));
  return token.is_string() ? token.get<std::string>() : "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(
    const std::string& path) {
  const bool directory = IsDirectory(path);
  const std::string file =
      directory ? absl::StrCat(path, "/tokenizer.json") : path;
  const std::string beside = file.substr(0, file.rfind('/') + 1);
  TESSERA_ASSIGN_OR_RETURN(
      const std::string end_of_text,
      ReadEndOfText(absl::StrCat(beside, "tokenizer_config.json")));
  TESSERA_ASSIGN_OR_RETURN(const std::string json,
                           ReadFile(file, kMaxTokenizerBytes));
  TESSERA_ASSIGN_OR_RETURN(BpeTokenizer tokenizer,
                           ParseTokenizerJson(json, end_of_text),
                           Annotate(_, QuotedPath(file)));
  return std::make_unique<BpeTokenizer>(std::move(tokenizer));
}

}  // namespace tessera::text

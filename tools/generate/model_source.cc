#include "tools/generate/model_source.h"

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/model_files/hugging_face_weights.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/text/load_tokenizer.h"
#include "tools/text/tokenizer_files.h"
#include "tools/train/checkpoint/run_identity.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/loop/training_data.h"
#include "tools/train/sample/generate.h"
#include "tools/train/settings/settings.h"

namespace tessera::tools {
namespace {

namespace fs = std::filesystem;
using TokenizerPointer = std::shared_ptr<const text::Tokenizer>;

// Models for bytes have spare tokens that fill up to a multiple of 8
// (PresetConfig).
constexpr int64_t kMostSpareTokens = 7;

bool IsForBytes(int64_t vocabulary) {
  const int64_t bytes = text::ByteTokenizer().vocabulary_size();
  return bytes <= vocabulary && vocabulary <= bytes + kMostSpareTokens;
}

absl::StatusOr<TokenizerPointer> LoadTokenizer(std::string_view flag,
                                               const std::string& path,
                                               const std::string& special) {
  TESSERA_ASSIGN_OR_RETURN(
      const text::SpecialTokenPolicy policy,
      text::ParseSpecialTokens(special.empty() ? "pairs" : special),
      FlagError("special_tokens", special, _));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<text::Tokenizer> tokenizer,
                           text::LoadTokenizer(path, policy),
                           FlagError(flag, path, _));
  return TokenizerPointer(std::move(tokenizer));
}

// The tokenizer of a model that has no tokenizer files.
absl::StatusOr<TokenizerPointer> BytesFor(int64_t vocabulary,
                                          const std::string& path) {
  if (IsForBytes(vocabulary)) {
    return std::make_shared<const text::ByteTokenizer>();
  }
  return FlagError(
      "tokenizer", "",
      absl::InvalidArgumentError(absl::StrCat(
          QuotedPath(path), " has no tokenizer, and its model has ", vocabulary,
          " tokens; give its tokenizer.json or tokenizer.model")));
}

// The run directory that contains `checkpoint`; nullopt if there is none.
std::optional<fs::path> RunOf(const std::string& checkpoint) {
  std::error_code error;
  const fs::path whole = fs::canonical(checkpoint, error);
  const fs::path parent = whole.parent_path();
  if (error || parent.filename() != "checkpoints") return std::nullopt;
  const fs::path run = parent.parent_path();
  if (!PathExists(run / "config.json")) return std::nullopt;
  return run;
}

absl::StatusOr<TokenizerPointer> TokenizerOfRun(
    const std::string& checkpoint, const train::RunIdentity& identity,
    const std::string& special) {
  if (const std::optional<fs::path> run = RunOf(checkpoint); run.has_value()) {
    TESSERA_ASSIGN_OR_RETURN(train::Settings settings,
                             train::ReadSettings(*run / "config.json"));
    if (!special.empty()) settings.special_tokens = special;
    return train::OpenTokenizer(settings);
  }
  return BytesFor(identity.model.vocabulary, checkpoint);
}

// Checks the number of tokens, which imported checkpoints do not have yet.
absl::Status CheckVocabulary(const train::RunIdentity& identity,
                             const text::Tokenizer& tokenizer,
                             const std::string& flag) {
  const int64_t count = tokenizer.vocabulary_size();
  if (identity.vocabulary == 0 || identity.vocabulary == count) {
    return absl::OkStatus();
  }
  return FlagError(
      "tokenizer", flag,
      absl::InvalidArgumentError(absl::StrCat(
          "it has ", count, " tokens, and the run was trained with one of ",
          identity.vocabulary, "; give that one")));
}

absl::StatusOr<LoadedModel> OpenRun(const std::string& path,
                                    const std::string& tokenizer,
                                    const std::string& special) {
  TESSERA_ASSIGN_OR_RETURN(const std::string checkpoint,
                           train::ResolveCheckpoint(path));
  TESSERA_ASSIGN_OR_RETURN(const auto saved, train::SavedRun::Open(checkpoint));
  const train::RunIdentity& identity = saved->identity();
  LoadedModel model;
  TESSERA_ASSIGN_OR_RETURN(
      model.tokenizer, tokenizer.empty()
                           ? TokenizerOfRun(checkpoint, identity, special)
                           : LoadTokenizer("tokenizer", tokenizer, special));
  TESSERA_RETURN_IF_ERROR(
      CheckVocabulary(identity, *model.tokenizer, tokenizer));
  model.length =
      identity.length > 0 ? identity.length : identity.model.max_positions;
  TESSERA_ASSIGN_OR_RETURN(model.weights, train::OpenWeights(checkpoint));
  return model;
}

absl::StatusOr<LoadedModel> OpenHuggingFace(const std::string& path,
                                            const std::string& tokenizer,
                                            const std::string& special) {
  LoadedModel model;
  TESSERA_ASSIGN_OR_RETURN(model.weights, train::OpenWeights(path));
  const model_files::ModelConfig& config = model.weights->config();
  model.length = config.max_positions;
  if (!tokenizer.empty()) {
    TESSERA_ASSIGN_OR_RETURN(model.tokenizer,
                             LoadTokenizer("tokenizer", tokenizer, special));
  } else if (text::HasTokenizer(path)) {
    TESSERA_ASSIGN_OR_RETURN(model.tokenizer,
                             LoadTokenizer("from", path, special));
  } else {
    TESSERA_ASSIGN_OR_RETURN(model.tokenizer,
                             BytesFor(config.vocabulary, path));
  }
  return model;
}

}  // namespace

absl::StatusOr<LoadedModel> OpenModel(const std::string& path,
                                      const std::string& tokenizer,
                                      const std::string& special_tokens) {
  if (!PathExists(path)) {
    return FlagError("from", path,
                     absl::InvalidArgumentError(
                         "there is no such directory; give a run's directory, "
                         "a checkpoint or a Hugging Face model"));
  }
  if (model_files::IsHuggingFaceModel(path)) {
    return OpenHuggingFace(path, tokenizer, special_tokens);
  }
  const fs::path checkpoints = fs::path(path) / "checkpoints";
  return OpenRun(PathExists(checkpoints) ? checkpoints.string() : path,
                 tokenizer, special_tokens);
}

}  // namespace tessera::tools

#include "tools/train/loop/training_data.h"

#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"
#include "tools/model_files/presets.h"
#include "tools/text/byte_tokenizer.h"
#include "tools/text/tokenizer_json.h"
#include "tools/train/loop/repository_texts.h"
#include "tools/train/settings/user_path.h"

namespace tessera::train {
namespace {

using TokenizerPointer = std::shared_ptr<const text::Tokenizer>;

// Those of a model are told by its tokenizer.json; a preset has none.
absl::StatusOr<TokenizerPointer> OpenModelsTokenizer(const Settings& settings) {
  const std::string directory = UserPath(settings.model);
  const std::string path = absl::StrCat(directory, "/tokenizer.json");
  if (absl::c_linear_search(model_files::PresetNames(), settings.model) ||
      access(path.c_str(), F_OK) != 0) {
    return std::make_shared<const text::ByteTokenizer>();
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<text::Tokenizer> tokenizer,
                           text::LoadTokenizer(directory),
                           tools::FlagError("model", settings.model, _));
  return TokenizerPointer(std::move(tokenizer));
}

absl::StatusOr<TokenizerPointer> OpenTokenizer(const Settings& settings) {
  if (settings.tokenizer.empty()) return OpenModelsTokenizer(settings);
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<text::Tokenizer> tokenizer,
      text::LoadTokenizer(UserPath(settings.tokenizer)),
      tools::FlagError("tokenizer", settings.tokenizer, _));
  return TokenizerPointer(std::move(tokenizer));
}

absl::StatusOr<std::vector<std::string>> PathsOf(const Settings& settings) {
  if (settings.data.empty()) return FindRepositoryTexts();
  std::vector<std::string> paths;
  for (const std::string& path : settings.data) {
    paths.push_back(UserPath(path));
  }
  return paths;
}

absl::StatusOr<std::shared_ptr<const text::Corpus>> OpenCorpus(
    const Settings& settings, const text::Tokenizer& tokenizer) {
  TESSERA_ASSIGN_OR_RETURN(const std::vector<std::string> paths,
                           PathsOf(settings));
  return text::Corpus::Open(paths, tokenizer);
}

}  // namespace

absl::StatusOr<TrainingData> OpenTrainingData(const Settings& settings) {
  const std::string names = absl::StrJoin(settings.data, ",");
  TrainingData data;
  TESSERA_ASSIGN_OR_RETURN(data.tokenizer, OpenTokenizer(settings));
  TESSERA_ASSIGN_OR_RETURN(data.corpus, OpenCorpus(settings, *data.tokenizer),
                           tools::FlagError("data", names, _));
  TESSERA_ASSIGN_OR_RETURN(
      data.samples,
      text::Samples::Create(data.corpus,
                            {.sequence = settings.length,
                             .seed = static_cast<uint64_t>(settings.seed)}),
      tools::FlagError("data", names, _));
  return data;
}

}  // namespace tessera::train

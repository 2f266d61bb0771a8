#include "tools/train/launch/hugging_face_run.h"

#include <filesystem>
#include <system_error>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/checkpoint/hugging_face_model.h"
#include "tools/cli/cli.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/text/tokenizer_files.h"
#include "tools/train/checkpoint/imported_weights.h"
#include "tools/train/checkpoint/run_identity.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;
using model_files::ModelConfig;

// The model that --model names, before the run adapts it to its data.
absl::StatusOr<ModelConfig> NamedModel(const std::string& name) {
  if (absl::c_linear_search(model_files::PresetNames(), name)) {
    return model_files::PresetConfig(name);
  }
  TESSERA_ASSIGN_OR_RETURN(
      const model_files::HuggingFaceConfig config,
      model_files::LoadHuggingFaceConfig(absl::StrCat(name, "/config.json")));
  return config.model;
}

absl::Status CheckNamedModel(const Settings& settings,
                             const ModelConfig& initial) {
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig named, NamedModel(settings.model),
                           tools::FlagError("model", settings.model, _));
  const std::string differences = ModelDifferences(initial, named);
  if (differences.empty()) return absl::OkStatus();
  return tools::FlagError("model", settings.model,
                          absl::InvalidArgumentError(absl::StrCat(
                              "contradicts --init_from=", settings.init_from,
                              ": ", differences, "; leave --model out")));
}

// The directory of the files of --tokenizer, or of the model's own; "" if bytes
// are tokens.
std::string TokenizerDirectory(const Settings& settings) {
  const std::string& given =
      settings.tokenizer.empty() ? settings.model : settings.tokenizer;
  std::error_code error;
  const std::string directory = fs::is_regular_file(given, error)
                                    ? fs::path(given).parent_path().string()
                                    : given;
  const std::string found = directory.empty() ? "." : directory;
  return text::HasTokenizer(found) ? found : "";
}

absl::StatusOr<tools::ExportOptions> ExportOptionsOf(
    const Settings& settings, const text::Tokenizer& tokenizer,
    const RunDirectory& directory) {
  tools::ExportOptions options = {.dtype = settings.parallel.dtype,
                                  .tokenizer = TokenizerDirectory(settings)};
  if (!options.tokenizer.empty()) options.end_of_text = tokenizer.end_of_text();
  if (settings.keep_best) {
    TESSERA_ASSIGN_OR_RETURN(options.best, directory.BestCheckpoint());
  }
  return options;
}

}  // namespace

absl::Status FollowInitialModel(const SettingsFlags& flags,
                                Settings& settings) {
  if (settings.init_from.empty()) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(
      const ImportedWeights weights, ImportedWeights::Open(settings.init_from),
      tools::FlagError("init_from", settings.init_from, _));
  if (flags.IsChosen("model") && settings.model != settings.init_from) {
    TESSERA_RETURN_IF_ERROR(CheckNamedModel(settings, weights.config().model));
  }
  settings.model = settings.init_from;
  if (!flags.IsChosen("dtype")) settings.parallel.dtype = weights.dtype();
  return absl::OkStatus();
}

absl::Status CheckSaveTarget(const Settings& settings) {
  if (settings.save_hf.empty()) return absl::OkStatus();
  return tools::FlagError("save_hf", settings.save_hf,
                          tools::CheckExportTarget(settings.save_hf));
}

absl::StatusOr<std::vector<std::string>> SaveModel(
    const Settings& settings, const text::Tokenizer& tokenizer,
    const RunDirectory& directory, const std::string& last) {
  const std::string& target = settings.save_hf;
  std::vector<std::string> written;
  if (target.empty()) return written;
  std::string checkpoint = last.empty() ? directory.LastCheckpoint() : last;
  if (checkpoint.empty()) checkpoint = settings.resume;
  const absl::StatusOr<tools::ExportOptions> options =
      ExportOptionsOf(settings, tokenizer, directory);
  TESSERA_RETURN_IF_ERROR(
      options.ok() ? tools::ExportModel(checkpoint, target, *options)
                   : options.status(),
      absl::Status(_.code(),
                   absl::StrCat("--save_hf=", target, ": ", _.message(),
                                "; //tools/checkpoint export ", checkpoint,
                                " DIR writes the model")));
  written.push_back(target);
  if (settings.keep_best) {
    written.push_back((fs::path(target) / tools::kBestModel).string());
  }
  return written;
}

}  // namespace tessera::train

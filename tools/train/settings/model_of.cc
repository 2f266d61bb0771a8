#include "tools/train/settings/model_of.h"

#include <sys/stat.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest_name.h"
#include "base/status_macros.h"
#include "tensor_parallel/sharding/fused_partition.h"
#include "tools/cli/cli.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/presets.h"
#include "tools/train/loop/run_options.h"
#include "tools/train/settings/flag_checks.h"
#include "tools/train/settings/user_path.h"

namespace tessera::train {
namespace {

using model_files::ModelConfig;

constexpr int64_t kVocabularyMultiple = 8;

bool IsDirectory(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

absl::StatusOr<ModelConfig> PresetFor(const Settings& settings,
                                      int64_t vocabulary) {
  TESSERA_ASSIGN_OR_RETURN(ModelConfig model,
                           model_files::PresetConfig(settings.model));
  const int64_t rounded = (vocabulary + kVocabularyMultiple - 1) /
                          kVocabularyMultiple * kVocabularyMultiple;
  model.vocabulary = std::max(model.vocabulary, rounded);
  model.max_positions = std::max(model.max_positions, settings.length);
  return model;
}

absl::StatusOr<ModelConfig> ModelOfDirectory(const Settings& settings,
                                             const std::string& path,
                                             int64_t vocabulary) {
  const absl::StatusOr<model_files::HuggingFaceConfig> config =
      model_files::LoadHuggingFaceConfig(absl::StrCat(path, "/config.json"));
  TESSERA_RETURN_IF_ERROR(
      tools::FlagError("model", settings.model, config.status()));
  const ModelConfig& model = config->model;
  if (vocabulary > model.vocabulary) {
    return RefuseFlag(
        "model", settings.model,
        absl::StrCat("has a vocabulary of ", model.vocabulary,
                     ", and the tokenizer one of ", vocabulary,
                     "; give the model's own, such as --tokenizer=",
                     settings.model.substr(0, 200)));
  }
  if (settings.length > model.max_positions) {
    return RefuseFlag("length", settings.length,
                      absl::StrCat("the model has ", model.max_positions,
                                   " positions; give at most as many, such as "
                                   "--length=",
                                   model.max_positions));
  }
  return model;
}

absl::Status NoSuchModel(const Settings& settings) {
  const std::vector<std::string_view> names = model_files::PresetNames();
  return RefuseFlag(
      "model", settings.model,
      absl::StrCat("is no directory with a config.json and no preset; there "
                   "are ",
                   absl::StrJoin(names, ", "),
                   ", such as --model=", NearestName(settings.model, names)));
}

// As the layers share heads out.
bool CanShareHeads(const ModelConfig& model, int64_t ranks) {
  return tensor_parallel::QkvParts(model.heads, model.kv_heads, model.head_size,
                                   ranks)
      .ok();
}

absl::Status CheckHeads(const Settings& settings, const ModelConfig& model,
                        const MeshSizes& mesh) {
  if (CanShareHeads(model, mesh.tp)) return absl::OkStatus();
  int64_t fits = mesh.tp;
  while (!CanShareHeads(model, fits)) --fits;
  return RefuseFlag(
      "mesh", mesh.ToFlag(),
      absl::StrCat("tp ", mesh.tp, " cannot share out the ", model.kv_heads,
                   " kv heads of --model=", settings.model.substr(0, 60),
                   "; tp may be up to ", model.kv_heads,
                   ", or a multiple of it, such as tp", fits));
}

absl::Status CheckLayers(const Settings& settings, const ModelConfig& model,
                         const MeshSizes& mesh) {
  const int64_t stages = mesh.pp * settings.parallel.chunks;
  if (stages <= model.layers) return absl::OkStatus();
  return RefuseFlag(
      "mesh", mesh.ToFlag(),
      absl::StrCat(
          "pp ", mesh.pp, " x --chunks=", settings.parallel.chunks, " are ",
          stages, " stages, and --model=", settings.model.substr(0, 60),
          " has ", model.layers,
          " layers; give at most as many stages, such as pp",
          std::max<int64_t>(model.layers / settings.parallel.chunks, 1),
          model.layers < settings.parallel.chunks ? " and fewer chunks" : ""));
}

}  // namespace

absl::StatusOr<ModelConfig> ModelOf(const Settings& settings,
                                    int64_t vocabulary) {
  const std::string path = UserPath(settings.model);
  ModelConfig model;
  if (absl::c_linear_search(model_files::PresetNames(), settings.model)) {
    TESSERA_ASSIGN_OR_RETURN(model, PresetFor(settings, vocabulary));
  } else if (IsDirectory(path)) {
    TESSERA_ASSIGN_OR_RETURN(model,
                             ModelOfDirectory(settings, path, vocabulary));
  } else {
    return NoSuchModel(settings);
  }
  TESSERA_RETURN_IF_ERROR(
      tools::FlagError("model", settings.model, model.Validate()));
  const MeshSizes& mesh = settings.parallel.mesh;
  TESSERA_RETURN_IF_ERROR(CheckHeads(settings, model, mesh));
  TESSERA_RETURN_IF_ERROR(CheckLayers(settings, model, mesh));
  return model;
}

}  // namespace tessera::train

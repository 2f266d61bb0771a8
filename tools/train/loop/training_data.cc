#include "tools/train/loop/training_data.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "collectives/adaptive/create_adaptive.h"
#include "tools/cli/cli.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/text/data_files.h"
#include "tools/text/load_tokenizer.h"
#include "tools/text/preferences.h"
#include "tools/text/token_cache.h"
#include "tools/text/tokenizer.h"
#include "tools/text/tokenizer_files.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

namespace {

namespace fs = std::filesystem;

constexpr int kMostNames = 100'000;
constexpr std::array<std::string_view, 3> kEndings = {".md", ".h", ".cc"};
constexpr std::string_view kCarried =
    "tessera/tools/train/loop/repository_texts_file.txt";

// A text that was found. Texts are used in their sorted order.
struct FoundText {
  size_t ending = 0;
  std::string path;
  int64_t bytes = 0;

  friend auto operator<=>(const FoundText&, const FoundText&) = default;
};

bool IsPassedOver(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().string();
  std::error_code error;
  return absl::StartsWith(name, ".") || absl::StartsWith(name, "bazel-") ||
         entry.is_symlink(error);
}

// The index of the file name's ending in kEndings; their number if none
// matches.
size_t EndingOf(const fs::path& path) {
  const auto* const found =
      std::find(kEndings.begin(), kEndings.end(), path.extension().string());
  return static_cast<size_t>(found - kEndings.begin());
}

void AddFile(const fs::directory_entry& entry, std::vector<FoundText>& found) {
  const size_t ending = EndingOf(entry.path());
  std::error_code error;
  if (ending == kEndings.size() || !entry.is_regular_file(error)) return;
  const auto bytes = static_cast<int64_t>(entry.file_size(error));
  const std::string path = entry.path().string();
  if (error || bytes == 0 || access(path.c_str(), R_OK) != 0) return;
  found.push_back({ending, path, bytes});
}

std::vector<FoundText> AllTextsBelow(const std::string& directory) {
  std::vector<FoundText> found;
  std::error_code error;
  fs::recursive_directory_iterator at(
      directory, fs::directory_options::skip_permission_denied, error);
  for (int names = 0;
       !error && names < kMostNames && at != fs::recursive_directory_iterator();
       ++names) {
    if (IsPassedOver(*at)) {
      at.disable_recursion_pending();
    } else {
      AddFile(*at, found);
    }
    at.increment(error);
  }
  std::sort(found.begin(), found.end());
  return found;
}

// The same rule as in text::FindDataFiles.
bool IsBinary(const std::string& path) {
  std::array<char, 8000> bytes;
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), bytes.size());
  char* const end = bytes.data() + file.gcount();
  return std::find(bytes.data(), end, '\0') != end;
}

// The value of an environment variable; "" if it is not set.
std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string ProgramPath() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).string();
}

using TokenizerPointer = std::shared_ptr<const text::Tokenizer>;

// Opens the tokenizer of the model's directory, or bytes for presets and
// directories without a tokenizer.
absl::StatusOr<TokenizerPointer> OpenModelsTokenizer(
    const Settings& settings, text::SpecialTokenPolicy special) {
  const std::string directory = settings.model;
  if (absl::c_linear_search(model_files::PresetNames(), settings.model) ||
      !text::HasTokenizer(directory)) {
    return std::make_shared<const text::ByteTokenizer>();
  }
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<text::Tokenizer> tokenizer,
                           text::LoadTokenizer(directory, special),
                           tools::FlagError("model", settings.model, _));
  return TokenizerPointer(std::move(tokenizer));
}

// A path of --data with its weight, if it has one.
struct WeightedPath {
  std::string path;
  std::optional<double> weight;
};

// A number after a colon is a weight unless the whole names data, or it is no
// share and the part before the colon names no data either.
WeightedPath ParsePath(const std::string& text) {
  const WeightedPath whole = {text, std::nullopt};
  const size_t colon = text.rfind(':');
  double weight = 0;
  if (colon == text.npos || colon == 0 || text::NamesData(whole.path) ||
      !absl::SimpleAtod(text.substr(colon + 1), &weight)) {
    return whole;
  }
  const std::string path = text.substr(0, colon);
  const bool is_share = weight > 0 && weight <= 1;
  if (!is_share && !text::NamesData(path)) return whole;
  return {path, weight};
}

absl::Status CheckWeights(const std::vector<WeightedPath>& paths) {
  double sum = 0;
  for (const WeightedPath& path : paths) {
    if (!path.weight.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          path.path,
          " has no weight; give all a weight, or none: books:0.7,web:0.3"));
    }
    if (!(*path.weight > 0 && *path.weight <= 1)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path.path, " has weight ", *path.weight,
                       "; it must be above 0 and at most 1"));
    }
    sum += *path.weight;
  }
  if (std::abs(sum - 1) <= 1e-6) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the weights add up to ", sum, "; they must add up to 1"));
}

// Without a directory for caches there is no cache.
text::TokenCache CacheOf(const Settings& settings) {
  if (settings.token_cache == "off") return text::TokenCache("");
  if (!settings.token_cache.empty()) {
    return text::TokenCache(settings.token_cache);
  }
  const std::string directory = collectives::DefaultCacheDirectory();
  return text::TokenCache(
      directory.empty() ? "" : absl::StrCat(directory, "/tokens"));
}

absl::StatusOr<std::vector<text::Samples::Part>> OpenParts(
    const Settings& settings, const text::Tokenizer& tokenizer) {
  if (settings.objective == "dpo") {
    TESSERA_ASSIGN_OR_RETURN(
        auto corpus,
        text::OpenPreferences(text::JoinNames(settings.data, text::NamesData),
                              tokenizer, settings.length));
    return std::vector<text::Samples::Part>{{std::move(corpus), 1}};
  }
  const text::TokenCache cache = CacheOf(settings);
  std::vector<WeightedPath> paths;
  bool has_weights = false;
  const auto names_data = [](const std::string& text) {
    return text::NamesData(ParsePath(text).path);
  };
  for (const std::string& text : text::JoinNames(settings.data, names_data)) {
    paths.push_back(ParsePath(text));
    has_weights = has_weights || paths.back().weight.has_value();
  }
  if (!has_weights) {
    std::vector<std::string> all;
    for (WeightedPath& path : paths) all.push_back(std::move(path.path));
    if (all.empty()) {
      TESSERA_ASSIGN_OR_RETURN(all, FindRepositoryTexts());
    }
    TESSERA_ASSIGN_OR_RETURN(
        auto corpus,
        text::Corpus::Open(all, tokenizer, cache, settings.max_bad_lines));
    return std::vector<text::Samples::Part>{{std::move(corpus), 1}};
  }
  TESSERA_RETURN_IF_ERROR(CheckWeights(paths));
  std::vector<text::Samples::Part> parts;
  int64_t bad_lines_left = settings.max_bad_lines;
  for (const WeightedPath& path : paths) {
    TESSERA_ASSIGN_OR_RETURN(
        auto corpus,
        text::Corpus::Open({{path.path}}, tokenizer, cache, bad_lines_left));
    bad_lines_left -= corpus->bad_lines();
    parts.push_back({std::move(corpus), *path.weight});
  }
  return parts;
}

absl::Status CheckHeldOut(const Settings& settings,
                          const text::Samples& samples) {
  if (settings.test_fraction > 0 && samples.test_count() < settings.batch) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--test_fraction=", settings.test_fraction,
        ": that share of the data has ", samples.test_count(), " sequences of ",
        settings.length, " tokens; the test needs a batch of ", settings.batch,
        ": give more data or a larger --test_fraction"));
  }
  const int64_t batches = samples.validation_count() / settings.batch;
  if (settings.eval_every == 0 || batches >= settings.eval_batches) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--eval_batches=", settings.eval_batches, ": --validation_fraction=",
      settings.validation_fraction, " of the data has ",
      samples.validation_count(), " sequences of ", settings.length,
      " tokens, which fill ", batches, " batches of ", settings.batch,
      "; give more data, a larger --validation_fraction or fewer "
      "--eval_batches"));
}

absl::Status CheckDocuments(const Settings& settings,
                            const text::Tokenizer& tokenizer) {
  const bool is_whole = settings.packing == "whole";
  if ((!settings.document_attention && !is_whole) ||
      tokenizer.end_of_text().has_value()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      is_whole ? "--packing=whole" : "--document_attention=true",
      ": the tokenizer has no token that ends a document; give another "
      "--tokenizer, or ",
      is_whole ? "--packing=split" : "--document_attention=false"));
}

}  // namespace

std::vector<std::string> FindTextsBelow(const std::string& directory,
                                        int64_t most_bytes) {
  std::vector<std::string> paths;
  int64_t bytes = 0;
  for (FoundText& text : AllTextsBelow(directory)) {
    if (text.bytes > most_bytes - bytes) break;
    if (IsBinary(text.path)) continue;
    bytes += text.bytes;
    paths.push_back(std::move(text.path));
  }
  return paths;
}

RepositoryPlaces PlacesOfProcess() {
  return {.workspace = Environment("BUILD_WORKSPACE_DIRECTORY"),
          .runfiles = {Environment("RUNFILES_DIR"), Environment("TEST_SRCDIR"),
                       absl::StrCat(ProgramPath(), ".runfiles")}};
}

absl::StatusOr<std::vector<std::string>> FindRepositoryTexts(
    const RepositoryPlaces& places) {
  if (!places.workspace.empty()) {
    std::vector<std::string> paths =
        FindTextsBelow(places.workspace, kMostRepositoryBytes);
    if (!paths.empty()) return paths;
  }
  for (const std::string& root : places.runfiles) {
    const std::string path = absl::StrCat(root, "/", kCarried);
    if (root.empty() || access(path.c_str(), R_OK) != 0) continue;
    return std::vector<std::string>{path};
  }
  return absl::NotFoundError(
      "no --data is given, and the repository's texts are not there: run with "
      "`bazel run`, keep the binary beside its .runfiles, or give texts, for "
      "example --data=docs,src/*.cc");
}

absl::StatusOr<TokenizerPointer> OpenTokenizer(const Settings& settings) {
  TESSERA_ASSIGN_OR_RETURN(
      const text::SpecialTokenPolicy special,
      text::ParseSpecialTokens(settings.special_tokens),
      tools::FlagError("special_tokens", settings.special_tokens, _));
  if (settings.tokenizer.empty()) return OpenModelsTokenizer(settings, special);
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<text::Tokenizer> tokenizer,
      text::LoadTokenizer(settings.tokenizer, special),
      tools::FlagError("tokenizer", settings.tokenizer, _));
  return TokenizerPointer(std::move(tokenizer));
}

absl::StatusOr<TrainingData> OpenTrainingData(const Settings& settings) {
  const std::string names = absl::StrJoin(settings.data, ",");
  TrainingData data;
  TESSERA_ASSIGN_OR_RETURN(data.tokenizer, OpenTokenizer(settings));
  const std::string model = settings.model;
  if (IsDirectory(model)) {
    TESSERA_ASSIGN_OR_RETURN(data.source, model_files::LoadModelSource(model),
                             tools::FlagError("model", settings.model, _));
  }
  TESSERA_RETURN_IF_ERROR(CheckDocuments(settings, *data.tokenizer));
  TESSERA_ASSIGN_OR_RETURN(const std::vector<text::Samples::Part> parts,
                           OpenParts(settings, *data.tokenizer),
                           tools::FlagError("data", names, _));
  text::SamplesOptions options = {
      .sequence = settings.length,
      .validation_fraction = settings.validation_fraction,
      .test_fraction = settings.test_fraction,
      .seed = static_cast<uint64_t>(settings.seed),
      .mask_prompts = settings.mask_prompts,
      .together = settings.objective == "dpo" ? 2 : 1};
  if (settings.packing == "whole") {
    options.document_end = data.tokenizer->end_of_text();
  }
  TESSERA_ASSIGN_OR_RETURN(data.samples, text::Samples::Create(parts, options),
                           tools::FlagError("data", names, _));
  TESSERA_RETURN_IF_ERROR(CheckHeldOut(settings, *data.samples));
  return data;
}

RunIdentity IdentityOf(const Settings& settings,
                       const model_files::ModelConfig& model,
                       const TrainingData& data) {
  // Normalised: "04:100" gives the same text as "4:100".
  const BatchSchedule batches = BatchScheduleOf(settings);
  return {.model = model,
          .seed = static_cast<uint64_t>(settings.seed),
          .batch = settings.batch,
          .batch_warmup =
              batches.warmup_steps == 0
                  ? ""
                  : absl::StrCat(batches.first, ":", batches.warmup_steps),
          .length = settings.length,
          .corpus = data.samples->fingerprint(),
          .vocabulary = data.tokenizer->vocabulary_size(),
          .validation_samples = data.samples->validation_count(),
          .test_samples = data.samples->test_count(),
          .decay = settings.decay,
          .optimizer = settings.optimizer,
          .shampoo_block =
              settings.optimizer == "shampoo" ? settings.shampoo_block : 0,
          .lora = {.rank = settings.lora_rank,
                   .alpha = settings.lora_alpha,
                   .targets = settings.lora_targets},
          .source = data.source};
}

}  // namespace tessera::train

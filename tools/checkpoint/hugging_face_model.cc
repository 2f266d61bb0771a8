#include "tools/checkpoint/hugging_face_model.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/dtype/convert.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/checkpoint/write_run.h"
#include "tools/model_files/architectures.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/megatron_names.h"
#include "tools/model_files/pickle.h"
#include "tools/model_files/piece_place.h"
#include "tools/model_files/safetensors_file.h"
#include "tools/model_files/safetensors_header.h"
#include "tools/model_files/safetensors_set.h"
#include "tools/model_files/stacked_experts.h"
#include "tools/model_files/torch_archive.h"
#include "tools/model_files/torch_checkpoint.h"
#include "tools/text/tokenizer_files.h"
#include "tools/train/checkpoint/held_tensor.h"
#include "tools/train/checkpoint/imported_weights.h"
#include "tools/train/checkpoint/saved_run.h"
#include "zero3/checkpoint/file_calls.h"
#include "zero3/layout/state_format.h"
#include "zero3/state/loss_scaler.h"

namespace tessera::tools {

namespace {

using model_files::HuggingFacePiece;
using model_files::LlamaParameter;
using model_files::PickleWriter;
using model_files::PiecePlace;
using model_files::SafetensorsSetWriter;
using model_files::TorchCheckpointWriter;

namespace fs = std::filesystem;

constexpr int64_t kChunkWeights = int64_t{1} << 22;
constexpr int64_t kMaxTokenizerBytes = int64_t{1} << 30;
constexpr const char* kGenerationConfig = "generation_config.json";
// The folders of chat templates besides the default one.
constexpr const char* kTemplateFolders[] = {"additional_chat_templates",
                                            "chat_templates"};

// True for the files of a tokenizer, a chat template, or a processor that
// prepares inputs.
bool IsTokenizerFile(std::string_view name) {
  if (absl::StartsWith(name, "tokenizer") ||
      absl::StartsWith(name, "chat_template") ||
      absl::StartsWith(name, "vocab.")) {
    return true;
  }
  for (const char* const suffix :
       {".model", ".tiktoken", "processor_config.json"}) {
    if (absl::EndsWith(name, suffix)) return true;
  }
  return name == "merges.txt" || name == "added_tokens.json" ||
         name == "special_tokens_map.json" || name == kGenerationConfig;
}

absl::Status SystemError(const std::error_code& error, const char* action,
                         const std::string& path) {
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(
      error.value(), absl::StrCat("cannot ", action, " ", QuotedPath(path)));
}

// Rounds weights to nearest in the type of an export.
absl::Status Round(std::span<const float> weights, DType dtype,
                   std::vector<std::byte>& rounded) {
  rounded.resize(weights.size() * static_cast<size_t>(SizeInBytes(dtype)));
  return Convert(DType::kF32, std::as_bytes(weights), dtype, rounded);
}

class Export {
 public:
  Export(train::ModelReader& reader, const std::string& directory,
         const ExportOptions& options)
      : reader_(reader), directory_(directory), options_(options) {}

  absl::Status Write() {
    TESSERA_RETURN_IF_ERROR(WriteConfigs());
    TESSERA_ASSIGN_OR_RETURN(const model_files::ElementType type,
                             model_files::FromDType(options_.dtype));
    const model_files::ModelConfig& model = reader_.config();
    if (options_.files == WeightFiles::kTorchDist) {
      TESSERA_RETURN_IF_ERROR(WriteMegatronFiles());
      return WriteTorchFiles(model_files::MegatronContentsOf(model, type));
    }
    const std::vector<model_files::StoredTensor> tensors =
        model_files::HuggingFaceTensors(model, type);
    if (options_.files == WeightFiles::kSafetensors) {
      TESSERA_ASSIGN_OR_RETURN(
          SafetensorsSetWriter writer,
          SafetensorsSetWriter::Create(directory_, tensors,
                                       options_.max_shard_bytes,
                                       {{"format", "pt"}}));
      return WriteWeights(writer);
    }
    return WriteTorchFiles({.tensors = tensors});
  }

 private:
  // Writes config.json, generation_config.json and the tokenizer. The model's
  // own files win over those beside the tokenizer.
  absl::Status WriteConfigs() {
    const model_files::ModelSource& source = reader_.saved().identity().source;
    model_files::HuggingFaceConfig config = {.model = reader_.config(),
                                             .dtype = options_.dtype};
    if (options_.end_of_text) config.eos_token_ids = {*options_.end_of_text};
    if (!options_.tokenizer.empty()) {
      TESSERA_RETURN_IF_ERROR(CopyTokenizer());
    }
    if (!source.generation_config.empty()) {
      TESSERA_RETURN_IF_ERROR(
          WriteFile(absl::StrCat(directory_, "/", kGenerationConfig),
                    source.generation_config));
    }
    return model_files::SaveHuggingFaceConfig(
        config, absl::StrCat(directory_, "/config.json"), source.config);
  }

  absl::Status CopyTokenizer() {
    const fs::path from = options_.tokenizer;
    if (!text::HasTokenizer(from)) {
      return absl::NotFoundError(
          absl::StrCat(QuotedPath(from.string()),
                       " has neither a tokenizer.json nor a tokenizer.model"));
    }
    TESSERA_RETURN_IF_ERROR(CopyFiles(from, directory_, IsTokenizerFile));
    for (const char* const folder : kTemplateFolders) {
      std::error_code error;
      if (!fs::is_directory(from / folder, error)) continue;
      const fs::path to = fs::path(directory_) / folder;
      fs::create_directory(to, error);
      TESSERA_RETURN_IF_ERROR(
          SystemError(error, "make the directory", to.string()));
      TESSERA_RETURN_IF_ERROR(
          CopyFiles(from / folder, to, [](std::string_view name) {
            return absl::EndsWith(name, ".jinja");
          }));
    }
    return absl::OkStatus();
  }

  // Copies the files of a directory, also those that links point to.
  static absl::Status CopyFiles(
      const fs::path& from, const fs::path& to,
      absl::FunctionRef<bool(std::string_view name)> is_copied) {
    std::error_code error;
    fs::directory_iterator entries(from, error);
    TESSERA_RETURN_IF_ERROR(SystemError(error, "list", from.string()));
    for (const fs::directory_entry& entry : entries) {
      const std::string name = entry.path().filename().string();
      if (!is_copied(name) || !entry.is_regular_file(error)) continue;
      TESSERA_ASSIGN_OR_RETURN(
          const std::string contents,
          ReadFile(entry.path().string(), kMaxTokenizerBytes));
      TESSERA_RETURN_IF_ERROR(WriteFile((to / name).string(), contents));
    }
    return absl::OkStatus();
  }

  // Writes the files that Megatron-LM reads beside the weights: the format, and
  // the version from which the rows of linear_qkv have the order of
  // megatron_names.h.
  absl::Status WriteMegatronFiles() {
    PickleWriter common;
    common.OpenDictionary();
    common.Text("checkpoint_version");
    common.Real(3);
    common.Text("iteration");
    common.Integer(0);
    common.CloseDictionary();
    TESSERA_RETURN_IF_ERROR(
        WriteFile(absl::StrCat(directory_, "/common.pt"),
                  model_files::TorchObjectArchive(common.Finish())));
    const nlohmann::ordered_json metadata = {{"sharded_backend", "torch_dist"},
                                             {"sharded_backend_version", 1},
                                             {"common_backend", "torch"},
                                             {"common_backend_version", 1}};
    return WriteFile(absl::StrCat(directory_, "/metadata.json"),
                     DumpJson(metadata));
  }

  absl::Status WriteTorchFiles(const model_files::MegatronContents& contents) {
    TESSERA_ASSIGN_OR_RETURN(
        TorchCheckpointWriter writer,
        TorchCheckpointWriter::Create(directory_, contents.tensors,
                                      options_.max_shard_bytes));
    PickleWriter none;
    none.OpenList();
    none.None();
    none.CloseList();
    const std::string pickle = none.Finish();
    for (const std::string& name : contents.objects) {
      TESSERA_RETURN_IF_ERROR(writer.WriteObject(name, pickle));
    }
    return WriteWeights(writer);
  }

  std::vector<PiecePlace> PlacesOf(const LlamaParameter& parameter,
                                   const HuggingFacePiece& piece) const {
    if (options_.files == WeightFiles::kTorchDist) {
      const model_files::ModelConfig& model = reader_.config();
      return model_files::MegatronPlaces(model, parameter, piece,
                                         model_files::MegatronLayersOf(model));
    }
    return {model_files::HuggingFacePlace(parameter, piece)};
  }

  template <typename Writer>
  absl::Status WriteWeights(Writer& writer) {
    for (const LlamaParameter& parameter :
         model_files::LlamaParameters(reader_.config())) {
      for (const HuggingFacePiece& piece : parameter.pieces) {
        TESSERA_RETURN_IF_ERROR(WritePiece(parameter, piece, writer));
      }
    }
    return writer.Commit();
  }

  // Writes stacked experts one by one.
  template <typename Writer>
  absl::Status WriteStack(const LlamaParameter& parameter,
                          const PiecePlace& place, Writer& writer) {
    const model_files::StackedExperts& stack = *place.stack;
    const auto elements = static_cast<size_t>(stack.elements());
    const int64_t bytes = stack.elements() * SizeInBytes(options_.dtype);
    std::vector<float> file(elements);
    weights_.resize(elements);
    for (int64_t expert = 0; expert < stack.experts; ++expert) {
      TESSERA_RETURN_IF_ERROR(
          reader_.Read(parameter.part, parameter.layer, expert * stack.rows,
                       (expert + 1) * stack.rows, weights_));
      stack.ToFile(weights_, file);
      TESSERA_RETURN_IF_ERROR(Round(file, options_.dtype, converted_));
      TESSERA_RETURN_IF_ERROR(
          writer.Write(place.name, expert * bytes, converted_));
    }
    return absl::OkStatus();
  }

  template <typename Writer>
  absl::Status WritePiece(const LlamaParameter& parameter,
                          const HuggingFacePiece& piece, Writer& writer) {
    const std::vector<PiecePlace> places = PlacesOf(parameter, piece);
    if (places[0].stack) return WriteStack(parameter, places[0], writer);
    const int64_t width = parameter.shape.size() == 2 ? parameter.shape[1] : 1;
    const int64_t bytes = width * SizeInBytes(options_.dtype);
    const int64_t at_once = std::max<int64_t>(1, kChunkWeights / width);
    for (int64_t row = 0; row < piece.rows; row += at_once) {
      const int64_t rows = std::min(at_once, piece.rows - row);
      weights_.resize(static_cast<size_t>(rows * width));
      const int64_t begin = piece.target_row + row;
      TESSERA_RETURN_IF_ERROR(reader_.Read(parameter.part, parameter.layer,
                                           begin, begin + rows, weights_));
      if (parameter.offset != 0) {
        for (float& w : weights_) w -= static_cast<float>(parameter.offset);
      }
      TESSERA_RETURN_IF_ERROR(Round(weights_, options_.dtype, converted_));
      const int64_t first = piece.source_row + row;
      for (const PiecePlace& place : places) {
        TESSERA_RETURN_IF_ERROR(place.VisitRuns(
            first, first + rows,
            [&](int64_t tensor_row, int64_t piece_row, int64_t run) {
              return writer.Write(
                  place.name, tensor_row * bytes,
                  std::span<const std::byte>(converted_)
                      .subspan(static_cast<size_t>((piece_row - first) * bytes),
                               static_cast<size_t>(run * bytes)));
            }));
      }
    }
    return absl::OkStatus();
  }

  train::ModelReader& reader_;
  const std::string& directory_;
  const ExportOptions& options_;
  std::vector<float> weights_;
  std::vector<std::byte> converted_;
};

// Syncs the directory `from` and renames it.
absl::Status Publish(const std::string& from, const std::string& to) {
  zero3::FileCalls& calls = zero3::FileCalls::System();
  TESSERA_RETURN_IF_ERROR(calls.SyncDirectory(from));
  TESSERA_RETURN_IF_ERROR(calls.Rename(from, to));
  const std::string parent = fs::path(to).parent_path().string();
  return calls.SyncDirectory(parent.empty() ? "." : parent);
}

bool IsOfRuns(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16;
}

absl::Status CheckType(const ExportOptions& options) {
  if (IsOfRuns(options.dtype)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("weights of ", DTypeName(options.dtype),
                   " cannot be exported; f32, bf16 and f16 can"));
}

// The path without a trailing slash, which would change its parent.
std::string TargetOf(const std::string& directory) {
  return fs::path(directory + "/").lexically_normal().parent_path().string();
}

// Calls `write` with a temporary directory, which then becomes `directory`.
absl::Status WriteWhole(
    const std::string& directory,
    absl::FunctionRef<absl::Status(const std::string& writing)> write) {
  const std::string target = TargetOf(directory);
  TESSERA_RETURN_IF_ERROR(CheckExportTarget(target));
  const std::string writing = target + ".writing";
  std::error_code error;
  fs::remove_all(writing, error);  // Left by an interrupted export.
  TESSERA_RETURN_IF_ERROR(SystemError(error, "remove", writing));
  fs::create_directories(writing, error);
  TESSERA_RETURN_IF_ERROR(SystemError(error, "make the directory", writing));
  absl::Status status = write(writing);
  if (status.ok()) status = Publish(writing, target);
  if (!status.ok()) fs::remove_all(writing, error);
  return status;
}

// One of the two low-rank factors of a projection in PEFT's file.
struct PeftFactor {
  std::string name;
  std::vector<int64_t> shape = {};
  std::vector<float> values = {};
};

// The rows [begin, end) of a matrix.
std::vector<float> RowsOf(const std::vector<float>& matrix, int64_t begin,
                          int64_t end, int64_t width) {
  return {matrix.begin() + begin * width, matrix.begin() + end * width};
}

// The factors of all experts, which PEFT adapts as one parameter of three
// dimensions: lora_A is [experts * rank, in], and lora_B [out, rank * experts]
// has the experts of each rank side by side. PEFT wraps the parameters of a
// module one in another, the last one outermost.
std::vector<PeftFactor> ExpertFactorsOf(const LlamaParameter& parameter,
                                        const train::SavedAdapter& adapter,
                                        int64_t rank) {
  const std::string module = absl::StrCat(
      "base_model.model.model.layers.", parameter.layer, ".mlp.experts.",
      parameter.part == model_files::LlamaPart::kExpertsGateUp ? "base_layer."
                                                               : "");
  const auto experts = static_cast<int64_t>(adapter.ends.size());
  const int64_t rows = adapter.ends[0], columns = rank * experts;
  std::vector<float> b(adapter.b.size());
  for (size_t i = 0; i < b.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    const int64_t expert = at / rank / rows;
    int64_t row = at / rank % rows;
    if (parameter.stack) row = parameter.stack->FileRow(row);
    b[static_cast<size_t>(row * columns + at % rank * experts + expert)] =
        adapter.b[i];
  }
  return {{absl::StrCat(module, "lora_A.weight"),
           {columns, parameter.shape[1]},
           adapter.a},
          {absl::StrCat(module, "lora_B.weight"), {rows, columns}, b}};
}

// The factors lora_A and lora_B of each projection of a weight, named after its
// pieces: "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight".
std::vector<PeftFactor> FactorsOf(const LlamaParameter& parameter,
                                  const train::SavedAdapter& adapter,
                                  int64_t rank) {
  if (parameter.part == model_files::LlamaPart::kExpertsGateUp ||
      parameter.part == model_files::LlamaPart::kExpertsDown) {
    return ExpertFactorsOf(parameter, adapter, rank);
  }
  std::vector<PeftFactor> factors;
  int64_t begin = 0;
  for (size_t i = 0; i < adapter.ends.size(); ++i) {
    const std::string_view module =
        absl::StripSuffix(parameter.pieces[i].name, ".weight");
    const int64_t end = adapter.ends[i], width = parameter.shape[1];
    const auto index = static_cast<int64_t>(i);
    factors.push_back(
        {absl::StrCat("base_model.model.", module, ".lora_A.weight"),
         {rank, width},
         RowsOf(adapter.a, index * rank, (index + 1) * rank, width)});
    factors.push_back(
        {absl::StrCat("base_model.model.", module, ".lora_B.weight"),
         {end - begin, rank},
         RowsOf(adapter.b, begin, end, rank)});
    begin = end;
  }
  return factors;
}

// Adds the targets of attention, such as "q_proj".
void AddAttentionTargets(const model_files::ModelConfig& model,
                         nlohmann::ordered_json& modules) {
  for (const model_files::LlamaPart part :
       model_files::LayerPartsOf(model, 0)) {
    if (!model_files::IsAttentionMatrix(part)) continue;
    const LlamaParameter parameter =
        model_files::MakeLlamaParameter(model, part, 0);
    for (const model_files::HuggingFacePiece& piece : parameter.pieces) {
      const std::vector<std::string_view> names =
          absl::StrSplit(piece.name, '.');
      modules.push_back(names.end()[-2]);
    }
  }
}

// Adds the targets of MLPs. The experts of a mixture are parameters. The linear
// layers beside them are also given as parameters, because PEFT takes modules
// with their names for experts.
void AddMlpTargets(const model_files::ModelConfig& model,
                   nlohmann::ordered_json& config) {
  const model_files::MixtureConfig& mixture = model.mixture;
  const auto add = [&](const char* list, std::string_view prefix,
                       std::string_view suffix) {
    for (const char* const name : {"gate_proj", "up_proj", "down_proj"}) {
      config[list].push_back(absl::StrCat(prefix, name, suffix));
    }
  };
  if (mixture.experts == 0) return add("target_modules", "", "");
  config["target_parameters"] = {"mlp.experts.gate_up_proj",
                                 "mlp.experts.down_proj"};
  if (mixture.shared_intermediate > 0) {
    add("target_parameters", "mlp.shared_experts.", ".weight");
  }
  if (mixture.dense_layers > 0) add("target_parameters", "mlp.", ".weight");
}

// adapter_config.json without the keys whose values are PEFT's defaults.
absl::StatusOr<std::string> PeftConfig(const train::LoraIdentity& lora,
                                       const model_files::ModelConfig& model,
                                       const std::string& base) {
  nlohmann::ordered_json config = {
      {"peft_type", "LORA"},
      {"task_type", "CAUSAL_LM"},
      {"base_model_name_or_path", base},
      {"r", lora.rank},
      {"lora_alpha", lora.alpha},
      {"lora_dropout", 0.0},
      {"bias", "none"},
      {"inference_mode", true},
      {"target_modules", nlohmann::ordered_json::array()}};
  if (lora.targets != "mlp") {
    AddAttentionTargets(model, config["target_modules"]);
  }
  if (lora.targets != "attention") AddMlpTargets(model, config);
  return DumpJson(config, 2) + "\n";
}

absl::Status WriteAdapter(train::ModelReader& reader, const std::string& base,
                          const std::string& directory,
                          const ExportOptions& options) {
  const train::LoraIdentity& lora = reader.saved().identity().lora;
  TESSERA_ASSIGN_OR_RETURN(const std::string config,
                           PeftConfig(lora, reader.config(), base));
  TESSERA_RETURN_IF_ERROR(
      WriteFile(absl::StrCat(directory, "/adapter_config.json"), config));
  TESSERA_ASSIGN_OR_RETURN(const model_files::ElementType type,
                           model_files::FromDType(options.dtype));
  std::vector<std::pair<LlamaParameter, train::SavedAdapter>> adapters;
  std::vector<model_files::StoredTensor> tensors;
  for (LlamaParameter& parameter :
       model_files::LlamaParameters(reader.config())) {
    TESSERA_ASSIGN_OR_RETURN(
        std::optional<train::SavedAdapter> adapter,
        reader.ReadAdapter(parameter.part, parameter.layer));
    if (!adapter) continue;
    for (const PeftFactor& factor : FactorsOf(parameter, *adapter, lora.rank)) {
      tensors.push_back({factor.name, type, factor.shape});
    }
    adapters.emplace_back(std::move(parameter), *std::move(adapter));
  }
  TESSERA_ASSIGN_OR_RETURN(
      model_files::SafetensorsWriter writer,
      model_files::SafetensorsWriter::Create(
          absl::StrCat(directory, "/adapter_model.safetensors"), tensors,
          {{"format", "pt"}}));
  std::vector<std::byte> converted;
  for (const auto& [parameter, adapter] : adapters) {
    for (const PeftFactor& factor : FactorsOf(parameter, adapter, lora.rank)) {
      TESSERA_RETURN_IF_ERROR(Round(factor.values, options.dtype, converted));
      TESSERA_RETURN_IF_ERROR(writer.Write(factor.name, converted));
    }
  }
  return writer.Commit();
}

}  // namespace

absl::StatusOr<WeightFiles> ParseWeightFiles(std::string_view text) {
  if (text == "safetensors") return WeightFiles::kSafetensors;
  if (text == "dcp") return WeightFiles::kDcp;
  if (text == "torch_dist") return WeightFiles::kTorchDist;
  return absl::InvalidArgumentError("allowed: safetensors, dcp, torch_dist");
}

absl::Status CheckExportTarget(const std::string& directory) {
  const fs::path target = TargetOf(directory);
  std::error_code error;
  if (fs::exists(target, error) &&
      !(fs::is_directory(target, error) && fs::is_empty(target, error))) {
    return absl::AlreadyExistsError(
        absl::StrCat(QuotedPath(target.string()),
                     " exists and is not an empty directory; give a new "
                     "directory"));
  }
  fs::path parent = fs::absolute(target, error).parent_path();
  while (parent.has_relative_path() && !fs::exists(parent, error)) {
    parent = parent.parent_path();
  }
  const bool is_directory = fs::is_directory(parent, error);
  if (is_directory && access(parent.c_str(), W_OK | X_OK) == 0) {
    return absl::OkStatus();
  }
  if (!is_directory) errno = ENOTDIR;
  return absl::ErrnoToStatus(
      errno, absl::StrCat(QuotedPath(target.string()), " cannot be made in ",
                          QuotedPath(parent.string())));
}

absl::Status ExportAdapter(const std::string& checkpoint,
                           const std::string& directory,
                           const std::string& base,
                           const ExportOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckType(options));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<train::ModelReader> reader,
                           train::ModelReader::Open(checkpoint));
  if (reader->saved().identity().lora.rank == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        reader->saved().path(), " has no LoRA adapters; export it as a model"));
  }
  const auto& traits = model_files::TraitsOf(reader->config().architecture);
  if (traits.fused_projections) {
    return absl::UnimplementedError(
        absl::StrCat(reader->saved().path(),
                     " has adapters of each projection, and files "
                     "of ",
                     traits.title, " have fused ones; export it as a model"));
  }
  return WriteWhole(directory, [&](const std::string& writing) {
    return WriteAdapter(*reader, base, writing, options);
  });
}

absl::Status ExportModel(const std::string& checkpoint,
                         const std::string& directory,
                         const ExportOptions& options) {
  TESSERA_RETURN_IF_ERROR(CheckType(options));
  if (options.max_shard_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("files of at most ",
                                                   options.max_shard_bytes,
                                                   " bytes; give 1 or more"));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<train::ModelReader> reader,
                           train::ModelReader::Open(checkpoint));
  if (options.files == WeightFiles::kTorchDist) {
    TESSERA_RETURN_IF_ERROR(model_files::CheckMegatron(reader->config()));
  }
  std::unique_ptr<train::ModelReader> best;
  if (!options.best.empty()) {
    TESSERA_ASSIGN_OR_RETURN(best, train::ModelReader::Open(options.best));
  }
  return WriteWhole(directory, [&](const std::string& writing) -> absl::Status {
    TESSERA_RETURN_IF_ERROR(Export(*reader, writing, options).Write());
    if (best == nullptr) return absl::OkStatus();
    const std::string of_best = absl::StrCat(writing, "/", kBestModel);
    std::error_code error;
    fs::create_directory(of_best, error);
    TESSERA_RETURN_IF_ERROR(SystemError(error, "make the directory", of_best));
    TESSERA_RETURN_IF_ERROR(Export(*best, of_best, options).Write());
    return zero3::FileCalls::System().SyncDirectory(of_best);
  });
}

namespace {

// Sets values and master weights; moments are zero already.
absl::Status SetWeights(const train::ImportedWeights& weights,
                        const train::HeldTensor& held, zero3::StatePart part,
                        const zero3::StateArray& to) {
  if (part != zero3::StatePart::kValue && part != zero3::StatePart::kMaster) {
    return absl::OkStatus();
  }
  std::vector<float> elements(static_cast<size_t>(to.capacity));
  TESSERA_RETURN_IF_ERROR(weights.Read(held, to.begin, elements));
  return Convert(
      DType::kF32, std::as_bytes(std::span(elements)), to.format.dtype,
      {to.bytes, static_cast<size_t>(to.format.BytesOf(to.capacity))});
}

}  // namespace

absl::StatusOr<std::string> ImportModel(const std::string& model,
                                        const std::string& directory,
                                        const ImportOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(const train::ImportedWeights weights,
                           train::ImportedWeights::Open(model));
  CheckpointPlan plan = {
      .identity = {.model = weights.config().model, .source = weights.source()},
      .mesh = options.mesh,
      .zero = options.zero,
      .dtype = options.dtype.value_or(weights.dtype())};
  if (!IsOfRuns(plan.dtype)) {
    return absl::InvalidArgumentError(absl::StrCat("a run cannot compute with ",
                                                   DTypeName(plan.dtype),
                                                   "; give f32, bf16 or f16"));
  }
  if (plan.dtype == DType::kF16) plan.loss_scale = zero3::kFirstLossScale;
  return WriteRun(zero3::FileCalls::System(), directory, plan,
                  [&](const train::HeldTensor& held, zero3::StatePart part,
                      const zero3::StateArray& to) {
                    return SetWeights(weights, held, part, to);
                  });
}

}  // namespace tessera::tools

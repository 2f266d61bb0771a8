#include "tools/checkpoint/export_model.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/file.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/safetensors_header.h"
#include "tools/model_files/safetensors_set.h"
#include "tools/train/checkpoint/saved_run.h"
#include "zero3/checkpoint/file_calls.h"

namespace tessera::tools {
namespace {

using model_files::HuggingFacePiece;
using model_files::LlamaParameter;
using model_files::SafetensorsSetWriter;

namespace fs = std::filesystem;

constexpr int64_t kChunkWeights = int64_t{1} << 22;
constexpr int64_t kMaxTokenizerBytes = int64_t{1} << 30;
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt"};

absl::Status SystemError(const std::error_code& error, const char* action,
                         const std::string& path) {
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(
      error.value(), absl::StrCat("cannot ", action, " ", QuotedPath(path)));
}

absl::Status CheckTarget(const std::string& directory) {
  std::error_code error;
  if (!fs::exists(directory, error)) return absl::OkStatus();
  if (fs::is_directory(directory, error) && fs::is_empty(directory, error)) {
    return absl::OkStatus();
  }
  return absl::AlreadyExistsError(
      absl::StrCat(QuotedPath(directory),
                   " is there and not an empty directory; give the "
                   "name of a new one"));
}

class Export {
 public:
  Export(train::ModelReader& reader, const std::string& directory,
         const ExportOptions& options)
      : reader_(reader), directory_(directory), options_(options) {}

  absl::Status Write() {
    TESSERA_RETURN_IF_ERROR(model_files::SaveHuggingFaceConfig(
        {.model = reader_.config(), .dtype = options_.dtype},
        absl::StrCat(directory_, "/config.json")));
    TESSERA_RETURN_IF_ERROR(CopyTokenizer());
    TESSERA_ASSIGN_OR_RETURN(const model_files::ElementType type,
                             model_files::FromDType(options_.dtype));
    TESSERA_ASSIGN_OR_RETURN(
        SafetensorsSetWriter writer,
        SafetensorsSetWriter::Create(
            directory_, model_files::HuggingFaceTensors(reader_.config(), type),
            options_.max_shard_bytes, {{"format", "pt"}}));
    for (const LlamaParameter& parameter :
         model_files::LlamaParameters(reader_.config())) {
      for (const HuggingFacePiece& piece : parameter.pieces) {
        TESSERA_RETURN_IF_ERROR(WritePiece(parameter, piece, writer));
      }
    }
    return writer.Commit();
  }

 private:
  absl::Status CopyTokenizer() {
    if (options_.tokenizer.empty()) return absl::OkStatus();
    for (const char* const name : kTokenizerFiles) {
      const absl::StatusOr<std::string> contents = ReadFile(
          absl::StrCat(options_.tokenizer, "/", name), kMaxTokenizerBytes);
      const bool is_needed = name == kTokenizerFiles[0];
      if (absl::IsNotFound(contents.status()) && !is_needed) continue;
      TESSERA_RETURN_IF_ERROR(contents.status());
      TESSERA_RETURN_IF_ERROR(
          WriteFile(absl::StrCat(directory_, "/", name), *contents));
    }
    return absl::OkStatus();
  }

  absl::Status WritePiece(const LlamaParameter& parameter,
                          const HuggingFacePiece& piece,
                          SafetensorsSetWriter& writer) {
    const int64_t width = parameter.shape.size() == 2 ? parameter.shape[1] : 1;
    const int64_t bytes = width * SizeInBytes(options_.dtype);
    const int64_t at_once = std::max<int64_t>(1, kChunkWeights / width);
    for (int64_t row = 0; row < piece.rows; row += at_once) {
      const int64_t rows = std::min(at_once, piece.rows - row);
      weights_.resize(static_cast<size_t>(rows * width));
      converted_.resize(static_cast<size_t>(rows * bytes));
      const int64_t begin = piece.target_row + row;
      TESSERA_RETURN_IF_ERROR(reader_.Read(parameter.part, parameter.layer,
                                           begin, begin + rows, weights_));
      TESSERA_RETURN_IF_ERROR(Convert(DType::kF32,
                                      std::as_bytes(std::span(weights_)),
                                      options_.dtype, converted_));
      TESSERA_RETURN_IF_ERROR(writer.Write(
          piece.name, (piece.source_row + row) * bytes, converted_));
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

}  // namespace

absl::Status ExportModel(const std::string& checkpoint,
                         const std::string& directory,
                         const ExportOptions& options) {
  if (options.dtype != DType::kF32 && options.dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("weights of ", DTypeName(options.dtype),
                     " cannot be exported; f32 and bf16 can"));
  }
  if (options.max_shard_bytes < 1) {
    return absl::InvalidArgumentError(absl::StrCat("files of at most ",
                                                   options.max_shard_bytes,
                                                   " bytes; give 1 or more"));
  }
  // Without a last slash, so that the parent is its parent.
  const std::string target =
      fs::path(directory + "/").lexically_normal().parent_path().string();
  TESSERA_RETURN_IF_ERROR(CheckTarget(target));
  TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<train::ModelReader> reader,
                           train::ModelReader::Open(checkpoint));
  const std::string writing = target + ".writing";
  std::error_code error;
  fs::remove_all(writing, error);  // Of one that was interrupted.
  TESSERA_RETURN_IF_ERROR(SystemError(error, "remove", writing));
  fs::create_directory(writing, error);
  TESSERA_RETURN_IF_ERROR(SystemError(error, "make the directory", writing));
  absl::Status status = Export(*reader, writing, options).Write();
  if (status.ok()) status = Publish(writing, target);
  if (!status.ok()) fs::remove_all(writing, error);
  return status;
}

}  // namespace tessera::tools

// Writes a model directory in Hugging Face's format and reads a rank's part of
// a matrix.
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "base/tensor/tensor.h"
#include "tools/model_files/hugging_face_config.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/model_config.h"
#include "tools/model_files/presets.h"
#include "tools/model_files/safetensors_set.h"

absl::Status Run(const std::string& directory) {
  using namespace tessera;
  using namespace tessera::model_files;
  TESSERA_ASSIGN_OR_RETURN(const ModelConfig config, PresetConfig("llama-1m"));
  std::cout << config.ParameterCount() << " parameters\n";
  TESSERA_RETURN_IF_ERROR(SaveHuggingFaceConfig(
      {.model = config, .dtype = DType::kBF16}, directory + "/config.json"));

  const std::vector<StoredTensor> tensors =
      HuggingFaceTensors(config, ElementType::kBF16);
  TESSERA_ASSIGN_OR_RETURN(
      auto writer, SafetensorsSetWriter::Create(directory, tensors,
                                                /*max_file_bytes=*/1 << 20));
  for (const StoredTensor& tensor : tensors) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t bytes, TensorBytes(tensor));
    const std::vector<std::byte> zeros(static_cast<size_t>(bytes));
    TESSERA_RETURN_IF_ERROR(writer.Write(tensor.name, zeros));
  }
  TESSERA_RETURN_IF_ERROR(writer.Commit());
  std::cout << tensors.size() << " tensors in " << writer.file_count()
            << " files\n";

  TESSERA_ASSIGN_OR_RETURN(const auto set, SafetensorsSet::Open(directory));
  const LlamaParameter qkv = MakeLlamaParameter(config, LlamaPart::kQkv, 0);
  for (const HuggingFacePiece& piece : PiecesOfRows(qkv, 96, 160)) {
    TESSERA_ASSIGN_OR_RETURN(
        Tensor rows,
        Tensor::Create(DType::kF32, {{piece.rows, config.hidden}}));
    TESSERA_RETURN_IF_ERROR(
        set.ReadRows(piece.name, piece.source_row, rows.view()));
    std::cout << "rows " << piece.target_row << " to "
              << piece.target_row + piece.rows - 1 << " of " << qkv.name
              << " are " << piece.name << " from row " << piece.source_row
              << "\n";
  }
  return absl::OkStatus();
}

int main() {
  const char* const parent = std::getenv("TEST_TMPDIR");
  std::string directory = std::string(parent == nullptr ? "/tmp" : parent) +
                          "/tessera_quickstart_XXXXXX";
  if (mkdtemp(directory.data()) == nullptr) return 1;
  const absl::Status status = Run(directory);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

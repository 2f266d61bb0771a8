// WeightReader: the weights of a Llama model as whole tensors, wherever they
// lie.
#ifndef TESSERA_TOOLS_TRAIN_SAMPLE_WEIGHT_READER_H_
#define TESSERA_TOOLS_TRAIN_SAMPLE_WEIGHT_READER_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "tools/model_files/llama_names.h"
#include "tools/model_files/model_config.h"

namespace tessera::train {

class WeightReader {
 public:
  virtual ~WeightReader() = default;

  virtual const model_files::ModelConfig& config() const = 0;

  // Rows [row_begin, row_end) of a whole parameter in the order of
  // llama_names.h, row by row; a norm's rows are its elements. The head of tied
  // embeddings is not asked for. InvalidArgument where there are no such rows
  // or `target` has another size.
  virtual absl::Status Read(model_files::LlamaPart part, int64_t layer,
                            int64_t row_begin, int64_t row_end,
                            std::span<float> target) = 0;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SAMPLE_WEIGHT_READER_H_

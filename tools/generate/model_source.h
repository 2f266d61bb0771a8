// OpenModel: the weights of a model and the tokenizer that belongs to them,
// from the outputs of a run or a Hugging Face directory.
//
//   TESSERA_ASSIGN_OR_RETURN(const LoadedModel model,
//                            OpenModel("run", /*tokenizer=*/""));
//   ContinueTokens(*model.weights, *model.tokenizer, ops, {.prompt = "The "});
#ifndef TESSERA_TOOLS_GENERATE_MODEL_SOURCE_H_
#define TESSERA_TOOLS_GENERATE_MODEL_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tools/text/tokenizer.h"
#include "tools/train/sample/llama_decoder.h"

namespace tessera::tools {

struct LoadedModel {
  std::unique_ptr<train::WeightReader> weights;      // Not null.
  std::shared_ptr<const text::Tokenizer> tokenizer;  // Not null.
  // The most tokens that the model has seen at a time: --length of a run, the
  // positions of the model otherwise.
  int64_t length = 0;
};

// `path`    is                                  tokenizer without `tokenizer`
//   a run directory (has checkpoints/)          that of its config.json
//   a directory of checkpoints, or one of them  that of the run directory that
//                                               it is in
//   a directory with config.json, safetensors   its tokenizer.json or
//                                               tokenizer.model
//
// Otherwise bytes, if the vocabulary of the model is that of bytes.
// `tokenizer` is a path of text::LoadTokenizer. Reads no weights yet.
//
// InvalidArgument, with the flag --from or --tokenizer, if there is no such
// file, no tokenizer is known, or it has another number of tokens than the run
// was trained with; otherwise the errors of OpenWeights.
absl::StatusOr<LoadedModel> OpenModel(const std::string& path,
                                      const std::string& tokenizer);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_GENERATE_MODEL_SOURCE_H_

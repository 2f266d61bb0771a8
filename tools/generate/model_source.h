// Opens the weights of a model and their tokenizer, from the outputs of a run
// or from a Hugging Face directory.
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
  // The longest sequence that the model was trained on: the --length of a run,
  // otherwise the maximum number of positions of the model.
  int64_t length = 0;
};

// `path`    is                                  tokenizer without `tokenizer`
//   a run directory (has checkpoints/)          that of its config.json
//   a directory of checkpoints, or one of them  that of the run directory that
//                                               it is in
//   a directory with config.json, safetensors   its tokenizer.json or
//                                               tokenizer.model
//
// If none of these applies and the model's vocabulary is for bytes, tokens are
// bytes. `tokenizer` is a path for text::LoadTokenizer. `special_tokens` is a
// text for text::ParseSpecialTokens; if it is empty, that of the run's
// config.json is used, if its tokenizer is, otherwise "pairs". Does not read
// weights yet.
//
// InvalidArgument, with the flag --from, --tokenizer or --special_tokens, if
// the file does not exist, no tokenizer is found, or its number of tokens
// differs from the one that the run was trained with; otherwise the errors of
// OpenWeights.
absl::StatusOr<LoadedModel> OpenModel(const std::string& path,
                                      const std::string& tokenizer,
                                      const std::string& special_tokens = "");

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_GENERATE_MODEL_SOURCE_H_

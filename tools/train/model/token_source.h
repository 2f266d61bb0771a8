// TokenSource: the tokens of a step's micro-batches, as a stage asks for them.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_TOKEN_SOURCE_H_
#define TESSERA_TOOLS_TRAIN_MODEL_TOKEN_SOURCE_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace tessera::train {

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  // [sequences, length + 1] tokens of micro-batch `microbatch` of this rank's
  // pipeline: inputs, and shifted by one what is to be predicted. Good until
  // the step ends.
  virtual absl::StatusOr<std::span<const int64_t>> Tokens(
      int32_t microbatch) = 0;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_TOKEN_SOURCE_H_

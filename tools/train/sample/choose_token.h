// ChooseToken: the next token, from what a model says of each.
#ifndef TESSERA_TOOLS_TRAIN_SAMPLE_CHOOSE_TOKEN_H_
#define TESSERA_TOOLS_TRAIN_SAMPLE_CHOOSE_TOKEN_H_

#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace tessera::train {

// At temperature 0 the first of the largest logits. Else token i with a
// probability proportional to exp(logits[i] / temperature), where `uniform`, in
// [0, 1), says which. InvalidArgument where there are no logits or the
// temperature is negative or not finite; FailedPrecondition where a logit is
// not a number or infinite, as of a model that has diverged.
absl::StatusOr<int64_t> ChooseToken(std::span<const double> logits,
                                    double temperature, double uniform);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SAMPLE_CHOOSE_TOKEN_H_

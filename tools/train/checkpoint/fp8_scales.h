// The scales of fp8 in the metadata of checkpoints, from which a run continues
// with equal bits (tensor_parallel::Fp8Scaling): a line for each transformer
// layer, with its number and, in base64, the scales and the magnitudes of
// the last steps of its linear layers. All ranks that have a layer have the
// same ones, so that they can be restored on any mesh.
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_FP8_SCALES_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_FP8_SCALES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/train/step/train_rank.h"

namespace tessera::train {

// The lines of the rank's layers, between steps; "" without fp8 or before the
// first step. Waits for the device.
absl::StatusOr<std::string> FormatFp8Scales(TrainRank& rank);

// The position of the rank's layers in its scales; "" without fp8. With it,
// memory that ends with a copy of the scales (Fp8Scaling::state) is formatted
// without the rank. Precondition: the memory is large enough.
std::string DescribeFp8Layers(TrainRank& rank);
absl::StatusOr<std::string> FormatFp8Scales(std::string_view layers,
                                            std::span<const std::byte> memory);

// The bytes of each of the rank's layers in untrusted lines of any layers;
// empty if there are no lines or the rank has no fp8. InvalidArgument if a line
// is invalid or that of a layer is missing.
absl::StatusOr<std::map<int64_t, std::string>> Fp8ScalesFor(
    TrainRank& rank, std::string_view text);

// Continues with the result of Fp8ScalesFor, unless it is empty: then the
// scales begin anew.
absl::Status RestoreFp8Scales(const std::map<int64_t, std::string>& scales,
                              TrainRank& rank);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_FP8_SCALES_H_

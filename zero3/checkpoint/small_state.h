// A small sharded state that is saved and loaded as a whole, for tests of what
// goes wrong.
#ifndef TESSERA_ZERO3_CHECKPOINT_SMALL_STATE_H_
#define TESSERA_ZERO3_CHECKPOINT_SMALL_STATE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3::testing {

// Two parameters, of few elements.
ModelParameters SmallModel();

// A state of SmallModel, stamped with `seed`, saved by `ranks` ranks; what each
// got.
std::vector<absl::Status> SaveSmall(const CheckpointWriterOptions& options,
                                    int64_t ranks, int64_t seed);

// Loads the checkpoint at `path` into one rank and checks the stamp.
absl::Status CheckSmall(const std::string& path, int64_t seed);

// Loads the latest one in `directory` into one rank, and checks that it is as
// it was stamped; its step.
absl::StatusOr<int64_t> CheckLatestSmall(const std::string& directory);

}  // namespace tessera::zero3::testing

#endif  // TESSERA_ZERO3_CHECKPOINT_SMALL_STATE_H_

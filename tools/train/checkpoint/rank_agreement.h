// What ranks must know of each other before they go on together.
#ifndef TESSERA_TOOLS_TRAIN_CHECKPOINT_RANK_AGREEMENT_H_
#define TESSERA_TOOLS_TRAIN_CHECKPOINT_RANK_AGREEMENT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/communicator.h"

namespace tessera::train {

// Collectives of `group`, whose errors they return. They wait half an hour for
// the slowest rank, which may be reading.

// Of every rank, by rank; each of some KiB at most.
absl::StatusOr<std::vector<std::string>> GatherTexts(
    collectives::Communicator& group, std::string_view mine);

// OK where all give OK. Otherwise, on every rank, the error of the first that
// has one, which is named, and how many more there are.
absl::Status AgreeOnStatus(collectives::Communicator& group,
                           const absl::Status& mine);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_CHECKPOINT_RANK_AGREEMENT_H_

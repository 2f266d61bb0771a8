// Texts and statuses from every rank to every rank.
//
//   TESSERA_RETURN_IF_ERROR(Agree(group, WriteMine(), timeout));
//   // Here every rank has written, or none has come.
#ifndef TESSERA_ZERO3_CHECKPOINT_SAVE_EXCHANGE_H_
#define TESSERA_ZERO3_CHECKPOINT_SAVE_EXCHANGE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"

namespace tessera::zero3 {

// Collectives. Errors are the group's: see collectives/communicator.h.

// By rank. Any lengths, of some MiB together at most.
absl::StatusOr<std::vector<std::string>> ExchangeTexts(
    collectives::Communicator& group, std::string_view mine,
    absl::Duration timeout);

// OK where all ranks give OK. Otherwise, on every rank, the error of the first
// rank that has one, which is named, and how many more there are.
absl::Status Agree(collectives::Communicator& group, const absl::Status& mine,
                   absl::Duration timeout);

// What Agree returns for these statuses.
absl::Status FirstError(std::string_view group,
                        const std::vector<absl::Status>& by_rank);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_CHECKPOINT_SAVE_EXCHANGE_H_

// What ranks must know of each other before they go on together: texts and
// statuses from every rank to every rank.
//
//   TESSERA_RETURN_IF_ERROR(AgreeOnStatus(group, WriteMine(), timeout));
//   // Here every rank has written, or none has come.
//
// Slow (two collectives, copies): for what happens once in a while.
#ifndef TESSERA_COLLECTIVES_GROUPS_AGREEMENT_H_
#define TESSERA_COLLECTIVES_GROUPS_AGREEMENT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/communicator.h"

namespace tessera::collectives {

// Collectives, which wait up to `timeout` for the slowest rank. Errors are the
// group's: see collectives/communicator.h.

// By rank. Any lengths, of some MiB together at most.
absl::StatusOr<std::vector<std::string>> ExchangeTexts(Communicator& group,
                                                       std::string_view mine,
                                                       absl::Duration timeout);

// OK where all ranks give OK. Otherwise, on every rank, the error of the first
// rank that has one, which is named, and how many more there are. Of a message
// the first 2000 bytes.
absl::Status AgreeOnStatus(Communicator& group, const absl::Status& mine,
                           absl::Duration timeout);

// What AgreeOnStatus returns for these statuses.
absl::Status FirstError(std::string_view group,
                        const std::vector<absl::Status>& by_rank);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GROUPS_AGREEMENT_H_

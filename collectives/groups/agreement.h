// Exchanges texts and statuses between all ranks, so that they continue or fail
// together.
//
//   TESSERA_RETURN_IF_ERROR(AgreeOnStatus(group, WriteMine(), timeout));
//   // Reached only if every rank succeeded.
//
// For rare events: each exchange costs two collectives and copies.
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

// The exchanges are collectives of group.host() that wait up to `timeout` for
// the slowest rank. Errors as described in collectives/communicator.h.

// Returns the texts of all ranks, by rank. Lengths may differ; a few MiB in
// total.
absl::StatusOr<std::vector<std::string>> ExchangeTexts(Communicator& group,
                                                       std::string_view mine,
                                                       absl::Duration timeout);

// OK if all ranks pass OK. Otherwise every rank gets the error of the first
// failed rank, with that rank's number, the number of other failed ranks, and
// up to 2000 bytes of the message.
absl::Status AgreeOnStatus(Communicator& group, const absl::Status& mine,
                           absl::Duration timeout);

// The result of AgreeOnStatus for these statuses.
absl::Status FirstError(std::string_view group,
                        const std::vector<absl::Status>& by_rank);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_GROUPS_AGREEMENT_H_

// MessageHeader: what travels ahead of a message so that both ends agree on it.
#ifndef TESSERA_COLLECTIVES_ENGINE_MESSAGE_HEADER_H_
#define TESSERA_COLLECTIVES_ENGINE_MESSAGE_HEADER_H_

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "collectives/operation/signature.h"
#include "topology/rank.h"

namespace tessera::collectives {

// Plain bytes: sent as it is.
struct MessageHeader {
  Signature signature;
  int64_t bytes = 0;  // Of the message that follows.

  friend bool operator==(const MessageHeader&, const MessageHeader&) = default;
};
static_assert(sizeof(MessageHeader) == 40);

// OK, or FailedPrecondition that shows what both ranks called; of messages
// whose signatures are the same, both sizes.
absl::Status CheckHeader(const MessageHeader& mine, Rank my_rank,
                         const MessageHeader& theirs, Rank their_rank);

// The same for a collective: `all` holds every rank's signature.
absl::Status CheckSignatures(std::span<const Signature> all, Rank my_rank);

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ENGINE_MESSAGE_HEADER_H_

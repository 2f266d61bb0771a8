#include "collectives/engine/message_header.h"

#include "absl/strings/str_cat.h"

namespace tessera::collectives {

absl::Status CheckHeader(const MessageHeader& mine, Rank my_rank,
                         const MessageHeader& theirs, Rank their_rank) {
  if (mine.signature != theirs.signature) {
    return MismatchError(mine.signature, my_rank, theirs.signature, their_rank);
  }
  if (mine.bytes == theirs.bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", their_rank.value(), " sent ", theirs.bytes,
                   " bytes in ", DescribeSignature(theirs.signature), "; rank ",
                   my_rank.value(), " expects ", mine.bytes));
}

absl::Status CheckSignatures(std::span<const Signature> all, Rank my_rank) {
  const Signature& mine = all[static_cast<size_t>(my_rank.value())];
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == mine) continue;
    return MismatchError(mine, my_rank, all[r], Rank(static_cast<int64_t>(r)));
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives

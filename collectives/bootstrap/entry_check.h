// What may be a key, a value and a list of ranks: checked at both ends.
#ifndef TESSERA_COLLECTIVES_BOOTSTRAP_ENTRY_CHECK_H_
#define TESSERA_COLLECTIVES_BOOTSTRAP_ENTRY_CHECK_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "collectives/bootstrap/seat.h"

namespace tessera::collectives::bootstrap {

// InvalidArgument where a key is empty or too long, or what is to be set under
// it is too long or is to be read a negative number of times.
absl::Status CheckKey(std::string_view key);
absl::Status CheckEntry(int64_t reads, std::string_view key,
                        std::string_view value);
// The same where a list of ranks or their prefix is too long, or one of them is
// not below `size`.
absl::Status CheckRankList(std::string_view prefix, std::span<const Rank> ranks,
                           int64_t size);

// The key in quotes, short and printable, for messages.
std::string ShowKey(std::string_view key);

}  // namespace tessera::collectives::bootstrap

#endif  // TESSERA_COLLECTIVES_BOOTSTRAP_ENTRY_CHECK_H_

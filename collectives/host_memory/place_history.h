// PlaceHistory: whether it is worth asking again where everybody's buffers are.
//
//   if (history.Asks(kind, bytes)) {
//     ... ask ...
//     history.Learn(kind, bytes, enough);
//   }
//
// Asking is a synchronisation, in vain for a program whose buffers are not
// shared: a third of the time of a small all_gather. So after a refusal the
// next calls of the same kind and about the same size are not asked: 1, then 3,
// and so on up to a limit. Large messages, for which the question is cheap,
// always are.
//
// All ranks of a group make the same calls and learn the same answers, so their
// histories agree without a word.
#ifndef TESSERA_COLLECTIVES_HOST_MEMORY_PLACE_HISTORY_H_
#define TESSERA_COLLECTIVES_HOST_MEMORY_PLACE_HISTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "collectives/operation/operation.h"

namespace tessera::collectives::direct {

class PlaceHistory {
 public:
  // From here on it always asks.
  static constexpr int64_t kLargeBytes = int64_t{1} << 20;

  // `most_skips` is 0 (asks always) to 255.
  explicit PlaceHistory(int64_t most_skips)
      : most_skips_(static_cast<uint8_t>(most_skips)) {}

  // Whether this call is to ask; counts it where not. `bytes` is more than 0.
  bool Asks(OpKind kind, int64_t bytes);

  // The answer: whether all buffers could be reached.
  void Learn(OpKind kind, int64_t bytes, bool enough);

 private:
  struct Entry {
    uint8_t skips = 0;  // After the last refusal.
    uint8_t left = 0;   // Of those.
  };
  static constexpr size_t kSizeClasses =
      20;  // Powers of two below kLargeBytes.

  Entry& EntryOf(OpKind kind, int64_t bytes);

  const uint8_t most_skips_;
  std::array<std::array<Entry, kSizeClasses>, kCollectiveKinds.size()>
      entries_ = {};
};

}  // namespace tessera::collectives::direct

#endif  // TESSERA_COLLECTIVES_HOST_MEMORY_PLACE_HISTORY_H_

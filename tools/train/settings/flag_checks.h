// Checks for flag values. Every error is one line.
//
//   TESSERA_RETURN_IF_ERROR(CheckRange("batch", settings.batch, {1, 1 << 20}));
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_FLAG_CHECKS_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_FLAG_CHECKS_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::train {

// Returns InvalidArgument with the message "--flag=value: what".
absl::Status RefuseFlag(std::string_view flag, const absl::AlphaNum& value,
                        const absl::AlphaNum& what);

// An inclusive range of integers.
struct WholeRange {
  int64_t least = 0;
  int64_t most = 0;
};
absl::Status CheckRange(std::string_view flag, int64_t value, WholeRange range);

// A range of numbers. `with_least` says whether `least` is included. `below` is
// excluded and may be infinite.
struct RealRange {
  double least = 0;
  bool with_least = true;
  double below = 0;
  std::string_view example;
};
absl::Status CheckRange(std::string_view flag, double value,
                        const RealRange& range);

// Returns InvalidArgument if `value` is not one of `names`. The error lists all
// names and gives the nearest one as an example.
absl::Status CheckChoice(std::string_view flag, std::string_view value,
                         std::span<const std::string_view> names);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_FLAG_CHECKS_H_

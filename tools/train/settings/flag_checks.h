// Checks of a flag's value, each with a message of one line.
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

// "--flag=value: what", InvalidArgument.
absl::Status RefuseFlag(std::string_view flag, const absl::AlphaNum& value,
                        const absl::AlphaNum& what);

// What a whole number may be, the ends included.
struct WholeRange {
  int64_t least = 0;
  int64_t most = 0;
};
absl::Status CheckRange(std::string_view flag, int64_t value, WholeRange range);

// What a number may be, the least one included or not, and the most, which is
// not and may be infinite.
struct RealRange {
  double least = 0;
  bool with_least = true;
  double below = 0;
  std::string_view example;
};
absl::Status CheckRange(std::string_view flag, double value,
                        const RealRange& range);

// One of `names`; the message has all of them, and the nearest first.
absl::Status CheckChoice(std::string_view flag, std::string_view value,
                         std::span<const std::string_view> names);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_FLAG_CHECKS_H_

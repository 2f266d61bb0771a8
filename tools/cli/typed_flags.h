// Flags of a tool that store typed values in fields.
//
//   struct Options { int64_t factor = 4; std::vector<std::string> engines; };
//   Options options;
//   const Tool tool = {
//       .name = "bench",
//       .flags = {RangeFlag("factor", "...", options.factor, 2, 64),
//                 ListFlag("engine", "...", "", options.engines, ParseName)}};
//
// A field must outlive the tool. The default is the field's value if the flag
// is not given. Errors are those of FlagError.
#ifndef TESSERA_TOOLS_CLI_TYPED_FLAGS_H_
#define TESSERA_TOOLS_CLI_TYPED_FLAGS_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/flags/marshalling.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/byte_size.h"
#include "base/status_macros.h"
#include "tools/cli/cli.h"

namespace tessera::tools {

// A flag that sets `field` to the result of `parse`, a function from
// std::string_view to absl::StatusOr<T>. `default_value` is for --help.
template <typename T, typename Parse>
Flag ParsedFlag(std::string_view name, std::string_view help,
                std::string_view default_value, T& field, Parse parse) {
  Flag flag = {
      .name = name, .help = help, .default_value = std::string(default_value)};
  flag.set = [name, &field, parse](std::string_view text) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(field, parse(text), FlagError(name, text, _));
    return absl::OkStatus();
  };
  return flag;
}

// For types that Abseil's flags support: bool, numbers, strings, and those with
// an AbslParseFlag.
template <typename T>
Flag FieldFlag(std::string_view name, std::string_view help, T& field) {
  Flag flag = ParsedFlag(name, help, absl::UnparseFlag(field), field,
                         [](std::string_view text) -> absl::StatusOr<T> {
                           T value;
                           std::string error;
                           if (absl::ParseFlag(text, &value, &error)) {
                             return value;
                           }
                           if (error.empty()) {
                             error = "not a value of this flag's type";
                           }
                           return absl::InvalidArgumentError(error);
                         });
  flag.is_boolean = std::is_same_v<T, bool>;
  return flag;
}

// A whole number from `lowest` to `highest`.
inline Flag RangeFlag(std::string_view name, std::string_view help,
                      int64_t& field, int64_t lowest, int64_t highest) {
  Flag flag = FieldFlag(name, help, field);
  flag.set = [=, &field, set = flag.set](std::string_view text) {
    const absl::Status status = set(text);
    return status.ok() ? CheckFlagRange(name, field, lowest, highest) : status;
  };
  return flag;
}

// Items separated by commas, each at most once; `parse` parses one.
template <typename T, typename Parse>
Flag ListFlag(std::string_view name, std::string_view help,
              std::string_view default_value, std::vector<T>& field,
              Parse parse) {
  const auto parse_list =
      [parse](std::string_view text) -> absl::StatusOr<std::vector<T>> {
    std::vector<T> items;
    for (const std::string_view item : absl::StrSplit(text, ',')) {
      TESSERA_ASSIGN_OR_RETURN(T value, parse(item));
      if (std::find(items.begin(), items.end(), value) != items.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat(item, " is listed twice"));
      }
      items.push_back(std::move(value));
    }
    return items;
  };
  return ParsedFlag(name, help, default_value, field, parse_list);
}

// The sizes from --min_bytes up to --max_bytes, each `factor` times the last.
// InvalidArgument if the smallest is larger than the largest.
inline absl::StatusOr<std::vector<int64_t>> GrowingSizes(int64_t min_bytes,
                                                         int64_t max_bytes,
                                                         int64_t factor) {
  if (min_bytes > max_bytes) {
    return FlagError(
        "min_bytes", ByteSize(min_bytes).ToString(),
        absl::StrCat("at most --max_bytes=", ByteSize(max_bytes).ToString(),
                     " is allowed"));
  }
  std::vector<int64_t> sizes;
  for (int64_t size = min_bytes; size <= max_bytes; size *= factor) {
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_CLI_TYPED_FLAGS_H_

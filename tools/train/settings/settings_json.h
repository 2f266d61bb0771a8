// Settings as JSON: one object, a key for each flag, none inside another.
//
//   {"mesh": "dp2,tp2", "data": ["docs", "more.u16"], "steps": 1000}
//
//   TESSERA_RETURN_IF_ERROR(WriteSettings(settings, "run/config.json"));
//   TESSERA_ASSIGN_OR_RETURN(Settings same, ReadSettings("run/config.json"));
//
// Keys that are not there keep their defaults. Source: RFC 8259, with the added
// rule that no key comes twice.
#ifndef TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_JSON_H_
#define TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_JSON_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/train/settings/settings.h"

namespace tessera::train {

inline constexpr size_t kMaxSettingsBytes = size_t{1} << 20;

// InvalidArgument where it is no JSON object, too long or nested, a key is
// unknown (the nearest one is named) or comes twice, or a value has another
// type than its field or says nothing ("mesh": "dp0"). What values mean is
// CheckSettings's.
absl::StatusOr<Settings> ParseSettings(std::string_view json);

// Every field, one on a line; ParseSettings reads back the same settings, to
// the last bit (timeouts in whole seconds). InvalidArgument, with the key,
// where JSON cannot say that: a number that is not finite, a text that is no
// UTF-8, and where it would be longer than kMaxSettingsBytes.
absl::StatusOr<std::string> FormatSettings(const Settings& settings);

// The same from and to a file. Errors name it. Writing replaces it as a whole,
// so that there is always the old one or the new one.
absl::StatusOr<Settings> ReadSettings(const std::string& path);
absl::Status WriteSettings(const Settings& settings, const std::string& path);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_SETTINGS_SETTINGS_JSON_H_

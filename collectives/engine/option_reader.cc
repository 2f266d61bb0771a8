#include "collectives/engine/option_reader.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::collectives {

const std::string* OptionReader::Find(std::string_view name) {
  known_.emplace_back(name);
  const auto option = options_.find(std::string(name));
  return option == options_.end() ? nullptr : &option->second;
}

void OptionReader::Refuse(std::string_view name, std::string_view allowed) {
  const std::string& given = options_.at(std::string(name));
  status_.Update(absl::InvalidArgumentError(
      absl::StrCat("engine ", engine_, ": option ", name, " is \"",
                   given.substr(0, 64), "\"; ", allowed)));
}

void OptionReader::Read(std::string_view name, std::string& value) {
  if (const std::string* text = Find(name)) value = *text;
}

void OptionReader::Read(std::string_view name, bool& value) {
  const std::string* const text = Find(name);
  if (text == nullptr) return;
  if (*text != "true" && *text != "false") {
    return Refuse(name, "true or false are allowed");
  }
  value = *text == "true";
}

void OptionReader::Read(std::string_view name, int& value) {
  const std::string* const text = Find(name);
  if (text == nullptr) return;
  int number = 0;
  if (!absl::SimpleAtoi(*text, &number)) {
    return Refuse(name, "a whole number is needed");
  }
  value = number;
}

void OptionReader::Read(std::string_view name, absl::Duration& value) {
  const std::string* const text = Find(name);
  if (text == nullptr) return;
  absl::Duration duration;
  if (!absl::ParseDuration(*text, &duration)) {
    return Refuse(name, "a duration such as 500ms or 1m30s is needed");
  }
  value = duration;
}

absl::Status OptionReader::Finish() const {
  if (!status_.ok()) return status_;
  for (const auto& [name, unused] : options_) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("engine ", engine_, " has no option \"",
                     name.substr(0, 64), "\"; there is ",
                     known_.empty() ? "none" : absl::StrJoin(known_, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace tessera::collectives

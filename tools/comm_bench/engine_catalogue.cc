#include "tools/comm_bench/engine_catalogue.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::tools {

void EngineCatalogue::AddThreads(std::string_view name,
                                 EngineEntry::MakeAll make) {
  EngineEntry entry;
  entry.launch = Launch::kThreads;
  entry.make_all = std::move(make);
  entries_[std::string(name)] = std::move(entry);
}

void EngineCatalogue::AddProcesses(std::string_view name, Launch launch,
                                   EngineEntry::MakeOne make) {
  EngineEntry entry;
  entry.launch = launch;
  entry.make_one = std::move(make);
  entries_[std::string(name)] = std::move(entry);
}

absl::StatusOr<EngineEntry> EngineCatalogue::Find(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found != entries_.end()) return found->second;
  std::string names;
  for (const auto& [known, entry] : entries_) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", known);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no engine \"", name.substr(0, 63),
                   "\" in this binary; there are: ", names));
}

}  // namespace tessera::tools

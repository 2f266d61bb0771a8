#include "collectives/engine/engine_registry.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

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
    return Refuse(name, "use true or false");
  }
  value = *text == "true";
}

void OptionReader::Read(std::string_view name, int& value) {
  const std::string* const text = Find(name);
  if (text == nullptr) return;
  int number = 0;
  if (!absl::SimpleAtoi(*text, &number)) {
    return Refuse(name, "use an integer");
  }
  value = number;
}

void OptionReader::Read(std::string_view name, absl::Duration& value) {
  const std::string* const text = Find(name);
  if (text == nullptr) return;
  absl::Duration duration;
  if (!absl::ParseDuration(*text, &duration)) {
    return Refuse(name, "use a duration such as 500ms or 1m30s");
  }
  value = duration;
}

absl::Status OptionReader::Finish() const {
  if (!status_.ok()) return status_;
  for (const auto& [name, unused] : options_) {
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "engine ", engine_, " has no option \"", name.substr(0, 64), "\"; ",
        known_.empty() ? "it has no options" : "expected ",
        absl::StrJoin(known_, ", ")));
  }
  return absl::OkStatus();
}

namespace {

struct Entry {
  EngineFactory factory;  // Null if the engine is not built in.
  std::string reason;     // The reason why it is not built in.
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, Entry, std::less<>> entries;
};

// Created by the first registration, before main, and never destroyed.
Registry& TheRegistry() {
  static auto* const registry = new Registry;
  return *registry;
}

bool Add(std::string_view name, Entry entry) {
  if (name.empty()) return false;
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  return registry.entries.emplace(name, std::move(entry)).second;
}

absl::Status CheckSetup(std::string_view name, const EngineSetup& setup) {
  if (setup.size >= 1 && setup.rank.value() >= 0 &&
      setup.rank.value() < setup.size) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("engine ", name, ": rank ", setup.rank.value(), " of ",
                   setup.size, " ranks; ranks are 0 to size - 1"));
}

absl::StatusOr<EngineFactory> Find(std::string_view name) {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  const auto entry = registry.entries.find(name);
  if (entry == registry.entries.end()) {
    std::vector<std::string_view> names;
    for (const auto& [known, unused] : registry.entries) names.push_back(known);
    return absl::InvalidArgumentError(absl::StrCat(
        "no engine \"", name.substr(0, 64), "\" is linked in; use ",
        names.empty() ? "none" : absl::StrJoin(names, ", "),
        ". An engine is linked in by a dependency on its register target"));
  }
  if (entry->second.factory == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(
        "engine ", name, " was not built in: ", entry->second.reason));
  }
  return entry->second.factory;
}

}  // namespace

bool RegisterEngine(std::string_view name, EngineFactory factory) {
  return factory != nullptr && Add(name, {std::move(factory), ""});
}

bool RegisterMissingEngine(std::string_view name, std::string_view reason) {
  return Add(name, {nullptr, std::string(reason)});
}

std::vector<std::string> RegisteredEngines() {
  Registry& registry = TheRegistry();
  const std::lock_guard lock(registry.mutex);
  std::vector<std::string> names;
  for (const auto& [name, entry] : registry.entries) {
    if (entry.factory != nullptr) names.push_back(name);
  }
  return names;
}

absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(std::string_view name,
                                                     const EngineSetup& setup) {
  TESSERA_ASSIGN_OR_RETURN(const EngineFactory factory, Find(name));
  TESSERA_RETURN_IF_ERROR(CheckSetup(name, setup));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine, factory(setup));
  if (engine->rank() == setup.rank && engine->size() == setup.size) {
    return engine;
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "engine ", name, " finds rank ", engine->rank().value(), " of ",
      engine->size(), ", but the job is rank ", setup.rank.value(), " of ",
      setup.size, "; start the program with the launcher that the engine needs",
      name == "mpi" ? " (mpirun)" : ""));
}

}  // namespace tessera::collectives

#include "collectives/adaptive/create_adaptive.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/fnv1a.h"
#include "base/status_macros.h"

namespace tessera::collectives {

namespace {

uint64_t HashOf(const CostKey& key) {
  const std::string text =
      absl::StrCat(key.hardware, "\n", key.engine, "\n", key.ranks, "\n",
                   key.ranks_per_host, "\n", key.reproducible);
  return Fnv1a(text);
}

}  // namespace

std::string DefaultCacheDirectory() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  // The specification requires ignoring relative paths.
  if (cache != nullptr && cache[0] == '/')
    return absl::StrCat(cache, "/tessera");
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') {
    return absl::StrCat(home, "/.cache/tessera");
  }
  return "";
}

std::string CostPath(const std::string& directory, const CostKey& key) {
  return absl::StrCat(
      directory, "/",
      absl::StrFormat("collective-costs-%016x.json", HashOf(key)));
}

absl::StatusOr<CostTable> LoadCosts(const std::string& directory,
                                    const CostKey& key) {
  const std::string path = CostPath(directory, key);
  absl::StatusOr<std::string> text =
      ReadFile(path, static_cast<int64_t>(kMaxCostText));
  if (!text.ok()) return absl::NotFoundError(text.status().message());
  absl::StatusOr<CostTable> table = CostTableFromJson(*text);
  if (!table.ok()) {
    return absl::NotFoundError(
        absl::StrCat(path, ": ", table.status().message()));
  }
  if (table->key == key) return table;
  return absl::NotFoundError(absl::StrCat(path, " holds costs of another key"));
}

absl::Status StoreCosts(const std::string& directory, const CostTable& table) {
  if (directory.empty()) {
    return absl::FailedPreconditionError(
        "there is no cache directory: set XDG_CACHE_HOME or HOME");
  }
  TESSERA_RETURN_IF_ERROR(CheckCostTable(table));
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat("cannot create ", directory));
  }
  return WriteFile(CostPath(directory, table.key), CostTableToJson(table));
}

namespace {

// Rank 0's cached costs as text; empty on other ranks and if there are none.
std::string CachedText(const Communicator& communicator,
                       const std::string& directory) {
  if (communicator.rank() != Rank(0) || directory.empty()) return "";
  const auto table = LoadCosts(directory, CostKeyOf(communicator));
  return table.ok() ? CostTableToJson(*table) : "";
}

// Measures the costs and stores them on rank 0; `origin` records whether
// storing succeeded.
absl::StatusOr<CostTable> MeasureAndKeep(Communicator& communicator,
                                         const AdaptiveOptions& options,
                                         const std::string& directory,
                                         std::string* origin) {
  TESSERA_ASSIGN_OR_RETURN(CostTable table,
                           MeasureCosts(communicator, options.measure));
  *origin = "measured just now";
  if (communicator.rank() != Rank(0) || directory.empty()) return table;
  const absl::Status kept = StoreCosts(directory, table);
  if (kept.ok()) {
    absl::StrAppend(origin, ", stored in ", CostPath(directory, table.key));
  } else {
    absl::StrAppend(origin, ", not stored: ", kept.message());
  }
  return table;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const AdaptiveChooser>> CreateAdaptiveChooser(
    Communicator& group, const AdaptiveOptions& options) {
  Communicator& communicator = group.host();
  const std::string directory =
      options.cache_directory.value_or(DefaultCacheDirectory());
  TESSERA_ASSIGN_OR_RETURN(
      const std::string text,
      BroadcastText(communicator, CachedText(communicator, directory)));
  std::string origin = "from the cache";
  absl::StatusOr<CostTable> table =
      text.empty() ? MeasureAndKeep(communicator, options, directory, &origin)
                   : CostTableFromJson(text);
  if (!table.ok()) return table.status();
  // The same text on every rank.
  TESSERA_ASSIGN_OR_RETURN(origin,
                           BroadcastText(communicator, std::move(origin)));
  return std::make_shared<const AdaptiveChooser>(*std::move(table),
                                                 std::move(origin));
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateAdaptiveCommunicator(
    std::unique_ptr<Engine> engine, CommunicatorOptions options,
    const AdaptiveOptions& adaptive) {
  if (engine == nullptr) {
    return absl::InvalidArgumentError(
        "engine is null; a communicator needs an engine");
  }
  if (options.chooser != nullptr) {
    return absl::InvalidArgumentError(
        "an adaptive communicator creates its own chooser; leave "
        "options.chooser null, or use Communicator::Create");
  }
  constexpr uint32_t kMeasuringGroup = 2;
  {
    TESSERA_ASSIGN_OR_RETURN(
        std::unique_ptr<Engine> beside,
        Duplicate(*engine, kMeasuringGroup, options.timeout));
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                             Communicator::Create(std::move(beside), options));
    TESSERA_ASSIGN_OR_RETURN(options.chooser,
                             CreateAdaptiveChooser(*communicator, adaptive));
  }
  return Communicator::Create(std::move(engine), std::move(options));
}

}  // namespace tessera::collectives

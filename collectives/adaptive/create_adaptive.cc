#include "collectives/adaptive/create_adaptive.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/adaptive/cost_cache.h"

namespace tessera::collectives {
namespace {

// Costs that rank 0 keeps, as text; empty on the others and where there are
// none.
std::string CachedText(const Communicator& communicator,
                       const std::string& directory) {
  if (communicator.rank() != Rank(0) || directory.empty()) return "";
  const auto table = LoadCosts(directory, CostKeyOf(communicator));
  return table.ok() ? CostTableToJson(*table) : "";
}

// Measures, and keeps the result on rank 0; says what became of it.
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
    absl::StrAppend(origin, ", kept in ", CostPath(directory, table.key));
  } else {
    absl::StrAppend(origin, ", not kept: ", kept.message());
  }
  return table;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const AdaptiveChooser>> CreateAdaptiveChooser(
    Communicator& communicator, const AdaptiveOptions& options) {
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
  // The same words on every rank.
  TESSERA_ASSIGN_OR_RETURN(origin,
                           BroadcastText(communicator, std::move(origin)));
  return std::make_shared<const AdaptiveChooser>(*std::move(table),
                                                 std::move(origin));
}

absl::StatusOr<std::unique_ptr<Communicator>> CreateAdaptiveCommunicator(
    std::unique_ptr<Engine> engine, CommunicatorOptions options,
    const AdaptiveOptions& adaptive) {
  if (engine == nullptr) {
    return absl::InvalidArgumentError("a communicator needs an engine");
  }
  if (options.chooser != nullptr) {
    return absl::InvalidArgumentError(
        "an adaptive communicator makes its own chooser; leave "
        "options.chooser null, or use Communicator::Create");
  }
  std::vector<Rank> everyone;
  for (int64_t r = 0; r < engine->size(); ++r) everyone.push_back(Rank(r));
  // A number that no user's subgroup has: those are hashes of lists.
  constexpr uint32_t kMeasuringGroup = 2;
  const int64_t deadline =
      MonotonicNanos() +
      absl::ToInt64Nanoseconds(std::min(options.timeout, absl::Hours(1)));
  {
    TESSERA_ASSIGN_OR_RETURN(
        std::unique_ptr<Engine> beside,
        engine->CreateSubgroup(everyone, kMeasuringGroup, deadline));
    TESSERA_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> communicator,
                             Communicator::Create(std::move(beside), options));
    TESSERA_ASSIGN_OR_RETURN(options.chooser,
                             CreateAdaptiveChooser(*communicator, adaptive));
  }
  return Communicator::Create(std::move(engine), std::move(options));
}

}  // namespace tessera::collectives

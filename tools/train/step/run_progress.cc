#include "tools/train/step/run_progress.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::train {
namespace {

using Metadata = std::map<std::string, std::string>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// The limit of each number, so that sums of them (positions in the data) do not
// overflow.
constexpr int64_t kMost = int64_t{1} << 60;

absl::Status Invalid(std::string_view key, std::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("the metadata of the checkpoint has ",
                   Quoted(text.substr(0, 60)), " as ", Quoted(key)));
}

// 0 if the key is missing.
absl::StatusOr<int64_t> CountOf(const Metadata& metadata,
                                std::string_view key) {
  const auto found = metadata.find(std::string(key));
  if (found == metadata.end()) return 0;
  int64_t count = 0;
  if (absl::SimpleAtoi(found->second, &count) && count >= 0 && count <= kMost) {
    return count;
  }
  return Invalid(key, found->second);
}

}  // namespace

void RunProgress::AddStep(double loss, int64_t window) {
  ++steps;
  losses.push_back(std::isfinite(loss) ? loss : kInfinity);
  const auto size = static_cast<int64_t>(losses.size());
  losses.erase(losses.begin(),
               losses.begin() + std::max<int64_t>(size - window, 0));
}

void AddTo(const RunProgress& progress, Metadata& metadata) {
  metadata["steps"] = absl::StrCat(progress.steps);
  if (progress.skipped_samples > 0) {
    metadata["skipped_samples"] = absl::StrCat(progress.skipped_samples);
  }
  if (progress.rollbacks > 0) {
    metadata["rollbacks"] = absl::StrCat(progress.rollbacks);
  }
  if (progress.learning_rate.has_value()) {
    metadata["learning_rate"] =
        absl::StrFormat("%.17g", *progress.learning_rate);
  }
  if (progress.losses.empty()) return;
  // With all digits, so that the same spikes are found after a restart.
  metadata["losses"] =
      absl::StrJoin(progress.losses, " ", [](std::string* out, double loss) {
        absl::StrAppend(out, absl::StrFormat("%.17g", loss));
      });
}

absl::StatusOr<RunProgress> ProgressFrom(const Metadata& metadata) {
  if (!metadata.contains("steps")) {
    return absl::InvalidArgumentError(
        "not a checkpoint of a training run: it has no number of steps in its "
        "metadata");
  }
  RunProgress progress;
  TESSERA_ASSIGN_OR_RETURN(progress.steps, CountOf(metadata, "steps"));
  TESSERA_ASSIGN_OR_RETURN(progress.skipped_samples,
                           CountOf(metadata, "skipped_samples"));
  TESSERA_ASSIGN_OR_RETURN(progress.rollbacks, CountOf(metadata, "rollbacks"));
  const auto rate = metadata.find("learning_rate");
  if (rate != metadata.end() &&
      (!absl::SimpleAtod(rate->second, &progress.learning_rate.emplace()) ||
       !std::isfinite(*progress.learning_rate))) {
    return Invalid("learning_rate", rate->second);
  }
  const auto losses = metadata.find("losses");
  if (losses == metadata.end()) return progress;
  for (const std::string_view text : absl::StrSplit(losses->second, ' ')) {
    double loss = 0;
    if (!absl::SimpleAtod(text, &loss) || std::isnan(loss)) {
      return Invalid("losses", text);
    }
    progress.losses.push_back(loss);
  }
  return progress;
}

std::optional<LossSpike> FindSpike(std::span<const double> losses, double loss,
                                   double factor) {
  if (losses.empty()) return std::nullopt;
  std::vector<double> sorted(losses.begin(), losses.end());
  std::sort(sorted.begin(), sorted.end());
  const size_t middle = sorted.size() / 2;
  LossSpike spike = {.usual = sorted.size() % 2 == 1
                                  ? sorted[middle]
                                  : (sorted[middle - 1] + sorted[middle]) / 2};
  if (std::isfinite(loss) && loss <= factor * spike.usual) return std::nullopt;
  const double risen = (1 + factor) / 2 * spike.usual;
  while (spike.rising < losses.size() &&
         losses[losses.size() - 1 - spike.rising] > risen) {
    ++spike.rising;
  }
  return spike;
}

}  // namespace tessera::train

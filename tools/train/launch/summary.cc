#include "tools/train/launch/summary.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/train/launch/mean_shares.h"

namespace tessera::train {
namespace {

// "compute 41 %, communication 30 %, ..."
std::string ShowShares(const TimeShares& shares) {
  return absl::StrFormat(
      "compute %.0f %%, communication %.0f %%, bubble %.0f %%, offload %.0f %%",
      100 * shares.compute, 100 * shares.communication, 100 * shares.bubble,
      100 * shares.offload);
}

std::string ShowSteps(const Settings& settings, const RunResult& result) {
  const int64_t tokens = settings.batch * settings.length;
  std::string text = absl::StrFormat(
      "%d steps of %d tokens in %.1f s, %.0f tokens/s", result.steps.size(),
      tokens, result.seconds, result.tokens_per_second);
  if (result.first_step > 0) {
    absl::StrAppend(&text, ", behind step ", result.first_step);
  }
  return text;
}

std::string ShowLosses(const RunResult& result) {
  const StepRecord& first = result.steps.front().record;
  const StepRecord& last = result.steps.back().record;
  return absl::StrFormat("%.4f at step %d, %.4f at step %d", first.loss,
                         first.step, last.loss, last.step);
}

std::string ShowTime(const RunResult& result) {
  const auto least =
      std::min_element(result.ranks.begin(), result.ranks.end(),
                       [](const RankResult& a, const RankResult& b) {
                         return a.shares.compute < b.shares.compute;
                       });
  return absl::StrFormat("%s; rank %d computes least, %.0f %%",
                         ShowShares(MeanShares(result.ranks)),
                         least - result.ranks.begin(),
                         100 * least->shares.compute);
}

std::string ShowMemory(const RunResult& result) {
  const auto most =
      std::max_element(result.ranks.begin(), result.ranks.end(),
                       [](const RankResult& a, const RankResult& b) {
                         return a.memory.peak_resident < b.memory.peak_resident;
                       });
  const std::string bytes = absl::StrFormat(
      "%.1f MiB resident",
      static_cast<double>(most->memory.peak_resident) / (1 << 20));
  if (result.memory_is_shared) return absl::StrCat(bytes, " for all ranks");
  return absl::StrCat(bytes, " at most, of rank ", most - result.ranks.begin());
}

}  // namespace

std::string SummaryText(const Settings& settings, const RunResult& result) {
  std::string text = absl::StrCat("\n", ShowSteps(settings, result), "\n");
  const auto line = [&](std::string_view name, const std::string& value) {
    absl::StrAppend(&text, absl::StrFormat("%-11s", name), value, "\n");
  };
  if (!result.steps.empty()) line("loss", ShowLosses(result));
  if (!result.ranks.empty()) {
    line("time", ShowTime(result));
    line("memory", ShowMemory(result));
  }
  for (const StrategyChange& change : result.strategy_changes) {
    line("strategy", absl::StrCat(change.strategy, " after ", change.steps,
                                  " steps: ", change.flags));
  }
  if (!result.checkpoint.empty()) line("checkpoint", result.checkpoint);
  return text;
}

}  // namespace tessera::train

#include "tools/train/report/straggler.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/arithmetic.h"

namespace tessera::train {
namespace {

constexpr double kLeastShare = 0.03;
constexpr size_t kSlowSteps = StragglerWatch::kSteps * 3 / 4;

std::vector<double> SecondsIn(Section section,
                              const std::vector<SectionSeconds>& step) {
  std::vector<double> seconds;
  for (const SectionSeconds& rank : step) {
    seconds.push_back(rank[static_cast<size_t>(section)]);
  }
  return seconds;
}

}  // namespace

std::vector<double> RatiosToMedian(std::span<const double> values,
                                   std::span<const int64_t> peer_group) {
  std::map<int64_t, std::vector<double>> peers;
  for (size_t i = 0; i < values.size(); ++i) {
    peers[peer_group[i]].push_back(values[i]);
  }
  std::map<int64_t, double> medians;
  for (auto& [group, sorted] : peers) {
    std::sort(sorted.begin(), sorted.end());
    medians[group] = sorted[(sorted.size() - 1) / 2];
  }
  std::vector<double> ratios;
  for (size_t i = 0; i < values.size(); ++i) {
    const double median = medians[peer_group[i]];
    ratios.push_back(median > 0 ? values[i] / median : 1);
  }
  return ratios;
}

std::optional<Straggler> StragglerWatch::SlowestIn(Section section) const {
  std::vector<double> total(peer_group_.size());
  std::vector<size_t> slow_steps(total.size());
  double all = 0;  // Seconds of a rank, the mean.
  for (const std::vector<SectionSeconds>& step : steps_) {
    const std::vector<double> seconds = SecondsIn(section, step);
    const std::vector<double> ratios = RatiosToMedian(seconds, peer_group_);
    for (size_t i = 0; i < total.size(); ++i) {
      total[i] += seconds[i];
      slow_steps[i] += ratios[i] > kStragglerRatio ? 1 : 0;
      all += std::accumulate(step[i].begin(), step[i].end(), 0.0) /
             static_cast<double>(total.size());
    }
  }
  if (*std::max_element(total.begin(), total.end()) <= 0) return std::nullopt;
  const std::vector<double> ratios = RatiosToMedian(total, peer_group_);
  const auto slowest = static_cast<size_t>(
      std::max_element(ratios.begin(), ratios.end()) - ratios.begin());
  const double excess = total[slowest] - total[slowest] / ratios[slowest];
  return Straggler{.section = section,
                   .rank = static_cast<int64_t>(slowest),
                   .ratio = ratios[slowest],
                   .is_significant = section != Section::kCommunication &&
                                     ratios[slowest] > kStragglerRatio &&
                                     slow_steps[slowest] >= kSlowSteps &&
                                     excess > kLeastShare * all};
}

std::vector<Straggler> StragglerWatch::Add(std::vector<SectionSeconds> step) {
  steps_.push_back(std::move(step));
  if (steps_.size() > kSteps) steps_.pop_front();
  std::vector<Straggler> found;
  if (steps_.size() < kSteps || peer_group_.size() < 2) return found;
  for (size_t i = 0; i < kSectionNames.size(); ++i) {
    std::optional<Straggler> one = SlowestIn(static_cast<Section>(i));
    if (!one) continue;
    one->is_new = one->is_significant &&
                  significant_.insert({one->section, one->rank}).second;
    found.push_back(*one);
  }
  return found;
}

}  // namespace tessera::train

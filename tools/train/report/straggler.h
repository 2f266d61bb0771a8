// StragglerWatch: the slowest rank of each section of the steps, while a run
// goes on.
//
//   StragglerWatch watch(stage_of_rank);
//   for (const Straggler& one : watch.Add(sections_of_rank)) ...
//   // {.section = Section::kCompute, .rank = 3, .ratio = 1.4, ...}
//
// Ranks are compared with the median of the ranks that have the same stages, by
// their time in the last steps. The run report compares them in the same way at
// the end (run_report.h).
#ifndef TESSERA_TOOLS_TRAIN_REPORT_STRAGGLER_H_
#define TESSERA_TOOLS_TRAIN_REPORT_STRAGGLER_H_

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::train {

// Computation without reading data; collectives and messages, in which a fast
// rank waits for slow ones; reading data; waiting for memory tiers.
enum class Section { kCompute, kCommunication, kData, kOffload };
inline constexpr std::array<std::string_view, 4> kSectionNames = {
    "compute", "communication", "data", "offload"};
constexpr std::string_view SectionName(Section section) {
  return kSectionNames[static_cast<size_t>(section)];
}

// A rank's seconds in a step, by Section.
using SectionSeconds = std::array<double, kSectionNames.size()>;

// The ratio to the median above which a rank is a straggler.
inline constexpr double kStragglerRatio = 1.2;

struct Straggler {
  Section section = Section::kCompute;
  int64_t rank = 0;
  double ratio = 1;  // Of its time to the median of its peers.
  // It is above kStragglerRatio on the whole and in three of four steps, and
  // the difference is more than 3 % of the steps. Never for communication.
  bool is_significant = false;
  bool is_new = false;  // Significant for the first time.
};

// The index of a rank's ratio to the median of the same peers; the ranks of
// `peer_group` with equal numbers are peers. The time of one without peers is
// its own median; the ratio to a median of 0 is 1.
std::vector<double> RatiosToMedian(std::span<const double> values,
                                   std::span<const int64_t> peer_group);

class StragglerWatch {
 public:
  static constexpr size_t kSteps = 16;  // That are compared.

  explicit StragglerWatch(std::vector<int64_t> peer_group)
      : peer_group_(std::move(peer_group)) {}

  // Adds a step with the sections of each rank. Returns the slowest rank of
  // each section; empty before kSteps steps and without peers.
  std::vector<Straggler> Add(std::vector<SectionSeconds> step);

 private:
  std::optional<Straggler> SlowestIn(Section section) const;

  const std::vector<int64_t> peer_group_;
  std::deque<std::vector<SectionSeconds>> steps_;
  std::set<std::pair<Section, int64_t>> significant_;  // So far.
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_STRAGGLER_H_

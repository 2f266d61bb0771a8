// The input of all drawings (Exhibit), and the arithmetic that they share: axis
// ticks, number formats, chunks of ranks, memory curves.
#ifndef TESSERA_PIPELINE_DRAW_EXHIBIT_H_
#define TESSERA_PIPELINE_DRAW_EXHIBIT_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// The ticks of an axis from 0 to `last`: 0 and multiples of the smallest step
// of the form 1, 2 or 5 times a power of ten that results in at most `most` (at
// least 2) ticks. Only 0 if `last` is not positive. TicksTo(69, 8) is 0, 10,
// ..., 60.
std::vector<double> TicksTo(double last, int most);

// `value` with at most five significant digits and no trailing zeros.
std::string NumberText(double value);

// `bytes` in powers of 1000, with three digits: "950 B", "1.61 MB".
std::string BytesText(int64_t bytes);

// The stages that a rank computes, numbered from the first.
//
//   Chunks(rank).Of(5);     // 1 if the rank has stages 1 and 5
class Chunks {
 public:
  explicit Chunks(const RankTimeline& rank) {
    for (const TimedAction& timed : rank.computations) {
      const int32_t stage = timed.action.stage;
      const auto place =
          std::lower_bound(stages_.begin(), stages_.end(), stage);
      if (place == stages_.end() || *place != stage) {
        stages_.insert(place, stage);
      }
    }
  }

  int64_t count() const { return static_cast<int64_t>(stages_.size()); }
  // The index of `stage` among the rank's stages.
  int64_t Of(int32_t stage) const {
    return std::lower_bound(stages_.begin(), stages_.end(), stage) -
           stages_.begin();
  }

 private:
  std::vector<int32_t> stages_;
};

// The bytes or micro-batches that a rank holds over time. Each value applies
// from its `time` until the next change.
using Curve = std::vector<MemoryChange>;

struct Curves {
  bool are_bytes = false;  // Otherwise micro-batches.
  std::vector<Curve> ranks;
  int64_t peak = 0;  // Over all ranks; at least 0.
};

// The memory of the ranks; of several changes at the same time, only the last.
// If no rank has `memory`, the micro-batches that they hold instead, each from
// the begin of its forward to the end of its B or W.
Curves CurvesOf(const Timeline& timeline);

// Simplifies a curve: keeps the maximum and the final value of every interval
// of length `step` from 0 on, with at most three changes per interval. A `step`
// of 0 returns the curve unchanged.
Curve Thinned(const Curve& curve, double step);

// A timeline to draw, with its title.
//
//   std::vector<Exhibit> exhibits = {{"predicted", predicted},
//                                    {"measured", measured}};
//   TESSERA_ASSIGN_OR_RETURN(std::string svg, DrawSvg(exhibits));
//
// DrawSvg, DrawTerminal and DrawPerfetto all take exhibits.
struct Exhibit {
  std::string title = {};  // Any bytes; formats replace invalid ones.
  // If no rank has `memory`, the drawing shows the micro-batches that each rank
  // holds.
  Timeline timeline = {};
  int64_t memory_limit = 0;  // Bytes per rank; 0: none.
};

// The unit of a timeline's times.
struct TimeUnit {
  std::string_view name = "s";
  double microseconds = 1e6;
};
inline constexpr TimeUnit kMilliseconds = {"ms", 1e3};

inline constexpr int64_t kMostDrawnRanks = 4096;

// InvalidArgument, naming title, rank and action, if there is no exhibit, a
// time is negative or not finite, an action ends before it begins, computations
// are not in order of begin, memory is not in order of time, or there are more
// than kMostDrawnRanks ranks.
absl::Status CheckExhibits(std::span<const Exhibit> exhibits);

// The time from 0 to the end of the last action of any rank.
double ExtentOf(const Timeline& timeline);
double ExtentOf(std::span<const Exhibit> exhibits);

// One line: "makespan 69 ms, bubble 30.4 %, peak 1.6 MB, 4 micro-batches". The
// bubble is Timeline::BubbleRate(), that of the rank that computes most.
std::string SummaryOf(const Exhibit& exhibit, const TimeUnit& unit);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_EXHIBIT_H_

// Exhibit: a schedule's timeline to draw, and the arithmetic that pictures
// share: ticks of axes, chunks of ranks, memory curves.
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

// 0 and the multiples, up to `last`, of the smallest step of 1, 2 or 5 times a
// power of ten that gives at most `most` (2 or more) of them. Only 0 if
// `last` is not positive. TicksTo(69, 8) is 0, 10, ..., 60.
std::vector<double> TicksTo(double last, int most);

// At most four digits after the leading one, and no zeros at the end.
std::string NumberText(double value);

// In powers of 1000, with three digits: "950 B", "1.61 MB".
std::string BytesText(int64_t bytes);

// The stages that a rank computes, numbered from the first.
//
//   Chunks(rank).Of(5);     // 1, if the rank has stages 1 and 5
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
  // The number of the rank's stages before this one.
  int64_t Of(int32_t stage) const {
    return std::lower_bound(stages_.begin(), stages_.end(), stage) -
           stages_.begin();
  }

 private:
  std::vector<int32_t> stages_;
};

// The bytes or micro-batches that a rank holds over time: each value holds from
// `time` until the next change.
using Curve = std::vector<MemoryChange>;

struct Curves {
  bool are_bytes = false;  // Else micro-batches.
  std::vector<Curve> ranks;
  int64_t peak = 0;  // Of all ranks; at least 0.
};

// The ranks' memory, of several changes at one time the last; or if none has
// any, the micro-batches that they hold: from a forward's begin to the end of
// its B or W.
Curves CurvesOf(const Timeline& timeline);

// A curve with the same most in every interval of `step` from 0 on, the same at
// its end, and at most three changes in it. `step` of 0 leaves it as it is.
Curve Thinned(const Curve& curve, double step);

// A timeline to draw, with its title.
//
//   std::vector<Exhibit> exhibits = {{"predicted", predicted},
//                                    {"measured", measured}};
//   TESSERA_ASSIGN_OR_RETURN(std::string svg, DrawSvg(exhibits));
//
// DrawSvg, DrawTerminal and DrawPerfetto all take exhibits.
struct Exhibit {
  std::string title = {};  // Any bytes: what a format cannot hold is replaced.
  // If no rank has `memory`, the picture shows the micro-batches that each
  // holds.
  Timeline timeline = {};
  int64_t memory_limit = 0;  // Bytes of a rank; 0: none.
};

// The unit of a timeline's times.
struct TimeUnit {
  std::string_view name = "s";
  double microseconds = 1e6;
};
inline constexpr TimeUnit kMilliseconds = {"ms", 1e3};

// InvalidArgument, naming title, rank and action, if there is no exhibit, a
// time is negative, not finite or ends before it begins, computations are not
// in the order of their begins, memory not in that of time, or there are more
// than kMostDrawnRanks ranks.
inline constexpr int64_t kMostDrawnRanks = 4096;
absl::Status CheckExhibits(std::span<const Exhibit> exhibits);

// From 0 to the end of the last action of any rank.
double ExtentOf(const Timeline& timeline);
double ExtentOf(std::span<const Exhibit> exhibits);

// Timeline::BubbleRate() is that of the rank with the smallest bubble.
// "makespan 69 ms, bubble 30.4 %, peak 1.6 MB, 4 micro-batches": one line.
std::string SummaryOf(const Exhibit& exhibit, const TimeUnit& unit);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_EXHIBIT_H_

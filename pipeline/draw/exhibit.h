// Exhibit: a timeline to be drawn, and what is said about it.
//
//   std::vector<Exhibit> exhibits = {{"predicted", predicted},
//                                    {"measured", measured}};
//   TESSERA_ASSIGN_OR_RETURN(std::string svg, DrawSvg(exhibits));
//
// DrawSvg, DrawTerminal and DrawPerfetto take the same.
#ifndef TESSERA_PIPELINE_DRAW_EXHIBIT_H_
#define TESSERA_PIPELINE_DRAW_EXHIBIT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

struct Exhibit {
  std::string title = {};  // Any bytes: what a format cannot hold is replaced.
  // Where no rank has `memory`, the micro-batches that it holds are drawn.
  Timeline timeline = {};
  int64_t memory_limit = 0;  // Bytes of a rank; 0: none.
};

// What the times of a timeline are in.
struct TimeUnit {
  std::string_view name = "s";
  double microseconds = 1e6;
};
inline constexpr TimeUnit kMilliseconds = {"ms", 1e3};

// InvalidArgument, naming title, rank and action, where there is no exhibit, a
// time is negative, not finite or ends before it begins, computations are not
// in the order of their begins, memory not in that of time, or there are more
// than kMostDrawnRanks ranks.
inline constexpr int64_t kMostDrawnRanks = 4096;
absl::Status CheckExhibits(std::span<const Exhibit> exhibits);

// From 0 to the end of the last action of any rank.
double ExtentOf(const Timeline& timeline);
double ExtentOf(std::span<const Exhibit> exhibits);

// The rank whose bubble is least is what Timeline::BubbleRate() tells.
// "makespan 69 ms, bubble 30.4 %, peak 1.6 MB, 4 micro-batches": one line.
std::string SummaryOf(const Exhibit& exhibit, const TimeUnit& unit);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_EXHIBIT_H_

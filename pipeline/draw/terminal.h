// DrawTerminal: draws timelines as text, with a line for each rank.
//
//   1f1b
//   makespan 18, bubble 33.33 %, ...
//   rank 0 |F0F1F2........B0--B1--B2--|  0.0 %
//   ...
//
// A character represents an interval of time. A computation is drawn as its
// letter, followed by its micro-batch and padded with "-" if it is wide enough;
// the optimizer's step as "O", idle time as ".". A character that covers
// several computations shows the one that takes most of it. Letters are lower
// case for all stages of a rank but the first.
#ifndef TESSERA_PIPELINE_DRAW_TERMINAL_H_
#define TESSERA_PIPELINE_DRAW_TERMINAL_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "pipeline/draw/exhibit.h"

namespace tessera::pipeline {

struct TerminalOptions {
  static constexpr int64_t kLeastWidth = 40;
  static constexpr int64_t kMostWidth = 4096;
  int64_t width = 80;   // The longest line of ranks, in characters.
  bool colour = false;  // ANSI terminal colours; otherwise plain ASCII.
};

// Draws the exhibits below each other, on one scale. InvalidArgument as for
// CheckExhibits, or if the width is out of bounds.
absl::StatusOr<std::string> DrawTerminal(std::span<const Exhibit> exhibits,
                                         const TimeUnit& unit = {},
                                         const TerminalOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_TERMINAL_H_

// DrawTerminal: timelines as text, a line for each rank.
//
//   1f1b
//   makespan 18, bubble 33.33 %, ...
//   rank 0 |F0F1F2........B0--B1--B2--|  0.0 %
//   ...
//
// A character is a stretch of time. A computation is its letter and its
// micro-batch, filled up with "-", if it is wide enough, else its letter;
// the optimizer's step is "O", idle time ".". Where a character covers several
// computations it shows what takes most of it. Letters of a rank's further
// stages are lower case.
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
  bool colour = false;  // With the colours of ANSI terminals; else plain ASCII.
};

// The exhibits below each other, on one scale. InvalidArgument as
// CheckExhibits, or if the width is outside its bounds.
absl::StatusOr<std::string> DrawTerminal(std::span<const Exhibit> exhibits,
                                         const TimeUnit& unit = {},
                                         const TerminalOptions& options = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_TERMINAL_H_

// Layout: where everything of a picture is, in pixels.
#ifndef TESSERA_PIPELINE_DRAW_LAYOUT_H_
#define TESSERA_PIPELINE_DRAW_LAYOUT_H_

#include <cstdint>
#include <span>

#include "pipeline/draw/exhibit.h"

namespace tessera::pipeline {

// The same for all panels, so that they compare.
struct Layout {
  double left = 64;   // Where time 0 is; names of ranks before it.
  double right = 72;  // After the end of time: bubbles, names of curves.
  double scale = 1;   // Pixels of a unit of time.
  double extent = 0;  // Time.
  double row = 24;    // Height of a rank's computations.
  double gap = 4;     // Between two ranks.
  double lane = 0;    // Height of a rank's communication; 0: none has any.
  double number = 0;  // Size of the micro-batches' numbers.
  double least = 0;   // The least time that has a box of its own.
  bool has_tooltips = true;
  double curve = 96;       // Height of the memory curves.
  int64_t bytes_peak = 0;  // The top of those in bytes,
  int64_t held_peak = 0;   // and of those in micro-batches.

  double XOf(double time) const { return left + time * scale; }
  double width() const { return left + extent * scale + right; }
  double rank_height() const { return row + lane + gap; }
};

// Widths such that three of four computations show their number, but no wider
// than a screen; heights that fit many ranks; `least` such that there are
// about 40,000 boxes at most.
Layout LayOut(std::span<const Exhibit> exhibits);

// Width of a text in digits, about.
double WidthOf(int64_t characters, double size);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_LAYOUT_H_

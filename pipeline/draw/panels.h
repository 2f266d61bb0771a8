// The panels of an SVG picture: rows of ranks with their boxes, the legend, and
// the curves of memory, with their layout.
#ifndef TESSERA_PIPELINE_DRAW_PANELS_H_
#define TESSERA_PIPELINE_DRAW_PANELS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "pipeline/draw/exhibit.h"
#include "pipeline/draw/svg_writer.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// A box of a picture: one action of a rank or, if they are too narrow to see, a
// run of them.
//
//   for (const Box& box : BoxesOf(rank.computations, /*least=*/0.5)) ...
struct Box {
  double begin = 0;
  double end = 0;
  size_t first = 0;  // Its actions: `count` of them, from `first` on.
  size_t count = 1;
};

// Every action is in one box, in the actions' order, which is that of their
// begins. An action that lasts `least` or longer has its own; shorter ones
// share one until it is that long, unless a pause as long comes between. So
// there are at most 2 extent / least + 2 boxes of actions that do not overlap.
std::vector<Box> BoxesOf(std::span<const TimedAction> actions, double least);

// Positions of everything in a picture, in pixels. The same for all panels, so
// that they compare.
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

// The legend of a picture.

double HeightOfLegend(const Layout& layout, std::span<const Exhibit> exhibits);

// The kinds of action that the exhibits have, in the shades of the chunks,
// pairs, and idle time, from `top` on, in as many lines as they need.
void DrawLegend(const Layout& layout, std::span<const Exhibit> exhibits,
                double top, SvgWriter& svg);

// The height of the memory curves, with the space below.
double HeightOfMemoryPanel(const Layout& layout);

// The ranks' curves over each other from `top` on, with an axis before them,
// the names of up to eight ranks after them, and the limit if there is one.
void DrawMemoryPanel(const Layout& layout, const Exhibit& exhibit, double top,
                     SvgWriter& svg);

// The height of the rows of a timeline with the axis below.
double HeightOfRows(const Layout& layout, const Timeline& timeline);

// Draws a row for each rank from `top` on, with its name before and its bubble
// after it, and the time axis below. Two computations that run together have
// one outline, and half of the row's height each while they overlap.
void DrawRows(const Layout& layout, const Timeline& timeline,
              const TimeUnit& unit, double top, SvgWriter& svg);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_PANELS_H_

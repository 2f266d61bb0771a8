// The panels of an SVG drawing: rows of ranks with their boxes, the legend, the
// memory curves, and the layout of them all.
#ifndef TESSERA_PIPELINE_DRAW_PANELS_H_
#define TESSERA_PIPELINE_DRAW_PANELS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "pipeline/draw/exhibit.h"
#include "pipeline/draw/svg_writer.h"
#include "pipeline/simulate/timeline.h"

namespace tessera::pipeline {

// A box of a drawing: one action of a rank, or several successive actions that
// are too narrow to see.
//
//   for (const Box& box : BoxesOf(rank.computations, /*least=*/0.5)) ...
struct Box {
  double begin = 0;
  double end = 0;
  size_t first = 0;  // Index of the first of its `count` actions.
  size_t count = 1;
};

// Puts every action into one box. `actions` are in order of begin, and so are
// the boxes. An action that lasts `least` or longer has its own box; shorter
// ones share a box until it is that long or a pause of at least `least`
// follows. So actions that do not overlap result in at most 2 extent / least +
// 2 boxes.
std::vector<Box> BoxesOf(std::span<const TimedAction> actions, double least);

// The positions of everything in a drawing, in pixels. Equal for all panels, so
// that they can be compared.
struct PictureLayout {
  double left = 64;   // Time 0; names of ranks are left of it.
  double right = 72;  // Width for bubbles and names of curves.
  double scale = 1;   // Pixels per unit of time.
  double extent = 0;  // The time shown.
  double row = 24;    // Height of a rank's computations.
  double gap = 4;     // Between two ranks.
  double lane = 0;    // Height of a rank's communication; 0: none.
  double number = 0;  // Size of the micro-batches' numbers.
  double least = 0;   // The shortest time with a box of its own.
  bool has_tooltips = true;
  double curve = 96;       // Height of the memory curves.
  int64_t bytes_peak = 0;  // The top of curves in bytes.
  int64_t held_peak = 0;   // The top of curves in micro-batches.

  double XOf(double time) const { return left + time * scale; }
  double width() const { return left + extent * scale + right; }
  double rank_height() const { return row + lane + gap; }
};

// Chooses the scale such that three of four computations show their number, but
// the drawing is no wider than a screen; heights that fit many ranks; and
// `least` such that there are at most about 40,000 boxes.
PictureLayout LayOut(std::span<const Exhibit> exhibits);

// The approximate width of a text of that many digits.
double WidthOf(int64_t characters, double size);

// The height of the legend.
double HeightOfLegend(const PictureLayout& layout,
                      std::span<const Exhibit> exhibits);

// Draws the legend from `top` on, in as many lines as needed: the kinds of
// actions in the exhibits, in the shades of their chunks, pairs, and idle time.
void DrawLegend(const PictureLayout& layout, std::span<const Exhibit> exhibits,
                double top, SvgWriter& svg);

// The height of the memory curves, including the space below them.
double HeightOfMemoryPanel(const PictureLayout& layout);

// Draws the ranks' memory curves in one plot from `top` on, with an axis on the
// left, the names of up to eight ranks on the right, and the limit if there is
// one.
void DrawMemoryPanel(const PictureLayout& layout, const Exhibit& exhibit,
                     double top, SvgWriter& svg);

// The height of the rows of a timeline, including the axis below them.
double HeightOfRows(const PictureLayout& layout, const Timeline& timeline);

// Draws a row for each rank from `top` on, with its name on the left and its
// bubble on the right, and the time axis below. Two computations that run
// together have one outline, and half of the row's height each while they
// overlap.
void DrawRows(const PictureLayout& layout, const Timeline& timeline,
              const TimeUnit& unit, double top, SvgWriter& svg);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_PANELS_H_

// The rows of a picture: what every rank does over time.
#ifndef TESSERA_PIPELINE_DRAW_ROWS_H_
#define TESSERA_PIPELINE_DRAW_ROWS_H_

#include <string_view>

#include "pipeline/draw/exhibit.h"
#include "pipeline/draw/layout.h"
#include "pipeline/draw/svg_writer.h"

namespace tessera::pipeline {

// The height of the rows of a timeline with the axis below.
double HeightOfRows(const Layout& layout, const Timeline& timeline);

// A row for each rank from `top` on, with its name before and its bubble after
// it, and the axis of time below. Two computations that run together have one
// outline, and each half of the row's height where their times overlap.
void DrawRows(const Layout& layout, const Timeline& timeline,
              const TimeUnit& unit, double top, SvgWriter& svg);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_ROWS_H_

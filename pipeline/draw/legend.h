// The legend of a picture: what its colours mean.
#ifndef TESSERA_PIPELINE_DRAW_LEGEND_H_
#define TESSERA_PIPELINE_DRAW_LEGEND_H_

#include <span>

#include "pipeline/draw/exhibit.h"
#include "pipeline/draw/layout.h"
#include "pipeline/draw/svg_writer.h"

namespace tessera::pipeline {

double HeightOfLegend(const Layout& layout, std::span<const Exhibit> exhibits);

// The kinds of action that the exhibits have, in the shades of the chunks,
// pairs, and idle time, from `top` on, in as many lines as they need.
void DrawLegend(const Layout& layout, std::span<const Exhibit> exhibits,
                double top, SvgWriter& svg);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_LEGEND_H_

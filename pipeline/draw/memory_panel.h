// The curves below the rows: what each rank holds over time.
#ifndef TESSERA_PIPELINE_DRAW_MEMORY_PANEL_H_
#define TESSERA_PIPELINE_DRAW_MEMORY_PANEL_H_

#include "pipeline/draw/exhibit.h"
#include "pipeline/draw/layout.h"
#include "pipeline/draw/svg_writer.h"

namespace tessera::pipeline {

// With the space below.
double HeightOfMemoryPanel(const Layout& layout);

// The ranks' curves over each other from `top` on, with an axis before them,
// the names of up to eight ranks after them, and the limit where there is one.
void DrawMemoryPanel(const Layout& layout, const Exhibit& exhibit, double top,
                     SvgWriter& svg);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_MEMORY_PANEL_H_

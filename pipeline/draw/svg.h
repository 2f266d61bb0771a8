// DrawSvg: timelines as in the papers, a row for each rank.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const std::string svg,
//       DrawSvg({{{"predicted", a}, {"measured", b}}}, kMilliseconds));
//
// Each exhibit is a panel: title, makespan, bubble and peak; a row for each
// rank with its share of idle time; an axis of time; below it what the ranks
// hold. Colour tells the kind of action (see palette.h), shade the rank's
// stage, the number the micro-batch. Two computations that run together have an
// outline. Sends, receives and what concerns parameters are thin, below their
// rank's computations. All panels have the same scales.
//
// Scales to 64 ranks of 1024 micro-batches and beyond: numbers are written
// where they can be read, actions too narrow to see are drawn as runs in their
// mean colour, and a document has a few MB at most. The same exhibits give
// the same bytes.
#ifndef TESSERA_PIPELINE_DRAW_SVG_H_
#define TESSERA_PIPELINE_DRAW_SVG_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "pipeline/draw/exhibit.h"

namespace tessera::pipeline {

// A whole SVG 1.1 document, on its own white ground. InvalidArgument as
// CheckExhibits.
absl::StatusOr<std::string> DrawSvg(std::span<const Exhibit> exhibits,
                                    const TimeUnit& unit = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_SVG_H_

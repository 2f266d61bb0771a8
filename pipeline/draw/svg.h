// DrawSvg: draws timelines as in the papers, with a row for each rank.
//
//   TESSERA_ASSIGN_OR_RETURN(
//       const std::string svg,
//       DrawSvg({{{"predicted", a}, {"measured", b}}}, kMilliseconds));
//
// Each exhibit is a panel: title, makespan, bubble and peak; a row for each
// rank with its share of idle time; a time axis; below it the bytes or
// micro-batches that the ranks hold. The colour of a box shows the kind of
// action (see svg_writer.h), its shade the rank's stage, its number the
// micro-batch. Two computations that run together have an outline. Sends,
// receives and actions on parameters are thin boxes below their rank's
// computations. All panels have the same scales.
//
// Scales to 64 ranks of 1024 micro-batches and beyond: numbers are omitted
// where they would be illegible, actions too narrow to see are merged into
// boxes of their mean colour, and a document has at most a few MB. The output
// is deterministic.
#ifndef TESSERA_PIPELINE_DRAW_SVG_H_
#define TESSERA_PIPELINE_DRAW_SVG_H_

#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "pipeline/draw/exhibit.h"

namespace tessera::pipeline {

// Returns a complete SVG 1.1 document with a white background. InvalidArgument
// as for CheckExhibits.
absl::StatusOr<std::string> DrawSvg(std::span<const Exhibit> exhibits,
                                    const TimeUnit& unit = {});

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_SVG_H_

// Slices: spans of time, cut where what they are called changes.
//
//   for (const Slice& slice : Slices(spans, labels, {.name = "other"})) ...
#ifndef TESSERA_TOOLS_TRAIN_REPORT_SLICES_H_
#define TESSERA_TOOLS_TRAIN_REPORT_SLICES_H_

#include <string>
#include <vector>

#include "tools/train/report/spans.h"

namespace tessera::train {

struct SliceLabel {
  std::string name = {};
  std::string category = {};
  std::string arguments = {};  // JSON: "\"stage\":2"; or nothing.
};

struct Slice {
  Span span = {};
  SliceLabel label = {};
};

// All moments of `spans`, each once and in their order, under the first of
// `labels` that is there; under `other` where there is none. Of labels that
// overlap, the one that begins first counts, for as long as it lasts.
std::vector<Slice> Slices(const Spans& spans, std::vector<Slice> labels,
                          const SliceLabel& other);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_SLICES_H_

// Numbers on an axis, and numbers as people read them.
//
//   TicksTo(69, 8);       // step 10: 0, 10, ..., 60
//   NumberText(0.03333);  // "0.03333"
//   BytesText(1609728);   // "1.61 MB"
#ifndef TESSERA_PIPELINE_DRAW_TICKS_H_
#define TESSERA_PIPELINE_DRAW_TICKS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::pipeline {

// 0 and the multiples, up to `last`, of the smallest step of 1, 2 or 5 times a
// power of ten that gives at most `most` (2 or more) of them. Only 0 where
// `last` is not positive.
std::vector<double> TicksTo(double last, int most);

// At most four digits after the leading one, and no zeros at the end.
std::string NumberText(double value);

// In powers of 1000, with three digits: "950 B", "1.61 MB".
std::string BytesText(int64_t bytes);

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_DRAW_TICKS_H_

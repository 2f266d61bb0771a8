// MetricsLine: a step as a line of a metrics file.
//
//   {"step":7,"loss":3.25,"grad_norm":0.5,"lr":0.003,"tokens_per_second":9000,
//    "memory_bytes":1048576,"compute":0.7,"communication":0.1,"bubble":0.1,
//    "offload":0.1,...}
//
// Those ten keys stay for ever; `skipped`, `loss_scale`, `seconds`, `products`,
// `optimizer` and `ranks` follow. The shares compute, communication, bubble and
// offload add up to 1; products and optimizer are parts of compute. Steps count
// from 0.
#ifndef TESSERA_TOOLS_TRAIN_REPORT_METRICS_LINE_H_
#define TESSERA_TOOLS_TRAIN_REPORT_METRICS_LINE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tools/train/loop/run_result.h"

namespace tessera::train {

// One line, without its end. Numbers are read back as they were; one that is
// not finite is null.
std::string MetricsLine(const StepResult& step, int64_t ranks);

// Of a line of anybody's; none where it has no `step` from 0 on.
std::optional<int64_t> StepOfMetricsLine(std::string_view line);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_REPORT_METRICS_LINE_H_

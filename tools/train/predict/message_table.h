// The table of a rank's messages in a step, for text and HTML: predicted, and
// beside it measured in a run.
//
//   PrintCells(MessageTable(prediction.traffic), std::cout);
//   PrintCells(MessageTable(prediction.traffic, &measured), std::cout);
#ifndef TESSERA_TOOLS_TRAIN_PREDICT_MESSAGE_TABLE_H_
#define TESSERA_TOOLS_TRAIN_PREDICT_MESSAGE_TABLE_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "collectives/record/flight_recorder.h"
#include "tools/train/predict/rank_traffic.h"

namespace tessera::train {

// The messages of a rank along one axis (TrafficAxisName), of `ranks` ranks, by
// one operation (OpKindName).
struct AxisMessages {
  std::string axis = {};
  int64_t ranks = 1;
  std::string operation = {};
  collectives::OperationTotals totals = {};
};

// The messages of a rank in several steps.
struct MeasuredMessages {
  int64_t steps = 0;
  // False on a device, where only the time of enqueueing is measured.
  bool is_timed = true;
  std::vector<AxisMessages> messages = {};
};

std::vector<AxisMessages> MessagesOf(const RankTraffic& traffic);

// Messages as predicted for one step, and as measured in all steps.
struct MessageComparison {
  AxisMessages predicted = {};
  collectives::OperationTotals measured = {};
};

// An entry per axis and operation that was predicted, then those that were only
// measured.
std::vector<MessageComparison> CompareMessages(
    const RankTraffic& predicted, const MeasuredMessages& measured);

// Formats bytes with a unit that leaves at most three digits before the point.
std::string BytesText(double bytes);

// A row per axis and operation under a row with titles: axis, ranks, operation;
// count, bytes and sent bytes of a step as predicted. With `measured` also
// count and bytes of a mean step, the mean time of an operation, and the
// bandwidth of the busiest link (OperationTotals::BusBandwidth).
using TableCells = std::vector<std::vector<std::string>>;
TableCells MessageTable(const RankTraffic& predicted,
                        const MeasuredMessages* measured = nullptr);

// Prints the cells of a MessageTable in columns.
void PrintCells(const TableCells& cells, std::ostream& out);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_PREDICT_MESSAGE_TABLE_H_

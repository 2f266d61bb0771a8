#include "tools/train/predict/message_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "collectives/operation/operation.h"

namespace tessera::train {

using collectives::OperationTotals;

std::vector<AxisMessages> MessagesOf(const RankTraffic& traffic) {
  std::vector<AxisMessages> messages;
  for (const auto& [key, totals] : traffic.all()) {
    messages.push_back({std::string(TrafficAxisName(key.first)),
                        RanksAlong(key.first, traffic.mesh()),
                        std::string(collectives::OpKindName(key.second)),
                        totals});
  }
  return messages;
}

std::vector<MessageComparison> CompareMessages(
    const RankTraffic& predicted, const MeasuredMessages& measured) {
  std::vector<MessageComparison> all;
  for (AxisMessages& one : MessagesOf(predicted)) {
    all.push_back({.predicted = std::move(one)});
  }
  for (const AxisMessages& one : measured.messages) {
    auto found = std::find_if(
        all.begin(), all.end(), [&](const MessageComparison& other) {
          return other.predicted.axis == one.axis &&
                 other.predicted.operation == one.operation;
        });
    if (found == all.end()) {
      found = all.insert(
          found, {.predicted = {one.axis, one.ranks, one.operation, {}}});
    }
    found->measured = one.totals;
  }
  return all;
}

std::string BytesText(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  if (unit == 0) return absl::StrFormat("%.0f B", bytes);
  return absl::StrFormat("%.*f %s",
                         bytes < 10    ? 2
                         : bytes < 100 ? 1
                                       : 0,
                         bytes, kUnits[unit]);
}

namespace {

std::string BytesText(int64_t bytes) {
  return train::BytesText(static_cast<double>(bytes));
}

std::string TimeText(double nanos) {
  return nanos < 1e6 ? absl::StrFormat("%.1f us", nanos / 1e3)
                     : absl::StrFormat("%.2f ms", nanos / 1e6);
}

// The cells of an operation that was measured in several steps.
void AppendMeasured(const OperationTotals& totals,
                    const MeasuredMessages& measured,
                    std::vector<std::string>& row) {
  const auto steps = static_cast<double>(std::max<int64_t>(measured.steps, 1));
  row.push_back(
      absl::StrFormat("%.4g", static_cast<double>(totals.count) / steps));
  row.push_back(train::BytesText(static_cast<double>(totals.bytes) / steps));
  const bool is_timed = measured.is_timed && totals.count > 0;
  row.push_back(is_timed ? TimeText(totals.MeanNanos()) : "-");
  row.push_back(is_timed ? absl::StrFormat("%.3f GB/s", totals.BusBandwidth())
                         : "-");
}

}  // namespace

TableCells MessageTable(const RankTraffic& predicted,
                        const MeasuredMessages* measured) {
  TableCells cells = {{"axis", "ranks", "operation", "count", "bytes", "sent"}};
  if (measured != nullptr) {
    cells[0].insert(cells[0].end(),
                    {"measured", "bytes", "mean time", "bandwidth"});
  }
  const MeasuredMessages none;
  for (const auto& [messages, real] :
       CompareMessages(predicted, measured == nullptr ? none : *measured)) {
    const OperationTotals& totals = messages.totals;
    const bool is_sent = messages.operation != "receive";
    cells.push_back({messages.axis, absl::StrCat(messages.ranks),
                     messages.operation, absl::StrCat(totals.count),
                     BytesText(totals.bytes),
                     BytesText(is_sent ? totals.busy_bytes : int64_t{0})});
    if (measured != nullptr) AppendMeasured(real, *measured, cells.back());
  }
  return cells;
}

void PrintCells(const TableCells& cells, std::ostream& out) {
  constexpr int kWidths[] = {-6, 6, -17, 7, 12, 12, 10, 12, 11, 13};
  for (const std::vector<std::string>& row : cells) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool is_text = kWidths[i] < 0;
      absl::StrAppendFormat(&line, "%s%*s", i > 1 && is_text ? "  " : "",
                            kWidths[i], row[i]);
    }
    out << line << "\n";
  }
}

}  // namespace tessera::train

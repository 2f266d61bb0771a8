#include "tools/train/parity/parity_report.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/str_format.h"
#include "tools/train/parity/parity_options.h"

namespace tessera::train {
namespace {

void Enlarge(const ParityDifference& difference, ParityDifference& largest) {
  largest.loss = std::max(largest.loss, difference.loss);
  largest.gradient_norm =
      std::max(largest.gradient_norm, difference.gradient_norm);
}

std::string LineOf(const std::string& name, int64_t runs,
                   const ParityDifference& largest) {
  return absl::StrFormat("%-28s %5d runs, loss %.1e, gradient norm %.1e\n",
                         name, runs, largest.loss, largest.gradient_norm);
}

}  // namespace

void ParityReport::Add(const CoveringRow& row,
                       const ParityDifference& difference) {
  ++runs_;
  Enlarge(difference, largest_);
  for (size_t factor = 0; factor < row.size(); ++factor) {
    Line& line = lines_[{factor, row[factor]}];
    ++line.runs;
    Enlarge(difference, line.largest);
  }
}

std::ostream& operator<<(std::ostream& os, const ParityReport& report) {
  os << LineOf("all", report.runs_, report.largest_);
  for (const auto& [place, line] : report.lines_) {
    const ParityOption& option = ParityOptions()[place.first];
    os << LineOf(
        option.name + "=" + option.values[static_cast<size_t>(place.second)],
        line.runs, line.largest);
  }
  return os;
}

}  // namespace tessera::train

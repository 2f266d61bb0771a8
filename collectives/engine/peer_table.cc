#include "collectives/engine/peer_table.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "collectives/bootstrap/peer_process.h"

namespace tessera::collectives {

using topology::Rank;

std::string PeerTable::DescribeSelf() {
  return absl::StrCat(getpid(), " ", HostName());
}

PeerTable PeerTable::Of(std::span<const std::string> descriptions) {
  PeerTable table;
  for (size_t r = 0; r < descriptions.size(); ++r) {
    PeerReport report;
    report.rank = Rank(static_cast<int64_t>(r));
    const std::string_view text = descriptions[r];
    const size_t space = text.find(' ');
    if (space != text.npos &&
        absl::SimpleAtoi(text.substr(0, space), &report.pid)) {
      report.host = std::string(text.substr(space + 1, kMaxDescriptionBytes));
    }
    table.reports_.push_back(std::move(report));
  }
  return table;
}

PeerTable PeerTable::Restrict(std::span<const Rank> members) const {
  PeerTable table;
  for (size_t i = 0; i < members.size(); ++i) {
    table.reports_.push_back(reports_[static_cast<size_t>(members[i].value())]);
    table.reports_.back().rank = Rank(static_cast<int64_t>(i));
  }
  return table;
}

int64_t PeerTable::RanksOnHostOf(Rank rank) const {
  const std::string& host = reports_[static_cast<size_t>(rank.value())].host;
  return std::count_if(
      reports_.begin(), reports_.end(),
      [&](const PeerReport& report) { return report.host == host; });
}

absl::Status PeerTable::Missing(const OperationContext& context, Rank self,
                                std::span<const Rank> missing) const {
  std::vector<PeerReport> reports;
  for (const PeerReport& report : reports_) {
    const bool named = missing.empty()
                           ? report.rank != self
                           : std::find(missing.begin(), missing.end(),
                                       report.rank) != missing.end();
    if (named) reports.push_back(report);
  }
  return MissingPeersError(context, reports);
}

}  // namespace tessera::collectives

#include "collectives/record/flight_recorder.h"

#include <algorithm>

namespace tessera::collectives {
namespace {

constexpr size_t kKinds = static_cast<size_t>(OpKind::kSendReceive) + 1;

size_t TotalsIndex(OpKind kind, Algorithm algorithm) {
  return static_cast<size_t>(kind) * kAllAlgorithms.size() +
         static_cast<size_t>(algorithm);
}

double GigabytesPerSecond(int64_t bytes, int64_t ns) {
  return ns == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(ns);
}

void Add(const OperationRecord& record, int64_t ranks,
         OperationTotals& totals) {
  const int64_t ns = record.end_ns - record.begin_ns;
  totals.shortest_ns =
      totals.count == 0 ? ns : std::min(totals.shortest_ns, ns);
  totals.longest_ns = std::max(totals.longest_ns, ns);
  ++totals.count;
  totals.bytes += record.bytes;
  totals.busy_bytes += static_cast<int64_t>(static_cast<double>(record.bytes) *
                                            BusFactor(record.kind, ranks));
  totals.ns += ns;
}

}  // namespace

double OperationTotals::AlgorithmBandwidth() const {
  return GigabytesPerSecond(bytes, ns);
}

double OperationTotals::BusBandwidth() const {
  return GigabytesPerSecond(busy_bytes, ns);
}

double BusFactor(OpKind kind, int64_t ranks) {
  const double others =
      static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  switch (kind) {
    case OpKind::kAllReduce:
      return 2 * others;
    case OpKind::kReduceScatter:
    case OpKind::kAllGather:
    case OpKind::kAllToAll:
      return others;
    default:
      return 1;
  }
}

FlightRecorder::FlightRecorder(int64_t capacity, int64_t ranks)
    : ranks_(ranks),
      slots_(static_cast<size_t>(std::max<int64_t>(capacity, 1))),
      totals_(kKinds * kAllAlgorithms.size()) {}

int64_t FlightRecorder::BytesFor(int64_t capacity) {
  return capacity * static_cast<int64_t>(sizeof(Slot));
}

uint64_t FlightRecorder::Begin(const OperationRecord& record) {
  const std::lock_guard lock(mutex_);
  const uint64_t ticket = next_ticket_++;
  slots_[ticket % slots_.size()] = {ticket, record};
  return ticket;
}

void FlightRecorder::End(uint64_t ticket, const OperationRecord& record) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[ticket % slots_.size()];
  // A newer one may have taken its place.
  if (slot.ticket == ticket) slot.record = record;
  OperationTotals& totals =
      totals_[TotalsIndex(record.kind, record.signature.algorithm)];
  if (record.code == absl::StatusCode::kOk) {
    Add(record, ranks_, totals);
  } else {
    ++totals.failed;
  }
}

std::vector<OperationRecord> FlightRecorder::Recent() const {
  const std::lock_guard lock(mutex_);
  std::vector<OperationRecord> records;
  const uint64_t kept = std::min<uint64_t>(next_ticket_ - 1, slots_.size());
  for (uint64_t ticket = next_ticket_ - kept; ticket < next_ticket_; ++ticket) {
    records.push_back(slots_[ticket % slots_.size()].record);
  }
  return records;
}

StatisticsTable FlightRecorder::Statistics() const {
  const std::lock_guard lock(mutex_);
  StatisticsTable table;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    for (Algorithm algorithm : kAllAlgorithms) {
      const OperationTotals& totals =
          totals_[TotalsIndex(static_cast<OpKind>(kind), algorithm)];
      if (totals.count + totals.failed == 0) continue;
      table[{static_cast<OpKind>(kind), algorithm}] = totals;
    }
  }
  return table;
}

}  // namespace tessera::collectives

#include "collectives/record/flight_recorder.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json/json.h"
#include "nlohmann/json.hpp"

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

// The totals of one finished operation.
OperationTotals TotalsOf(const OperationRecord& record, int64_t ranks) {
  if (record.code != absl::StatusCode::kOk) return {.failed = 1};
  const int64_t ns = record.end_ns - record.begin_ns;
  return {.count = 1,
          .bytes = record.bytes,
          .busy_bytes = static_cast<int64_t>(static_cast<double>(record.bytes) *
                                             BusFactor(record.kind, ranks)),
          .largest_bytes = record.bytes,
          .ns = ns,
          .shortest_ns = ns,
          .longest_ns = ns};
}

void AddTable(const StatisticsTable& from, StatisticsTable& to) {
  for (const auto& [key, totals] : from) to[key].Add(totals);
}

}  // namespace

void OperationTotals::Add(const OperationTotals& other) {
  if (other.count > 0) {
    shortest_ns = count == 0 ? other.shortest_ns
                             : std::min(shortest_ns, other.shortest_ns);
  }
  count += other.count;
  failed += other.failed;
  bytes += other.bytes;
  busy_bytes += other.busy_bytes;
  largest_bytes = std::max(largest_bytes, other.largest_bytes);
  ns += other.ns;
  longest_ns = std::max(longest_ns, other.longest_ns);
}

OperationTotals OperationTotals::Since(const OperationTotals& before) const {
  OperationTotals later = *this;
  later.count -= before.count;
  later.failed -= before.failed;
  later.bytes -= before.bytes;
  later.busy_bytes -= before.busy_bytes;
  later.ns -= before.ns;
  return later;
}

double OperationTotals::MeanNanos() const {
  return count == 0 ? 0 : static_cast<double>(ns) / static_cast<double>(count);
}

double OperationTotals::AlgorithmBandwidth() const {
  return GigabytesPerSecond(bytes, ns);
}

double OperationTotals::BusBandwidth() const {
  return GigabytesPerSecond(busy_bytes, ns);
}

OperationTotals Total(const StatisticsTable& statistics) {
  OperationTotals all;
  for (const auto& [key, totals] : statistics) all.Add(totals);
  return all;
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

// The recorders of a group and of all groups split from it.
struct FlightRecorder::Family {
  std::mutex mutex;
  std::set<const FlightRecorder*> members;
  StatisticsTable destroyed;  // Of destroyed members.
};

FlightRecorder::FlightRecorder(int64_t capacity, int64_t ranks,
                               const FlightRecorder* parent)
    : ranks_(ranks),
      families_({std::make_shared<Family>()}),
      slots_(static_cast<size_t>(std::max<int64_t>(capacity, 1))),
      totals_(kKinds * kAllAlgorithms.size()) {
  if (parent != nullptr) {
    families_.insert(families_.end(), parent->families_.begin(),
                     parent->families_.end());
  }
  for (const std::shared_ptr<Family>& family : families_) {
    const std::lock_guard lock(family->mutex);
    family->members.insert(this);
  }
}

FlightRecorder::~FlightRecorder() {
  if (observer_ != nullptr) observer_->Leave(observed_as_);
  const StatisticsTable own = Statistics();
  for (const std::shared_ptr<Family>& family : families_) {
    const std::lock_guard lock(family->mutex);
    family->members.erase(this);
    AddTable(own, family->destroyed);
  }
}

void FlightRecorder::Observe(std::shared_ptr<OperationObserver> observer,
                             const RecordedGroup& group) {
  observer_ = std::move(observer);
  if (observer_ != nullptr) observed_as_ = observer_->Join(group, *this);
}

int64_t FlightRecorder::BytesFor(int64_t capacity) {
  return capacity * static_cast<int64_t>(sizeof(Slot));
}

uint64_t FlightRecorder::Begin(const OperationRecord& record) {
  const std::lock_guard lock(mutex_);
  const uint64_t ticket = next_ticket_++;
  slots_[ticket % slots_.size()] = {ticket, record};
  if (observer_ != nullptr) observer_->Begin(observed_as_, record);
  return ticket;
}

void FlightRecorder::End(uint64_t ticket, const OperationRecord& record) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[ticket % slots_.size()];
  // A newer operation may have replaced it.
  if (slot.ticket == ticket) slot.record = record;
  TotalsFor(record).Add(TotalsOf(record, ranks_));
  if (observer_ != nullptr) observer_->End(observed_as_, record);
}

OperationTotals& FlightRecorder::TotalsFor(const OperationRecord& record) {
  return totals_[TotalsIndex(record.kind, record.signature.algorithm)];
}

OperationTotals FlightRecorder::Runs::Totals() const {
  OperationTotals totals = timed_;
  if (timed_.count == 0) return totals;
  totals.count = count_.load(std::memory_order_relaxed);
  totals.bytes = timed_.bytes / timed_.count * totals.count;
  totals.busy_bytes = timed_.busy_bytes / timed_.count * totals.count;
  totals.ns = static_cast<int64_t>(timed_.MeanNanos() *
                                   static_cast<double>(totals.count));
  return totals;
}

FlightRecorder::Runs* FlightRecorder::AddRuns() {
  const std::lock_guard lock(mutex_);
  return &runs_.emplace_back();
}

void FlightRecorder::EndRuns(Runs* runs) {
  const std::lock_guard lock(mutex_);
  TotalsFor(runs->record_).Add(runs->Totals());
  runs_.remove_if([runs](const Runs& other) { return &other == runs; });
}

void FlightRecorder::AddTime(Runs& runs, const OperationRecord& record) {
  const std::lock_guard lock(mutex_);
  runs.record_ = record;
  runs.timed_.Add(TotalsOf(record, ranks_));
}

std::vector<OperationRecord> FlightRecorder::Recent() const {
  const std::lock_guard lock(mutex_);
  std::vector<OperationRecord> records;
  const uint64_t kept = std::min<uint64_t>(next_ticket_ - 1, slots_.size());
  for (uint64_t ticket = next_ticket_ - kept; ticket < next_ticket_; ++ticket) {
    records.push_back(slots_[ticket % slots_.size()].record);
  }
  for (const Runs& runs : runs_) {
    OperationRecord record = runs.record_;
    record.runs = runs.count_.load(std::memory_order_relaxed);
    if (record.runs == 0) continue;
    record.signature.sequence = runs.last_.load(std::memory_order_relaxed);
    const auto later = std::find_if(records.begin(), records.end(),
                                    [&](const OperationRecord& other) {
                                      return other.begin_ns > record.begin_ns;
                                    });
    records.insert(later, record);
  }
  return records;
}

StatisticsTable FlightRecorder::Statistics() const {
  const std::lock_guard lock(mutex_);
  StatisticsTable table;
  for (const Runs& runs : runs_) {
    if (runs.timed_.count == 0) continue;
    table[{runs.record_.kind, runs.record_.signature.algorithm}].Add(
        runs.Totals());
  }
  for (size_t kind = 0; kind < kKinds; ++kind) {
    for (Algorithm algorithm : kAllAlgorithms) {
      const OperationTotals& totals =
          totals_[TotalsIndex(static_cast<OpKind>(kind), algorithm)];
      if (totals.count + totals.failed == 0) continue;
      table[{static_cast<OpKind>(kind), algorithm}].Add(totals);
    }
  }
  return table;
}

StatisticsTable FlightRecorder::StatisticsWithSubgroups() const {
  Family& family = *families_.front();
  const std::lock_guard lock(family.mutex);
  StatisticsTable table = family.destroyed;
  for (const FlightRecorder* member : family.members) {
    AddTable(member->Statistics(), table);
  }
  return table;
}

namespace {

using Json = nlohmann::ordered_json;

Json RecordToJson(const OperationRecord& record) {
  Json json;
  json["sequence"] = record.signature.sequence;
  json["operation"] = OpKindName(record.kind);
  json["algorithm"] = AlgorithmName(record.signature.algorithm);
  json["dtype"] = DTypeName(record.signature.dtype);
  json["count"] = record.signature.count;
  json["bytes"] = record.bytes;
  if (Reduces(record.kind)) {
    json["reduction"] = ReduceOpName(record.signature.reduce);
  }
  if (record.signature.root >= 0) json["root"] = record.signature.root;
  if (record.peer >= 0) json["peer"] = record.peer;
  json["begin_ns"] = record.begin_ns;
  json["end_ns"] = record.end_ns == 0 ? Json() : Json(record.end_ns);
  json["status"] =
      record.end_ns == 0 ? "RUNNING" : absl::StatusCodeToString(record.code);
  if (record.runs > 1) json["runs"] = record.runs;
  return json;
}

Json TotalsToJson(OpKind kind, Algorithm algorithm,
                  const OperationTotals& totals) {
  Json json;
  json["operation"] = OpKindName(kind);
  json["algorithm"] = AlgorithmName(algorithm);
  json["count"] = totals.count;
  json["failed"] = totals.failed;
  json["bytes"] = totals.bytes;
  json["busy_bytes"] = totals.busy_bytes;
  json["largest_bytes"] = totals.largest_bytes;
  json["ns"] = totals.ns;
  json["mean_ns"] = totals.MeanNanos();
  json["shortest_ns"] = totals.shortest_ns;
  json["longest_ns"] = totals.longest_ns;
  json["algbw_GBps"] = totals.AlgorithmBandwidth();
  json["busbw_GBps"] = totals.BusBandwidth();
  return json;
}

Json ErrorToJson(const absl::Status& error) {
  if (error.ok()) return nullptr;
  return {{"code", absl::StatusCodeToString(error.code())},
          {"message", error.message()}};
}

}  // namespace

std::string RecordsToJson(const RecordedGroup& group,
                          std::span<const OperationRecord> records,
                          const StatisticsTable& statistics,
                          const absl::Status& error) {
  Json json;
  json["group"] = group.name;
  json["id"] = group.id;
  json["engine"] = group.engine;
  json["rank"] = group.rank;
  json["ranks"] = group.ranks;
  json["world_rank"] = group.world_rank;
  json["pid"] = getpid();
  json["error"] = ErrorToJson(error);
  json["operations"] = Json::array();
  for (const OperationRecord& record : records) {
    json["operations"].push_back(RecordToJson(record));
  }
  json["statistics"] = Json::array();
  for (const auto& [key, totals] : statistics) {
    json["statistics"].push_back(TotalsToJson(key.first, key.second, totals));
  }
  return DumpJson(json, 1) + "\n";
}

std::string TraceOf(std::span<const std::string> events) {
  std::vector<std::string_view> filled;
  for (const std::string& some : events) {
    if (!some.empty()) filled.push_back(some);
  }
  return absl::StrCat("{\"traceEvents\": [\n", absl::StrJoin(filled, ",\n"),
                      "\n]}\n");
}

}  // namespace tessera::collectives

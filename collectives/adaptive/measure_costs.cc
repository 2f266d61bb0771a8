#include "collectives/adaptive/measure_costs.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/adaptive/cost_model.h"
#include "collectives/adaptive/hardware.h"
#include "collectives/adaptive/measure_links.h"
#include "collectives/adaptive/trial.h"
#include "collectives/algorithms/supports.h"

namespace tessera::collectives {
namespace {

// The most used first: where the time is up, the others keep what the smaller
// sizes said.
constexpr std::array<OpKind, 9> kByUse = {
    OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather,
    OpKind::kBroadcast, OpKind::kAllToAll,      OpKind::kReduce,
    OpKind::kBarrier,   OpKind::kGather,        OpKind::kScatter,
};

constexpr int64_t kFirstBytes = 64;
constexpr int64_t kSizeFactor = 4;
// What is predicted to take so many times as long as the fastest, and did take
// so many times as long at the last size, is left out.
constexpr double kFarBehind = 2.5;
constexpr double kWasBehind = 1.6;
// Where the time does not reach for all, only what is predicted to be as near
// as this is measured, and the engine's own way; for this many times the budget
// at most.
constexpr double kContender = 1.6;
constexpr int64_t kContenderTurns = 3;
constexpr double kOverdraft = 2;

constexpr double kTurnSeconds = 120e-6;
constexpr int64_t kMaxBatch = 64;

// Where nothing is known yet, few of each.
constexpr int64_t kFirstTurns = 5;
constexpr int64_t kFirstBatch = 4;

int64_t TurnsFor(double seconds) {
  if (seconds <= 0) return kFirstTurns;
  return seconds > 2e-3 ? 3 : seconds > 200e-6 ? 5 : 7;
}

int64_t BatchFor(double seconds) {
  if (seconds <= 0) return kFirstBatch;
  return std::clamp<int64_t>(static_cast<int64_t>(kTurnSeconds / seconds), 1,
                             kMaxBatch);
}

// Measures kind by kind and size by size. Everything that it decides by is the
// same on all ranks.
class Measurement {
 public:
  Measurement(Communicator& communicator, const MeasureOptions& options)
      : communicator_(communicator),
        options_(options),
        buffers_(options.max_bytes, communicator.size()),
        start_ns_(MonotonicNanos()) {}

  absl::StatusOr<CostTable> Run() {
    table_.key = CostKeyOf(communicator_);
    TESSERA_ASSIGN_OR_RETURN(table_.costs, MeasureLinks(communicator_));
    TESSERA_RETURN_IF_ERROR(FindCandidates());
    for (int64_t size = kFirstBytes; size <= options_.max_bytes;
         size *= kSizeFactor) {
      TESSERA_RETURN_IF_ERROR(UpdateClock());
      if (size > kFirstBytes && spent_ > kOverdraft * Budget()) break;
      for (const OpKind kind : kByUse) {
        TESSERA_RETURN_IF_ERROR(MeasureKind(kind, size));
      }
    }
    return std::move(table_);
  }

 private:
  double Budget() const { return absl::ToDoubleSeconds(options_.budget); }

  struct Plan {
    std::vector<Trial> trials;
    int64_t turns = 0;
  };

  absl::Status FindCandidates();
  absl::Status UpdateClock();
  std::vector<Trial> TrialsOf(OpKind kind, int64_t bytes) const;
  Plan PlanTrials(OpKind kind, int64_t bytes, bool first) const;
  // Seconds, as predicted.
  static double CostOf(const Plan& plan);
  absl::Status MeasureKind(OpKind kind, int64_t size);
  double PredictTrials(std::vector<Trial>* trials) const;
  bool WasBehind(const Trial& trial) const;
  int64_t LastBytes(OpKind kind) const;

  Communicator& communicator_;
  const MeasureOptions& options_;
  TrialBuffers buffers_;
  int64_t start_ns_;
  double spent_ = 0;  // Seconds, of the slowest rank.
  bool has_messages_ = false;
  bool engine_has_[kCollectiveKinds.size()] = {};
  CostTable table_;
};

// AlgorithmFor is the engine's own where it has one, by the default strategy.
absl::Status Measurement::FindCandidates() {
  const Rank self = communicator_.rank();
  const absl::Status messages =
      communicator_.SendReceive(ConstBuffer(), self, Buffer(), self);
  if (!absl::IsUnimplemented(messages)) {
    TESSERA_RETURN_IF_ERROR(messages);
    has_messages_ = true;
  }
  for (const OpKind kind : kCollectiveKinds) {
    const Operation operation = buffers_.OperationOf(
        kind, TrialBytes(kind, kFirstBytes, communicator_.size()),
        communicator_);
    TESSERA_ASSIGN_OR_RETURN(const Algorithm algorithm,
                             communicator_.AlgorithmFor(operation));
    engine_has_[static_cast<size_t>(kind)] = algorithm == Algorithm::kEngine;
  }
  return absl::OkStatus();
}

absl::Status Measurement::UpdateClock() {
  double elapsed = static_cast<double>(MonotonicNanos() - start_ns_) * 1e-9;
  TESSERA_RETURN_IF_ERROR(communicator_.AllReduce(
      Buffer(&elapsed, 1, DType::kF64), Reduction::Max()));
  spent_ = elapsed;
  return absl::OkStatus();
}

std::vector<Trial> Measurement::TrialsOf(OpKind kind, int64_t bytes) const {
  std::vector<Trial> trials;
  if (engine_has_[static_cast<size_t>(kind)]) {
    trials.push_back({kind, Algorithm::kEngine, bytes});
  }
  if (!has_messages_) return trials;
  for (const Algorithm algorithm : AlgorithmsFor(kind, /*uneven=*/false)) {
    trials.push_back({kind, algorithm, bytes});
  }
  return trials;
}

// Sets what is known so far to predict, 0 where that is nothing; the least.
double Measurement::PredictTrials(std::vector<Trial>* trials) const {
  const CostModel model(table_);
  double fastest = 1e9;
  for (Trial& trial : *trials) {
    ChoiceQuestion question;
    question.kind = trial.kind;
    question.bytes = trial.bytes;
    question.ranks = table_.key.ranks;
    question.ranks_per_host = table_.key.ranks_per_host;
    question.engine_implements = true;
    if (table_.measured.contains({trial.kind, trial.algorithm})) {
      trial.seconds = model.Predict(trial.algorithm, question)->seconds;
    }
    fastest = std::min(fastest, trial.seconds);
  }
  return fastest;
}

// Whether it was, at the largest size at which it was measured, much slower
// than the fastest one.
bool Measurement::WasBehind(const Trial& trial) const {
  const auto own = table_.measured.find({trial.kind, trial.algorithm});
  if (own == table_.measured.end()) return false;
  const SizePoint& last = own->second.back();
  for (const auto& [what, points] : table_.measured) {
    if (what.first != trial.kind) continue;
    for (const SizePoint& point : points) {
      if (point.bytes == last.bytes && last.value > kWasBehind * point.value) {
        return true;
      }
    }
  }
  return false;
}

// The largest message of this kind that was measured; -1 where none was.
int64_t Measurement::LastBytes(OpKind kind) const {
  int64_t last = -1;
  for (const auto& [what, points] : table_.measured) {
    if (what.first == kind) last = std::max(last, points.back().bytes);
  }
  return last;
}

// What is left of the budget decides how many are measured, and how often: all
// that are not far behind, or the contenders, or (never at the first size)
// none.
Measurement::Plan Measurement::PlanTrials(OpKind kind, int64_t bytes,
                                          bool first) const {
  Plan plan{.trials = TrialsOf(kind, bytes)};
  const double fastest = PredictTrials(&plan.trials);
  plan.turns = TurnsFor(fastest);
  // The same for all: what is not for each operation counts alike.
  for (Trial& trial : plan.trials) trial.batch = BatchFor(fastest);
  std::erase_if(plan.trials, [&](const Trial& trial) {
    return trial.seconds > kFarBehind * fastest && WasBehind(trial);
  });
  if (first || spent_ + CostOf(plan) <= Budget()) return plan;
  std::erase_if(plan.trials, [&](const Trial& trial) {
    return trial.seconds > kContender * fastest &&
           trial.algorithm != Algorithm::kEngine;
  });
  plan.turns = std::min(plan.turns, kContenderTurns);
  if (spent_ + CostOf(plan) > kOverdraft * Budget()) plan.trials.clear();
  return plan;
}

double Measurement::CostOf(const Plan& plan) {
  double cost = 0;
  for (const Trial& trial : plan.trials) {
    cost += trial.seconds * static_cast<double>(trial.batch * (plan.turns + 1));
  }
  return cost;
}

absl::Status Measurement::MeasureKind(OpKind kind, int64_t size) {
  const int64_t bytes = TrialBytes(kind, size, communicator_.size());
  const int64_t last = LastBytes(kind);
  // A barrier, or blocks of one element still.
  if (bytes <= last) return absl::OkStatus();
  Plan plan = PlanTrials(kind, bytes, /*first=*/last < 0);
  if (plan.trials.empty()) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(
      RunTrials(communicator_, buffers_, plan.turns, plan.trials));
  TESSERA_RETURN_IF_ERROR(UpdateClock());
  for (const Trial& trial : plan.trials) {
    table_.measured[{kind, trial.algorithm}].push_back({bytes, trial.seconds});
  }
  return absl::OkStatus();
}

}  // namespace

CostKey CostKeyOf(const Communicator& communicator) {
  CostKey key;
  key.hardware = DescribeHardware();
  key.engine = std::string(communicator.engine_name());
  key.ranks = communicator.size();
  const Hierarchy* hierarchy = communicator.options().hierarchy.get();
  key.ranks_per_host =
      hierarchy == nullptr ? key.ranks : hierarchy->LargestGroup();
  key.reproducible = communicator.options().reproducible;
  return key;
}

absl::StatusOr<CostTable> MeasureCosts(Communicator& communicator,
                                       const MeasureOptions& options) {
  Measurement measurement(communicator, options);
  TESSERA_ASSIGN_OR_RETURN(CostTable table, measurement.Run());
  // The hardware differs from host to host.
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           BroadcastText(communicator, CostTableToJson(table)));
  return CostTableFromJson(text);
}

absl::StatusOr<std::string> BroadcastText(Communicator& communicator,
                                          std::string text) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  auto bytes = static_cast<int64_t>(text.size());
  TESSERA_RETURN_IF_ERROR(
      communicator.Broadcast(Buffer(&bytes, 1, DType::kI64), Rank(0)));
  if (bytes < 0 || bytes > kMaxBytes) {
    return absl::InternalError(
        absl::StrCat("rank 0 has a text of ", bytes, " bytes"));
  }
  text.resize(static_cast<size_t>(bytes));
  TESSERA_RETURN_IF_ERROR(
      communicator.Broadcast(Buffer(text.data(), bytes, DType::kU8), Rank(0)));
  return text;
}

}  // namespace tessera::collectives

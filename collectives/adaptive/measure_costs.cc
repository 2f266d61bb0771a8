#include "collectives/adaptive/measure_costs.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "collectives/adaptive/adaptive_chooser.h"
#include "collectives/algorithms/algorithm_chooser.h"
#include "collectives/bootstrap/peer_process.h"
#include "collectives/reduction/combine.h"

namespace tessera::collectives {

namespace {

constexpr size_t kMaxPart = 120;

// A system file; empty if it is missing.
std::string ReadSystemFile(const std::string& path) {
  return ReadFile(path, int64_t{1} << 24).value_or("");
}

// Keeps printable ASCII characters.
std::string Shortened(std::string_view text) {
  const std::string_view stripped =
      absl::StripAsciiWhitespace(text).substr(0, kMaxPart);
  std::string shortened = stripped.empty() ? "?" : std::string(stripped);
  for (char& c : shortened) c = absl::ascii_isprint(c) ? c : '?';
  return shortened;
}

// Data and unified caches of the first CPU, smallest first.
std::string CacheSizes() {
  std::string sizes;
  for (int index = 0; index < 8; ++index) {
    const std::string directory =
        absl::StrCat("/sys/devices/system/cpu/cpu0/cache/index", index, "/");
    const std::string size = ReadSystemFile(directory + "size");
    if (size.empty()) break;
    if (absl::StrContains(ReadSystemFile(directory + "type"), "Instruction")) {
      continue;
    }
    absl::StrAppend(&sizes, " ", Shortened(size).substr(0, 16));
  }
  return sizes.empty() ? " ?" : sizes;
}

bool IsParted(OpKind kind) {
  return kind == OpKind::kReduceScatter || kind == OpKind::kAllGather ||
         kind == OpKind::kGather || kind == OpKind::kScatter ||
         kind == OpKind::kAllToAll;
}

absl::StatusOr<double> TakeTurn(Communicator& communicator,
                                const Operation& operation,
                                const Trial& trial) {
  CallOptions call;
  call.algorithm = trial.algorithm;
  TESSERA_RETURN_IF_ERROR(communicator.Barrier());
  const int64_t begin = MonotonicNanos();
  for (int64_t i = 0; i < trial.batch; ++i) {
    TESSERA_RETURN_IF_ERROR(communicator.Run(operation, call));
  }
  const auto elapsed = static_cast<double>(MonotonicNanos() - begin) * 1e-9;
  return std::max(elapsed, 1e-9) / static_cast<double>(trial.batch);
}

double Median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

constexpr std::array<int64_t, 5> kSizes = {64, 1024, 16 << 10, 128 << 10,
                                           1 << 20};
constexpr int kRepeats = 7;

double Since(int64_t begin) {
  return static_cast<double>(MonotonicNanos() - begin) * 1e-9;
}

// The first rank on the host of rank 0, or on another host.
std::optional<Rank> PeerOfRankZero(const Communicator& communicator,
                                   bool near) {
  const Hierarchy* hierarchy = communicator.options().hierarchy.get();
  for (int64_t r = 1; r < communicator.size(); ++r) {
    bool is_near = true;
    if (hierarchy != nullptr && hierarchy->levels() > 0) {
      const int64_t outermost = hierarchy->levels() - 1;
      is_near = hierarchy->GroupOf(outermost, Rank(r)) ==
                hierarchy->GroupOf(outermost, Rank(0));
    }
    if (is_near == near) return Rank(r);
  }
  return std::nullopt;
}

absl::Status SendAndReturn(Communicator& communicator, Buffer buffer,
                           Rank peer) {
  if (communicator.rank() == Rank(0)) {
    TESSERA_RETURN_IF_ERROR(communicator.Send(buffer, peer));
    return communicator.Receive(buffer, peer);
  }
  if (communicator.rank() != peer) return absl::OkStatus();
  TESSERA_RETURN_IF_ERROR(communicator.Receive(buffer, Rank(0)));
  return communicator.Send(buffer, Rank(0));
}

// Half of the fastest round trip at each size; known to rank 0 and `peer`.
absl::StatusOr<std::vector<SizePoint>> MeasureMessages(
    Communicator& communicator, Rank peer) {
  std::vector<uint8_t> memory(static_cast<size_t>(kSizes.back()));
  std::vector<SizePoint> points;
  for (const int64_t size : kSizes) {
    const Buffer buffer(memory.data(), size, DType::kU8);
    double fastest = 1e3;
    for (int i = 0; i < kRepeats; ++i) {
      const int64_t begin = MonotonicNanos();
      TESSERA_RETURN_IF_ERROR(SendAndReturn(communicator, buffer, peer));
      if (i > 0) fastest = std::min(fastest, Since(begin) / 2);
    }
    points.push_back({size, std::max(fastest, 1e-9)});
  }
  return points;
}

// Seconds per byte of adding two arrays, and of copying one.
std::array<double, 2> MeasureMemory() {
  constexpr int64_t kCount = 64 << 10;
  std::vector<float> a(kCount, 1.0f), b(kCount, 0.0f);
  const std::array<const void*, 2> sources = {a.data(), b.data()};
  const std::array<void*, 1> destinations = {b.data()};
  Combination sum;
  sum.dtype = DType::kF32;
  double add = 1e3, copy = 1e3;
  for (int i = 0; i < kRepeats; ++i) {
    int64_t begin = MonotonicNanos();
    Combine(sum, sources, destinations, kCount);
    add = std::min(add, Since(begin));
    begin = MonotonicNanos();
    CopyBytes(b.data(), a.data(), kCount * 4);
    copy = std::min(copy, Since(begin));
  }
  return {std::max(add, 1e-9) / (kCount * 4),
          std::max(copy, 1e-9) / (kCount * 4)};
}

// Checks whether the engine has point-to-point messages by sending an empty
// message to this rank.
absl::StatusOr<bool> HasMessages(Communicator& communicator) {
  const Rank self = communicator.rank();
  const absl::Status status =
      communicator.SendReceive(ConstBuffer(), self, Buffer(), self);
  if (absl::IsUnimplemented(status)) return false;
  TESSERA_RETURN_IF_ERROR(status);
  return true;
}

// Seconds of one round of a barrier: the cost of a message in a collective,
// where user messages may go through other threads.
absl::StatusOr<double> MeasureRound(Communicator& communicator) {
  constexpr int kBatch = 8;
  CallOptions call;
  call.algorithm = Algorithm::kRecursiveDoubling;
  const double rounds = std::ceil(std::log2(
      static_cast<double>(std::max<int64_t>(communicator.size(), 2))));
  double fastest = 1e3;
  for (int i = 0; i < kRepeats; ++i) {
    const int64_t begin = MonotonicNanos();
    for (int j = 0; j < kBatch; ++j) {
      TESSERA_RETURN_IF_ERROR(communicator.Barrier(call));
    }
    fastest = std::min(fastest, Since(begin));
  }
  return std::max(fastest / kBatch / rounds, 1e-9);
}

// Returns `other` if there is no such peer.
absl::StatusOr<Line> MeasureLine(Communicator& communicator,
                                 std::optional<Rank> peer, const Line& other) {
  if (!peer.has_value()) return other;
  TESSERA_ASSIGN_OR_RETURN(const std::vector<SizePoint> points,
                           MeasureMessages(communicator, *peer));
  TESSERA_RETURN_IF_ERROR(communicator.Barrier());
  return FitLine(points);
}

// The most used kinds come first: when the budget is spent, the others are
// extrapolated from smaller sizes.
constexpr std::array<OpKind, 9> kByUse = {
    OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather,
    OpKind::kBroadcast, OpKind::kAllToAll,      OpKind::kReduce,
    OpKind::kBarrier,   OpKind::kGather,        OpKind::kScatter,
};

constexpr int64_t kFirstBytes = 64;
constexpr int64_t kSizeFactor = 4;
// An algorithm is omitted if it is predicted to be kFarBehind times slower than
// the fastest, and was kWasBehind times slower at the largest size measured.
constexpr double kFarBehind = 2.5;
constexpr double kWasBehind = 1.6;
// If the budget is short, only the engine's own algorithm and those predicted
// within kContender of the fastest are measured, until kOverdraft times the
// budget is spent.
constexpr double kContender = 1.6;
constexpr int64_t kContenderTurns = 3;
constexpr double kOverdraft = 2;

constexpr double kTurnSeconds = 120e-6;
constexpr int64_t kMaxBatch = 64;

// Few repetitions while nothing is known.
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

// Measures kind by kind and size by size. All its decisions depend only on
// values that are equal on all ranks.
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
  // Predicted seconds.
  static double CostOf(const Plan& plan);
  absl::Status MeasureKind(OpKind kind, int64_t size);
  double PredictTrials(std::vector<Trial>* trials) const;
  bool WasBehind(const Trial& trial) const;
  int64_t LastBytes(OpKind kind) const;

  Communicator& communicator_;
  const MeasureOptions& options_;
  TrialBuffers buffers_;
  int64_t start_ns_;
  double spent_ = 0;  // Seconds of the slowest rank.
  bool has_messages_ = false;
  bool engine_has_[kCollectiveKinds.size()] = {};
  CostTable table_;
};

// With the default strategy AlgorithmFor returns kEngine if the engine
// implements the kind.
absl::Status Measurement::FindCandidates() {
  TESSERA_ASSIGN_OR_RETURN(has_messages_, HasMessages(communicator_));
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

// Sets the predictions from the measurements so far (0 if unknown); returns the
// least.
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

// True if it was much slower than the fastest at the largest size measured.
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

// The largest message measured for this kind; -1 if none.
int64_t Measurement::LastBytes(OpKind kind) const {
  int64_t last = -1;
  for (const auto& [what, points] : table_.measured) {
    if (what.first == kind) last = std::max(last, points.back().bytes);
  }
  return last;
}

// The remaining budget determines the repetitions and the measured algorithms:
// all that are not far slower, only the contenders, or (except at the first
// size) none.
Measurement::Plan Measurement::PlanTrials(OpKind kind, int64_t bytes,
                                          bool first) const {
  Plan plan{.trials = TrialsOf(kind, bytes)};
  const double fastest = PredictTrials(&plan.trials);
  plan.turns = TurnsFor(fastest);
  // Equal for all trials, so that constant overheads count alike.
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
  // A barrier, or a size whose blocks still have one element.
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

std::string ModelNameIn(std::string_view cpuinfo) {
  for (std::string_view line : absl::StrSplit(cpuinfo, '\n')) {
    if (!absl::StartsWith(line, "model name")) continue;
    const size_t colon = line.find(':');
    if (colon != std::string_view::npos)
      return Shortened(line.substr(colon + 1));
  }
  return "?";
}

std::string DescribeHardware() {
  return absl::StrCat(ModelNameIn(ReadSystemFile("/proc/cpuinfo")), "; ",
                      AvailableProcessors(), " cpus; caches", CacheSizes(),
                      "; host ", HostName());
}

int64_t TrialBytes(OpKind kind, int64_t bytes, int64_t ranks) {
  if (kind == OpKind::kBarrier) return 0;
  const int64_t unit = IsParted(kind) ? 4 * ranks : 4;
  return std::max<int64_t>(1, bytes / unit) * unit;
}

Operation TrialBuffers::OperationOf(OpKind kind, int64_t bytes,
                                    const Communicator& communicator) {
  const int64_t whole = bytes / 4;
  const int64_t block = whole / communicator.size();
  const bool is_root = communicator.rank() == Rank(0);
  const auto buffer = [](std::vector<float>& memory, int64_t count) {
    return Buffer(memory.data(), count, DType::kF32);
  };
  const bool parts_input =
      kind == OpKind::kReduceScatter || kind == OpKind::kScatter;
  const bool parts_output =
      kind == OpKind::kAllGather || kind == OpKind::kGather;
  Operation operation;
  operation.kind = kind;
  operation.input = buffer(input_, parts_output ? block : whole);
  operation.output = buffer(output_, parts_input ? block : whole);
  // Ranks other than the root have no such buffer.
  if (!is_root) {
    if (kind == OpKind::kScatter || kind == OpKind::kBroadcast) {
      operation.input.count = 0;
    }
    if (kind == OpKind::kGather || kind == OpKind::kReduce) {
      operation.output.count = 0;
    }
  }
  return operation;
}

absl::Status RunTrials(Communicator& communicator, TrialBuffers& buffers,
                       int64_t turns, std::span<Trial> trials) {
  if (trials.empty()) return absl::OkStatus();
  std::vector<Operation> operations;
  for (const Trial& trial : trials) {
    operations.push_back(
        buffers.OperationOf(trial.kind, trial.bytes, communicator));
  }
  // Indexed by round, then by trial.
  std::vector<double> seconds;
  for (int64_t turn = -1; turn < turns; ++turn) {
    for (size_t i = 0; i < trials.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(
          const double elapsed,
          TakeTurn(communicator, operations[i], trials[i]));
      if (turn >= 0) seconds.push_back(elapsed);
    }
  }
  TESSERA_RETURN_IF_ERROR(
      communicator.AllReduce(Buffer(std::span(seconds)), Reduction::Max()));
  for (size_t i = 0; i < trials.size(); ++i) {
    std::vector<double> own;
    for (size_t at = i; at < seconds.size(); at += trials.size()) {
      own.push_back(seconds[at]);
    }
    trials[i].seconds = Median(std::move(own));
  }
  return absl::OkStatus();
}

absl::StatusOr<FormulaCosts> MeasureLinks(Communicator& communicator) {
  const std::array<double, 2> memory = MeasureMemory();
  const Line copy = {1e-6, memory[1]};
  FormulaCosts costs = {copy, copy, memory[0]};
  TESSERA_ASSIGN_OR_RETURN(const bool has_messages, HasMessages(communicator));
  if (has_messages) {
    const auto near_peer = PeerOfRankZero(communicator, /*near=*/true);
    const auto far_peer = PeerOfRankZero(communicator, /*near=*/false);
    TESSERA_RETURN_IF_ERROR(communicator.Barrier());
    TESSERA_ASSIGN_OR_RETURN(costs.near,
                             MeasureLine(communicator, near_peer, copy));
    TESSERA_ASSIGN_OR_RETURN(costs.far,
                             MeasureLine(communicator, far_peer, costs.near));
    if (!near_peer.has_value()) costs.near = costs.far;
    TESSERA_ASSIGN_OR_RETURN(const double round, MeasureRound(communicator));
    costs.near.alpha = std::min(costs.near.alpha, round);
    costs.far.alpha = std::min(costs.far.alpha, round);
  }
  // Known to rank 0 and its peers only.
  std::array<double, 5> values = {costs.near.alpha, costs.near.beta,
                                  costs.far.alpha, costs.far.beta, costs.gamma};
  TESSERA_RETURN_IF_ERROR(
      communicator.Broadcast(Buffer(values.data(), 5, DType::kF64), Rank(0)));
  return FormulaCosts{
      {values[0], values[1]}, {values[2], values[3]}, values[4]};
}

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
  Measurement measurement(communicator.host(), options);
  TESSERA_ASSIGN_OR_RETURN(CostTable table, measurement.Run());
  // Hosts may have different hardware; use rank 0's.
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           BroadcastText(communicator, CostTableToJson(table)));
  return CostTableFromJson(text);
}

absl::StatusOr<std::string> BroadcastText(Communicator& communicator,
                                          std::string text) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  Communicator& host = communicator.host();
  auto bytes = static_cast<int64_t>(text.size());
  TESSERA_RETURN_IF_ERROR(
      host.Broadcast(Buffer(&bytes, 1, DType::kI64), Rank(0)));
  if (bytes < 0 || bytes > kMaxBytes) {
    return absl::InternalError(
        absl::StrCat("rank 0's text has ", bytes, " bytes; use at most 2^30"));
  }
  text.resize(static_cast<size_t>(bytes));
  TESSERA_RETURN_IF_ERROR(
      host.Broadcast(Buffer(text.data(), bytes, DType::kU8), Rank(0)));
  return text;
}

}  // namespace tessera::collectives

#include "collectives/nccl/nccl_watcher.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <string>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"

namespace tessera::collectives {
namespace {

// The period at which running calls are polled.
constexpr auto kPoll = std::chrono::microseconds(500);
// The longest time that a leaving rank waits for the others.
constexpr auto kPatience = std::chrono::seconds(5);

}  // namespace

NcclWatcher::NcclWatcher(Communicator& base, std::vector<PeerReport> peers,
                         absl::Duration period, Hooks hooks)
    : base_(base),
      period_(period),
      hooks_(std::move(hooks)),
      reports_(std::move(peers)),
      all_(static_cast<size_t>(base.size())),
      pulse_ended_(base.size() == 1) {
  for (PeerReport& report : reports_) report.state = PeerState::kAlive;
}

void NcclWatcher::Start() {
  thread_ = std::thread([this] { Run(); });
}

NcclWatcher::~NcclWatcher() {
  if (!pulse_) return;
  // The other ranks will not take part. The exchange uses memory of this object
  // until it ends.
  const absl::StatusOr<bool> done = pulse_->Test();
  if (done.ok() && !*done) base_.Abort("it has left the group");
  static_cast<void>(pulse_->Wait());
}

void NcclWatcher::Enter(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  entered_ = sequence;
}

void NcclWatcher::Watch(WatchedCall call) {
  const std::lock_guard lock(mutex_);
  calls_[{call.from, call.to}].push_back(std::move(call));
  changed_.notify_all();
}

void NcclWatcher::Connect(int64_t peer) {
  Connections connections;
  absl::Status status;
  {
    const std::lock_guard lock(mutex_);
    if (begun_.contains(peer)) return;
    if (rank() < peer) {
      status = BeginAsLower(peer, connections);
    } else if (std::none_of(outgoing_.begin(), outgoing_.end(),
                            [&](const auto& o) { return o.first == peer; })) {
      outgoing_.emplace_back(peer, PairIds());
    }
  }
  if (!status.ok()) hooks_.fail(status);
  for (const auto& [to, ids] : connections) hooks_.connect(to, ids);
}

absl::Status NcclWatcher::BeginAsLower(int64_t peer, Connections& connections) {
  if (!begun_.insert(peer).second) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const PairIds ids, hooks_.create_ids());
  outgoing_.emplace_back(peer, ids);
  connections.emplace_back(peer, ids);
  return absl::OkStatus();
}

void NcclWatcher::Run() {
  std::unique_lock lock(mutex_);
  while (!stops_) {
    Connections connections;
    absl::Status status = CheckCalls();
    if (status.ok()) status = CheckPulse(connections);
    changed_.notify_all();  // For Leave.
    lock.unlock();
    if (status.ok()) status = hooks_.check_health();
    if (!status.ok()) hooks_.fail(status);
    for (const auto& [peer, ids] : connections) hooks_.connect(peer, ids);
    lock.lock();
    if (!status.ok()) stops_ = true;
    if (!stops_) changed_.wait_for(lock, kPoll);
  }
  calls_.clear();
  changed_.notify_all();
}

absl::Status NcclWatcher::CheckCalls() {
  for (auto& [peers, calls] : calls_) {
    while (!calls.empty()) {
      WatchedCall& call = calls.front();
      TESSERA_ASSIGN_OR_RETURN(const bool done, call.done.Test());
      if (done) {
        calls.pop_front();
        continue;
      }
      if (call.deadline == 0) {
        TESSERA_ASSIGN_OR_RETURN(const bool begun, call.begun.Test());
        if (begun) call.deadline = DeadlineAfter(call.timeout);
      } else if (MonotonicNanos() >= call.deadline) {
        return OverdueHere(call);
      }
      break;
    }
  }
  return absl::OkStatus();
}

absl::Status NcclWatcher::CheckPulse(Connections& connections) {
  if (pulse_ended_) return absl::OkStatus();
  if (pulse_) {
    const absl::StatusOr<bool> done = pulse_->Test();
    if (!done.ok()) return PulseEnded(done.status());
    if (!*done) return absl::OkStatus();
    pulse_.reset();
    next_pulse_ = MonotonicNanos() + absl::ToInt64Nanoseconds(period_);
    return ReadPulses(connections);
  }
  if (MonotonicNanos() < next_pulse_) return absl::OkStatus();
  mine_ = Compose();
  static_assert(std::is_trivially_copyable_v<Pulse>);
  const auto bytes = static_cast<int64_t>(sizeof(Pulse));
  absl::StatusOr<Work> work = base_.Start(
      AllGatherOf(ConstBuffer(&mine_, bytes, DType::kU8),
                  Buffer(all_.data(), bytes * base_.size(), DType::kU8)),
      {.timeout = absl::InfiniteDuration()});
  if (!work.ok()) return PulseEnded(work.status());
  pulse_ = *std::move(work);
  return absl::OkStatus();
}

// A failed pulse is an error of the group, unless a rank has left.
absl::Status NcclWatcher::PulseEnded(const absl::Status& status) {
  pulse_.reset();
  pulse_ended_ = true;
  return someone_left_ || leaves_ ? absl::OkStatus() : status;
}

NcclWatcher::Pulse NcclWatcher::Compose() {
  Pulse pulse;
  pulse.entered = entered_;
  pulse.leaves = leaves_;
  size_t messages = 0;
  for (const auto& [peers, calls] : calls_) {
    if (calls.empty()) continue;
    const WatchedCall& oldest = calls.front();
    if (oldest.from == WatchedCall::kNobody) {
      pulse.oldest = oldest.signature;
    } else if (messages < kMessages) {
      pulse.messages[messages++] = {oldest.from, oldest.to, oldest.signature};
    }
  }
  if (!outgoing_.empty()) {
    pulse.peer = static_cast<int32_t>(outgoing_.front().first);
    pulse.ids = outgoing_.front().second;
    outgoing_.pop_front();
  }
  return pulse;
}

absl::Status NcclWatcher::ReadPulses(Connections& connections) {
  int64_t leaving = 0;
  for (int64_t r = 0; r < base_.size(); ++r) {
    const Pulse& pulse = all_[static_cast<size_t>(r)];
    leaving += pulse.leaves;
    if (r == rank()) continue;
    TESSERA_RETURN_IF_ERROR(ReadPulse(r, pulse, connections));
  }
  someone_left_ = leaving > 0;
  pulse_ended_ = leaving == base_.size();
  return absl::OkStatus();
}

absl::Status NcclWatcher::ReadPulse(int64_t from, const Pulse& pulse,
                                    Connections& connections) {
  PeerReport& report = reports_[static_cast<size_t>(from)];
  report.sequence = pulse.entered;
  report.phase = pulse.oldest.sequence == 0
                     ? PhaseWord()
                     : PhaseWord(Phase::kEntering, PhaseWord::kNoPeer);
  if (pulse.peer == rank()) {
    if (rank() < from) {
      TESSERA_RETURN_IF_ERROR(BeginAsLower(from, connections));
    } else if (begun_.insert(from).second) {
      connections.emplace_back(from, pulse.ids);
    }
  }
  return CheckSame(from, pulse);
}

// Two ranks that are running the same call number must agree on the call.
absl::Status NcclWatcher::CheckSame(int64_t from, const Pulse& pulse) const {
  const Rank self(rank()), other(from);
  if (pulse.oldest.sequence != 0 &&
      pulse.oldest.sequence == mine_.oldest.sequence &&
      pulse.oldest != mine_.oldest) {
    return MismatchError(mine_.oldest, self, pulse.oldest, other);
  }
  for (const Message& mine : mine_.messages) {
    if (mine.from == WatchedCall::kNobody) continue;
    for (const Message& theirs : pulse.messages) {
      if (theirs.from == mine.from && theirs.to == mine.to &&
          theirs.signature.sequence == mine.signature.sequence &&
          theirs.signature != mine.signature) {
        return MismatchError(mine.signature, self, theirs.signature, other);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status NcclWatcher::Overdue(const WatchedCall& call) const {
  const std::lock_guard lock(mutex_);
  return OverdueHere(call);
}

absl::Status NcclWatcher::OverdueHere(const WatchedCall& call) const {
  if (call.from != WatchedCall::kNobody) {
    const bool sends = call.from == rank();
    const PeerReport& peer =
        reports_[static_cast<size_t>(sends ? call.to : call.from)];
    return absl::DeadlineExceededError(absl::StrCat(
        DescribeSignature(call.signature), sends ? " to" : " from", " rank ",
        peer.rank.value(), " (host ", peer.host, ", pid ", peer.pid,
        "): the deadline passed: that rank has not made the matching ",
        sends ? "receive" : "send", ", or the connection is stuck"));
  }
  std::vector<PeerReport> missing;
  for (const bool all : {false, true}) {
    if (!missing.empty()) break;
    for (const PeerReport& peer : reports_) {
      if (peer.rank == base_.rank()) continue;
      if (all || peer.sequence < call.signature.sequence) {
        missing.push_back(peer);
      }
    }
  }
  Scratch scratch;
  OperationContext context(call.signature, call.deadline, scratch);
  context.Enter(Phase::kEntering);
  return MissingPeersError(context, missing);
}

std::vector<PeerReport> NcclWatcher::Peers() const {
  const std::lock_guard lock(mutex_);
  return reports_;
}

void NcclWatcher::Leave() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return stops_ || std::all_of(calls_.begin(), calls_.end(),
                                   [](auto& c) { return c.second.empty(); });
    });
    leaves_ = true;
    changed_.wait_for(lock, kPatience, [&] { return stops_ || pulse_ended_; });
  }
  Stop();
}

void NcclWatcher::Stop() {
  const std::lock_guard lock(mutex_);
  stops_ = true;
  changed_.notify_all();
}

}  // namespace tessera::collectives

#include "collectives/host_memory/group.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "base/status_macros.h"

namespace tessera::collectives::host_memory {
namespace {

constexpr int kYieldsBetweenLooks = 16;
constexpr int64_t kCheckEveryNs = 500'000;
constexpr int64_t kProcessesEveryNs = 20'000'000;
constexpr int64_t kSleepNs = 10'000'000;

void StoreSignature(const Signature& signature, SharedSignature& shared) {
  uint64_t words[4];
  std::memcpy(words, &signature, sizeof(words));
  // The first word is written last, so that readers detect a torn signature.
  shared.words[0].store(0, std::memory_order_release);
  for (int i = 3; i >= 0; --i) {
    shared.words[i].store(words[i], std::memory_order_release);
  }
}

}  // namespace

Group::Group(std::shared_ptr<Domain> domain, GroupBlock block,
             std::vector<int64_t> members, int64_t rank, bool owns_block)
    : domain_(std::move(domain)),
      block_(block),
      members_(std::move(members)),
      rank_(rank),
      mine_(&block.rank(rank)),
      tuning_(block.header().tuning),
      crowded_((tuning_.processors > 0
                    ? tuning_.processors
                    : domain_->processors()) < domain_->size()),
      // With fewer processors than ranks, spinning keeps the awaited rank from
      // running.
      spins_(crowded_ ? 1 : tuning_.spins),
      owns_block_(owns_block) {}

Group::~Group() { domain_->Retire(block_, owns_block_, std::move(retired_)); }

void Group::FreeLater(std::byte* memory) {
  const std::lock_guard lock(retired_mutex_);
  retired_.push_back(memory);
}

void Group::Enter(OperationContext& context) {
  RankStatus& status = mine_->status;
  const Signature& signature = context.signature();
  StoreSignature(signature, status.history[signature.sequence % kHistory]);
  status.sequence.store(signature.sequence, std::memory_order_release);
  context.PublishTo(&status.phase);
  context.Enter(Phase::kEntering);
}

void Group::Leave() {
  mine_->status.phase.store(PhaseWord().bits(), std::memory_order_release);
}

absl::Status Group::AwaitLong(OperationContext& context,
                              absl::FunctionRef<bool()> ready,
                              Missing missing) {
  context.BeginWait();
  int64_t start = MonotonicNanos();
  uint64_t stores = stores_.load(std::memory_order_relaxed);
  int64_t next_check = start + kCheckEveryNs;
  int64_t next_processes = start + kProcessesEveryNs;
  while (true) {
    for (int i = 0; i < kYieldsBetweenLooks; ++i) {
      if (ready()) return absl::OkStatus();
      sched_yield();
    }
    int64_t now = MonotonicNanos();
    if (stores_.load(std::memory_order_relaxed) != stores) {
      stores = stores_.load(std::memory_order_relaxed);
      start = now;
    }
    if (now - start > tuning_.yield_us * 1000) {
      Sleep(ready);
      now = MonotonicNanos();
    }
    if (now < next_check) continue;
    if (ready()) return absl::OkStatus();
    const bool look_at_processes = now >= next_processes;
    TESSERA_RETURN_IF_ERROR(
        CheckWait(context, missing, ready, look_at_processes));
    next_check = now + kCheckEveryNs;
    if (look_at_processes) next_processes = now + kProcessesEveryNs;
  }
}

absl::Status Group::CheckWait(OperationContext& context, Missing missing,
                              absl::FunctionRef<bool()> ready,
                              bool look_at_processes) {
  TESSERA_RETURN_IF_ERROR(Whole());
  const bool expired = context.Expired();
  const std::vector<int64_t> waited_for = ListOf(missing);
  std::vector<int64_t> elsewhere;
  std::vector<int64_t> gone;
  for (int64_t peer : waited_for) {
    if (IsElsewhere(context, peer)) elsewhere.push_back(peer);
    if (Report(peer, look_at_processes).state != PeerState::kAlive) {
      gone.push_back(peer);
    }
  }
  if (!expired && elsewhere.empty() && gone.empty()) return absl::OkStatus();
  // A peer may have delivered its data before it continued or left, so check
  // only the ranks that are still missing.
  if (ready()) return absl::OkStatus();
  const std::vector<int64_t> still = ListOf(missing);
  const auto is_still_missing = [&still](int64_t peer) {
    return std::find(still.begin(), still.end(), peer) != still.end();
  };
  for (int64_t peer : elsewhere) {
    if (is_still_missing(peer)) return Mismatch(context, peer);
  }
  if (expired || std::any_of(gone.begin(), gone.end(), is_still_missing)) {
    if (!still.empty()) return Break(MissingError(context, still));
  }
  return absl::OkStatus();
}

std::vector<int64_t> Group::ListOf(Missing missing) {
  std::vector<int64_t> peers;
  missing(peers);
  return peers;
}

bool Group::IsElsewhere(const OperationContext& context, int64_t peer) const {
  const Signature& mine = context.signature();
  if (!IsCollective(mine.kind)) return false;
  const uint64_t theirs =
      of(peer).status.sequence.load(std::memory_order_acquire);
  if (theirs < mine.sequence) return false;
  Signature call;
  return !(ReadSignature(peer, mine.sequence, call) && call == mine);
}

bool Group::ReadSignature(int64_t peer, uint64_t sequence,
                          Signature& out) const {
  const SharedSignature& shared = of(peer).status.history[sequence % kHistory];
  uint64_t words[4];
  for (int i = 0; i < 4; ++i) {
    words[i] = shared.words[i].load(std::memory_order_acquire);
  }
  if (words[0] != sequence ||
      shared.words[0].load(std::memory_order_acquire) != sequence) {
    return false;
  }
  std::memcpy(&out, words, sizeof(out));
  return true;
}

absl::Status Group::Mismatch(const OperationContext& context, int64_t peer) {
  const Signature& mine = context.signature();
  Signature theirs;
  if (!ReadSignature(peer, mine.sequence, theirs)) {
    // The peer has continued; report its current call instead.
    const uint64_t now =
        of(peer).status.sequence.load(std::memory_order_acquire);
    if (!ReadSignature(peer, now, theirs)) theirs.sequence = now;
  }
  return Break(MismatchError(mine, Rank(rank_), theirs, Rank(peer)));
}

absl::Status Group::MissingError(OperationContext& context,
                                 std::span<const int64_t> missing) const {
  std::vector<PeerReport> reports;
  for (int64_t peer : missing) {
    reports.push_back(Report(peer, /*look_at_process=*/true));
  }
  const auto gone = [](const PeerReport& peer) {
    return peer.state == PeerState::kDead || peer.state == PeerState::kDeparted;
  };
  // If a rank is gone, do not report ranks that are merely late.
  if (std::any_of(reports.begin(), reports.end(), gone)) {
    std::erase_if(reports, [&](const PeerReport& p) { return !gone(p); });
  }
  return MissingPeersError(context, reports);
}

absl::Status Group::Lost(OperationContext& context, int64_t peer,
                         const absl::Status& status) {
  // A dying process loses its memory slightly before it is reported dead.
  constexpr int64_t kPatienceNs = 100'000'000;
  const int64_t until = MonotonicNanos() + kPatienceNs;
  do {
    TESSERA_RETURN_IF_ERROR(Whole());
    if (Report(peer, /*look_at_process=*/true).state != PeerState::kAlive) {
      return Break(MissingError(context, {&peer, 1}));
    }
    sched_yield();
  } while (MonotonicNanos() < until);
  return Break(status);
}

PeerReport Group::Report(int64_t peer, bool look_at_process) const {
  const int64_t number = members_[static_cast<size_t>(peer)];
  const RankStatus& status = of(peer).status;
  PeerReport report;
  report.rank = Rank(peer);
  report.host = domain_->HostOf(number);
  report.pid = domain_->PidOf(number);
  report.sequence = status.sequence.load(std::memory_order_acquire);
  report.phase = PhaseWord(status.phase.load(std::memory_order_acquire));
  report.state = PeerState::kAlive;
  if (look_at_process && domain_->IsDead(number)) {
    report.state = PeerState::kDead;
  }
  if (status.departed.load(std::memory_order_acquire) != 0) {
    report.state = PeerState::kDeparted;
  }
  return report;
}

absl::Status Group::Break(const absl::Status& reason) {
  BrokenRecord& record = block_.header().broken;
  uint32_t whole = BrokenRecord::kWhole;
  if (record.state.compare_exchange_strong(whole, BrokenRecord::kBeingWritten,
                                           std::memory_order_acq_rel)) {
    record.code = static_cast<int32_t>(reason.code());
    record.rank = static_cast<int32_t>(rank_);
    record.length = static_cast<uint32_t>(
        std::min(reason.message().size(), sizeof(record.text)));
    std::memcpy(record.text, reason.message().data(), record.length);
    record.state.store(BrokenRecord::kBroken, std::memory_order_seq_cst);
    Wake();
    return reason;
  }
  // Another rank broke the group first. Return its reason, so that all ranks
  // report the same error, unless that rank died while writing it.
  for (int i = 0; i < 10'000; ++i) {
    if (record.state.load(std::memory_order_acquire) == BrokenRecord::kBroken) {
      return BrokenStatus();
    }
    sched_yield();
  }
  return reason;
}

absl::Status Group::BrokenStatus() const {
  const BrokenRecord& record = block_.header().broken;
  const size_t length = std::min<size_t>(record.length, sizeof(record.text));
  return absl::Status(static_cast<absl::StatusCode>(record.code),
                      std::string_view(record.text, length));
}

void Group::Depart() {
  mine_->status.departed.store(1, std::memory_order_seq_cst);
  Wake();
}

void Group::Sleep(absl::FunctionRef<bool()> ready) {
  Bell& bell = mine_->bell;
  std::atomic<uint32_t>& sleepers = block_.header().sleepers;
  bell.sleepers.fetch_add(1, std::memory_order_seq_cst);
  sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t word = bell.word.load(std::memory_order_seq_cst);
  if (!ready() && Whole().ok()) {
    const timespec timeout = {0, kSleepNs};
    // Not a private futex, because the ranks may be processes.
    syscall(SYS_futex, &bell.word, FUTEX_WAIT, word, &timeout, nullptr, 0);
  }
  sleepers.fetch_sub(1, std::memory_order_seq_cst);
  bell.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void Group::WakeSleepers() {
  for (int64_t peer = 0; peer < size(); ++peer) {
    Bell& bell = of(peer).bell;
    if (bell.sleepers.load(std::memory_order_seq_cst) == 0) continue;
    bell.word.fetch_add(1, std::memory_order_seq_cst);
    syscall(SYS_futex, &bell.word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

}  // namespace tessera::collectives::host_memory

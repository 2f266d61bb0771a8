#include "collectives/engine/lanes.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/status_macros.h"

namespace tessera::collectives {

CollectiveLane::~CollectiveLane() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void CollectiveLane::LeaveToJobs() {
  const std::lock_guard lock(mutex_);
  state_.fetch_and(~kHeld, std::memory_order_release);
  changed_.notify_all();
}

void CollectiveLane::Push(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  state_.fetch_or(kQueued, std::memory_order_relaxed);
  if (!thread_.joinable()) thread_ = std::thread([this] { RunJobs(); });
  changed_.notify_all();
}

void CollectiveLane::RunJobs() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] {
      const bool held = state_.load(std::memory_order_acquire) & kHeld;
      return jobs_.empty() ? closing_ : !held;
    });
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // Destroying its captures may take locks.
    lock.lock();
    // Callers may enter again.
    if (jobs_.empty()) state_.store(kIdle, std::memory_order_release);
  }
}

// One direction of an operation.
struct MessageLane::Half {
  Channel* channel;
  ConstBuffer input;  // For a send.
  Buffer output;      // For a receive.
};

// Shared by the halves of one started operation; completes when both have
// completed.
class MessageLane::Joint {
 public:
  Joint(int halves, Done done) : left_(halves), done_(std::move(done)) {}

  void FinishHalf(const absl::Status& status) {
    std::unique_lock lock(mutex_);
    status_.Update(status);
    if (--left_ > 0) return;
    lock.unlock();
    done_(status_);
  }

 private:
  std::mutex mutex_;
  int left_;
  absl::Status status_;
  Done done_;
};

struct MessageLane::Pending {
  Request request;
  OperationRecord record;
  uint64_t ticket = 0;
  int64_t deadline = 0;
  std::shared_ptr<Joint> joint;
};

// The messages to or from one peer.
struct MessageLane::Channel {
  Rank peer;
  Direction direction = Direction::kSend;
  std::mutex mutex;
  uint64_t sequence = 0;        // Sequence number of the last message.
  std::deque<Pending> pending;  // Started, oldest first.
  bool active = false;          // True if the progress thread knows it.
};

MessageLane::MessageLane(Engine& engine, uint32_t group,
                         FlightRecorder& recorder)
    : engine_(engine),
      transport_(*engine.transport()),
      group_(group),
      recorder_(recorder),
      channels_(static_cast<size_t>(2 * engine.size())) {}

MessageLane::~MessageLane() {
  {
    const std::lock_guard lock(progress_mutex_);
    closing_ = true;
    work_arrived_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

MessageLane::Channel& MessageLane::ChannelOf(Rank peer, Direction direction) {
  const std::lock_guard lock(channels_mutex_);
  std::unique_ptr<Channel>& channel =
      channels_[static_cast<size_t>(2 * peer.value()) +
                static_cast<size_t>(direction)];
  if (channel == nullptr) {
    channel = std::make_unique<Channel>();
    channel->peer = peer;
    channel->direction = direction;
  }
  return *channel;
}

MessageLane::Halves MessageLane::HalvesOf(const Operation& operation) {
  Halves halves;
  // Sends first: threads that lock two channels lock them in this order.
  if (operation.kind != OpKind::kReceive) {
    halves.push_back({&ChannelOf(operation.destination, Direction::kSend),
                      operation.input, Buffer()});
  }
  if (operation.kind != OpKind::kSend) {
    halves.push_back({&ChannelOf(operation.source, Direction::kReceive),
                      ConstBuffer(), operation.output});
  }
  return halves;
}

absl::StatusOr<Request> MessageLane::StartOnTransport(Channel& channel,
                                                      const Half& half,
                                                      Signature& signature) {
  signature.group = group_;
  signature.kind = OpKind::kSend;
  signature.sequence = ++channel.sequence;
  if (channel.direction == Direction::kSend) {
    signature.count = half.input.count;
    signature.dtype = half.input.dtype;
    return transport_.StartSend(channel.peer, Lane::kPointToPoint, signature,
                                half.input.AsBytes());
  }
  signature.count = half.output.count;
  signature.dtype = half.output.dtype;
  return transport_.StartReceive(channel.peer, Lane::kPointToPoint, signature,
                                 half.output.AsBytes());
}

namespace {

OperationRecord NewRecord(Rank peer, Direction direction, int64_t bytes) {
  OperationRecord record;
  record.kind =
      direction == Direction::kSend ? OpKind::kSend : OpKind::kReceive;
  record.bytes = bytes;
  record.peer = peer.value();
  record.begin_ns = MonotonicNanos();
  return record;
}

}  // namespace

absl::Status MessageLane::Run(const Operation& operation, int64_t deadline) {
  const Halves halves = HalvesOf(operation);
  absl::InlinedVector<std::unique_lock<std::mutex>, 2> locks;
  bool idle = true;
  for (const Half& half : halves) {
    locks.emplace_back(half.channel->mutex);
    idle = idle && half.channel->pending.empty();
  }
  if (idle) return RunHere(halves, deadline);
  locks.clear();
  std::mutex mutex;
  std::condition_variable finished;
  std::optional<absl::Status> result;
  TESSERA_RETURN_IF_ERROR(Start(operation, deadline, [&](absl::Status status) {
    const std::lock_guard lock(mutex);
    result = std::move(status);
    finished.notify_all();
  }));
  std::unique_lock lock(mutex);
  finished.wait(lock, [&] { return result.has_value(); });
  return *result;
}

// The caller holds the channels of all halves.
absl::Status MessageLane::RunHere(std::span<const Half> halves,
                                  int64_t deadline) {
  absl::InlinedVector<Request, 2> requests;
  absl::InlinedVector<std::pair<uint64_t, OperationRecord>, 2> records;
  absl::Status status = failed_ ? failure() : absl::OkStatus();
  for (const Half& half : halves) {
    if (!status.ok()) break;
    OperationRecord record =
        NewRecord(half.channel->peer, half.channel->direction,
                  half.input.bytes() + half.output.bytes());
    absl::StatusOr<Request> request =
        StartOnTransport(*half.channel, half, record.signature);
    records.emplace_back(recorder_.Begin(record), record);
    status = request.status();
    if (request.ok()) requests.push_back(*request);
  }
  if (status.ok()) status = Wait(records.front().second, requests, deadline);
  const int64_t now = MonotonicNanos();
  for (auto& [ticket, record] : records) {
    record.code = status.code();
    record.end_ns = now;
    recorder_.End(ticket, record);
  }
  return status;
}

absl::Status MessageLane::Wait(const OperationRecord& record,
                               std::span<const Request> requests,
                               int64_t deadline) {
  Scratch none;
  OperationContext context(record.signature, deadline, none);
  context.Enter(
      record.kind == OpKind::kSend ? Phase::kSending : Phase::kReceiving,
      Rank(record.peer));
  return transport_.Wait(requests, context);
}

absl::Status MessageLane::Start(const Operation& operation, int64_t deadline,
                                Done done) {
  const Halves halves = HalvesOf(operation);
  if (failed_) return failure();
  const auto joint =
      std::make_shared<Joint>(static_cast<int>(halves.size()), std::move(done));
  for (const Half& half : halves) {
    const absl::Status status = StartHalf(half, deadline, joint);
    if (!status.ok()) joint->FinishHalf(status);
  }
  return absl::OkStatus();
}

absl::Status MessageLane::StartHalf(const Half& half, int64_t deadline,
                                    const std::shared_ptr<Joint>& joint) {
  Channel& channel = *half.channel;
  const std::lock_guard lock(channel.mutex);
  Pending pending;
  pending.record = NewRecord(channel.peer, channel.direction,
                             half.input.bytes() + half.output.bytes());
  TESSERA_ASSIGN_OR_RETURN(
      pending.request,
      StartOnTransport(channel, half, pending.record.signature));
  pending.ticket = recorder_.Begin(pending.record);
  pending.deadline = deadline;
  pending.joint = joint;
  channel.pending.push_back(std::move(pending));
  if (!std::exchange(channel.active, true)) WakeProgress(channel);
  return absl::OkStatus();
}

void MessageLane::WakeProgress(Channel& channel) {
  const std::lock_guard lock(progress_mutex_);
  arrived_.push_back(&channel);
  if (!thread_.joinable()) thread_ = std::thread([this] { Progress(); });
  work_arrived_.notify_all();
}

void MessageLane::Fail(const absl::Status& reason) {
  const std::lock_guard lock(failure_mutex_);
  if (failure_.ok()) failure_ = reason;
  failed_ = true;
}

absl::Status MessageLane::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

namespace {

// Pauses between two polls without progress: at first it returns at once, then
// it yields, then it sleeps for up to 200 us.
void Pause(int64_t idle_rounds) {
  if (idle_rounds < 64) return;
  if (idle_rounds < 256) {
    std::this_thread::yield();
    return;
  }
  const int64_t us = std::min<int64_t>(200, 10 + idle_rounds - 256);
  std::this_thread::sleep_for(std::chrono::microseconds(us));
}

}  // namespace

void MessageLane::Progress() {
  std::vector<Channel*> active;
  int64_t idle_rounds = 0;
  while (true) {
    {
      std::unique_lock lock(progress_mutex_);
      if (active.empty()) {
        work_arrived_.wait(lock,
                           [this] { return closing_ || !arrived_.empty(); });
        if (arrived_.empty()) return;
      }
      active.insert(active.end(), arrived_.begin(), arrived_.end());
      arrived_.clear();
    }
    bool moved = false;
    std::erase_if(active, [&](Channel* channel) {
      const std::lock_guard lock(channel->mutex);
      moved = ProgressChannel(*channel) || moved;
      if (channel->pending.empty()) channel->active = false;
      return !channel->active;
    });
    idle_rounds = moved ? 0 : idle_rounds + 1;
    Pause(idle_rounds);
  }
}

// Returns true if a message completed. The caller holds the channel.
bool MessageLane::ProgressChannel(Channel& channel) {
  bool moved = false;
  while (!channel.pending.empty()) {
    if (failed_) {
      FinishFront(channel, failure());
      moved = true;
      continue;
    }
    const absl::StatusOr<bool> done =
        transport_.Test(channel.pending.front().request);
    if (done.ok() && !*done) {
      if (MonotonicNanos() < channel.pending.front().deadline) break;
      FinishFront(channel, Overdue(channel.pending.front()));
    } else {
      FinishFront(channel, done.status());
    }
    moved = true;
  }
  return moved;
}

void MessageLane::FinishFront(Channel& channel, absl::Status status) {
  Pending pending = std::move(channel.pending.front());
  channel.pending.pop_front();
  pending.record.end_ns = MonotonicNanos();
  pending.record.code = status.code();
  recorder_.End(pending.ticket, pending.record);
  pending.joint->FinishHalf(status);
}

absl::Status MessageLane::Overdue(const Pending& pending) const {
  Scratch none;
  OperationContext context(pending.record.signature, pending.deadline, none);
  context.Enter(pending.record.kind == OpKind::kSend ? Phase::kSending
                                                     : Phase::kReceiving,
                pending.request.peer);
  const std::vector<PeerReport> peers = engine_.Peers();
  const auto peer = static_cast<size_t>(pending.request.peer.value());
  return MissingPeersError(context, std::span(peers).subspan(peer, 1));
}

}  // namespace tessera::collectives

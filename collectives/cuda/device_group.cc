#include "collectives/cuda/device_group.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"

namespace tessera::collectives {
namespace {

// Waits for a change until `deadline`; returns false if it has passed.
bool AwaitChange(std::condition_variable& changed,
                 std::unique_lock<std::mutex>& lock, int64_t deadline) {
  const int64_t left = deadline - MonotonicNanos();
  if (left <= 0) return false;
  constexpr int64_t kLongest = 1'000'000'000;
  changed.wait_for(lock, std::chrono::nanoseconds(std::min(left, kLongest)));
  return true;
}

std::vector<MemoryAccess> AccessesOf(const FoldJob& fold) {
  const auto bytes = static_cast<size_t>(fold.count * SizeInBytes(fold.dtype));
  std::vector<MemoryAccess> accesses;
  for (int s = 0; s < fold.source_count; ++s) {
    accesses.push_back(
        {static_cast<const std::byte*>(fold.sources[static_cast<size_t>(s)]),
         bytes, false});
  }
  for (int t = 0; t < fold.target_count; ++t) {
    accesses.push_back(
        {static_cast<const std::byte*>(fold.targets[static_cast<size_t>(t)]),
         bytes, true});
  }
  return accesses;
}

std::vector<MemoryAccess> AccessesOf(const Moves& moves) {
  std::vector<MemoryAccess> accesses;
  const auto add = [&](const void* data, int64_t bytes, bool writes) {
    if (bytes == 0) return;
    accesses.push_back({static_cast<const std::byte*>(data),
                        static_cast<size_t>(bytes), writes});
  };
  for (int i = 0; i < moves.count; ++i) {
    const Move& move = moves.moves[static_cast<size_t>(i)];
    add(move.from, move.bytes, false);
    add(move.back_from, move.back_bytes, false);
    add(move.to, move.bytes, true);
    add(move.back_to, move.back_bytes, true);
  }
  return accesses;
}

template <typename Arguments>
absl::Status LaunchKernel(Queue& queue, std::string_view name,
                          void (*launch)(KernelStream, const Arguments&),
                          const Arguments& arguments,
                          const SourcePlace& place) {
  const std::vector<MemoryAccess> accesses = AccessesOf(arguments);
  HostFunction function = {
      .name = name,
      .accesses = {accesses.begin(), accesses.end()},
      .run = [launch, stream = queue.native_handle(),
              arguments](const DeviceAddresses& at) -> absl::StatusOr<Event> {
        launch(stream, MovedTo(at, arguments));
        return Event();
      },
      .enqueues = true};
  return queue.Launch(std::move(function), place);
}

}  // namespace

// An operation that a rank has published: a host event until all of its ranks
// have published their parts, then a device event.
class PendingWork final : public EventState {
 public:
  // A send_receive has two parts.
  PendingWork(std::shared_ptr<DeviceGroup> group, int64_t rank, int parts,
              int64_t deadline)
      : group_(std::move(group)),
        rank_(rank),
        deadline_(deadline),
        parts_(parts) {}

  absl::StatusOr<bool> Test() override {
    {
      const DeviceGroup::Lock lock(group_->mutex_);
      group_->CheckDeadline(*this);
      if (parts_ > 0 && group_->status_.ok()) return false;
    }
    TESSERA_RETURN_IF_ERROR(Outcome());
    return done_.Test();
  }

  absl::Status Wait() override {
    TESSERA_RETURN_IF_ERROR(Enqueued().status());
    return done_.Wait();
  }

  absl::StatusOr<std::shared_ptr<EventState>> Enqueued() override {
    {
      DeviceGroup::Lock lock(group_->mutex_);
      while (parts_ > 0 && group_->status_.ok()) {
        if (AwaitChange(group_->changed_, lock, deadline_)) continue;
        group_->CheckDeadline(*this);
      }
    }
    TESSERA_RETURN_IF_ERROR(Outcome());
    return done_.state();
  }

 private:
  friend class DeviceGroup;

  // OK if the operation is enqueued, otherwise the error of the group.
  absl::Status Outcome() {
    {
      const DeviceGroup::Lock lock(group_->mutex_);
      if (parts_ == 0) return absl::OkStatus();
    }
    group_->Report();
    const DeviceGroup::Lock lock(group_->mutex_);
    return group_->status_;
  }

  const std::shared_ptr<DeviceGroup> group_;
  const int64_t rank_;
  const int64_t deadline_;
  // Guarded by the group's lock; constant when no part is left.
  int parts_;
  Event done_;
};

DeviceGroup::DeviceGroup(int64_t size, const CollectiveKernels& kernels)
    : kernels_(kernels) {
  for (int64_t r = 0; r < size; ++r) {
    members_.push_back(std::make_unique<Member>());
  }
}

absl::Status DeviceGroup::Join(int64_t rank, Device& device) {
  const Lock lock(mutex_);
  Member& member = *members_[At(rank)];
  member.device = &device;
  TESSERA_ASSIGN_OR_RETURN(
      member.lane, device.CreateQueue(absl::StrCat("lane of rank ", rank)));
  return absl::OkStatus();
}

void DeviceGroup::Leave(int64_t rank) {
  std::vector<std::unique_ptr<Queue>> queues;
  std::vector<Event> sent;
  {
    Lock lock(mutex_);
    Member& member = *members_[At(rank)];
    while (member.open > 0 && status_.ok()) {
      if (AwaitChange(changed_, lock, member.open_until)) continue;
      SetFailed(absl::DeadlineExceededError(absl::StrCat(
          "rank ", rank, " left the group with ", member.open,
          " operations that other ranks had not called by the deadline")));
    }
    member.has_left = true;
    FailThoseWhoNeed(rank);
    queues.push_back(std::move(member.lane));
    for (auto& [ends, channel] : channels_) {
      if (ends.first == rank) sent.push_back(channel.last);
      if (ends.second == rank) queues.push_back(std::move(channel.queue));
    }
  }
  Report();
  // Errors of a device are returned by calls that use it.
  for (const Event& event : sent) static_cast<void>(event.Wait());
}

absl::StatusOr<Event> DeviceGroup::Enqueue(int64_t rank,
                                           const Operation& operation,
                                           const EnqueueCall& call) {
  TESSERA_ASSIGN_OR_RETURN(Event after, call.after.Enqueued());
  if (after.state() != nullptr && after.state()->device() == nullptr) {
    TESSERA_RETURN_IF_ERROR(after.Wait());
    after = Event();
  }
  const auto pending = std::make_shared<PendingWork>(
      shared_from_this(), rank, operation.kind == OpKind::kSendReceive ? 2 : 1,
      DeadlineAfter(call.timeout));
  absl::Status status;
  {
    const Lock lock(mutex_);
    status = status_;
    if (status.ok()) status = Publish(rank, operation, call, after, pending);
    if (!status.ok()) SetFailed(status);
  }
  if (status.ok()) return Event(pending);
  Report();
  return status;
}

absl::Status DeviceGroup::Publish(int64_t rank, const Operation& operation,
                                  const EnqueueCall& call, const Event& after,
                                  const std::shared_ptr<PendingWork>& pending) {
  Member& member = *members_[At(rank)];
  ++member.open;
  member.open_until = std::max(member.open_until, pending->deadline_);
  const auto part = [&](Operation side) {
    return Part{std::move(side), after, call.place, call.signature, pending};
  };
  const int64_t to = operation.destination.value();
  const int64_t from = operation.source.value();
  switch (operation.kind) {
    case OpKind::kSend:
      return PublishMessage(rank, to, true, part(operation));
    case OpKind::kReceive:
      return PublishMessage(from, rank, false, part(operation));
    case OpKind::kSendReceive:
      TESSERA_RETURN_IF_ERROR(
          PublishMessage(rank, to, true,
                         part(SendOf(operation.input, operation.destination))));
      return PublishMessage(
          from, rank, false,
          part(ReceiveOf(operation.output, operation.source)));
    default:
      return PublishCollective(rank, part(operation));
  }
}

absl::Status DeviceGroup::PublishCollective(int64_t rank, Part part) {
  const uint64_t number = ++members_[At(rank)]->entered;
  Parts& parts = collectives_[number];
  parts.resize(members_.size());
  for (size_t r = 0; r < parts.size(); ++r) {
    if (!parts[r] || parts[r]->signature == part.signature) continue;
    return MismatchError(part.signature, Rank(rank), parts[r]->signature,
                         Rank(static_cast<int64_t>(r)));
  }
  const std::shared_ptr<PendingWork> pending = part.pending;
  parts[At(rank)] = std::move(part);
  bool is_complete = true;
  for (size_t r = 0; r < parts.size(); ++r) {
    if (parts[r]) continue;
    if (members_[r]->has_left) return MissingError(*pending);
    is_complete = false;
  }
  if (!is_complete) return absl::OkStatus();
  std::vector<Part> all;
  for (std::optional<Part>& each : parts) all.push_back(*std::move(each));
  collectives_.erase(number);
  return EnqueueCollective(all);
}

absl::Status DeviceGroup::EnqueueCollective(std::span<const Part> parts) {
  std::vector<Operation> operations;
  for (const Part& part : parts) operations.push_back(part.operation);
  TESSERA_RETURN_IF_ERROR(CheckPairs(operations));
  std::vector<Event> launched(parts.size());
  for (size_t r = 0; r < parts.size(); ++r) {
    Queue& lane = *members_[r]->lane;
    for (const Part& part : parts) {
      TESSERA_RETURN_IF_ERROR(lane.Wait(part.after));
    }
    TESSERA_RETURN_IF_ERROR(
        LaunchLane(static_cast<int64_t>(r), operations, parts[r].place));
    TESSERA_ASSIGN_OR_RETURN(launched[r], lane.Record(parts[r].place));
  }
  for (size_t r = 0; r < parts.size(); ++r) {
    Queue& lane = *members_[r]->lane;
    for (size_t other = 0; other < parts.size(); ++other) {
      if (other == r) continue;
      TESSERA_RETURN_IF_ERROR(lane.Wait(launched[other]));
    }
    TESSERA_ASSIGN_OR_RETURN(const Event done, lane.Record(parts[r].place));
    TESSERA_RETURN_IF_ERROR(Resolve(*parts[r].pending, lane, done));
  }
  return absl::OkStatus();
}

absl::Status DeviceGroup::LaunchLane(int64_t lane,
                                     std::span<const Operation> operations,
                                     const SourcePlace& place) {
  Queue& queue = *members_[At(lane)]->lane;
  const LaneWork work = PlanLane(operations, lane);
  const std::string_view name = OpKindName(operations[At(lane)].kind);
  if (work.fold) {
    TESSERA_RETURN_IF_ERROR(
        LaunchKernel(queue, name, kernels_.fold, *work.fold, place));
  }
  for (size_t first = 0; first < work.moves.size(); first += kMostMoves) {
    Moves moves;
    moves.count = static_cast<int>(
        std::min<size_t>(kMostMoves, work.moves.size() - first));
    std::copy_n(work.moves.begin() + static_cast<ptrdiff_t>(first), moves.count,
                moves.moves.begin());
    TESSERA_RETURN_IF_ERROR(
        LaunchKernel(queue, name, kernels_.moves, moves, place));
  }
  return absl::OkStatus();
}

absl::Status DeviceGroup::PublishMessage(int64_t from, int64_t to, bool is_send,
                                         Part part) {
  Channel& channel = channels_[{from, to}];
  part.signature = SignatureOf(part.operation, size(), part.signature.group,
                               is_send ? ++channel.sent : ++channel.received,
                               part.signature.algorithm);
  const std::shared_ptr<PendingWork> pending = part.pending;
  (is_send ? channel.sends : channel.receives).push_back(std::move(part));
  if (!channel.sends.empty() && !channel.receives.empty()) {
    return EnqueueMessage(from, to, channel);
  }
  const int64_t peer = is_send ? to : from;
  return members_[At(peer)]->has_left ? MissingError(*pending)
                                      : absl::OkStatus();
}

absl::Status DeviceGroup::EnqueueMessage(int64_t from, int64_t to,
                                         Channel& channel) {
  const Part send = std::move(channel.sends.front());
  const Part receive = std::move(channel.receives.front());
  channel.sends.pop_front();
  channel.receives.pop_front();
  if (send.signature != receive.signature) {
    return MismatchError(send.signature, Rank(from), receive.signature,
                         Rank(to));
  }
  if (channel.queue == nullptr) {
    TESSERA_ASSIGN_OR_RETURN(
        channel.queue, members_[At(to)]->device->CreateQueue(absl::StrCat(
                           "messages from rank ", from, " to rank ", to)));
  }
  Queue& queue = *channel.queue;
  TESSERA_RETURN_IF_ERROR(queue.Wait(send.after));
  TESSERA_RETURN_IF_ERROR(queue.Wait(receive.after));
  TESSERA_RETURN_IF_ERROR(queue.Copy(send.operation.input.AsBytes(),
                                     receive.operation.output.AsBytes(),
                                     receive.place));
  TESSERA_ASSIGN_OR_RETURN(channel.last, queue.Record());
  TESSERA_RETURN_IF_ERROR(Resolve(*send.pending, queue, channel.last));
  return Resolve(*receive.pending, queue, channel.last);
}

// A part is enqueued on `queue`, and done when `done` happens.
absl::Status DeviceGroup::Resolve(PendingWork& pending, Queue& queue,
                                  const Event& done) {
  const bool is_second = pending.done_.state() != nullptr;
  if (is_second) TESSERA_RETURN_IF_ERROR(queue.Wait(pending.done_));
  pending.done_ = done;
  if (is_second) {
    TESSERA_ASSIGN_OR_RETURN(pending.done_, queue.Record());
  }
  if (--pending.parts_ > 0) return absl::OkStatus();
  --members_[At(pending.rank_)]->open;
  changed_.notify_all();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<DeviceGroup>> DeviceGroup::Subgroup(
    int64_t rank, std::span<const Rank> members, uint32_t number,
    int64_t deadline) {
  std::pair<uint32_t, std::vector<int64_t>> key = {number, {}};
  int64_t index = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    key.second.push_back(members[i].value());
    if (members[i].value() == rank) index = static_cast<int64_t>(i);
  }
  Lock lock(mutex_);
  Meeting& meeting = meetings_[key];
  if (meeting.group == nullptr) {
    meeting.group = std::make_shared<DeviceGroup>(
        static_cast<int64_t>(members.size()), kernels_);
  }
  std::shared_ptr<DeviceGroup> group = meeting.group;
  TESSERA_RETURN_IF_ERROR(group->Join(index, *members_[At(rank)]->device));
  if (++meeting.here == members.size()) {
    meetings_.erase(key);
    changed_.notify_all();
    return group;
  }
  while (meetings_.contains(key) && status_.ok()) {
    if (AwaitChange(changed_, lock, deadline)) continue;
    return absl::DeadlineExceededError(absl::StrCat(
        "cuda: ", meetings_[key].here, " of the ", members.size(),
        " members of a subgroup have called Subgroup by the deadline"));
  }
  if (meetings_.contains(key)) return status_;
  return group;
}

void DeviceGroup::CheckDeadline(const PendingWork& pending) {
  if (pending.parts_ == 0 || MonotonicNanos() < pending.deadline_) return;
  if (status_.ok()) SetFailed(MissingError(pending));
}

absl::Status DeviceGroup::MissingError(const PendingWork& pending) const {
  const Missing missing = MissingFor(pending);
  Scratch scratch;
  OperationContext context(missing.signature, pending.deadline_, scratch);
  context.Enter(missing.phase);
  return MissingPeersError(context, missing.peers);
}

DeviceGroup::Missing DeviceGroup::MissingFor(const PendingWork& pending) const {
  const auto is_its = [&](const Part& part) {
    return part.pending.get() == &pending;
  };
  for (const auto& [number, parts] : collectives_) {
    const std::optional<Part>& mine = parts[At(pending.rank_)];
    if (!mine || !is_its(*mine)) continue;
    Missing missing;
    missing.signature = mine->signature;
    for (size_t r = 0; r < parts.size(); ++r) {
      if (parts[r]) continue;
      missing.peers.push_back(ReportOf(static_cast<int64_t>(r)));
    }
    return missing;
  }
  Missing missing;
  for (const auto& [ends, channel] : channels_) {
    for (const std::deque<Part>* side : {&channel.sends, &channel.receives}) {
      const bool sends = side == &channel.sends;
      const auto mine = std::find_if(side->begin(), side->end(), is_its);
      if (mine == side->end()) continue;
      missing.signature = mine->signature;
      missing.phase = sends ? Phase::kSending : Phase::kReceiving;
      PeerReport peer = ReportOf(sends ? ends.second : ends.first);
      peer.sequence = sends ? channel.received : channel.sent;
      missing.peers.push_back(std::move(peer));
    }
  }
  return missing;
}

PeerReport DeviceGroup::ReportOf(int64_t rank) const {
  const Member& member = *members_[At(rank)];
  return {.rank = Rank(rank),
          .state = member.has_left ? PeerState::kDeparted : PeerState::kAlive,
          .pid = getpid(),
          .sequence = member.entered};
}

std::vector<PeerReport> DeviceGroup::Peers() const {
  const Lock lock(mutex_);
  std::vector<PeerReport> reports;
  for (int64_t r = 0; r < size(); ++r) reports.push_back(ReportOf(r));
  return reports;
}

void DeviceGroup::FailThoseWhoNeed(int64_t rank) {
  const auto fail = [&](const Part& part) {
    if (status_.ok()) SetFailed(MissingError(*part.pending));
  };
  std::vector<Part> waiting;
  for (const auto& [number, parts] : collectives_) {
    if (parts[At(rank)]) continue;
    for (const std::optional<Part>& part : parts) {
      if (part) waiting.push_back(*part);
    }
  }
  for (const auto& [ends, channel] : channels_) {
    if (ends.second == rank) {
      waiting.insert(waiting.end(), channel.sends.begin(), channel.sends.end());
    }
    if (ends.first == rank) {
      waiting.insert(waiting.end(), channel.receives.begin(),
                     channel.receives.end());
    }
  }
  for (const Part& part : waiting) fail(part);
}

void DeviceGroup::SetFailed(const absl::Status& reason) {
  if (!status_.ok()) return;
  status_ = reason;
  collectives_.clear();
  for (auto& [ends, channel] : channels_) {
    channel.sends.clear();
    channel.receives.clear();
  }
  changed_.notify_all();
}

void DeviceGroup::Fail(const absl::Status& reason) {
  {
    const Lock lock(mutex_);
    SetFailed(reason);
  }
  Report();
}

// The first thread that gets here after an error reports it to all ranks.
void DeviceGroup::Report() {
  absl::Status error;
  {
    const Lock lock(mutex_);
    if (status_.ok() || std::exchange(reported_, true)) return;
    error = status_;
  }
  for (const std::unique_ptr<Member>& member : members_) {
    const std::lock_guard lock(member->on_error_mutex);
    if (member->on_error) member->on_error(error);
  }
}

void DeviceGroup::OnError(int64_t rank,
                          std::function<void(const absl::Status&)> on_error) {
  Member& member = *members_[At(rank)];
  const std::lock_guard lock(member.on_error_mutex);
  member.on_error = std::move(on_error);
}

}  // namespace tessera::collectives

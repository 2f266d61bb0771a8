#include "pipeline/execute/messenger.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::pipeline {

BoundaryPool::~BoundaryPool() {
  if (is_immediate_) return;
  queue_.Synchronize().IgnoreError();
  for (const auto& buffer : all_) buffer->last_use.Wait().IgnoreError();
}

absl::Status BoundaryPool::SetSpecs(std::vector<TensorSpec> specs,
                                    const std::vector<bool>& crossed) {
  for (const auto& buffer : all_) {
    TESSERA_RETURN_IF_ERROR(buffer->last_use.Wait());
  }
  specs_ = std::move(specs);
  shelf_of_.clear();
  shelves_.clear();
  all_.clear();
  for (size_t at = 0; at < specs_.size(); ++at) {
    const auto shelf =
        std::find_if(shelves_.begin(), shelves_.end(), [&](const Shelf& other) {
          return other.spec == specs_[at] && other.is_crossed == crossed[at];
        });
    shelf_of_.push_back(static_cast<size_t>(shelf - shelves_.begin()));
    if (shelf == shelves_.end()) {
      shelves_.push_back({specs_[at], crossed[at], specs_[at].bytes(), {}});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BoundaryBuffer>> BoundaryPool::Make(
    const Shelf& shelf) {
  const TensorSpec& spec = shelf.spec;
  const int64_t bytes = std::max<int64_t>(spec.bytes(), 1);
  Buffer memory;
  std::unique_ptr<collectives::SharedMemory> shared;
  std::span<std::byte> storage;
  MemoryKind kind;
  if (memory_ != nullptr || !shelf.is_crossed) {
    TESSERA_ASSIGN_OR_RETURN(
        memory, Buffer::Allocate(
                    memory_ != nullptr ? memory_ : queue_.device().memory(),
                    static_cast<size_t>(bytes)));
    storage = memory.bytes();
    kind = memory.kind();
  } else {
    TESSERA_ASSIGN_OR_RETURN(shared, communicator_.AllocateShared(bytes));
    storage = shared->bytes();
    kind = shared->kind();
  }
  TESSERA_ASSIGN_OR_RETURN(
      const TensorView view,
      TensorView::Create(storage, spec.dtype, spec.shape, kind));
  return std::make_unique<BoundaryBuffer>(BoundaryBuffer{
      view, view, /*shelf=*/0, std::move(memory), std::move(shared)});
}

absl::StatusOr<BoundaryBuffer*> BoundaryPool::AcquireToReceive(
    int32_t boundary) {
  const size_t index = shelf_of_[static_cast<size_t>(boundary)];
  Shelf& shelf = shelves_[index];
  if (shelf.free.empty()) {
    TESSERA_ASSIGN_OR_RETURN(
        all_.emplace_back(), Make(shelf),
        Annotate(_, absl::StrCat("a tensor ", shelf.spec.ToString(),
                                 " between stages ", boundary, " and ",
                                 boundary + 1)));
    all_.back()->shelf = index;
    shelf.free.push_back(all_.back().get());
  }
  // The host takes the last buffer, which is in its caches; a device takes the
  // first one, whose last use ends first.
  BoundaryBuffer* const buffer =
      is_immediate_ ? shelf.free.back() : shelf.free.front();
  if (is_immediate_) {
    shelf.free.pop_back();
  } else {
    shelf.free.erase(shelf.free.begin());
  }
  trace_.HoldBytes(shelf.bytes);
  return buffer;
}

absl::StatusOr<BoundaryBuffer*> BoundaryPool::Acquire(int32_t boundary) {
  if (is_immediate_) return AcquireToReceive(boundary);
  TESSERA_ASSIGN_OR_RETURN(BoundaryBuffer* const buffer,
                           AcquireToReceive(boundary));
  TESSERA_RETURN_IF_ERROR(queue_.Wait(buffer->last_use));
  return buffer;
}

absl::Status BoundaryPool::ReleaseOnDevice(BoundaryBuffer* buffer) {
  // Within a rank, all users of the buffer are on the queue.
  if (!shelves_[buffer->shelf].is_crossed) {
    PutBack(buffer);
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(Event done, queue_.Record());
  ReleaseAfter(std::move(done), buffer);
  return absl::OkStatus();
}

void BoundaryPool::ReleaseAfter(Event message, BoundaryBuffer* buffer) {
  buffer->last_use = std::move(message);
  PutBack(buffer);
}

void BoundaryPool::PutBack(BoundaryBuffer* buffer) {
  Shelf& shelf = shelves_[buffer->shelf];
  shelf.free.push_back(buffer);
  trace_.HoldBytes(-shelf.bytes);
}

using collectives::Rank;

Messenger::Messenger(collectives::Communicator& communicator, Queue& queue,
                     BoundaryPool& pool, StepTrace& trace,
                     const ExecutorOptions& options)
    : communicator_(communicator),
      queue_(queue),
      is_immediate_(queue.is_immediate()),
      pool_(pool),
      trace_(trace),
      timeout_(options.timeout.value_or(communicator.options().timeout)),
      start_from_bytes_(options.start_from_bytes),
      receives_ahead_(static_cast<size_t>(options.receives_ahead)),
      sends_in_flight_(static_cast<size_t>(options.sends_in_flight)),
      peers_(static_cast<size_t>(communicator.size())) {}

absl::Status Messenger::At(const PlannedAction& action,
                           const absl::Status& error) const {
  return Annotate(error, plan_->Describe(action));
}

absl::Status Messenger::Begin(const ExecutionPlan& plan) {
  plan_ = &plan;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    peers_[rank].next = 0;
    TESSERA_RETURN_IF_ERROR(PostAhead(static_cast<int32_t>(rank)));
  }
  return absl::OkStatus();
}

absl::Status Messenger::Post(const PlannedAction& receive) {
  Peer& peer = PeerOf(receive);
  TESSERA_ASSIGN_OR_RETURN(BoundaryBuffer* const buffer,
                           pool_.AcquireToReceive(receive.boundary),
                           At(receive, _));
  TESSERA_ASSIGN_OR_RETURN(
      collectives::Work work,
      communicator_.Start(
          collectives::ReceiveOf(buffer->message(), Rank(receive.peer)),
          {.timeout = StartedTimeout(), .after = buffer->last_use}),
      At(receive, _));
  peer.receives.push_back({std::move(work), buffer});
  ++peer.next;
  return absl::OkStatus();
}

absl::Status Messenger::PostAhead(int32_t from) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  const auto& receives = plan_->receives()[static_cast<size_t>(from)];
  while (peer.receives.size() < receives_ahead_ &&
         peer.next < receives.size()) {
    const PlannedAction& receive = plan_->actions()[receives[peer.next]];
    if (!IsStarted(receive)) break;
    TESSERA_RETURN_IF_ERROR(Post(receive));
  }
  return absl::OkStatus();
}

absl::Status Messenger::Await(const collectives::Work& work,
                              const PlannedAction& action) {
  if (!is_immediate_) return At(action, queue_.Wait(work.event()));
  const absl::Status status = timeout_ == absl::InfiniteDuration()
                                  ? work.Wait()
                                  : work.WaitFor(timeout_);
  if (!absl::IsDeadlineExceeded(status)) return At(action, status);
  const bool sends = Sends(action.action.kind);
  return At(action,
            absl::DeadlineExceededError(absl::StrCat(
                "rank ", action.peer, " has not ", sends ? "received" : "sent",
                " it within ", absl::FormatDuration(timeout_))));
}

absl::Status Messenger::StartSend(const PlannedAction& send,
                                  BoundaryBuffer* buffer) {
  Peer& peer = PeerOf(send);
  while (peer.sends.size() >= sends_in_flight_) {
    if (is_immediate_) {
      TESSERA_RETURN_IF_ERROR(AwaitOldest(peer));
    } else {
      FinishOldest(peer);  // The next user of its buffer waits.
    }
  }
  const double begin = trace_.Now();
  TESSERA_ASSIGN_OR_RETURN(
      collectives::Work work,
      communicator_.StartOn(
          queue_, collectives::SendOf(buffer->message(), Rank(send.peer)),
          {.timeout = StartedTimeout()}),
      At(send, _));
  peer.sends.push_back({std::move(work), buffer, &send, begin});
  ++sends_under_way_;
  return absl::OkStatus();
}

void Messenger::FinishOldest(Peer& peer) {
  const Outgoing& oldest = peer.sends.front();
  trace_.Communicated(oldest.send->action, oldest.begin);
  pool_.ReleaseAfter(is_immediate_ ? Event() : oldest.work.event(),
                     oldest.buffer);
  peer.sends.pop_front();
  --sends_under_way_;
}

absl::Status Messenger::AwaitOldest(Peer& peer) {
  const Outgoing& oldest = peer.sends.front();
  TESSERA_RETURN_IF_ERROR(Await(oldest.work, *oldest.send));
  FinishOldest(peer);
  return absl::OkStatus();
}

absl::Status Messenger::Send(const PlannedAction& send,
                             BoundaryBuffer* buffer) {
  // A synchronous send would wait for one that is in flight.
  if (IsStarted(send) || !PeerOf(send).sends.empty()) {
    return StartSend(send, buffer);
  }
  const double begin = trace_.Now();
  TESSERA_RETURN_IF_ERROR(
      communicator_.Send(buffer->message(), Rank(send.peer), Call()),
      At(send, _));
  trace_.Communicated(send.action, begin);
  return pool_.Release(buffer);
}

absl::StatusOr<BoundaryBuffer*> Messenger::ReceivePosted(
    const PlannedAction& receive) {
  Peer& peer = PeerOf(receive);
  const double begin = trace_.Now();
  TESSERA_RETURN_IF_ERROR(Await(peer.receives.front().work, receive));
  trace_.Communicated(receive.action, begin);
  BoundaryBuffer* const buffer = peer.receives.front().buffer;
  peer.receives.pop_front();
  return buffer;
}

absl::StatusOr<BoundaryBuffer*> Messenger::ReceiveHere(
    const PlannedAction& receive) {
  TESSERA_ASSIGN_OR_RETURN(BoundaryBuffer* const buffer,
                           pool_.AcquireToReceive(receive.boundary),
                           At(receive, _));
  const double begin = trace_.Now();
  TESSERA_RETURN_IF_ERROR(
      communicator_.Receive(buffer->message(), Rank(receive.peer), Call()),
      At(receive, _));
  trace_.Communicated(receive.action, begin);
  ++PeerOf(receive).next;
  return buffer;
}

absl::StatusOr<BoundaryBuffer*> Messenger::Receive(
    const PlannedAction& receive) {
  bool posted = !PeerOf(receive).receives.empty();
  if (!posted && !is_immediate_) {
    TESSERA_RETURN_IF_ERROR(Post(receive));
    posted = true;
  }
  TESSERA_ASSIGN_OR_RETURN(
      BoundaryBuffer* const buffer,
      posted ? ReceivePosted(receive) : ReceiveHere(receive));
  TESSERA_RETURN_IF_ERROR(PostAhead(receive.peer));
  return buffer;
}

absl::StatusOr<BoundaryBuffer*> Messenger::ExchangeHere(
    const PlannedAction& send, BoundaryBuffer* buffer,
    const PlannedAction& receive) {
  TESSERA_ASSIGN_OR_RETURN(BoundaryBuffer* const received,
                           pool_.AcquireToReceive(receive.boundary),
                           At(receive, _));
  const double begin = trace_.Now();
  TESSERA_RETURN_IF_ERROR(communicator_.SendReceive(
                              buffer->message(), Rank(send.peer),
                              received->message(), Rank(receive.peer), Call()),
                          At(send, At(receive, _)));
  trace_.Communicated(send.action, begin);
  trace_.Communicated(receive.action, begin);
  ++PeerOf(receive).next;
  TESSERA_RETURN_IF_ERROR(pool_.Release(buffer));
  TESSERA_RETURN_IF_ERROR(PostAhead(receive.peer));
  return received;
}

absl::StatusOr<BoundaryBuffer*> Messenger::Exchange(
    const PlannedAction& send, BoundaryBuffer* buffer,
    const PlannedAction& receive) {
  const Peer& peer = PeerOf(send);
  const bool starts = IsStarted(send) || !peer.sends.empty();
  if (!starts && peer.receives.empty()) {
    return ExchangeHere(send, buffer, receive);
  }
  // Either the send is asynchronous or the receive is posted, so neither blocks
  // the other.
  TESSERA_RETURN_IF_ERROR(Send(send, buffer));
  return Receive(receive);
}

absl::Status Messenger::Poll() {
  if (sends_under_way_ == 0 || !is_immediate_) return absl::OkStatus();
  for (Peer& peer : peers_) {
    while (!peer.sends.empty()) {
      const Outgoing& oldest = peer.sends.front();
      TESSERA_ASSIGN_OR_RETURN(const bool done, oldest.work.Test(),
                               At(*oldest.send, _));
      if (!done) break;
      FinishOldest(peer);
    }
  }
  return absl::OkStatus();
}

absl::Status Messenger::Drain() {
  for (Peer& peer : peers_) {
    while (!peer.sends.empty()) TESSERA_RETURN_IF_ERROR(AwaitOldest(peer));
  }
  return absl::OkStatus();
}

void Messenger::Abandon() {
  for (Peer& peer : peers_) {
    for (const Outgoing& send : peer.sends) send.work.Wait().IgnoreError();
    for (const Incoming& in : peer.receives) in.work.Wait().IgnoreError();
    peer.sends.clear();
    peer.receives.clear();
  }
  sends_under_way_ = 0;
}

}  // namespace tessera::pipeline

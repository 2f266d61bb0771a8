#include "pipeline/execute/messenger.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::pipeline {

using collectives::Rank;

Messenger::Messenger(collectives::Communicator& communicator,
                     BoundaryPool& pool, StepTrace& trace,
                     const ExecutorOptions& options)
    : communicator_(communicator),
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

absl::Status Messenger::PostAhead(int32_t from) {
  Peer& peer = peers_[static_cast<size_t>(from)];
  const auto& receives = plan_->receives()[static_cast<size_t>(from)];
  while (peer.receives.size() < receives_ahead_ &&
         peer.next < receives.size()) {
    const PlannedAction& receive = plan_->actions()[receives[peer.next]];
    if (!IsStarted(receive)) break;
    TESSERA_ASSIGN_OR_RETURN(BoundaryBuffer* const buffer,
                             pool_.Acquire(receive.boundary), At(receive, _));
    // Its time begins where it is waited for: see Await.
    TESSERA_ASSIGN_OR_RETURN(
        collectives::Work work,
        communicator_.Start(
            collectives::ReceiveOf(buffer->message(), Rank(from)),
            {.timeout = absl::InfiniteDuration()}),
        At(receive, _));
    peer.receives.push_back({std::move(work), buffer});
    ++peer.next;
  }
  return absl::OkStatus();
}

absl::Status Messenger::Await(const collectives::Work& work,
                              const PlannedAction& action) const {
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
    TESSERA_RETURN_IF_ERROR(AwaitOldest(peer));
  }
  const double begin = trace_.Now();
  TESSERA_ASSIGN_OR_RETURN(
      collectives::Work work,
      communicator_.Start(
          collectives::SendOf(buffer->message(), Rank(send.peer)),
          {.timeout = absl::InfiniteDuration()}),
      At(send, _));
  peer.sends.push_back({std::move(work), buffer, &send, begin});
  ++sends_under_way_;
  return absl::OkStatus();
}

void Messenger::FinishOldest(Peer& peer) {
  const Outgoing& oldest = peer.sends.front();
  trace_.Communicated(oldest.send->action, oldest.begin);
  pool_.Release(oldest.buffer);
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
  // Behind one that is under way, a send here would wait for it.
  if (IsStarted(send) || !PeerOf(send).sends.empty()) {
    return StartSend(send, buffer);
  }
  const double begin = trace_.Now();
  TESSERA_RETURN_IF_ERROR(
      communicator_.Send(buffer->message(), Rank(send.peer), Call()),
      At(send, _));
  trace_.Communicated(send.action, begin);
  pool_.Release(buffer);
  return absl::OkStatus();
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
                           pool_.Acquire(receive.boundary), At(receive, _));
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
  const bool posted = !PeerOf(receive).receives.empty();
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
                           pool_.Acquire(receive.boundary), At(receive, _));
  const double begin = trace_.Now();
  TESSERA_RETURN_IF_ERROR(communicator_.SendReceive(
                              buffer->message(), Rank(send.peer),
                              received->message(), Rank(receive.peer), Call()),
                          At(send, At(receive, _)));
  trace_.Communicated(send.action, begin);
  trace_.Communicated(receive.action, begin);
  ++PeerOf(receive).next;
  pool_.Release(buffer);
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
  // Either the send is started, or the receive is posted: neither holds up the
  // other.
  TESSERA_RETURN_IF_ERROR(Send(send, buffer));
  return Receive(receive);
}

absl::Status Messenger::Poll() {
  if (sends_under_way_ == 0) return absl::OkStatus();
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

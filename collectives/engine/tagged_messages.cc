#include "collectives/engine/tagged_messages.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/operation_context.h"
#include "collectives/engine/peer_report.h"

namespace tessera::collectives {

namespace {

constexpr int64_t kLookEveryNs = 20'000'000;

}  // namespace

absl::StatusOr<bool> TaggedMessage::Test() {
  if (!done_.load(std::memory_order_acquire) && !owner_->Poll(*this)) {
    return false;
  }
  if (!status_.ok()) return status_;
  return true;
}

absl::Status TaggedMessage::Wait() {
  if (done_.load(std::memory_order_acquire)) return status_;
  return owner_->Await(*this);
}

std::optional<Rank> TaggedMessage::source() const {
  if (sends_ || !done_.load(std::memory_order_acquire)) return std::nullopt;
  return peer_;
}

TaggedMessages::TaggedMessages(
    Engine& engine, uint32_t group, FlightRecorder& recorder,
    std::function<void(const absl::Status&)> on_error)
    : engine_(engine),
      transport_(*engine.transport()),
      group_(group),
      recorder_(recorder),
      on_error_(std::move(on_error)),
      peers_(static_cast<size_t>(engine.size())) {}

TaggedMessages::~TaggedMessages() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

TaggedMessages::Pointer TaggedMessages::MakeMessage(const Operation& operation,
                                                    int64_t deadline) {
  auto message = std::make_shared<TaggedMessage>();
  message->owner_ = this;
  message->sends_ = operation.kind == OpKind::kSend;
  message->peer_ = message->sends_ ? operation.destination : operation.source;
  message->tag_ = operation.tag;
  message->input_ = operation.input;
  message->output_ = operation.output;
  message->deadline_ = deadline;
  message->record_.signature =
      SignatureOf(operation, engine_.size(), group_, 0, Algorithm::kEngine);
  message->record_.kind = operation.kind;
  message->record_.bytes = operation.input.bytes() + operation.output.bytes();
  message->record_.peer = message->peer_.value();
  message->record_.begin_ns = MonotonicNanos();
  return message;
}

absl::StatusOr<Rank> TaggedMessages::Run(const Operation& operation,
                                         int64_t deadline) {
  const Pointer message = MakeMessage(operation, deadline);
  TESSERA_RETURN_IF_ERROR(Post(message));
  TESSERA_RETURN_IF_ERROR(message->Wait());
  return message->peer_;
}

absl::StatusOr<std::shared_ptr<TaggedMessage>> TaggedMessages::Start(
    const Operation& operation, int64_t deadline,
    std::function<void(const absl::Status&)> on_done) {
  Pointer message = MakeMessage(operation, deadline);
  message->on_done_ = std::move(on_done);
  TESSERA_RETURN_IF_ERROR(Post(message));
  if (message->done_.load(std::memory_order_acquire)) return message;
  const std::lock_guard lock(mutex_);
  if (message->stage_ == TaggedMessage::Stage::kDone) return message;
  started_.push_back(message);
  if (!thread_.joinable()) thread_ = std::thread([this] { RunBackground(); });
  if (started_.size() == 1) changed_.notify_all();
  return message;
}

// Adds the message, then moves all messages once.
absl::Status TaggedMessages::Post(const Pointer& message) {
  std::unique_lock lock(mutex_);
  if (!failure_.ok()) return failure_;
  message->ticket_ = recorder_.Begin(message->record_);
  ++open_;
  const absl::Status status =
      message->sends_ ? PostSend(message) : PostReceive(message);
  if (!status.ok()) {
    Complete(message, status);
    FailAll(status);
  }
  Move();
  FinishOutside(lock);
  return status;
}

absl::Status TaggedMessages::PostSend(const Pointer& message) {
  Peer& peer = peers_[static_cast<size_t>(message->peer_.value())];
  Signature& signature = message->record_.signature;
  signature.sequence = ++peer.sent;
  TESSERA_ASSIGN_OR_RETURN(
      message->request_,
      transport_.StartSend(message->peer_, Lane::kTagged, signature,
                           message->input_.AsBytes()));
  message->stage_ = TaggedMessage::Stage::kMoving;
  peer.sends.push_back(message);
  return absl::OkStatus();
}

absl::Status TaggedMessages::PostReceive(const Pointer& message) {
  for (const std::shared_ptr<Early>& early : early_) {
    const bool is_source =
        message->peer_ == kAnySource || message->peer_ == early->from;
    if (early->receive != nullptr || !is_source ||
        early->signature.root != message->tag_) {
      continue;
    }
    TESSERA_RETURN_IF_ERROR(CheckFits(early->from, early->signature, *message));
    message->peer_ = early->from;
    message->stage_ = TaggedMessage::Stage::kMoving;
    early->receive = message;
    if (early->complete) TakeEarly(*early);
    return absl::OkStatus();
  }
  posted_.push_back(message);
  return absl::OkStatus();
}

// Copies a complete message to its receive and deletes it.
void TaggedMessages::TakeEarly(Early& early) {
  const Pointer receive = early.receive;
  if (early.size > 0) {
    std::memcpy(receive->output_.data, early.bytes.get(),
                static_cast<size_t>(early.size));
  }
  early_.remove_if(
      [&](const std::shared_ptr<Early>& kept) { return kept.get() == &early; });
  Complete(receive, absl::OkStatus());
}

// Moves all messages that can move now; returns true if one has completed. An
// error fails all messages.
bool TaggedMessages::Move() {
  bool moved = false;
  size_t lost = 0;  // Ranks that can send no more.
  for (size_t r = 0; r < peers_.size() && failure_.ok(); ++r) {
    Peer& peer = peers_[r];
    const Rank rank(static_cast<int64_t>(r));
    absl::StatusOr<bool> sent = MoveSends(peer);
    if (sent.ok()) {
      moved = moved || *sent;
      sent = MoveArrivals(rank, peer);
      const bool is_needed = peer.arrival || IsAwaited(rank, /*by_any=*/false);
      if (!sent.ok() && !is_needed && ++lost + 1 < peers_.size()) continue;
    }
    if (!sent.ok()) {
      FailAll(Explain(sent.status(), rank, peer));
      return true;
    }
    moved = moved || *sent;
  }
  return moved;
}

// Adds which message of this rank failed.
absl::Status TaggedMessages::Explain(const absl::Status& error, Rank rank,
                                     const Peer& peer) const {
  const bool sends = !peer.sends.empty();
  Pointer message = sends ? peer.sends.front() : nullptr;
  if (peer.arrival && !sends) message = peer.arrival->receive;
  for (const Pointer& receive : posted_) {
    const bool may_be = receive->peer_ == rank || receive->peer_ == kAnySource;
    if (message == nullptr && may_be) message = receive;
  }
  if (message == nullptr) return error;
  const std::string text = DescribeSignature(message->record_.signature);
  if (absl::StrContains(error.message(), text)) return error;
  return Annotate(
      error, absl::StrCat(text, ", while ",
                          sends ? "sending to rank " : "receiving from rank ",
                          rank.value()));
}

absl::StatusOr<bool> TaggedMessages::MoveSends(Peer& peer) {
  bool moved = false;
  while (!peer.sends.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const bool done,
                             transport_.Test(peer.sends.front()->request_));
    if (!done) break;
    const Pointer message = std::move(peer.sends.front());
    peer.sends.pop_front();
    Complete(message, absl::OkStatus());
    moved = true;
  }
  return moved;
}

bool TaggedMessages::IsAwaited(Rank from, bool by_any) const {
  return std::any_of(posted_.begin(), posted_.end(),
                     [&](const Pointer& receive) {
                       return receive->peer_ == from ||
                              (by_any && receive->peer_ == kAnySource);
                     });
}

absl::StatusOr<bool> TaggedMessages::MoveArrivals(Rank from, Peer& peer) {
  bool moved = false;
  while (peer.arrival || IsAwaited(from)) {
    if (!peer.arrival) {
      TESSERA_ASSIGN_OR_RETURN(const std::optional<Signature> next,
                               transport_.Peek(from, Lane::kTagged));
      if (!next) break;
      TESSERA_RETURN_IF_ERROR(Accept(from, peer, *next));
    }
    TESSERA_ASSIGN_OR_RETURN(const bool done,
                             transport_.Test(peer.arrival->request));
    if (!done) break;
    const Arrival arrival = *std::exchange(peer.arrival, std::nullopt);
    if (arrival.receive != nullptr) {
      Complete(arrival.receive, absl::OkStatus());
    } else {
      arrival.early->complete = true;
      if (arrival.early->receive != nullptr) TakeEarly(*arrival.early);
    }
    moved = true;
  }
  return moved;
}

// Starts receiving the next message, into the buffer of the first receive that
// matches or into an early buffer.
absl::Status TaggedMessages::Accept(Rank from, Peer& peer,
                                    const Signature& signature) {
  const int64_t size = signature.count * SizeInBytes(signature.dtype);
  Arrival arrival;
  std::span<std::byte> target;
  const auto match =
      std::find_if(posted_.begin(), posted_.end(), [&](const Pointer& receive) {
        return receive->tag_ == signature.root &&
               (receive->peer_ == kAnySource || receive->peer_ == from);
      });
  if (match != posted_.end()) {
    arrival.receive = *match;
    TESSERA_RETURN_IF_ERROR(CheckFits(from, signature, *arrival.receive));
    posted_.erase(match);
    arrival.receive->peer_ = from;
    arrival.receive->stage_ = TaggedMessage::Stage::kMoving;
    target = arrival.receive->output_.AsBytes();
  } else {
    arrival.early = std::make_shared<Early>();
    arrival.early->from = from;
    arrival.early->signature = signature;
    arrival.early->size = size;
    arrival.early->bytes.reset(new (std::nothrow)
                                   std::byte[static_cast<size_t>(size)]);
    if (arrival.early->bytes == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for a message of ", size, " bytes with tag ",
                       signature.root, " from rank ", from.value(),
                       ", which arrived before its receive"));
    }
    early_.push_back(arrival.early);
    target = {arrival.early->bytes.get(), static_cast<size_t>(size)};
  }
  TESSERA_ASSIGN_OR_RETURN(
      arrival.request,
      transport_.StartReceive(from, Lane::kTagged, signature, target));
  peer.arrival = std::move(arrival);
  return absl::OkStatus();
}

absl::Status TaggedMessages::CheckFits(Rank from, const Signature& signature,
                                       const TaggedMessage& receive) const {
  const Buffer& to = receive.output_;
  if (signature.count == to.count && signature.dtype == to.dtype) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", from.value(), " sent ", signature.count, " ",
                   DTypeName(signature.dtype), " with tag ", signature.root,
                   ", rank ", engine_.rank().value(), " receives ", to.count,
                   " ", DTypeName(to.dtype), "; both must be the same"));
}

void TaggedMessages::Complete(const Pointer& message, absl::Status status) {
  if (message->stage_ == TaggedMessage::Stage::kDone) return;
  message->stage_ = TaggedMessage::Stage::kDone;
  message->record_.end_ns = MonotonicNanos();
  message->record_.code = status.code();
  message->record_.peer = message->peer_.value();
  recorder_.End(message->ticket_, message->record_);
  message->status_ = std::move(status);
  --open_;
  if (message->on_done_ != nullptr) {
    finished_.messages.push_back(message);
  } else {
    message->done_.store(true, std::memory_order_release);
  }
}

// The transport keeps requests that have started, but no thread progresses them
// after this.
void TaggedMessages::FailAll(const absl::Status& reason) {
  if (!failure_.ok()) return;
  failure_ = reason;
  finished_.error = reason;
  for (const Pointer& receive : posted_) Complete(receive, reason);
  posted_.clear();
  for (const std::shared_ptr<Early>& early : early_) {
    if (early->receive != nullptr) Complete(early->receive, reason);
  }
  for (Peer& peer : peers_) {
    for (const Pointer& send : peer.sends) Complete(send, reason);
    peer.sends.clear();
    if (peer.arrival && peer.arrival->receive != nullptr) {
      Complete(peer.arrival->receive, reason);
    }
  }
  changed_.notify_all();
}

void TaggedMessages::Fail(const absl::Status& reason) {
  std::unique_lock lock(mutex_);
  FailAll(reason);
  finished_.error = absl::OkStatus();  // The caller already has the error.
  FinishOutside(lock);
}

// Runs the callbacks of completed messages. The lock is held on entry and on
// return.
void TaggedMessages::FinishOutside(std::unique_lock<std::mutex>& lock) {
  while (!finished_.messages.empty() || !finished_.error.ok()) {
    const Finished finished = std::exchange(finished_, Finished());
    lock.unlock();
    if (!finished.error.ok()) on_error_(finished.error);
    for (const Pointer& message : finished.messages) {
      message->on_done_(message->status_);
      message->done_.store(true, std::memory_order_release);
    }
    lock.lock();
  }
}

// Moves all messages; returns true if this one is done.
bool TaggedMessages::Poll(const TaggedMessage& message) {
  std::unique_lock lock(mutex_);
  if (message.stage_ != TaggedMessage::Stage::kDone) Move();
  FinishOutside(lock);
  return message.done_.load(std::memory_order_acquire);
}

// The other ranks that have not left and so may still send, or all other ranks
// if all have left.
void TaggedMessages::ListPossibleSenders(std::vector<int64_t>& ranks) const {
  const std::vector<PeerReport> peers = engine_.Peers();
  for (const bool all : {false, true}) {
    for (const PeerReport& peer : peers) {
      if (peer.rank == engine_.rank()) continue;
      if (all || peer.state != PeerState::kDeparted) {
        ranks.push_back(peer.rank.value());
      }
    }
    if (!ranks.empty()) return;
  }
}

absl::Status TaggedMessages::Await(TaggedMessage& message) {
  Scratch none;
  OperationContext context(message.record_.signature, message.deadline_, none);
  std::unique_lock lock(mutex_);
  const Rank peer = message.peer_;
  const bool is_alone = open_ == 1;
  lock.unlock();
  const bool from_any = peer == kAnySource;
  const Request end = {
      .peer = peer,
      .lane = Lane::kTagged,
      .direction = message.sends_ ? Direction::kSend : Direction::kReceive};
  context.Enter(
      message.sends_ ? Phase::kSending : Phase::kReceiving,
      from_any ? PhaseWord::kNoPeer : static_cast<uint32_t>(peer.value()));
  const absl::Status status = transport_.WaitUntil(
      context, [&] { return Poll(message); },
      [&](std::vector<int64_t>& missing) {
        if (from_any) return ListPossibleSenders(missing);
        missing.push_back(peer.value());
      },
      is_alone && !from_any ? &end : nullptr);
  if (status.ok()) return message.status_;
  lock.lock();
  FailAll(status);
  FinishOutside(lock);
  return status;
}

// The reports of the ranks for which a message waits.
std::vector<PeerReport> TaggedMessages::Awaited(
    const TaggedMessage& message) const {
  std::vector<PeerReport> peers = engine_.Peers();
  std::vector<int64_t> ranks = {message.peer_.value()};
  if (message.peer_ == kAnySource) {
    ranks.clear();
    ListPossibleSenders(ranks);
  }
  std::vector<PeerReport> awaited;
  for (const int64_t rank : ranks) {
    awaited.push_back(std::move(peers[static_cast<size_t>(rank)]));
  }
  return awaited;
}

// Fails all messages if a started one is overdue or waits for a rank that is
// gone.
void TaggedMessages::FailHopeless() {
  const int64_t now = MonotonicNanos();
  const bool looks = now >= next_look_ns_;
  if (looks) next_look_ns_ = now + kLookEveryNs;
  for (const Pointer& message : started_) {
    const auto is_done = [&] {
      return message->stage_ == TaggedMessage::Stage::kDone;
    };
    const bool overdue = now >= message->deadline_;
    if (is_done() || (!looks && !overdue)) continue;
    std::vector<PeerReport> peers = Awaited(*message);
    if (!overdue) {
      std::erase_if(peers, [](const PeerReport& peer) {
        return peer.state != PeerState::kDead &&
               peer.state != PeerState::kDeparted;
      });
      if (peers.empty()) continue;
      // The rank may have sent the message before it left.
      Move();
      if (is_done()) continue;
    }
    Scratch none;
    OperationContext context(message->record_.signature, message->deadline_,
                             none);
    context.Enter(message->sends_ ? Phase::kSending : Phase::kReceiving);
    return FailAll(MissingPeersError(context, peers));
  }
}

void TaggedMessages::RunBackground() {
  constexpr auto kPause = std::chrono::microseconds(200);
  std::unique_lock lock(mutex_);
  while (true) {
    std::erase_if(started_, [](const Pointer& message) {
      return message->stage_ == TaggedMessage::Stage::kDone;
    });
    if (started_.empty()) {
      if (closing_) return;
      changed_.wait(lock, [&] { return closing_ || !started_.empty(); });
      // Most callers wait for the message themselves soon.
      changed_.wait_for(lock, kPause);
      continue;
    }
    const bool moved = Move();
    FailHopeless();
    FinishOutside(lock);
    if (moved) {
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    } else {
      changed_.wait_for(lock, kPause);
    }
  }
}

}  // namespace tessera::collectives

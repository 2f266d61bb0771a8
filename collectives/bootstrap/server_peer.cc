#include "collectives/bootstrap/internal/server_peer.h"

#include <unistd.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/host_id.h"
#include "collectives/bootstrap/store.h"
#include "collectives/channel/payload.h"

namespace tessera::collectives::bootstrap {
namespace {

constexpr size_t kMaxWaits = 4096;
constexpr size_t kMaxMessageText = 4096;

Message MakeReply(uint64_t id, const absl::Status& status, std::string value) {
  Message reply = {
      .type = MessageType::kReply, .code = status.code(), .id = id};
  reply.value = status.ok()
                    ? std::move(value)
                    : std::string(status.message().substr(0, kMaxMessageText));
  return reply;
}

Message MakeAbsenceReply(uint64_t id, const absl::StatusOr<Absence>& absence) {
  return MakeReply(id, absence.status(),
                   absence.ok() ? FormatAbsence(*absence) : "");
}

}  // namespace

ServerPeer::ServerPeer(uint64_t number, std::string name, Connection connection,
                       std::optional<Rank> expected, Deadline greet_by,
                       std::shared_ptr<StoreTable> table,
                       std::shared_ptr<AnswerQueue> answers)
    : number_(number),
      name_(std::move(name)),
      connection_(std::move(connection)),
      expected_(expected),
      greet_by_(greet_by),
      table_(std::move(table)),
      answers_(std::move(answers)) {}

absl::Status ServerPeer::Advance() {
  std::vector<Message> in;
  absl::Status status = connection_.Advance(&in);
  for (const Message& message : in) {
    if (state_ != State::kGreeting && state_ != State::kMember) break;
    if (absl::Status handled = Handle(message); !handled.ok()) {
      status = handled;
      break;
    }
  }
  // Answers go out now rather than after the next poll.
  if (status.ok() && connection_.queued_bytes() > 0) {
    in.clear();
    status = connection_.Advance(&in);
    for (const Message& message : in) {
      if (status.ok() && state_ == State::kMember) status = Handle(message);
    }
  }
  const bool flushed = connection_.queued_bytes() == 0;
  const bool greeting = state_ == State::kGreeting;
  if (!status.ok() || (state_ == State::kLeaving && flushed)) Close();
  return greeting ? status : absl::OkStatus();
}

void ServerPeer::Close() {
  if (state_ == State::kOver) return;
  CancelAll();
  connection_.Close();
  if (state_ == State::kMember) {
    table_->LeaveSeat(rank_, SeatState::kLost);
  } else if (state_ == State::kGreeting && expected_) {
    // Nobody else can come over this socket.
    table_->LeaveSeat(*expected_, SeatState::kLost);
  }
  state_ = State::kOver;
}

void ServerPeer::SayBye() {
  if (state_ != State::kMember) return;
  CancelAll();
  table_->LeaveSeat(rank_, SeatState::kLeft);
  connection_.Queue({.type = MessageType::kBye});
  state_ = State::kLeaving;
}

absl::Status ServerPeer::Handle(const Message& message) {
  if (state_ == State::kMember) return HandleRequest(message);
  if (message.type == MessageType::kHello) return HandleHello(message);
  return absl::InvalidArgumentError("it does not begin with a greeting");
}

absl::Status ServerPeer::HandleHello(const Message& hello) {
  const absl::Status status = TakeSeat(hello);
  if (status.ok()) {
    state_ = State::kMember;
    connection_.Queue({.type = MessageType::kWelcome,
                       .key = HostName(),
                       .value = FormatHello({table_->size(), getpid()})});
    return absl::OkStatus();
  }
  connection_.Queue({.type = MessageType::kRefuse,
                     .code = status.code(),
                     .value = std::string(status.message())});
  // As far as it goes without waiting: it is small and the first thing sent.
  std::vector<Message> ignored;
  connection_.Advance(&ignored).IgnoreError();
  return status;
}

absl::Status ServerPeer::TakeSeat(const Message& hello) {
  TESSERA_ASSIGN_OR_RETURN(const HelloBody body, ParseHello(hello.value));
  const Rank rank(hello.number);
  if (body.world_size != table_->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank.value(), " was told of ", body.world_size,
                     " ranks, rank 0 of ", table_->size(),
                     "; start all ranks of a job with the same world size"));
  }
  if (expected_ && rank != *expected_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank.value(), " came over the socket of rank ",
        expected_->value(), "; give rank 0 its sockets in the order of ranks"));
  }
  TESSERA_RETURN_IF_ERROR(table_->TakeSeat(
      rank,
      DescribePlace(absl::CHexEscape(hello.key).substr(0, 128), body.pid)));
  rank_ = rank;
  return absl::OkStatus();
}

absl::Status ServerPeer::HandleRequest(const Message& request) {
  switch (request.type) {
    case MessageType::kSet:
      Reply(request.id,
            table_->Set(request.number, request.key, request.value));
      return absl::OkStatus();
    case MessageType::kGet:
    case MessageType::kAbsent:
      if (waits_.size() >= kMaxWaits || waits_.contains(request.id)) {
        return absl::InvalidArgumentError("too many waits, or one twice");
      }
      if (request.type == MessageType::kAbsent) return Await(request);
      Get(request);
      return absl::OkStatus();
    case MessageType::kCancel:
      Cancel(request.id);
      return absl::OkStatus();
    case MessageType::kErase: {
      TESSERA_ASSIGN_OR_RETURN(const auto ranks, ParseRanks(request.value));
      table_->Erase(request.key, ranks);
      Reply(request.id, absl::OkStatus());
      return absl::OkStatus();
    }
    case MessageType::kBye:
      CancelAll();
      table_->LeaveSeat(rank_, SeatState::kLeft);
      state_ = State::kLeaving;
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError("a message that only rank 0 may send");
  }
}

void ServerPeer::Get(const Message& request) {
  // Registered first: the answer may come, from another thread, before the
  // ticket is known. It is queued, and so delivered after this.
  Wait& wait = waits_[request.id];
  wait.ticket = table_->Get(
      Rank(request.number), request.key,
      [answers = answers_, peer = number_,
       id = request.id](absl::StatusOr<std::string> value) {
        answers->Put(peer, MakeReply(id, value.status(),
                                     value.ok() ? *std::move(value) : ""));
      });
}

absl::Status ServerPeer::Await(const Message& request) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<Rank> ranks, ParseRanks(request.value));
  Wait& wait = waits_[request.id];
  wait = {0, true, request.key, std::move(ranks)};
  wait.ticket =
      table_->AwaitAll(request.key, wait.ranks,
                       [answers = answers_, peer = number_, id = request.id](
                           const absl::StatusOr<Absence>& absence) {
                         answers->Put(peer, MakeAbsenceReply(id, absence));
                       });
  return absl::OkStatus();
}

void ServerPeer::Cancel(uint64_t id) {
  const auto it = waits_.find(id);
  // Where it cannot be cancelled, its answer is on its way.
  if (it == waits_.end() || !table_->Cancel(it->second.ticket)) return;
  const Wait wait = std::move(it->second);
  waits_.erase(it);
  if (!wait.absent) {
    Reply(id, absl::DeadlineExceededError("nobody has set it in time"));
    return;
  }
  connection_.Queue(
      MakeAbsenceReply(id, table_->FindAbsent(wait.prefix, wait.ranks)));
}

void ServerPeer::CancelAll() {
  for (const auto& [id, wait] : waits_) table_->Cancel(wait.ticket);
  waits_.clear();
}

void ServerPeer::Answer(const Message& answer) {
  if (state_ != State::kMember || waits_.erase(answer.id) == 0) return;
  connection_.Queue(answer);
}

void ServerPeer::Reply(uint64_t id, const absl::Status& status,
                       std::string value) {
  connection_.Queue(MakeReply(id, status, std::move(value)));
}

}  // namespace tessera::collectives::bootstrap

#include "collectives/bootstrap/store_server.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <list>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/peer_process.h"
#include "collectives/bootstrap/store.h"
#include "collectives/bootstrap/store_table.h"
#include "collectives/channel/connection.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"

namespace tessera::collectives {

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

Message MakeAbsenceReply(uint64_t id,
                         const absl::StatusOr<MissingMembers>& absence) {
  return MakeReply(id, absence.status(),
                   absence.ok() ? FormatMissingMembers(*absence) : "");
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
  // Sends answers now instead of after the next poll.
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
    table_->LeaveSeat(rank_, MemberState::kLost);
  } else if (state_ == State::kGreeting && expected_) {
    // No other rank can use this socket.
    table_->LeaveSeat(*expected_, MemberState::kLost);
  }
  state_ = State::kOver;
}

void ServerPeer::SayBye() {
  if (state_ != State::kMember) return;
  CancelAll();
  table_->LeaveSeat(rank_, MemberState::kLeft);
  connection_.Queue({.type = MessageType::kBye});
  state_ = State::kLeaving;
}

absl::Status ServerPeer::Handle(const Message& message) {
  if (state_ == State::kMember) return HandleRequest(message);
  if (message.type == MessageType::kHello) return HandleHello(message);
  return absl::InvalidArgumentError("its first message is not a greeting");
}

absl::Status ServerPeer::HandleHello(const Message& hello) {
  const absl::Status status = TakeMember(hello);
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
  // Sends without waiting; the message is small and the first one.
  std::vector<Message> ignored;
  connection_.Advance(&ignored).IgnoreError();
  return status;
}

absl::Status ServerPeer::TakeMember(const Message& hello) {
  TESSERA_ASSIGN_OR_RETURN(const HelloBody body, ParseHello(hello.value));
  const Rank rank(hello.number);
  if (body.world_size != table_->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank.value(), " has world size ", body.world_size,
                     ", rank 0 has ", table_->size(),
                     "; start all ranks of a job with the same world size"));
  }
  if (expected_ && rank != *expected_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank.value(), " used the socket of rank ", expected_->value(),
        "; give rank 0 its sockets in the order of ranks"));
  }
  TESSERA_RETURN_IF_ERROR(table_->TakeMember(
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
        return absl::InvalidArgumentError("too many waits, or a duplicate one");
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
      table_->LeaveSeat(rank_, MemberState::kLeft);
      state_ = State::kLeaving;
      return absl::OkStatus();
    default:
      return absl::InvalidArgumentError(
          "received a message that only rank 0 may send");
  }
}

void ServerPeer::Get(const Message& request) {
  // Register the wait first: another thread may answer before the ticket is
  // known. The answer is queued and delivered later.
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
                           const absl::StatusOr<MissingMembers>& absence) {
                         answers->Put(peer, MakeAbsenceReply(id, absence));
                       });
  return absl::OkStatus();
}

void ServerPeer::Cancel(uint64_t id) {
  const auto it = waits_.find(id);
  // If it cannot be cancelled, its answer is already queued.
  if (it == waits_.end() || !table_->Cancel(it->second.ticket)) return;
  const Wait wait = std::move(it->second);
  waits_.erase(it);
  if (!wait.absent) {
    Reply(id, absl::DeadlineExceededError(
                  "the deadline passed before a rank set it"));
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

namespace {

constexpr absl::Duration kFarewell = absl::Milliseconds(500);
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

}  // namespace

// The state of the server's thread.
class StoreServer::Loop {
 public:
  Loop(std::shared_ptr<StoreTable> table, ServerOptions options, WakeFd wake,
       UniqueFd listener, ChannelMaker make_channel)
      : table_(std::move(table)),
        options_(std::move(options)),
        refusals_(options_.on_refusal),
        answers_(std::make_shared<AnswerQueue>(std::move(wake))),
        listener_(std::move(listener)),
        make_channel_(std::move(make_channel)) {}

  // Called before the thread starts.
  void AddPeer(std::unique_ptr<ByteChannel> channel, std::string name,
               std::optional<Rank> expected);

  void Run();
  void Stop() {
    stopping_ = true;
    answers_->wake().Wake();
  }
  int64_t refusals() const { return refusals_.count(); }

 private:
  using Peers = std::list<ServerPeer>;

  bool MayStop(const Deadline& linger);
  void Step(const Deadline& until);
  std::vector<pollfd> PollSet();
  bool MayAccept();
  Deadline NextDeadline(const Deadline& until) const;
  void DeliverAnswers();
  void AcceptAll();
  void AcceptOne(UniqueFd socket);
  void Advance(ServerPeer& peer);
  void Expire();
  void SayFarewell();
  int Greeting() const;
  ServerPeer* OldestGreeting();

  const std::shared_ptr<StoreTable> table_;
  const ServerOptions options_;
  RefusalLog refusals_;
  const std::shared_ptr<AnswerQueue> answers_;
  const UniqueFd listener_;
  const ChannelMaker make_channel_;
  std::atomic<bool> stopping_ = false;
  uint64_t next_number_ = 0;
  Peers peers_;  // In the order of connecting.
  absl::flat_hash_map<uint64_t, ServerPeer*> peer_of_;
  Deadline accept_again_ = Deadline::After(absl::ZeroDuration());
};

void StoreServer::Loop::AddPeer(std::unique_ptr<ByteChannel> channel,
                                std::string name,
                                std::optional<Rank> expected) {
  const uint64_t number = next_number_++;
  const Deadline greet_by = Deadline::After(
      expected ? absl::InfiniteDuration() : options_.greeting_timeout);
  ServerPeer& peer = peers_.emplace_back(number, std::move(name),
                                         Connection(std::move(channel)),
                                         expected, greet_by, table_, answers_);
  peer_of_[number] = &peer;
}

void StoreServer::Loop::Run() {
  while (!stopping_) Step(Deadline::After(absl::InfiniteDuration()));
  const Deadline linger = Deadline::After(options_.linger);
  while (!MayStop(linger)) Step(linger);
  SayFarewell();
}

bool StoreServer::Loop::MayStop(const Deadline& linger) {
  if (linger.Expired()) return true;
  DeliverAnswers();
  bool members = false, unsent = false;
  for (ServerPeer& peer : peers_) {
    members |= peer.state() == ServerPeer::State::kMember;
    unsent |= peer.connection().queued_bytes() > 0;
  }
  return !members || (!unsent && !table_->HasUnread());
}

void StoreServer::Loop::Step(const Deadline& until) {
  std::vector<pollfd> fds = PollSet();
  const int ready =
      poll(fds.data(), fds.size(), NextDeadline(until).PollMillis());
  if (ready < 0 && errno != EINTR) return;
  if (ready > 0 && fds[0].revents != 0) answers_->wake().Drain();
  // The polled peers are the first of the list, in order.
  auto peer = peers_.begin();
  for (size_t i = 2; ready > 0 && i < fds.size(); ++i, ++peer) {
    if (fds[i].revents != 0) Advance(*peer);
  }
  DeliverAnswers();
  if (ready > 0 && fds[1].revents != 0) AcceptAll();
  Expire();
}

std::vector<pollfd> StoreServer::Loop::PollSet() {
  std::vector<pollfd> fds;
  fds.reserve(peers_.size() + 2);
  fds.push_back({answers_->wake().fd(), POLLIN, 0});
  fds.push_back({MayAccept() ? listener_.get() : -1, POLLIN, 0});
  for (ServerPeer& peer : peers_) {
    fds.push_back({peer.connection().fd(), peer.connection().events(), 0});
  }
  return fds;
}

int StoreServer::Loop::Greeting() const {
  return static_cast<int>(
      std::count_if(peers_.begin(), peers_.end(), [](const ServerPeer& peer) {
        return peer.state() == ServerPeer::State::kGreeting && !peer.adopted();
      }));
}

ServerPeer* StoreServer::Loop::OldestGreeting() {
  for (ServerPeer& peer : peers_) {
    if (peer.state() == ServerPeer::State::kGreeting && !peer.adopted()) {
      return &peer;
    }
  }
  return nullptr;
}

bool StoreServer::Loop::MayAccept() {
  if (!accept_again_.Expired()) return false;
  if (Greeting() < options_.max_greeting) return true;
  const ServerPeer* oldest = OldestGreeting();
  return oldest == nullptr || oldest->patience().Expired();
}

Deadline StoreServer::Loop::NextDeadline(const Deadline& until) const {
  Deadline next = until;
  if (!accept_again_.Expired()) next = std::min(next, accept_again_);
  for (const ServerPeer& peer : peers_) {
    if (peer.state() != ServerPeer::State::kGreeting || peer.adopted()) {
      continue;
    }
    next = std::min(next, peer.greet_by());
    if (!peer.patience().Expired()) next = std::min(next, peer.patience());
  }
  return next;
}

void StoreServer::Loop::Advance(ServerPeer& peer) {
  const absl::Status status = peer.Advance();
  // A socket that its rank closed is not a rejected connection.
  if (status.ok() || (peer.adopted() && absl::IsUnavailable(status))) return;
  refusals_.Report(peer.name(), status.message());
}

void StoreServer::Loop::DeliverAnswers() {
  for (const auto& [number, answer] : answers_->TakeAll()) {
    const auto it = peer_of_.find(number);
    if (it == peer_of_.end()) continue;
    it->second->Answer(answer);
    if (it->second->connection().queued_bytes() > 0) Advance(*it->second);
  }
}

void StoreServer::Loop::AcceptAll() {
  while (MayAccept()) {
    absl::StatusOr<UniqueFd> socket = Accept(listener_);
    if (!socket.ok()) {
      refusals_.Report("an unknown peer", socket.status().message());
      accept_again_ = Deadline::After(kAcceptPause);
      return;
    }
    if (!socket->valid()) return;
    AcceptOne(*std::move(socket));
  }
}

void StoreServer::Loop::AcceptOne(UniqueFd socket) {
  if (Greeting() >= options_.max_greeting) {
    ServerPeer* oldest = OldestGreeting();
    refusals_.Report(oldest->name(),
                     "it did not authenticate, and others wait to");
    oldest->Close();
  }
  std::string name = PeerName(socket);
  absl::StatusOr<std::unique_ptr<ByteChannel>> channel =
      make_channel_(std::move(socket));
  if (channel.ok()) {
    AddPeer(*std::move(channel), std::move(name), std::nullopt);
  } else {
    refusals_.Report(name, channel.status().message());
  }
}

void StoreServer::Loop::Expire() {
  for (auto it = peers_.begin(); it != peers_.end();) {
    if (it->state() == ServerPeer::State::kGreeting &&
        it->greet_by().Expired()) {
      refusals_.Report(it->name(), "it did not authenticate in time");
      it->Close();
    }
    const auto peer = it++;
    if (peer->state() != ServerPeer::State::kOver) continue;
    peer_of_.erase(peer->number());
    peers_.erase(peer);
  }
}

void StoreServer::Loop::SayFarewell() {
  for (ServerPeer& peer : peers_) {
    peer.SayBye();
    Advance(peer);
  }
  const Deadline farewell = Deadline::After(kFarewell);
  const auto unsent = [](ServerPeer& peer) {
    return peer.state() == ServerPeer::State::kLeaving;
  };
  while (!farewell.Expired() &&
         std::any_of(peers_.begin(), peers_.end(), unsent)) {
    Step(farewell);
  }
  for (ServerPeer& peer : peers_) peer.Close();
}

StoreServer::StoreServer(std::shared_ptr<Loop> loop)
    : loop_(std::move(loop)), thread_([loop = loop_] { loop->Run(); }) {}

StoreServer::~StoreServer() {
  if (pid_ != getpid()) {
    // In a forked child the thread does not exist.
    thread_.detach();
    return;
  }
  loop_->Stop();
  thread_.join();
}

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Listen(
    std::shared_ptr<StoreTable> table, ServerOptions options, UniqueFd listener,
    ChannelMaker make_channel) {
  TESSERA_ASSIGN_OR_RETURN(WakeFd wake, WakeFd::Create());
  return std::unique_ptr<StoreServer>(new StoreServer(std::make_shared<Loop>(
      std::move(table), std::move(options), std::move(wake),
      std::move(listener), std::move(make_channel))));
}

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Adopt(
    std::shared_ptr<StoreTable> table, ServerOptions options,
    std::vector<std::unique_ptr<ByteChannel>> channels) {
  TESSERA_ASSIGN_OR_RETURN(WakeFd wake, WakeFd::Create());
  const auto loop =
      std::make_shared<Loop>(std::move(table), std::move(options),
                             std::move(wake), UniqueFd(), nullptr);
  for (size_t i = 0; i < channels.size(); ++i) {
    loop->AddPeer(std::move(channels[i]), absl::StrCat("inherited socket ", i),
                  Rank(static_cast<int64_t>(i) + 1));
  }
  return std::unique_ptr<StoreServer>(new StoreServer(loop));
}

int64_t StoreServer::refusals() const { return loop_->refusals(); }

absl::StatusOr<std::unique_ptr<ServedStore>> ServeTable(
    int64_t size, int port,
    const std::function<absl::StatusOr<std::unique_ptr<StoreServer>>(
        std::shared_ptr<StoreTable>)>& start) {
  const auto table = std::make_shared<StoreTable>(size);
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<TableStore> member,
      TableStore::Take(table, Rank(0), DescribePlace(HostName(), getpid())));
  TESSERA_ASSIGN_OR_RETURN(std::unique_ptr<StoreServer> server, start(table));
  return std::make_unique<ServedStore>(std::move(member), std::move(server),
                                       port);
}

}  // namespace tessera::collectives

#include "collectives/bootstrap/internal/store_server.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <list>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/internal/refusal_log.h"
#include "collectives/bootstrap/internal/server_peer.h"
#include "collectives/channel/connection.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"
#include "collectives/channel/wake_fd.h"

namespace tessera::collectives::bootstrap {
namespace {

constexpr absl::Duration kFarewell = absl::Milliseconds(500);
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

}  // namespace

// All that the server's thread touches.
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

  // Before the thread starts.
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
  Peers peers_;  // In the order in which they came.
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
  // The peers of the poll are the first of the list, in its order.
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
  // A socket that its own rank closed is no stranger's.
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
      refusals_.Report("somebody", socket.status().message());
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
                     "it has not shown the secret, and others wait to");
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
      refusals_.Report(it->name(), "it has not shown the secret in time");
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
    // The thread is the parent's.
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

}  // namespace tessera::collectives::bootstrap

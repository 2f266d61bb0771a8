#include "collectives/testing/thread_transport.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/peer_report.h"

namespace tessera::collectives {

namespace {

struct Outgoing {
  Signature signature;
  std::span<const std::byte> bytes;
  std::vector<std::byte> copy;  // For eager sends.
  bool eager = false;
  bool lazy = false;
  int delay = 0;      // Remaining polls before it may match.
  double depart = 0;  // Modelled time.
};

struct Incoming {
  Signature signature;
  std::span<std::byte> bytes;
  bool waited_for = false;
};

// The messages from one rank to another on one lane. Matched messages are
// removed.
struct Channel {
  std::deque<Outgoing> sends;
  std::deque<Incoming> receives;
  uint64_t started_sends = 0;
  uint64_t started_receives = 0;
  uint64_t matched = 0;
  // Modelled times by message number: departure, and end of sending.
  std::vector<double> departures;
  std::vector<double> left;
};

// The identity of a request on its rank, and its memory.
using Key = std::tuple<Direction, int64_t, Lane, uint64_t>;
struct Use {
  const std::byte* begin;
  const std::byte* end;
};

}  // namespace

class ThreadWorld::Impl {
 public:
  Impl(int64_t ranks, const ThreadWorldOptions& options);

  absl::StatusOr<Request> StartSend(int64_t me, Rank to, Lane lane,
                                    const Signature& signature,
                                    std::span<const std::byte> bytes);
  absl::StatusOr<Request> StartReceive(int64_t me, Rank from, Lane lane,
                                       const Signature& expected,
                                       std::span<std::byte> bytes);
  absl::StatusOr<bool> Test(int64_t me, const Request& request);
  absl::Status Wait(int64_t me, std::span<const Request> requests,
                    OperationContext& context);
  void Abort(const absl::Status& reason);

  class Port : public Transport {
   public:
    Port(Impl* impl, int64_t rank) : impl_(impl), rank_(rank) {}
    Rank rank() const override { return Rank(rank_); }
    int64_t size() const override { return impl_->size; }
    absl::StatusOr<Request> StartSend(
        Rank to, Lane lane, const Signature& signature,
        std::span<const std::byte> bytes) override {
      return impl_->StartSend(rank_, to, lane, signature, bytes);
    }
    absl::StatusOr<Request> StartReceive(Rank from, Lane lane,
                                         const Signature& expected,
                                         std::span<std::byte> bytes) override {
      return impl_->StartReceive(rank_, from, lane, expected, bytes);
    }
    absl::StatusOr<bool> Test(const Request& request) override {
      return impl_->Test(rank_, request);
    }
    absl::Status Wait(std::span<const Request> requests,
                      OperationContext& context) override {
      return impl_->Wait(rank_, requests, context);
    }

   private:
    Impl* impl_;
    int64_t rank_;
  };

  const int64_t size;
  std::vector<Port> ports;
  mutable std::mutex mutex;
  std::vector<std::map<Key, Use>>
      open;  // By rank: requests that are not completed.
  std::vector<Traffic> sent;
  std::vector<double> clock;
  std::vector<double> send_port;     // Modelled time at which the port is free.
  std::vector<double> receive_port;  //

 private:
  Channel& At(int64_t from, int64_t to, Lane lane) {
    return channels_[static_cast<size_t>((from * size + to) * kLaneCount +
                                         static_cast<int64_t>(lane))];
  }
  Channel& Of(int64_t me, const Request& request) {
    return request.direction == Direction::kSend
               ? At(me, request.peer.value(), request.lane)
               : At(request.peer.value(), me, request.lane);
  }
  void Model(Outgoing& message, int64_t me);
  void Shape(Outgoing& message);
  absl::Status CheckPeer(Rank peer) const;
  absl::Status CheckUse(int64_t me, Direction direction, const Use& use) const;
  // Matches sends and receives.
  void Progress(int64_t from, int64_t to, Lane lane);
  void Match(Channel& channel, int64_t from, int64_t to);
  bool IsComplete(int64_t me, const Request& request);
  void MarkWaited(int64_t me, const Request& request);
  void Close(int64_t me, const Request& request);
  void CloseAll(int64_t me, std::span<const Request> requests);
  bool PollAll(int64_t me, std::span<const Request> requests);
  absl::Status Missing(int64_t me, std::span<const Request> requests,
                       const OperationContext& context);
  void Fail(const absl::Status& reason);

  const ThreadWorldOptions options_;
  std::vector<Channel> channels_;
  std::vector<std::condition_variable> wakes_;
  std::mt19937_64 random_;
  absl::Status broken_;
};

namespace {

Key KeyOf(const Request& request) {
  return {request.direction, request.peer.value(), request.lane,
          request.number};
}

bool Overlap(const Use& a, const Use& b) {
  return a.begin < b.end && b.begin < a.end;
}

}  // namespace

ThreadWorld::Impl::Impl(int64_t ranks, const ThreadWorldOptions& options)
    : size(ranks),
      open(static_cast<size_t>(ranks)),
      sent(static_cast<size_t>(ranks)),
      clock(static_cast<size_t>(ranks)),
      send_port(static_cast<size_t>(ranks)),
      receive_port(static_cast<size_t>(ranks)),
      options_(options),
      channels_(static_cast<size_t>(ranks * ranks * kLaneCount)),
      wakes_(static_cast<size_t>(ranks)),
      random_(options.seed) {
  for (int64_t rank = 0; rank < ranks; ++rank) ports.emplace_back(this, rank);
}

absl::Status ThreadWorld::Impl::CheckPeer(Rank peer) const {
  if (peer.value() >= 0 && peer.value() < size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank ", peer.value(), " of ", size));
}

absl::Status ThreadWorld::Impl::CheckUse(int64_t me, Direction direction,
                                         const Use& use) const {
  for (const auto& [key, other] : open[static_cast<size_t>(me)]) {
    const bool both_read =
        direction == Direction::kSend && std::get<0>(key) == Direction::kSend;
    if (both_read || !Overlap(use, other)) continue;
    return absl::InternalError(absl::StrCat(
        "rank ", me, direction == Direction::kSend ? " sends" : " receives",
        " where a request is in flight that ",
        std::get<0>(key) == Direction::kSend ? "sends to" : "receives from",
        " rank ", std::get<1>(key), " (message ", std::get<3>(key), ")"));
  }
  return absl::OkStatus();
}

void ThreadWorld::Impl::Shape(Outgoing& message) {
  ThreadMode mode = options_.mode;
  if (mode == ThreadMode::kRandom) {
    mode = static_cast<ThreadMode>(random_() % 3);
    message.delay = static_cast<int>(random_() % 4);
  }
  message.eager = mode == ThreadMode::kEager;
  message.lazy = mode == ThreadMode::kLazy;
  if (message.eager) {
    message.copy.assign(message.bytes.begin(), message.bytes.end());
  }
}

void ThreadWorld::Impl::Model(Outgoing& message, int64_t me) {
  const auto rank = static_cast<size_t>(me);
  message.depart = std::max(clock[rank], send_port[rank]);
  send_port[rank] = message.depart + options_.alpha +
                    options_.beta * static_cast<double>(message.bytes.size());
}

absl::StatusOr<Request> ThreadWorld::Impl::StartSend(
    int64_t me, Rank to, Lane lane, const Signature& signature,
    std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex);
  TESSERA_RETURN_IF_ERROR(broken_);
  TESSERA_RETURN_IF_ERROR(CheckPeer(to));
  const Use use = {bytes.data(), bytes.data() + bytes.size()};
  TESSERA_RETURN_IF_ERROR(CheckUse(me, Direction::kSend, use));
  Channel& channel = At(me, to.value(), lane);
  Outgoing message = {.signature = signature, .bytes = bytes, .copy = {}};
  Shape(message);
  Model(message, me);
  channel.departures.push_back(message.depart);
  channel.left.push_back(send_port[static_cast<size_t>(me)]);
  channel.sends.push_back(std::move(message));
  Traffic& traffic = sent[static_cast<size_t>(me)];
  ++traffic.messages;
  traffic.bytes += static_cast<int64_t>(bytes.size());
  const Request request = {++channel.started_sends, to, lane, Direction::kSend};
  open[static_cast<size_t>(me)][KeyOf(request)] = use;
  Progress(me, to.value(), lane);
  return request;
}

absl::StatusOr<Request> ThreadWorld::Impl::StartReceive(
    int64_t me, Rank from, Lane lane, const Signature& expected,
    std::span<std::byte> bytes) {
  const std::lock_guard lock(mutex);
  TESSERA_RETURN_IF_ERROR(broken_);
  TESSERA_RETURN_IF_ERROR(CheckPeer(from));
  const Use use = {bytes.data(), bytes.data() + bytes.size()};
  TESSERA_RETURN_IF_ERROR(CheckUse(me, Direction::kReceive, use));
  Channel& channel = At(from.value(), me, lane);
  channel.receives.push_back({expected, bytes});
  const Request request = {++channel.started_receives, from, lane,
                           Direction::kReceive};
  open[static_cast<size_t>(me)][KeyOf(request)] = use;
  Progress(from.value(), me, lane);
  return request;
}

void ThreadWorld::Impl::Progress(int64_t from, int64_t to, Lane lane) {
  Channel& channel = At(from, to, lane);
  while (broken_.ok() && !channel.sends.empty() && !channel.receives.empty()) {
    Outgoing& message = channel.sends.front();
    if (message.delay > 0) {
      --message.delay;
      return;
    }
    if (message.lazy && !channel.receives.front().waited_for) return;
    Match(channel, from, to);
  }
}

void ThreadWorld::Impl::Match(Channel& channel, int64_t from, int64_t to) {
  const Outgoing& message = channel.sends.front();
  const Incoming& place = channel.receives.front();
  if (message.signature != place.signature) {
    return Fail(MismatchError(place.signature, Rank(to), message.signature,
                              Rank(from)));
  }
  if (message.bytes.size() != place.bytes.size()) {
    return Fail(absl::InternalError(
        absl::StrCat("rank ", from, " sends ", message.bytes.size(),
                     " bytes as message ", channel.matched + 1, " to rank ", to,
                     ", which expects ", place.bytes.size())));
  }
  if (!place.bytes.empty()) {
    std::memcpy(place.bytes.data(),
                message.eager ? message.copy.data() : message.bytes.data(),
                place.bytes.size());
  }
  ++channel.matched;
  channel.sends.pop_front();
  channel.receives.pop_front();
  wakes_[static_cast<size_t>(from)].notify_all();
  wakes_[static_cast<size_t>(to)].notify_all();
}

bool ThreadWorld::Impl::IsComplete(int64_t me, const Request& request) {
  const Channel& channel = Of(me, request);
  if (request.number <= channel.matched) return true;
  if (request.direction == Direction::kReceive) return false;
  return channel.sends[request.number - channel.matched - 1].eager;
}

void ThreadWorld::Impl::MarkWaited(int64_t me, const Request& request) {
  Channel& channel = Of(me, request);
  if (request.direction == Direction::kReceive &&
      request.number > channel.matched) {
    channel.receives[request.number - channel.matched - 1].waited_for = true;
  }
  if (request.direction == Direction::kSend) {
    Progress(me, request.peer.value(), request.lane);
  } else {
    Progress(request.peer.value(), me, request.lane);
  }
}

// The owner has completed the request.
void ThreadWorld::Impl::Close(int64_t me, const Request& request) {
  const auto rank = static_cast<size_t>(me);
  const auto it = open[rank].find(KeyOf(request));
  if (it == open[rank].end()) return;
  const double bytes = static_cast<double>(it->second.end - it->second.begin);
  open[rank].erase(it);
  const double takes = options_.alpha + options_.beta * bytes;
  const Channel& channel = Of(me, request);
  double done = 0;
  if (request.direction == Direction::kSend) {
    done = channel.left[request.number - 1];
  } else {
    const double start =
        std::max(channel.departures[request.number - 1], receive_port[rank]);
    done = receive_port[rank] = start + takes;
  }
  clock[rank] = std::max(clock[rank], done);
}

bool ThreadWorld::Impl::PollAll(int64_t me, std::span<const Request> requests) {
  for (const Request& request : requests) MarkWaited(me, request);
  return std::all_of(
      requests.begin(), requests.end(),
      [&](const Request& request) { return IsComplete(me, request); });
}

absl::StatusOr<bool> ThreadWorld::Impl::Test(int64_t me,
                                             const Request& request) {
  const std::lock_guard lock(mutex);
  TESSERA_RETURN_IF_ERROR(broken_);
  if (!PollAll(me, std::span(&request, 1))) {
    TESSERA_RETURN_IF_ERROR(broken_);
    return false;
  }
  Close(me, request);
  return true;
}

absl::Status ThreadWorld::Impl::Wait(int64_t me,
                                     std::span<const Request> requests,
                                     OperationContext& context) {
  // Delays of kRandom count polls.
  constexpr auto kPoll = std::chrono::microseconds(20);
  constexpr auto kLook = std::chrono::milliseconds(20);
  std::unique_lock lock(mutex);
  while (true) {
    TESSERA_RETURN_IF_ERROR(broken_);
    const bool done = PollAll(me, requests);
    TESSERA_RETURN_IF_ERROR(broken_);
    if (done) break;
    if (context.Expired()) return Missing(me, requests, context);
    const auto left =
        std::chrono::nanoseconds(context.deadline() - MonotonicNanos());
    const bool random = options_.mode == ThreadMode::kRandom;
    wakes_[static_cast<size_t>(me)].wait_for(
        lock, std::min<std::chrono::nanoseconds>(
                  left, random ? std::chrono::nanoseconds(kPoll)
                               : std::chrono::nanoseconds(kLook)));
  }
  CloseAll(me, requests);
  return absl::OkStatus();
}

// Messages in the order of their modelled departure.
void ThreadWorld::Impl::CloseAll(int64_t me,
                                 std::span<const Request> requests) {
  std::vector<std::pair<double, const Request*>> order;
  for (const Request& request : requests) {
    const bool receive = request.direction == Direction::kReceive;
    order.emplace_back(
        receive ? Of(me, request).departures[request.number - 1] : 0, &request);
  }
  std::stable_sort(
      order.begin(), order.end(),
      [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [departure, request] : order) Close(me, *request);
}

absl::Status ThreadWorld::Impl::Missing(int64_t me,
                                        std::span<const Request> requests,
                                        const OperationContext& context) {
  std::set<int64_t> peers;
  for (const Request& request : requests) {
    if (!IsComplete(me, request)) peers.insert(request.peer.value());
  }
  std::vector<PeerReport> reports;
  for (int64_t peer : peers) reports.push_back({.rank = Rank(peer)});
  return MissingPeersError(context, reports);
}

void ThreadWorld::Impl::Fail(const absl::Status& reason) {
  if (broken_.ok()) broken_ = reason;
  for (std::condition_variable& wake : wakes_) wake.notify_all();
}

void ThreadWorld::Impl::Abort(const absl::Status& reason) {
  const std::lock_guard lock(mutex);
  Fail(reason);
}

ThreadWorld::ThreadWorld(int64_t ranks, const ThreadWorldOptions& options)
    : impl_(std::make_unique<Impl>(ranks, options)) {}

ThreadWorld::~ThreadWorld() = default;

int64_t ThreadWorld::size() const { return impl_->size; }

Transport& ThreadWorld::transport(int64_t rank) {
  return impl_->ports[static_cast<size_t>(rank)];
}

std::vector<absl::Status> ThreadWorld::Run(
    const std::function<absl::Status(Transport&)>& body) {
  std::vector<absl::Status> statuses(static_cast<size_t>(size()));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size(); ++rank) {
    threads.emplace_back([&, rank] {
      absl::Status& status = statuses[static_cast<size_t>(rank)];
      status = body(transport(rank));
      if (!status.ok()) Abort(absl::AbortedError(status.ToString()));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

void ThreadWorld::Abort(const absl::Status& reason) { impl_->Abort(reason); }

absl::Status ThreadWorld::CheckIdle(int64_t rank) const {
  const std::lock_guard lock(impl_->mutex);
  const size_t open = impl_->open[static_cast<size_t>(rank)].size();
  if (open == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "rank ", rank, " has ", open, " requests that it has not waited for"));
}

Traffic ThreadWorld::sent(int64_t rank) const {
  return impl_->sent[static_cast<size_t>(rank)];
}

double ThreadWorld::clock(int64_t rank) const {
  return impl_->clock[static_cast<size_t>(rank)];
}

void ThreadWorld::ResetCounts() {
  for (auto* times : {&impl_->clock, &impl_->send_port, &impl_->receive_port}) {
    std::fill(times->begin(), times->end(), 0);
  }
  std::fill(impl_->sent.begin(), impl_->sent.end(), Traffic());
}

}  // namespace tessera::collectives

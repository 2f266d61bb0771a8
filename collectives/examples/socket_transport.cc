#include "collectives/examples/socket_transport.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::collectives::example {

SocketTransport::SocketTransport(Links links)
    : links_(std::move(links)),
      channels_(static_cast<size_t>(links_.size() * kLaneCount * 2)) {
  for (size_t i = 0; i < channels_.size(); ++i) {
    channels_[i].direction = static_cast<Direction>(i % 2);
    channels_[i].lane = static_cast<Lane>(i / 2 % kLaneCount);
    channels_[i].peer = Rank(static_cast<int64_t>(i / 2 / kLaneCount));
  }
}

SocketTransport::Channel& SocketTransport::ChannelOf(Rank peer, Lane lane,
                                                     Direction direction) {
  return channels_[(static_cast<size_t>(peer.value()) * kLaneCount +
                    static_cast<size_t>(lane)) *
                       2 +
                   static_cast<size_t>(direction)];
}

absl::StatusOr<Request> SocketTransport::StartSend(
    Rank to, Lane lane, const Signature& signature,
    std::span<const std::byte> bytes) {
  if (to.value() < 0 || to.value() >= size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", to.value(), " of ", size()));
  }
  return Start(ChannelOf(to, lane, Direction::kSend), signature,
               const_cast<std::byte*>(bytes.data()), bytes.size());
}

absl::StatusOr<Request> SocketTransport::StartReceive(
    Rank from, Lane lane, const Signature& expected,
    std::span<std::byte> bytes) {
  if (from.value() < 0 || from.value() >= size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", from.value(), " of ", size()));
  }
  return Start(ChannelOf(from, lane, Direction::kReceive), expected,
               bytes.data(), bytes.size());
}

absl::StatusOr<Request> SocketTransport::Start(Channel& channel,
                                               const Signature& signature,
                                               std::byte* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(status_);
  Message message;
  message.header.signature = signature;
  message.header.bytes = static_cast<int64_t>(bytes);
  message.data = data;
  channel.pending.push_back(message);
  TESSERA_RETURN_IF_ERROR(Advance());
  return Request{++channel.started, channel.peer, channel.lane,
                 channel.direction};
}

absl::StatusOr<bool> SocketTransport::Test(const Request& request) {
  const std::lock_guard lock(mutex_);
  const Channel& channel =
      ChannelOf(request.peer, request.lane, request.direction);
  if (request.number > channel.completed) TESSERA_RETURN_IF_ERROR(Advance());
  return request.number <= channel.completed;
}

absl::Status SocketTransport::Wait(std::span<const Request> requests,
                                   OperationContext& context) {
  for (const Request& request : requests) {
    while (true) {
      TESSERA_ASSIGN_OR_RETURN(const bool done, Test(request));
      if (done) break;
      if (context.Expired()) return Missing(requests, context);
      AwaitEvent(context.deadline());
    }
  }
  return absl::OkStatus();
}

// Waits until a connection is ready, for a short time only: another thread may
// start more messages, or abort.
void SocketTransport::AwaitEvent(int64_t deadline) {
  std::vector<pollfd> entries;
  {
    const std::lock_guard lock(mutex_);
    for (const Channel& channel : channels_) {
      if (channel.pending.empty() || channel.peer == rank()) continue;
      const bool sends = channel.direction == Direction::kSend;
      entries.push_back({links_.fd(channel.peer, channel.lane),
                         static_cast<short>(sends ? POLLOUT : POLLIN), 0});
    }
  }
  const int64_t ms = (deadline - MonotonicNanos()) / 1'000'000 + 1;
  poll(entries.data(), entries.size(),
       static_cast<int>(std::clamp<int64_t>(ms, 1, 10)));
}

absl::Status SocketTransport::Advance() {
  for (Channel& channel : channels_) {
    if (status_.ok() && channel.peer != rank()) {
      status_ = AdvanceChannel(channel);
    }
  }
  for (const Lane lane : {Lane::kCollective, Lane::kPointToPoint}) {
    if (status_.ok()) status_ = AdvanceSelf(lane);
  }
  return status_;
}

absl::Status SocketTransport::AdvanceChannel(Channel& channel) {
  constexpr int64_t kHeader = sizeof(Header);
  while (!channel.pending.empty()) {
    Message& message = channel.pending.front();
    while (message.moved < kHeader + message.header.bytes) {
      TESSERA_ASSIGN_OR_RETURN(const int64_t moved, Move(channel, message));
      if (moved == 0) return absl::OkStatus();
      message.moved += moved;
      if (channel.direction == Direction::kReceive &&
          message.moved == kHeader) {
        TESSERA_RETURN_IF_ERROR(CheckArrived(channel, message));
      }
    }
    channel.pending.pop_front();
    ++channel.completed;
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> SocketTransport::Move(Channel& channel,
                                              Message& message) {
  constexpr int64_t kHeader = sizeof(Header);
  const bool sends = channel.direction == Direction::kSend;
  const bool in_header = message.moved < kHeader;
  auto* const start =
      in_header ? reinterpret_cast<std::byte*>(sends ? &message.header
                                                     : &message.arrived) +
                      message.moved
                : message.data + (message.moved - kHeader);
  const auto left = static_cast<size_t>(
      (in_header ? kHeader : kHeader + message.header.bytes) - message.moved);
  const int fd = links_.fd(channel.peer, channel.lane);
  const ssize_t moved =
      sends ? send(fd, start, left, MSG_NOSIGNAL) : recv(fd, start, left, 0);
  if (moved > 0) return moved;
  if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  return absl::UnavailableError(
      absl::StrCat("rank ", channel.peer.value(), " closed its connection",
                   moved < 0 ? absl::StrCat(": ", std::strerror(errno)) : ""));
}

absl::Status SocketTransport::CheckArrived(const Channel& channel,
                                           const Message& message) {
  if (message.arrived.signature != message.header.signature) {
    return MismatchError(message.header.signature, rank(),
                         message.arrived.signature, channel.peer);
  }
  if (message.arrived.bytes == message.header.bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "rank ", channel.peer.value(), " sent ", message.arrived.bytes,
      " bytes; rank ", rank().value(), " expects ", message.header.bytes));
}

absl::Status SocketTransport::AdvanceSelf(Lane lane) {
  Channel& out = ChannelOf(rank(), lane, Direction::kSend);
  Channel& in = ChannelOf(rank(), lane, Direction::kReceive);
  while (!out.pending.empty() && !in.pending.empty()) {
    Message& message = in.pending.front();
    message.arrived = out.pending.front().header;
    TESSERA_RETURN_IF_ERROR(CheckArrived(in, message));
    if (message.header.bytes > 0) {
      std::memcpy(message.data, out.pending.front().data,
                  static_cast<size_t>(message.header.bytes));
    }
    for (Channel* const end : {&out, &in}) {
      end->pending.pop_front();
      ++end->completed;
    }
  }
  return absl::OkStatus();
}

absl::Status SocketTransport::Missing(std::span<const Request> requests,
                                      const OperationContext& context) {
  const std::vector<PeerReport> peers = Peers();
  std::vector<PeerReport> missing;
  for (const Request& request : requests) {
    TESSERA_ASSIGN_OR_RETURN(const bool done, Test(request));
    if (!done) {
      missing.push_back(peers[static_cast<size_t>(request.peer.value())]);
    }
  }
  return missing.empty() ? absl::OkStatus()
                         : MissingPeersError(context, missing);
}

void SocketTransport::Abort(const absl::Status& reason) {
  const std::lock_guard lock(mutex_);
  status_.Update(reason);
  for (const Channel& channel : channels_) {
    if (channel.peer == rank()) continue;
    shutdown(links_.fd(channel.peer, channel.lane), SHUT_RDWR);
  }
}

std::vector<PeerReport> SocketTransport::Peers() const {
  std::vector<PeerReport> peers(static_cast<size_t>(size()));
  for (size_t r = 0; r < peers.size(); ++r) {
    peers[r].rank = Rank(static_cast<int64_t>(r));
  }
  return peers;
}

}  // namespace tessera::collectives::example

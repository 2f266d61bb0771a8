#include "collectives/mpi/mpi_transport.h"

#include <deque>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/library_engine.h"
#include "collectives/mpi/mpi_types.h"
#include "collectives/mpi/pieces.h"

namespace tessera::collectives {

// The header's request, if any, followed by the requests of the payload's
// pieces.
struct MpiTransport::Message {
  MessageHeader mine;
  std::unique_ptr<MessageHeader> travelling;  // Accessed by MPI.
  absl::InlinedVector<MPI_Request, 2> requests;
  size_t next = 0;  // The first incomplete request.
};

struct MpiTransport::Channel {
  int peer = 0;
  int lane = 0;
  Direction direction = Direction::kSend;
  std::mutex mutex;
  std::deque<Message> pending;
  uint64_t started = 0;
  uint64_t completed = 0;
};

MpiTransport::MpiTransport(std::shared_ptr<MpiGroup> group)
    : group_(std::move(group)),
      channels_(static_cast<size_t>(group_->size()) * kLaneCount * 2) {}

MpiTransport::~MpiTransport() = default;

MpiTransport::Channel& MpiTransport::ChannelOf(Rank peer, Lane lane,
                                               Direction direction) {
  const auto index = (static_cast<size_t>(peer.value()) * kLaneCount +
                      static_cast<size_t>(lane)) *
                         2 +
                     static_cast<size_t>(direction);
  const std::lock_guard lock(channels_mutex_);
  std::unique_ptr<Channel>& channel = channels_[index];
  if (channel == nullptr) {
    channel = std::make_unique<Channel>();
    channel->peer = static_cast<int>(peer.value());
    channel->lane = static_cast<int>(lane);
    channel->direction = direction;
  }
  return *channel;
}

absl::StatusOr<Request> MpiTransport::StartSend(
    Rank to, Lane lane, const Signature& signature,
    std::span<const std::byte> bytes) {
  // MPI_Isend does not write; only the shared code path is not const.
  return Start(to, lane, Direction::kSend, signature,
               const_cast<std::byte*>(bytes.data()),
               static_cast<int64_t>(bytes.size()));
}

absl::StatusOr<Request> MpiTransport::StartReceive(Rank from, Lane lane,
                                                   const Signature& expected,
                                                   std::span<std::byte> bytes) {
  return Start(from, lane, Direction::kReceive, expected, bytes.data(),
               static_cast<int64_t>(bytes.size()));
}

absl::StatusOr<Request> MpiTransport::Start(Rank peer, Lane lane,
                                            Direction direction,
                                            const Signature& signature,
                                            void* data, int64_t bytes) {
  if (peer.value() < 0 || peer.value() >= size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", peer.value(), " is not in the group, whose ranks are 0 to ",
        size() - 1));
  }
  if (group_->failed()) return group_->CheckAlive();
  Channel& channel = ChannelOf(peer, lane, direction);
  const std::lock_guard lock(channel.mutex);
  Message message;
  message.mine = {signature, bytes};
  TESSERA_RETURN_IF_ERROR(Post(channel, data, message));
  channel.pending.push_back(std::move(message));
  return Request{++channel.started, peer, lane, direction};
}

absl::Status MpiTransport::Post(const Channel& channel, void* data,
                                Message& message) {
  const auto post = [&](void* start, int bytes, int tag) {
    message.requests.push_back(MPI_REQUEST_NULL);
    MPI_Request* const request = &message.requests.back();
    return channel.direction == Direction::kSend
               ? MpiStatus(MPI_Isend(start, bytes, MPI_BYTE, channel.peer, tag,
                                     group_->comm(), request),
                           "MPI_Isend")
               : MpiStatus(MPI_Irecv(start, bytes, MPI_BYTE, channel.peer, tag,
                                     group_->comm(), request),
                           "MPI_Irecv");
  };
  if (group_->options().check_signatures) {
    message.travelling = std::make_unique<MessageHeader>(message.mine);
    TESSERA_RETURN_IF_ERROR(post(message.travelling.get(),
                                 static_cast<int>(sizeof(MessageHeader)),
                                 kHeaderTag + channel.lane));
  }
  auto* const bytes = static_cast<std::byte*>(data);
  for (Piece piece :
       Pieces(message.mine.bytes, group_->options().largest_count)) {
    TESSERA_RETURN_IF_ERROR(
        post(bytes + piece.first, piece.length, kPayloadTag + channel.lane));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> MpiTransport::Test(const Request& request) {
  Channel& channel = ChannelOf(request.peer, request.lane, request.direction);
  {
    const std::lock_guard lock(channel.mutex);
    if (request.number > channel.completed) {
      TESSERA_RETURN_IF_ERROR(Progress(channel));
    }
    if (request.number <= channel.completed) return true;
  }
  TESSERA_RETURN_IF_ERROR(group_->CheckAlive());
  return false;
}

// Messages of a channel complete in their order.
absl::Status MpiTransport::Progress(Channel& channel) {
  if (group_->failed()) return group_->CheckAlive();
  while (!channel.pending.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const bool done,
                             ProgressMessage(channel, channel.pending.front()));
    if (!done) break;
    channel.pending.pop_front();
    ++channel.completed;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> MpiTransport::ProgressMessage(const Channel& channel,
                                                   Message& message) {
  while (message.next < message.requests.size()) {
    int done = 0;
    MPI_Status status;
    const int code = MPI_Test(&message.requests[message.next], &done, &status);
    if (code != MPI_SUCCESS) {
      return Annotate(
          MpiStatus(code, "MPI_Test"),
          absl::StrCat(DescribeSignature(message.mine.signature),
                       channel.direction == Direction::kSend ? " to rank "
                                                             : " from rank ",
                       channel.peer));
    }
    if (done == 0) return false;
    if (channel.direction == Direction::kReceive) {
      TESSERA_RETURN_IF_ERROR(CheckArrived(channel, message, status));
    }
    ++message.next;
  }
  return true;
}

// Checks that request `next` of a receive delivered the expected message.
absl::Status MpiTransport::CheckArrived(const Channel& channel,
                                        const Message& message,
                                        const MPI_Status& status) {
  if (message.travelling != nullptr && message.next == 0) {
    return CheckHeader(message.mine, rank(), *message.travelling,
                       Rank(channel.peer));
  }
  const auto piece = static_cast<int64_t>(message.next) -
                     (message.travelling != nullptr ? 1 : 0);
  const int limit = group_->options().largest_count;
  const int64_t expected =
      std::min<int64_t>(limit, message.mine.bytes - piece * limit);
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (bytes == expected) return absl::OkStatus();
  return CheckHeader(
      message.mine, rank(),
      {message.mine.signature, message.mine.bytes - expected + bytes},
      Rank(channel.peer));
}

absl::Status MpiTransport::Wait(std::span<const Request> requests,
                                OperationContext& context) {
  Backoff backoff(group_->may_spin());
  for (size_t i = 0; i < requests.size();) {
    TESSERA_ASSIGN_OR_RETURN(const bool done, Test(requests[i]));
    if (done) {
      ++i;
      continue;
    }
    if (backoff.Pause() == Backoff::Stage::kSpinning || !context.Expired()) {
      continue;
    }
    std::vector<Rank> missing;
    for (const Request& request : requests.subspan(i)) {
      TESSERA_ASSIGN_OR_RETURN(const bool complete, Test(request));
      if (!complete) missing.push_back(request.peer);
    }
    if (!missing.empty()) {
      return group_->peers().Missing(context, rank(), missing);
    }
  }
  return absl::OkStatus();
}

void MpiTransport::CancelReceives() {
  const std::lock_guard lock(channels_mutex_);
  if (!MpiRuns()) return;
  for (const std::unique_ptr<Channel>& channel : channels_) {
    if (channel == nullptr || channel->direction == Direction::kSend) continue;
    const std::lock_guard channel_lock(channel->mutex);
    for (Message& message : channel->pending) {
      for (MPI_Request& request : message.requests) {
        if (request == MPI_REQUEST_NULL) continue;
        int done = 0;
        MPI_Cancel(&request);
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      }
    }
  }
}

}  // namespace tessera::collectives

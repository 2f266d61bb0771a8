#include "collectives/gloo/gloo_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::collectives {

GlooTransport::GlooTransport(std::shared_ptr<GlooGroup> group)
    : group_(std::move(group)),
      self_{SelfMessages(group_->rank()), SelfMessages(group_->rank())},
      channels_(static_cast<size_t>(group_->size()) * kLaneCount * 2) {}

GlooTransport::~GlooTransport() {
  for (const std::unique_ptr<MessageChannel>& channel : channels_) {
    if (channel == nullptr || channel->Idle()) continue;
    group_->Abort(
        absl::AbortedError("the engine was destroyed with messages under way"));
  }
}

absl::Status GlooTransport::CheckStart(Rank peer) const {
  if (peer.value() < 0 || peer.value() >= size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", peer.value(), " is not in the group, whose ranks are 0 to ",
        size() - 1));
  }
  return group_->failure().status();
}

MessageChannel& GlooTransport::ChannelOf(Rank peer, Lane lane,
                                         Direction direction) {
  const auto index = (static_cast<size_t>(peer.value()) * kLaneCount +
                      static_cast<size_t>(lane)) *
                         2 +
                     static_cast<size_t>(direction);
  const std::lock_guard lock(channels_mutex_);
  std::unique_ptr<MessageChannel>& channel = channels_[index];
  if (channel == nullptr) {
    channel = std::make_unique<MessageChannel>(*group_, peer, lane, direction);
  }
  return *channel;
}

absl::StatusOr<Request> GlooTransport::StartSend(
    Rank to, Lane lane, const Signature& signature,
    std::span<const std::byte> bytes) {
  TESSERA_RETURN_IF_ERROR(CheckStart(to));
  Request request{0, to, lane, Direction::kSend};
  if (to == rank()) {
    TESSERA_ASSIGN_OR_RETURN(request.number,
                             SelfOn(lane).StartSend(signature, bytes));
  } else {
    // Gloo reads it only.
    TESSERA_ASSIGN_OR_RETURN(
        request.number,
        ChannelOf(request).Start(
            signature, const_cast<std::byte*>(bytes.data()), bytes.size()));
  }
  return request;
}

absl::StatusOr<Request> GlooTransport::StartReceive(
    Rank from, Lane lane, const Signature& expected,
    std::span<std::byte> bytes) {
  TESSERA_RETURN_IF_ERROR(CheckStart(from));
  Request request{0, from, lane, Direction::kReceive};
  if (from == rank()) {
    TESSERA_ASSIGN_OR_RETURN(request.number,
                             SelfOn(lane).StartReceive(expected, bytes));
  } else {
    TESSERA_ASSIGN_OR_RETURN(
        request.number,
        ChannelOf(request).Start(expected, bytes.data(), bytes.size()));
  }
  return request;
}

absl::StatusOr<bool> GlooTransport::Test(const Request& request) {
  if (request.peer == rank()) return SelfOn(request.lane).Test(request.number);
  return ChannelOf(request).Test(request.number);
}

absl::Status GlooTransport::Wait(std::span<const Request> requests,
                                 OperationContext& context) {
  for (const Request& request : requests) {
    if (request.peer != rank()) {
      TESSERA_RETURN_IF_ERROR(ChannelOf(request).Wait(request.number, context));
      continue;
    }
    TESSERA_ASSIGN_OR_RETURN(
        const bool done,
        SelfOn(request.lane).Wait(request.number, context.deadline()));
    if (!done) {
      return group_->peers().Missing(context, rank(), {&request.peer, 1});
    }
  }
  return absl::OkStatus();
}

void GlooTransport::Abort(const absl::Status& reason) {
  for (SelfMessages& messages : self_) messages.Fail(reason);
}

}  // namespace tessera::collectives

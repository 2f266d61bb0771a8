#include "collectives/gloo/gloo_transport.h"

#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::collectives {

namespace {

constexpr size_t kInlineBytes = 4096;

// Gloo's own collectives use small numbers in the highest byte.
uint64_t FrameSlot(Lane lane) {
  return (uint64_t{0x80} | static_cast<uint64_t>(lane)) << 56;
}
uint64_t PayloadSlot(Lane lane, size_t bytes) {
  return (uint64_t{0x90} | static_cast<uint64_t>(lane)) << 56 | bytes;
}

struct Frame {
  MessageHeader header;
  std::array<std::byte, kInlineBytes> bytes;
};

}  // namespace

struct MessageChannel::Message {
  MessageHeader mine;
  std::byte* data = nullptr;
  std::unique_ptr<Frame> frame;
  // Declared after the memory that they use, to be destroyed before it.
  std::unique_ptr<gloo::transport::UnboundBuffer> frame_buffer;
  std::unique_ptr<gloo::transport::UnboundBuffer> payload_buffer;

  bool is_inline() const { return mine.bytes <= int64_t{kInlineBytes}; }
};

MessageChannel::~MessageChannel() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  if (worker_.joinable()) worker_.join();
}

bool MessageChannel::Idle() {
  const std::lock_guard lock(mutex_);
  return pending_.empty() && !driven_;
}

absl::StatusOr<uint64_t> MessageChannel::Start(const Signature& signature,
                                               std::byte* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(group_.failure().status());
  TESSERA_RETURN_IF_ERROR(status_);
  auto message = std::make_shared<Message>();
  message->mine = {signature, static_cast<int64_t>(bytes)};
  message->data = data;
  TESSERA_RETURN_IF_ERROR(Post(*message));
  pending_.push_back(std::move(message));
  return ++started_;
}

absl::Status MessageChannel::Post(Message& message) {
  // Not cleared; only the sent part matters.
  message.frame.reset(new Frame);
  const auto bytes = static_cast<size_t>(message.mine.bytes);
  const int peer = static_cast<int>(peer_.value());
  try {
    gloo::Context& context = *group_.context();
    message.frame_buffer =
        context.createUnboundBuffer(message.frame.get(), sizeof(Frame));
    if (!message.is_inline()) {
      message.payload_buffer = context.createUnboundBuffer(message.data, bytes);
    }
    if (direction_ == Direction::kReceive) {
      message.frame_buffer->recv(peer, FrameSlot(lane_));
      if (!message.is_inline()) {
        message.payload_buffer->recv(peer, PayloadSlot(lane_, bytes));
      }
      return absl::OkStatus();
    }
    const size_t inlined = message.is_inline() ? bytes : 0;
    message.frame->header = message.mine;
    if (inlined > 0) {
      std::memcpy(message.frame->bytes.data(), message.data, inlined);
    }
    message.frame_buffer->send(peer, FrameSlot(lane_), 0,
                               sizeof(MessageHeader) + inlined);
    if (!message.is_inline()) {
      message.payload_buffer->send(peer, PayloadSlot(lane_, bytes));
    }
  } catch (const std::exception& error) {
    return group_.Explain(error, nullptr, peer_);
  }
  return absl::OkStatus();
}

// Waits in Gloo, which throws at the deadline.
absl::Status MessageChannel::Await(Message& message, int64_t deadline) {
  if (direction_ == Direction::kSend) {
    message.frame_buffer->waitSend(TimeUntil(deadline));
    if (!message.is_inline()) {
      message.payload_buffer->waitSend(TimeUntil(deadline));
    }
    return absl::OkStatus();
  }
  message.frame_buffer->waitRecv(TimeUntil(deadline));
  TESSERA_RETURN_IF_ERROR(
      CheckHeader(message.mine, group_.rank(), message.frame->header, peer_));
  if (!message.is_inline()) {
    message.payload_buffer->waitRecv(TimeUntil(deadline));
  } else if (message.mine.bytes > 0) {
    std::memcpy(message.data, message.frame->bytes.data(),
                static_cast<size_t>(message.mine.bytes));
  }
  return absl::OkStatus();
}

// Waits for the oldest message, without the lock.
absl::Status MessageChannel::DriveFront(std::unique_lock<std::mutex>& lock,
                                        int64_t deadline,
                                        const OperationContext* context) {
  driven_ = true;
  const std::shared_ptr<Message> message = pending_.front();
  lock.unlock();
  absl::Status status;
  try {
    status = Await(*message, deadline);
  } catch (const std::exception& error) {
    status = group_.Explain(error, context, peer_);
  }
  lock.lock();
  driven_ = false;
  if (status.ok()) {
    pending_.pop_front();
    ++completed_;
  } else {
    status_ = status;
  }
  changed_.notify_all();
  return status;
}

absl::StatusOr<bool> MessageChannel::Test(uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (number <= completed_) return true;
  TESSERA_RETURN_IF_ERROR(group_.failure().status());
  TESSERA_RETURN_IF_ERROR(status_);
  tested_ = std::max(tested_, number);
  if (!worker_.joinable()) worker_ = std::thread([this] { Work(); });
  changed_.notify_all();
  return false;
}

void MessageChannel::Work() {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] {
      return closing_ || (completed_ < tested_ && !driven_ && status_.ok());
    });
    if (closing_) return;
    // status_ keeps its error.
    static_cast<void>(DriveFront(lock, kNever, nullptr));
  }
}

absl::Status MessageChannel::Wait(uint64_t number,
                                  const OperationContext& context) {
  std::unique_lock lock(mutex_);
  while (completed_ < number) {
    TESSERA_RETURN_IF_ERROR(status_);
    if (!driven_) {
      TESSERA_RETURN_IF_ERROR(DriveFront(lock, context.deadline(), &context));
      continue;
    }
    if (context.Expired()) {
      return group_.peers().Missing(context, group_.rank(), {&peer_, 1});
    }
    changed_.wait_for(lock, TimeUntil(context.deadline()));
  }
  return absl::OkStatus();
}

GlooTransport::GlooTransport(std::shared_ptr<GlooGroup> group)
    : group_(std::move(group)),
      self_{SelfMessages(group_->rank()), SelfMessages(group_->rank())},
      channels_(static_cast<size_t>(group_->size()) * kLaneCount * 2) {}

GlooTransport::~GlooTransport() {
  for (const std::unique_ptr<MessageChannel>& channel : channels_) {
    if (channel == nullptr || channel->Idle()) continue;
    group_->Abort(
        absl::AbortedError("the engine was destroyed with messages in flight"));
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
    // Gloo only reads it.
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

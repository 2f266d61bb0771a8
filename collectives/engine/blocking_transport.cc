#include "collectives/engine/blocking_transport.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/engine.h"

namespace tessera::collectives {

namespace {

constexpr size_t kInlineBytes = 4096;

// Gloo's own collectives use small kinds.
uint64_t FrameSlot(Lane lane) {
  return (uint64_t{0x80} | static_cast<uint64_t>(lane)) << 56;
}
uint64_t PayloadSlot(Lane lane, size_t bytes) {
  return (uint64_t{0x90} | static_cast<uint64_t>(lane)) << 56 | bytes;
}

// A slot that no message uses.
constexpr uint64_t kSilentSlot = uint64_t{0xff} << 56;

struct Frame {
  MessageHeader header;
  std::array<std::byte, kInlineBytes> bytes;
};

}  // namespace

std::chrono::milliseconds TimeUntil(int64_t deadline) {
  constexpr int64_t kLongest = int64_t{1000} * 3600 * 1000;
  const int64_t ms = (deadline - MonotonicNanos()) / 1'000'000 + 1;
  return std::chrono::milliseconds(std::clamp<int64_t>(ms, 1, kLongest));
}

BlockingGroup::BlockingGroup(Store& store, std::vector<Rank> members,
                             std::string id)
    : store_(store),
      members_(std::move(members)),
      id_(std::move(id)),
      rank_(std::find(members_.begin(), members_.end(), store.rank()) -
            members_.begin()) {}

// Exchange first, so that missing ranks are known before connecting.
absl::Status BlockingGroup::Meet(int64_t deadline) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> all,
      AllGather(store_, members_,
                absl::StrCat("tessera/network/", id_, "/peers"),
                PeerTable::DescribeSelf(), TimeOfDeadline(deadline)));
  peers_ = PeerTable::Of(all);
  return absl::OkStatus();
}

std::vector<Rank> BlockingGroup::InJob(std::span<const Rank> members) const {
  std::vector<Rank> in_job;
  for (const Rank member : members) {
    in_job.push_back(members_[static_cast<size_t>(member.value())]);
  }
  return in_job;
}

absl::Status BlockingGroup::Explain(const std::exception& error,
                                    const OperationContext* context,
                                    std::optional<Rank> peer) const {
  if (failure_.failed()) return failure_.status();
  std::vector<Rank> named;
  if (peer.has_value()) named.push_back(*peer);
  if (context != nullptr && context->Expired()) {
    return peers_.Missing(*context, rank_, named);
  }
  std::string message = "a connection was lost";
  if (peer.has_value()) {
    const PeerReport& report =
        peers_.reports()[static_cast<size_t>(peer->value())];
    message = absl::StrCat("the connection to rank ", peer->value(), " (host ",
                           report.host, ", pid ", report.pid, ") was lost");
  }
  if (context != nullptr) {
    message = absl::StrCat(DescribeSignature(context->signature()), ", while ",
                           PhaseName(context->phase().phase()), ": ", message);
  }
  return absl::UnavailableError(absl::StrCat(
      message, ": ", std::string_view(error.what()).substr(0, 512)));
}

void BlockingGroup::Abort(const absl::Status& reason) {
  if (!failure_.Set(reason)) return;
  // A timeout makes Gloo close all connections and wake all waiters; wait for a
  // message that is never sent. The wait ends without a timeout if the peer has
  // closed its connection.
  for (Rank peer : AllRanks(size())) {
    if (peer == rank_) continue;
    std::byte nothing{};
    try {
      Receive(peer, kSilentSlot, &nothing, 1)
          ->Wait(std::chrono::milliseconds(1));
    } catch (const std::exception&) {
      // Expected.
    }
  }
}

struct MessageChannel::Message {
  MessageHeader mine;
  std::byte* data = nullptr;
  std::unique_ptr<Frame> frame;
  // Declared after the memory that they use, to be destroyed before it.
  std::unique_ptr<BlockingGroup::Message> frame_message;
  std::unique_ptr<BlockingGroup::Message> payload_message;

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
  try {
    if (direction_ == Direction::kReceive) {
      message.frame_message = group_.Receive(
          peer_, FrameSlot(lane_), message.frame.get(), sizeof(Frame));
      if (message.is_inline()) return absl::OkStatus();
      message.payload_message =
          group_.Receive(peer_, PayloadSlot(lane_, bytes), message.data, bytes);
      return absl::OkStatus();
    }
    const size_t inlined = message.is_inline() ? bytes : 0;
    message.frame->header = message.mine;
    if (inlined > 0) {
      std::memcpy(message.frame->bytes.data(), message.data, inlined);
    }
    message.frame_message =
        group_.Send(peer_, FrameSlot(lane_), message.frame.get(),
                    sizeof(MessageHeader) + inlined);
    if (message.is_inline()) return absl::OkStatus();
    message.payload_message =
        group_.Send(peer_, PayloadSlot(lane_, bytes), message.data, bytes);
  } catch (const std::exception& error) {
    return group_.Explain(error, nullptr, peer_);
  }
  return absl::OkStatus();
}

// Waits in the library, which throws at the deadline.
absl::Status MessageChannel::Await(Message& message, int64_t deadline) {
  message.frame_message->Wait(TimeUntil(deadline));
  if (direction_ == Direction::kReceive) {
    TESSERA_RETURN_IF_ERROR(
        CheckHeader(message.mine, group_.rank(), message.frame->header, peer_));
  }
  if (!message.is_inline()) {
    message.payload_message->Wait(TimeUntil(deadline));
  } else if (direction_ == Direction::kReceive && message.mine.bytes > 0) {
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

BlockingTransport::BlockingTransport(std::shared_ptr<BlockingGroup> group)
    : group_(std::move(group)),
      self_{SelfMessages(group_->rank()), SelfMessages(group_->rank())},
      channels_(static_cast<size_t>(group_->size()) * kLaneCount * 2) {}

BlockingTransport::~BlockingTransport() {
  for (const std::unique_ptr<MessageChannel>& channel : channels_) {
    if (channel == nullptr || channel->Idle()) continue;
    group_->Abort(
        absl::AbortedError("the engine was destroyed with messages in flight"));
  }
}

absl::Status BlockingTransport::CheckStart(Rank peer) const {
  if (peer.value() < 0 || peer.value() >= size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", peer.value(), " is not in the group, whose ranks are 0 to ",
        size() - 1));
  }
  return group_->failure().status();
}

MessageChannel& BlockingTransport::ChannelOf(Rank peer, Lane lane,
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

absl::StatusOr<Request> BlockingTransport::StartSend(
    Rank to, Lane lane, const Signature& signature,
    std::span<const std::byte> bytes) {
  TESSERA_RETURN_IF_ERROR(CheckStart(to));
  Request request{0, to, lane, Direction::kSend};
  if (to == rank()) {
    TESSERA_ASSIGN_OR_RETURN(request.number,
                             SelfOn(lane).StartSend(signature, bytes));
  } else {
    // The library only reads it.
    TESSERA_ASSIGN_OR_RETURN(
        request.number,
        ChannelOf(request).Start(
            signature, const_cast<std::byte*>(bytes.data()), bytes.size()));
  }
  return request;
}

absl::StatusOr<Request> BlockingTransport::StartReceive(
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

absl::StatusOr<bool> BlockingTransport::Test(const Request& request) {
  if (request.peer == rank()) return SelfOn(request.lane).Test(request.number);
  return ChannelOf(request).Test(request.number);
}

absl::Status BlockingTransport::Wait(std::span<const Request> requests,
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

void BlockingTransport::Abort(const absl::Status& reason) {
  for (SelfMessages& messages : self_) messages.Fail(reason);
}

}  // namespace tessera::collectives

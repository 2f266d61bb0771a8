#include "collectives/host_memory/host_memory_transport.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/reduction/copy.h"

namespace tessera::collectives::host_memory {

namespace {

constexpr int64_t kHeader = sizeof(MessageHeader);

constexpr uint64_t Padded(int64_t bytes) {
  return static_cast<uint64_t>(RoundToLine(bytes));
}

}  // namespace

SendEnd::~SendEnd() {
  if (memory_ != nullptr) {
    group_.FreeLater(reinterpret_cast<std::byte*>(memory_));
  }
}

absl::Status SendEnd::Open() {
  capacity_ = static_cast<uint64_t>(group_.tuning().channel_bytes);
  const int64_t bytes = static_cast<int64_t>(offsetof(ChannelMemory, ring)) +
                        group_.tuning().channel_bytes;
  TESSERA_ASSIGN_OR_RETURN(
      std::byte* const memory, group_.domain().Allocate(bytes),
      Annotate(_, absl::StrCat("a channel to rank ", to_)));
  memory_ = reinterpret_cast<ChannelMemory*>(memory);
  group_.block()
      .channel(group_.rank(), to_, lane_)
      .store(*group_.domain().OffsetOf(memory, bytes),
             std::memory_order_seq_cst);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SendEnd::Start(const Signature& signature,
                                        std::span<const std::byte> bytes) {
  if (memory_ == nullptr) TESSERA_RETURN_IF_ERROR(Open());
  Outgoing message;
  message.header.signature = signature;
  message.header.bytes = static_cast<int64_t>(bytes.size());
  message.data = bytes.data();
  if (message.header.bytes >= group_.tuning().direct_message_bytes) {
    const std::optional<DomainOffset> offset =
        group_.domain().UserOffsetOf(bytes.data(), message.header.bytes);
    if (offset.has_value()) {
      message.header.where = Bytes::kShared;
      message.header.offset = *offset;
    } else if (message.header.bytes >= group_.tuning().peer_copy_bytes &&
               group_.domain().ReadsPeers()) {
      message.header.where = Bytes::kPrivate;
      message.header.offset = reinterpret_cast<uintptr_t>(bytes.data());
    }
  }
  queue_.push_back(message);
  const uint64_t number = ++started_;
  Progress();
  return number;
}

uint64_t SendEnd::Progress() {
  while (!queue_.empty() && Advance(queue_.front())) {
    queue_.pop_front();
    ++completed_;
  }
  return completed_;
}

// Returns true if the message is complete.
bool SendEnd::Advance(Outgoing& message) {
  const uint64_t before = written_;
  uint64_t free =
      capacity_ - (written_ - memory_->read.load(std::memory_order_seq_cst));
  if (message.written < 0) {
    if (free < kHeader) return false;
    Copy(written_, reinterpret_cast<const std::byte*>(&message.header),
         kHeader);
    written_ += kHeader;
    free -= kHeader;
    message.written = 0;
    if (message.header.where != Bytes::kInRing) ++direct_sent_;
  }
  const int64_t left = message.header.where != Bytes::kInRing
                           ? 0
                           : message.header.bytes - message.written;
  const int64_t now = std::min(left, static_cast<int64_t>(free));
  if (now > 0) {
    Copy(written_, message.data + message.written, now);
    message.written += now;
    // All pieces except the last end at a line boundary, because `free` is a
    // multiple of a line.
    written_ += Padded(now);
  }
  if (written_ != before) {
    memory_->written.store(written_, std::memory_order_seq_cst);
    group_.Wake();
  }
  if (message.header.where != Bytes::kInRing) {
    return memory_->taken.load(std::memory_order_seq_cst) >= direct_sent_;
  }
  return message.written == message.header.bytes;
}

void SendEnd::Copy(uint64_t at, const std::byte* from, int64_t bytes) {
  const uint64_t start = at % capacity_;
  const int64_t first =
      std::min(bytes, static_cast<int64_t>(capacity_ - start));
  CopyBytes(memory_->ring + start, from, first);
  CopyBytes(memory_->ring, from + first, bytes - first);
}

bool ReceiveEnd::Open() {
  const DomainOffset offset = group_.block()
                                  .channel(from_, group_.rank(), lane_)
                                  .load(std::memory_order_seq_cst);
  if (offset == 0) return false;
  memory_ = reinterpret_cast<ChannelMemory*>(group_.domain().At(offset));
  capacity_ = static_cast<uint64_t>(group_.tuning().channel_bytes);
  return true;
}

uint64_t ReceiveEnd::Start(const Signature& expected,
                           std::span<std::byte> bytes) {
  queue_.push_back(
      {expected, bytes.data(), static_cast<int64_t>(bytes.size()), -1});
  return ++started_;
}

absl::StatusOr<uint64_t> ReceiveEnd::Progress() {
  if (queue_.empty()) return completed_;
  if (memory_ == nullptr && !Open()) return completed_;
  while (!queue_.empty()) {
    TESSERA_ASSIGN_OR_RETURN(const bool complete, Advance(queue_.front()));
    if (!complete) break;
    queue_.pop_front();
    ++completed_;
  }
  return completed_;
}

std::optional<Signature> ReceiveEnd::Peek() {
  if (!queue_.empty() || (memory_ == nullptr && !Open())) return std::nullopt;
  const uint64_t ready =
      memory_->written.load(std::memory_order_seq_cst) - read_;
  if (ready < kHeader) return std::nullopt;
  MessageHeader header;
  Copy(read_, reinterpret_cast<std::byte*>(&header), kHeader);
  return header.signature;
}

absl::StatusOr<bool> ReceiveEnd::Advance(Incoming& message) {
  const uint64_t before = read_;
  uint64_t ready = memory_->written.load(std::memory_order_seq_cst) - read_;
  if (message.got < 0) {
    if (ready < kHeader) return false;
    MessageHeader header;
    Copy(read_, reinterpret_cast<std::byte*>(&header), kHeader);
    TESSERA_RETURN_IF_ERROR(Accept(message, header));
    read_ += kHeader;
    ready -= kHeader;
    message.got = 0;
    if (header.where != Bytes::kInRing) {
      TESSERA_RETURN_IF_ERROR(CopyDirectly(message, header));
      message.got = message.bytes;
      memory_->taken.store(++taken_, std::memory_order_seq_cst);
    }
  }
  const int64_t now =
      std::min(message.bytes - message.got, static_cast<int64_t>(ready));
  if (now > 0) {
    Copy(read_, message.data + message.got, now);
    message.got += now;
    read_ += Padded(now);
  }
  if (read_ != before) {
    memory_->read.store(read_, std::memory_order_seq_cst);
    group_.Wake();
  }
  return message.got == message.bytes;
}

// Copies the message from the sender's buffer.
absl::Status ReceiveEnd::CopyDirectly(const Incoming& message,
                                      const MessageHeader& header) {
  if (header.where == Bytes::kShared) {
    CopyBytes(message.data, group_.domain().At(header.offset), header.bytes);
    return absl::OkStatus();
  }
  const absl::Status read =
      group_.domain().ReadPeer(group_.members()[static_cast<size_t>(from_)],
                               header.offset, message.data, header.bytes);
  if (read.ok()) return read;
  Scratch none;
  OperationContext context(message.expected, 0, none);
  context.Enter(Phase::kReceiving, Rank(from_));
  return group_.Lost(context, from_, read);
}

absl::Status ReceiveEnd::Accept(const Incoming& message,
                                const MessageHeader& header) {
  if (!(header.signature == message.expected)) {
    return group_.Break(MismatchError(message.expected, Rank(group_.rank()),
                                      header.signature, Rank(from_)));
  }
  if (header.bytes == message.bytes) return absl::OkStatus();
  return group_.Break(absl::FailedPreconditionError(
      absl::StrCat(DescribeSignature(message.expected), ": rank ", from_,
                   " sent ", header.bytes, " bytes, rank ", group_.rank(),
                   " expects ", message.bytes)));
}

void ReceiveEnd::Copy(uint64_t at, std::byte* to, int64_t bytes) const {
  const uint64_t start = at % capacity_;
  const int64_t first =
      std::min(bytes, static_cast<int64_t>(capacity_ - start));
  CopyBytes(to, memory_->ring + start, first);
  CopyBytes(to + first, memory_->ring, bytes - first);
}

namespace {

constexpr int64_t kLookEveryNs = 20'000'000;

}  // namespace

HostMemoryTransport::HostMemoryTransport(Group& group)
    : group_(group),
      ends_(static_cast<size_t>(group.size() * kLaneCountWithTags)) {}

HostMemoryTransport::~HostMemoryTransport() {
  for (std::atomic<Ends*>& ends : ends_) delete ends.load();
}

HostMemoryTransport::Ends& HostMemoryTransport::EndsOf(int64_t peer,
                                                       Lane lane) {
  std::atomic<Ends*>& slot = ends_[static_cast<size_t>(
      peer * kLaneCountWithTags + static_cast<int>(lane))];
  Ends* ends = slot.load(std::memory_order_acquire);
  if (ends != nullptr) return *ends;
  const std::lock_guard lock(create_mutex_);
  ends = slot.load(std::memory_order_acquire);
  if (ends == nullptr) {
    ends = new Ends(group_, peer, lane);
    slot.store(ends, std::memory_order_release);
    if (lane == Lane::kCollective) collective_ends_.push_back(ends);
  }
  return *ends;
}

absl::StatusOr<Request> HostMemoryTransport::StartSend(
    Rank to, Lane lane, const Signature& signature,
    std::span<const std::byte> bytes) {
  TESSERA_RETURN_IF_ERROR(group_.Whole());
  TESSERA_ASSIGN_OR_RETURN(
      const uint64_t number,
      EndsOf(to.value(), lane).send.Start(signature, bytes));
  return Request{number, to, lane, Direction::kSend};
}

absl::StatusOr<Request> HostMemoryTransport::StartReceive(
    Rank from, Lane lane, const Signature& expected,
    std::span<std::byte> bytes) {
  TESSERA_RETURN_IF_ERROR(group_.Whole());
  const uint64_t number =
      EndsOf(from.value(), lane).receive.Start(expected, bytes);
  return Request{number, from, lane, Direction::kReceive};
}

absl::StatusOr<std::optional<Signature>> HostMemoryTransport::Peek(Rank from,
                                                                   Lane lane) {
  TESSERA_RETURN_IF_ERROR(group_.Whole());
  return EndsOf(from.value(), lane).receive.Peek();
}

absl::Status HostMemoryTransport::WaitUntil(
    OperationContext& context, absl::FunctionRef<bool()> ready,
    absl::FunctionRef<void(std::vector<int64_t>&)> missing,
    const Request* /*only*/) {
  return group_.Await(context, ready, missing);
}

absl::StatusOr<bool> HostMemoryTransport::IsComplete(const Request& request) {
  Ends& ends = EndsOf(request.peer.value(), request.lane);
  if (request.direction == Direction::kSend) {
    return ends.send.Progress() >= request.number;
  }
  TESSERA_ASSIGN_OR_RETURN(const uint64_t completed, ends.receive.Progress());
  return completed >= request.number;
}

absl::StatusOr<bool> HostMemoryTransport::Test(const Request& request) {
  TESSERA_ASSIGN_OR_RETURN(const bool complete, IsComplete(request));
  if (complete) return true;
  TESSERA_RETURN_IF_ERROR(group_.Whole());
  TESSERA_RETURN_IF_ERROR(
      LookAtPeer(request, EndsOf(request.peer.value(), request.lane)));
  return false;
}

// Checks every kLookEveryNs whether the peer is alive.
absl::Status HostMemoryTransport::LookAtPeer(const Request& request,
                                             Ends& ends) {
  const int64_t now = MonotonicNanos();
  if (now - ends.last_look_ns.load(std::memory_order_relaxed) < kLookEveryNs) {
    return absl::OkStatus();
  }
  ends.last_look_ns.store(now, std::memory_order_relaxed);
  const PeerReport peer =
      group_.Report(request.peer.value(), /*look_at_process=*/true);
  if (peer.state == PeerState::kAlive) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(const bool complete, IsComplete(request));
  if (complete) return absl::OkStatus();
  const bool sends = request.direction == Direction::kSend;
  Scratch none;
  OperationContext context(sends ? ends.send.front() : ends.receive.front(), 0,
                           none);
  context.Enter(sends ? Phase::kSending : Phase::kReceiving, request.peer);
  return group_.Break(MissingPeersError(context, std::span(&peer, 1)));
}

absl::Status HostMemoryTransport::ProgressCollectives() {
  for (Ends* ends : collective_ends_) {
    if (!ends->send.idle()) ends->send.Progress();
    if (!ends->receive.idle()) {
      TESSERA_RETURN_IF_ERROR(ends->receive.Progress().status());
    }
  }
  return absl::OkStatus();
}

absl::Status HostMemoryTransport::Wait(std::span<const Request> requests,
                                       OperationContext& context) {
  absl::Status error;
  const bool collective =
      !requests.empty() && requests.front().lane == Lane::kCollective;
  const auto ready = [&] {
    bool all = true;
    for (const Request& request : requests) {
      const absl::StatusOr<bool> complete = IsComplete(request);
      if (!complete.ok()) error = complete.status();
      all = all && complete.ok() && *complete;
    }
    // Progress on the other requests too: peers may be waiting for them.
    if (!all && collective) error.Update(ProgressCollectives());
    return all || !error.ok();
  };
  TESSERA_RETURN_IF_ERROR(
      group_.Await(context, ready, [&](std::vector<int64_t>& missing) {
        for (const Request& request : requests) {
          const absl::StatusOr<bool> complete = IsComplete(request);
          if (complete.ok() && *complete) continue;
          missing.push_back(request.peer.value());
        }
      }));
  return error;
}

}  // namespace tessera::collectives::host_memory

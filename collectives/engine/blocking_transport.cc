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
// Encrypted payloads are sent in pieces of this size.
constexpr size_t kPieceBytes = size_t{128} << 10;
// The most memory that a channel keeps for its next encrypted message.
constexpr size_t kMostSpareBytes = size_t{64} << 20;

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
  // Sent only if the rest is encrypted: the size of what follows, and its tag.
  uint64_t text_bytes;
  MessageCipher::Tag tag;

  MessageHeader header;
  std::array<std::byte, kInlineBytes> bytes;
};
constexpr size_t kSealBytes = offsetof(Frame, header);

// The texts of an encrypted message.
constexpr uint32_t kFrameText = 0;
constexpr uint32_t kPayloadText = 1;

std::byte* BytesOf(Frame& frame) {
  return reinterpret_cast<std::byte*>(&frame);
}

absl::Status SealFrame(MessageCipher& cipher, Frame& frame, size_t bytes) {
  std::byte* const text = BytesOf(frame) + kSealBytes;
  frame.text_bytes = bytes;
  TESSERA_RETURN_IF_ERROR(cipher.NextMessage());
  TESSERA_RETURN_IF_ERROR(cipher.Begin(kFrameText));
  TESSERA_RETURN_IF_ERROR(cipher.Add({text, bytes}, text));
  return cipher.Seal(frame.tag);
}

// The size of the piece of a payload that begins at `at`.
size_t PieceBytes(size_t payload_bytes, size_t at) {
  return std::min(payload_bytes - at, kPieceBytes);
}

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
absl::Status BlockingGroup::Meet(int64_t deadline,
                                 std::unique_ptr<KeyExchange> keys) {
  std::string mine = PeerTable::DescribeSelf();
  if (keys != nullptr) absl::StrAppend(&mine, "\n", keys->public_key());
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<std::string> all,
      AllGather(store_, members_,
                absl::StrCat("tessera/network/", id_, "/peers"), mine,
                TimeOfDeadline(deadline)));
  for (std::string& text : all) {
    const size_t end = std::min(text.find('\n'), text.size());
    public_keys_.push_back(text.substr(std::min(end + 1, text.size())));
    text.resize(end);
  }
  peers_ = PeerTable::Of(all);
  keys_ = std::move(keys);
  for (const Rank rank : AllRanks(size())) {
    const auto& key = public_keys_[static_cast<size_t>(rank.value())];
    if (key.empty() != encrypts()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        Describe(encrypts() ? rank_ : rank), " encrypts its messages and ",
        Describe(encrypts() ? rank : rank_),
        " does not; encrypt on all ranks or on none"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MessageCipher>> BlockingGroup::CreateCipher(
    Rank peer, Lane lane, Direction direction) const {
  if (!encrypts()) return nullptr;
  const bool sends = direction == Direction::kSend;
  return keys_->CreateCipher(
      public_keys_[static_cast<size_t>(peer.value())],
      sends ? MessageCipher::Role::kSeal : MessageCipher::Role::kOpen,
      absl::StrCat(id_, "/", (sends ? rank_ : peer).value(), "/",
                   (sends ? peer : rank_).value(), "/",
                   static_cast<int>(lane)));
}

std::string BlockingGroup::Describe(Rank peer) const {
  const PeerReport& report =
      peers_.reports()[static_cast<size_t>(peer.value())];
  return absl::StrCat("rank ", peer.value(), " (host ", report.host, ", pid ",
                      report.pid, ")");
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
    message = absl::StrCat("the connection to ", Describe(*peer), " was lost");
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

void MovedMessages::Add() {
  const std::lock_guard lock(mutex_);
  ++count_;
  changed_.notify_all();
}

uint64_t MovedMessages::count() {
  const std::lock_guard lock(mutex_);
  return count_;
}

void MovedMessages::Await(uint64_t seen, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return count_ != seen; });
}

struct MessageChannel::Message {
  MessageHeader mine;
  std::byte* data = nullptr;
  std::unique_ptr<Frame> frame;
  bool has_frame = false;  // It has arrived.
  // If encrypted, the payload that is sent, or the last piece received, and its
  // tag.
  std::vector<std::byte> sealed;
  // Declared after the memory that they use, to be destroyed before it.
  std::unique_ptr<BlockingGroup::Message> frame_message;
  std::vector<std::unique_ptr<BlockingGroup::Message>> payload_messages;

  size_t bytes() const { return static_cast<size_t>(mine.bytes); }
  bool is_inline() const { return bytes() <= kInlineBytes; }
};

MessageChannel::~MessageChannel() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    changed_.notify_all();
    if (peeked_ != nullptr) peeked_->frame_message->Interrupt();
  }
  if (worker_.joinable()) worker_.join();
}

bool MessageChannel::Idle() {
  const std::lock_guard lock(mutex_);
  return pending_.empty() && (!driven_ || peeked_ != nullptr);
}

absl::Status MessageChannel::CreateCipher() {
  const std::lock_guard lock(mutex_);
  TESSERA_RETURN_IF_ERROR(group_.failure().status());
  TESSERA_RETURN_IF_ERROR(status_);
  if (!group_.encrypts() || cipher_ != nullptr) return absl::OkStatus();
  TESSERA_ASSIGN_OR_RETURN(cipher_,
                           group_.CreateCipher(peer_, lane_, direction_));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> MessageChannel::Start(const Signature& signature,
                                               std::byte* data, size_t bytes) {
  TESSERA_RETURN_IF_ERROR(CreateCipher());
  const MessageHeader mine = {signature, static_cast<int64_t>(bytes)};
  if (peeked_ != nullptr) return StartPeeked(mine, data);
  auto message = std::make_shared<Message>();
  message->mine = mine;
  message->data = data;
  try {
    TESSERA_RETURN_IF_ERROR(PostFrame(*message));
    TESSERA_RETURN_IF_ERROR(PostPayload(*message));
  } catch (const std::exception& error) {
    return group_.Explain(error, nullptr, peer_);
  }
  const std::lock_guard lock(mutex_);
  pending_.push_back(std::move(message));
  return ++started_;
}

// The receive takes the message whose frame has been posted for Peek.
absl::StatusOr<uint64_t> MessageChannel::StartPeeked(const MessageHeader& mine,
                                                     std::byte* data) {
  peeked_->mine = mine;
  peeked_->data = data;
  try {
    TESSERA_RETURN_IF_ERROR(PostPayload(*peeked_));
  } catch (const std::exception& error) {
    return group_.Explain(error, nullptr, peer_);
  }
  const std::lock_guard lock(mutex_);
  pending_.push_back(std::exchange(peeked_, nullptr));
  return ++started_;
}

absl::StatusOr<std::optional<Signature>> MessageChannel::Peek() {
  TESSERA_RETURN_IF_ERROR(CreateCipher());
  if (peeked_ == nullptr) {
    auto message = std::make_shared<Message>();
    try {
      TESSERA_RETURN_IF_ERROR(PostFrame(*message));
    } catch (const std::exception& error) {
      return group_.Explain(error, nullptr, peer_);
    }
    const std::lock_guard lock(mutex_);
    peeked_ = std::move(message);
    peeks_again_ = false;
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  if (!peeked_->has_frame) {
    peeks_again_ = true;
    WakeWorker();
    return std::nullopt;
  }
  const MessageHeader& header = peeked_->frame->header;
  const Signature& signature = header.signature;
  const bool is_valid =
      IsValid(signature.dtype) && header.bytes >= 0 &&
      header.bytes % SizeInBytes(signature.dtype) == 0 &&
      header.bytes / SizeInBytes(signature.dtype) == signature.count;
  if (is_valid) return signature;
  return absl::DataLossError(
      absl::StrCat("a message of ", group_.Describe(peer_), " has ",
                   header.bytes, " bytes for ", signature.count,
                   " elements of type ", static_cast<int>(signature.dtype)));
}

// Messages begin with a frame.
absl::Status MessageChannel::PostFrame(Message& message) {
  // Not cleared; only the sent part matters.
  message.frame.reset(new Frame);
  Frame& frame = *message.frame;
  const size_t skipped = cipher_ == nullptr ? kSealBytes : 0;
  if (direction_ == Direction::kReceive) {
    message.frame_message =
        group_.Receive(peer_, FrameSlot(lane_), BytesOf(frame) + skipped,
                       sizeof(Frame) - skipped);
    return absl::OkStatus();
  }
  const size_t inlined = message.is_inline() ? message.bytes() : 0;
  const size_t bytes = sizeof(MessageHeader) + inlined;
  frame.header = message.mine;
  if (inlined > 0) std::memcpy(frame.bytes.data(), message.data, inlined);
  if (cipher_ != nullptr) {
    TESSERA_RETURN_IF_ERROR(SealFrame(*cipher_, frame, bytes));
  }
  message.frame_message =
      group_.Send(peer_, FrameSlot(lane_), BytesOf(frame) + skipped,
                  kSealBytes - skipped + bytes);
  return absl::OkStatus();
}

// Long ones have a payload.
absl::Status MessageChannel::PostPayload(Message& message) {
  if (message.is_inline()) return absl::OkStatus();
  if (cipher_ != nullptr) return PostSealed(message);
  PostPart(message, message.data, message.bytes());
  return absl::OkStatus();
}

// Starts a part of the payload in the library.
void MessageChannel::PostPart(Message& message, std::byte* data, size_t bytes) {
  const uint64_t slot = PayloadSlot(lane_, message.bytes());
  message.payload_messages.push_back(
      direction_ == Direction::kSend
          ? group_.Send(peer_, slot, data, bytes)
          : group_.Receive(peer_, slot, data, bytes));
}

// All pieces but the last arrive where they are decrypted.
absl::Status MessageChannel::PostSealed(Message& message) {
  const bool sends = direction_ == Direction::kSend;
  const size_t bytes = message.bytes();
  const size_t sealed_bytes =
      (sends ? bytes : std::min(bytes, kPieceBytes)) + sizeof(Frame::tag);
  {
    const std::lock_guard lock(mutex_);
    message.sealed.swap(spare_);
  }
  if (message.sealed.size() < sealed_bytes) {
    message.sealed = std::vector<std::byte>(sealed_bytes);
  }
  if (sends) TESSERA_RETURN_IF_ERROR(cipher_->Begin(kPayloadText));
  for (size_t at = 0; at < bytes; at += kPieceBytes) {
    const size_t size = PieceBytes(bytes, at);
    const bool is_last = at + size == bytes;
    std::byte* piece = message.data + at;
    if (sends) {
      piece = message.sealed.data() + at;
      TESSERA_RETURN_IF_ERROR(
          SealPiece({message.data + at, size}, is_last, piece));
    } else if (is_last) {
      piece = message.sealed.data();
    }
    PostPart(message, piece, size + (is_last ? sizeof(Frame::tag) : 0));
  }
  return absl::OkStatus();
}

// Writes the sealed piece, and the payload's tag after the last one.
absl::Status MessageChannel::SealPiece(std::span<const std::byte> piece,
                                       bool is_last, std::byte* to) {
  TESSERA_RETURN_IF_ERROR(cipher_->Add(piece, to));
  if (!is_last) return absl::OkStatus();
  MessageCipher::Tag tag;
  TESSERA_RETURN_IF_ERROR(cipher_->Seal(tag));
  std::memcpy(to + piece.size(), tag.data(), sizeof(tag));
  return absl::OkStatus();
}

// Waits in the library, which throws at the deadline.
absl::Status MessageChannel::AwaitFrame(Message& message, int64_t deadline) {
  if (message.has_frame) return absl::OkStatus();
  message.frame_message->Wait(TimeUntil(deadline));
  if (direction_ == Direction::kReceive && cipher_ != nullptr) {
    return OpenFrame(message);
  }
  return absl::OkStatus();
}

// Waits for what follows the frame.
absl::Status MessageChannel::AwaitRest(Message& message, int64_t deadline) {
  if (direction_ == Direction::kReceive) {
    TESSERA_RETURN_IF_ERROR(
        CheckHeader(message.mine, group_.rank(), message.frame->header, peer_));
    if (message.is_inline() && message.bytes() > 0) {
      std::memcpy(message.data, message.frame->bytes.data(), message.bytes());
    } else if (!message.is_inline() && cipher_ != nullptr) {
      return OpenPayload(message, deadline);
    }
  }
  for (const auto& part : message.payload_messages) {
    part->Wait(TimeUntil(deadline));
  }
  return absl::OkStatus();
}

absl::Status MessageChannel::OpenFrame(Message& message) {
  Frame& frame = *message.frame;
  std::byte* const text = BytesOf(frame) + kSealBytes;
  const size_t bytes = std::min(frame.text_bytes, sizeof(Frame) - kSealBytes);
  TESSERA_RETURN_IF_ERROR(cipher_->NextMessage());
  TESSERA_RETURN_IF_ERROR(cipher_->Begin(kFrameText));
  TESSERA_RETURN_IF_ERROR(cipher_->Add({text, bytes}, text));
  return Authenticate(frame.tag);
}

// Decrypts each piece while the next one arrives.
absl::Status MessageChannel::OpenPayload(Message& message, int64_t deadline) {
  const size_t bytes = message.bytes();
  TESSERA_RETURN_IF_ERROR(cipher_->Begin(kPayloadText));
  size_t at = 0;
  size_t size = 0;
  for (const auto& part : message.payload_messages) {
    at += size;
    size = PieceBytes(bytes, at);
    std::byte* const to = message.data + at;
    const bool is_last = at + size == bytes;
    part->Wait(TimeUntil(deadline));
    TESSERA_RETURN_IF_ERROR(
        cipher_->Add({is_last ? message.sealed.data() : to, size}, to));
  }
  MessageCipher::Tag tag;
  std::memcpy(tag.data(), message.sealed.data() + size, sizeof(tag));
  return Authenticate(tag);
}

absl::Status MessageChannel::Authenticate(const MessageCipher::Tag& tag) {
  const absl::Status status = cipher_->Open(tag);
  if (status.ok()) return status;
  return Annotate(status, absl::StrCat("a message of ", group_.Describe(peer_),
                                       " is not authentic"));
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
    status = AwaitFrame(*message, deadline);
    if (status.ok()) status = AwaitRest(*message, deadline);
  } catch (const std::exception& error) {
    status = group_.Explain(error, context, peer_);
  }
  lock.lock();
  driven_ = false;
  if (status.ok()) {
    pending_.pop_front();
    ++completed_;
    if (message->sealed.size() > spare_.size() &&
        message->sealed.size() <= kMostSpareBytes) {
      message->sealed.swap(spare_);
    }
  } else {
    status_ = status;
  }
  changed_.notify_all();
  moved_.Add();
  return status;
}

// Waits for the frame of the message without a receive, without the lock.
absl::Status MessageChannel::DrivePeeked(std::unique_lock<std::mutex>& lock,
                                         int64_t deadline,
                                         const OperationContext* context) {
  driven_ = true;
  const std::shared_ptr<Message> message = peeked_;
  lock.unlock();
  absl::Status status;
  try {
    status = AwaitFrame(*message, deadline);
  } catch (const std::exception& error) {
    status = group_.Explain(error, context, peer_);
  }
  lock.lock();
  driven_ = false;
  message->has_frame = status.ok();
  status_.Update(status);
  changed_.notify_all();
  moved_.Add();
  return status;
}

bool MessageChannel::WaitForNext(const OperationContext& context) {
  std::unique_lock lock(mutex_);
  if (driven_ || !status_.ok()) return false;
  const bool has_peeked = peeked_ != nullptr && !peeked_->has_frame;
  if (pending_.empty() && !has_peeked) return false;
  // status_ keeps an error.
  static_cast<void>(pending_.empty()
                        ? DrivePeeked(lock, context.deadline(), &context)
                        : DriveFront(lock, context.deadline(), &context));
  return true;
}

void MessageChannel::WakeWorker() {
  if (!worker_.joinable()) worker_ = std::thread([this] { Work(); });
  changed_.notify_all();
}

absl::StatusOr<bool> MessageChannel::Test(uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (number <= completed_) return true;
  TESSERA_RETURN_IF_ERROR(group_.failure().status());
  TESSERA_RETURN_IF_ERROR(status_);
  if (number <= tested_) {
    tested_again_ = std::max(tested_again_, number);
    WakeWorker();
  }
  tested_ = std::max(tested_, number);
  return false;
}

void MessageChannel::Work() {
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  const auto peeks = [this] {
    return peeked_ != nullptr && !peeked_->has_frame && peeks_again_;
  };
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] {
      const bool has_work = peeks() || completed_ < tested_again_;
      return closing_ || (has_work && !driven_ && status_.ok());
    });
    if (closing_) return;
    // status_ keeps an error.
    static_cast<void>(peeks() ? DrivePeeked(lock, kNever, nullptr)
                              : DriveFront(lock, kNever, nullptr));
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
      self_{SelfMessages(group_->rank()), SelfMessages(group_->rank()),
            SelfMessages(group_->rank())},
      channels_(static_cast<size_t>(group_->size()) * kLaneCountWithTags * 2) {}

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
  const auto index = (static_cast<size_t>(peer.value()) * kLaneCountWithTags +
                      static_cast<size_t>(lane)) *
                         2 +
                     static_cast<size_t>(direction);
  const std::lock_guard lock(channels_mutex_);
  std::unique_ptr<MessageChannel>& channel = channels_[index];
  if (channel == nullptr) {
    channel = std::make_unique<MessageChannel>(*group_, peer, lane, direction,
                                               moved_);
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

absl::StatusOr<std::optional<Signature>> BlockingTransport::Peek(Rank from,
                                                                 Lane lane) {
  TESSERA_RETURN_IF_ERROR(CheckStart(from));
  if (from == rank()) return SelfOn(lane).Peek();
  return ChannelOf(from, lane, Direction::kReceive).Peek();
}

absl::Status BlockingTransport::WaitUntil(
    OperationContext& context, absl::FunctionRef<bool()> ready,
    absl::FunctionRef<void(std::vector<int64_t>&)> missing,
    const Request* only) {
  // The failure of a group without messages in flight moves none.
  constexpr std::chrono::milliseconds kLongest(20);
  const bool awaits_end = only != nullptr && only->peer != rank();
  while (true) {
    const uint64_t moved = moved_.count();
    const bool waited = awaits_end && ChannelOf(*only).WaitForNext(context);
    if (ready()) return absl::OkStatus();
    TESSERA_RETURN_IF_ERROR(group_->failure().status());
    if (context.Expired()) break;
    if (waited) continue;
    moved_.Await(moved, std::min(kLongest, TimeUntil(context.deadline())));
  }
  std::vector<int64_t> numbers;
  missing(numbers);
  const std::vector<Rank> ranks(numbers.begin(), numbers.end());
  return group_->peers().Missing(context, rank(), ranks);
}

void BlockingTransport::Abort(const absl::Status& reason) {
  for (SelfMessages& messages : self_) messages.Fail(reason);
  moved_.Add();
}

}  // namespace tessera::collectives

#include "collectives/channel/connection.h"

#include <poll.h>

#include <array>
#include <optional>

#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;  // Larger than a TLS record.
constexpr size_t kReadsInARow = 4;
// With more unsent bytes than this, reading pauses until the peer has received
// answers.
constexpr size_t kMaxQueued = size_t{8} << 20;

int16_t EventsOf(Want want) {
  if (want == Want::kNothing) return 0;
  return want == Want::kRead ? POLLIN : POLLOUT;
}

}  // namespace

int16_t Connection::events() const {
  if (!handshaken_) return EventsOf(want_);
  int16_t events = 0;
  if (queued_bytes() < kMaxQueued) {
    events = static_cast<int16_t>(POLLIN | EventsOf(want_));
  }
  if (queued_bytes() > 0) {
    events = static_cast<int16_t>(events | EventsOf(write_want_));
  }
  return events;
}

absl::Status Connection::Advance(std::vector<Message>* in) {
  if (!handshaken_) TESSERA_RETURN_IF_ERROR(Shake());
  if (!handshaken_) return absl::OkStatus();
  const absl::Status sent = Send();
  // Messages received before the other end closed are still delivered.
  TESSERA_RETURN_IF_ERROR(Receive(in));
  return sent;
}

absl::Status Connection::Shake() {
  TESSERA_ASSIGN_OR_RETURN(want_, channel_->Handshake());
  if (want_ == Want::kNothing) {
    handshaken_ = true;
    want_ = Want::kRead;
  }
  return absl::OkStatus();
}

absl::Status Connection::Send() {
  while (queued_bytes() > 0) {
    TESSERA_ASSIGN_OR_RETURN(
        const Progress progress,
        channel_->Write(std::string_view(out_).substr(sent_)));
    write_want_ = progress.want;
    if (progress.want != Want::kNothing) break;
    write_want_ = Want::kWrite;
    sent_ += progress.bytes;
  }
  // Drops sent bytes when they are more than half of the buffer.
  if (sent_ * 2 >= out_.size()) {
    out_.erase(0, sent_);
    sent_ = 0;
  }
  return absl::OkStatus();
}

absl::Status Connection::Receive(std::vector<Message>* in) {
  if (queued_bytes() >= kMaxQueued) return absl::OkStatus();
  std::array<char, kReadBytes> buffer;
  for (size_t i = 0; i < kReadsInARow; ++i) {
    TESSERA_ASSIGN_OR_RETURN(const Progress progress, channel_->Read(buffer));
    want_ = progress.want == Want::kNothing ? Want::kRead : progress.want;
    if (progress.want != Want::kNothing) break;
    reader_.Append(std::string_view(buffer.data(), progress.bytes));
    TESSERA_RETURN_IF_ERROR(Cut(in));
  }
  return absl::OkStatus();
}

absl::Status Connection::Cut(std::vector<Message>* in) {
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(std::optional<Message> message, reader_.Next());
    if (!message) return absl::OkStatus();
    in->push_back(*std::move(message));
  }
}

}  // namespace tessera::collectives

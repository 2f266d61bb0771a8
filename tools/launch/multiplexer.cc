#include "tools/launch/multiplexer.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

namespace tessera::tools {
namespace {

constexpr size_t kReadSize = 64 << 10;
// So much may wait for a slow reader before ranks have to wait.
constexpr size_t kMaxPending = 1 << 20;

}  // namespace

OutputMultiplexer::OutputMultiplexer(int out_fd, int err_fd,
                                     const LineWriter& writer)
    : targets_{Target{DescriptorSink(out_fd, "standard output"), writer},
               Target{DescriptorSink(err_fd, "standard error"), writer}},
      read_buffer_(kReadSize) {}

void OutputMultiplexer::Add(size_t source, Stream stream, UniqueFd read_end) {
  channels_.push_back(
      {.source = source, .stream = stream, .fd = std::move(read_end)});
}

void OutputMultiplexer::AppendPollFds(std::vector<pollfd>& fds) {
  polled_from_ = fds.size();
  polled_channels_.clear();
  for (size_t i = 0; i < channels_.size(); ++i) {
    const Channel& channel = channels_[i];
    if (!channel.fd.valid()) continue;
    if (TargetOf(channel).sink.pending() >= kMaxPending) continue;
    polled_channels_.push_back(i);
    fds.push_back({channel.fd.get(), POLLIN, 0});
  }
  for (const Target& target : targets_) {
    if (target.sink.pending() > 0) {
      fds.push_back({target.sink.fd(), POLLOUT, 0});
    }
  }
}

int OutputMultiplexer::PollMillis(Time now) const {
  std::optional<Time> first;
  for (const Channel& channel : channels_) {
    if (!channel.partial_since) continue;
    if (!first || *channel.partial_since < *first) {
      first = channel.partial_since;
    }
  }
  if (!first) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(
      *first + kPartialLineAge - now);
  return static_cast<int>(std::max<int64_t>(left.count(), 0));
}

absl::Status OutputMultiplexer::Service(std::span<const pollfd> fds, Time now) {
  for (size_t i = 0; i < polled_channels_.size(); ++i) {
    if (fds[polled_from_ + i].revents == 0) continue;
    ReadOnce(channels_[polled_channels_[i]], now);
  }
  for (Channel& channel : channels_) {
    if (channel.partial_since &&
        now - *channel.partial_since >= kPartialLineAge) {
      FlushPartial(channel);
    }
  }
  return WriteSinks();
}

absl::Status OutputMultiplexer::ReadRemaining() {
  for (Channel& channel : channels_) {
    int there = 0;
    if (channel.fd.valid()) ioctl(channel.fd.get(), FIONREAD, &there);
    for (int64_t left = there; left > 0;) {
      const int64_t got = ReadOnce(channel, Time());
      if (got <= 0) break;
      left -= got;
    }
    FlushPartial(channel);
    channel.fd.Reset();
  }
  for (Target& target : targets_) target.writer.Finish(target.sink.buffer());
  return WriteSinks();
}

bool OutputMultiplexer::has_pending() const {
  return std::any_of(
      targets_.begin(), targets_.end(),
      [](const Target& target) { return target.sink.pending() > 0; });
}

int64_t OutputMultiplexer::ReadOnce(Channel& channel, Time now) {
  ssize_t got = -1;
  do {
    got = read(channel.fd.get(), read_buffer_.data(), read_buffer_.size());
  } while (got < 0 && errno == EINTR);
  if (got < 0 && errno == EAGAIN) return 0;
  if (got <= 0) {
    FlushPartial(channel);
    channel.fd.Reset();
    return 0;
  }
  Target& target = TargetOf(channel);
  const std::string_view bytes(read_buffer_.data(), static_cast<size_t>(got));
  const bool had_partial = channel.splitter.has_partial();
  channel.splitter.Append(bytes, [&](Piece piece) {
    target.writer.Write(channel.source, piece, target.sink.buffer());
  });
  if (!channel.splitter.has_partial()) {
    channel.partial_since.reset();
  } else if (!had_partial || bytes.find('\n') != std::string_view::npos) {
    channel.partial_since = now;
  }
  return got;
}

void OutputMultiplexer::FlushPartial(Channel& channel) {
  Target& target = TargetOf(channel);
  channel.splitter.Flush([&](Piece piece) {
    target.writer.Write(channel.source, piece, target.sink.buffer());
  });
  channel.partial_since.reset();
}

absl::Status OutputMultiplexer::WriteSinks() {
  absl::Status status;
  for (Target& target : targets_) status.Update(target.sink.WriteSome());
  return status;
}

}  // namespace tessera::tools

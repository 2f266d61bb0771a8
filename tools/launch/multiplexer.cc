#include "tools/launch/multiplexer.h"

#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera::tools {

namespace {

// Foreground colours that are readable on dark and on light terminals.
constexpr std::array<int, 6> kColours = {36, 33, 32, 35, 34, 31};

bool IsRegularFile(int fd) {
  struct stat file;
  return fstat(fd, &file) == 0 && S_ISREG(file.st_mode);
}

constexpr size_t kReadSize = 64 << 10;
// The limit of pending bytes for a slow reader, at which the ranks have to
// wait.
constexpr size_t kMaxPending = 1 << 20;

}  // namespace

void LineSplitter::Append(std::string_view bytes,
                          absl::FunctionRef<void(Piece)> emit) {
  while (true) {
    const size_t newline = bytes.find('\n');
    if (newline == std::string_view::npos) {
      AppendToLine(bytes, emit);
      return;
    }
    if (partial_.empty() && newline <= max_line_) {
      emit({bytes.substr(0, newline), PieceEnd::kNewline});
    } else {
      AppendToLine(bytes.substr(0, newline), emit);
      emit({partial_, PieceEnd::kNewline});
      partial_.clear();
    }
    bytes.remove_prefix(newline + 1);
  }
}

void LineSplitter::AppendToLine(std::string_view bytes,
                                absl::FunctionRef<void(Piece)> emit) {
  while (partial_.size() + bytes.size() > max_line_) {
    const size_t taken = max_line_ - partial_.size();
    partial_.append(bytes.substr(0, taken));
    emit({partial_, PieceEnd::kBroken});
    partial_.clear();
    bytes.remove_prefix(taken);
  }
  partial_.append(bytes);
}

void LineSplitter::Flush(absl::FunctionRef<void(Piece)> emit) {
  if (partial_.empty()) return;
  emit({partial_, PieceEnd::kPartial});
  partial_.clear();
}

std::vector<std::string> RankPrefixes(int64_t first, int64_t count,
                                      int64_t world_size, bool colour) {
  const int width = static_cast<int>(absl::StrCat(world_size - 1).size());
  std::vector<std::string> prefixes;
  for (int64_t rank = first; rank < first + count; ++rank) {
    std::string label = absl::StrFormat("[%*d]", width, rank);
    if (colour) {
      const int code = kColours[static_cast<size_t>(rank) % kColours.size()];
      label = absl::StrFormat("\x1b[%dm%s\x1b[0m", code, label);
    }
    prefixes.push_back(absl::StrCat(label, " "));
  }
  return prefixes;
}

void LineWriter::Write(size_t source, const Piece& piece, std::string& out) {
  const bool ends = piece.end == PieceEnd::kNewline;
  if (prefixes_.empty()) {
    absl::StrAppend(&out, piece.text, ends ? "\n" : "");
    return;
  }
  const bool was_interrupted = interrupted_[source];
  interrupted_[source] = false;
  // The line was already ended; only its newline is left.
  if (was_interrupted && ends && piece.text.empty()) return;
  if (open_ != source) {
    if (open_) interrupted_[*open_] = true;
    Finish(out);
    out += prefixes_[source];
  }
  out += piece.text;
  open_ = source;
  if (piece.end != PieceEnd::kPartial) Finish(out);
}

void LineWriter::Finish(std::string& out) {
  if (open_) out += '\n';
  open_.reset();
}

DescriptorSink::DescriptorSink(int fd, std::string name)
    : fd_(fd), name_(std::move(name)), is_file_(IsRegularFile(fd)) {}

absl::Status DescriptorSink::WriteSome() {
  while (pending() > 0 && failure_.ok() && IsReady()) failure_ = WriteOnce();
  const bool is_done = pending() == 0 || !failure_.ok();
  if (is_done || written_ >= buffer_.size() / 2) {
    buffer_.erase(0, is_done ? buffer_.size() : written_);
    written_ = 0;
  }
  return failure_;
}

bool DescriptorSink::IsReady() const {
  if (is_file_) return true;
  pollfd descriptor = {fd_, POLLOUT, 0};
  return poll(&descriptor, 1, 0) > 0;
}

absl::Status DescriptorSink::WriteOnce() {
  // A write of up to PIPE_BUF bytes to a ready descriptor does not block.
  const size_t count =
      is_file_ ? pending() : std::min<size_t>(pending(), PIPE_BUF);
  const ssize_t written = write(fd_, buffer_.data() + written_, count);
  if (written >= 0) {
    written_ += static_cast<size_t>(written);
    return absl::OkStatus();
  }
  if (errno == EINTR || errno == EAGAIN) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(name_, " could not be written: ", strerror(errno)));
}

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

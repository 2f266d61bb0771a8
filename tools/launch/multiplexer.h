// OutputMultiplexer, which merges the output of many ranks line by line into
// standard output and standard error, and its parts: LineSplitter cuts a stream
// into lines, LineWriter prefixes and interleaves the lines of many ranks, and
// DescriptorSink writes without blocking.
//
//   OutputMultiplexer output(1, 2, LineWriter(prefixes));
//   output.Add(0, Stream::kOut, std::move(read_end));
//   while (...) {
//     std::vector<pollfd> fds = {...};
//     output.AppendPollFds(fds);
//     poll(fds.data(), fds.size(), output.PollMillis(now));
//     output.Service(fds, now);
//   }
//   output.ReadRemaining();
#ifndef TESSERA_TOOLS_LAUNCH_MULTIPLEXER_H_
#define TESSERA_TOOLS_LAUNCH_MULTIPLEXER_H_

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/os/unique_fd.h"

namespace tessera::tools {

enum class PieceEnd {
  kNewline,  // The line is complete; the text excludes the newline.
  kBroken,   // The line is too long; the rest follows.
  kPartial,  // Flushed; the rest may follow.
};

struct Piece {
  std::string_view text;
  PieceEnd end = PieceEnd::kNewline;

  friend bool operator==(const Piece&, const Piece&) = default;
};

// Cuts a stream of bytes into lines of bounded length.
//
//   LineSplitter splitter(LineSplitter::kMaxLine);
//   splitter.Append("loss 2.3\nlo", emit);  // Emits "loss 2.3", kNewline.
//   splitter.Flush(emit);                   // Emits "lo", kPartial.
//
// The pieces do not depend on how the stream is divided into Append calls. No
// byte is lost: the concatenated texts, with a newline after each kNewline,
// equal the stream.
class LineSplitter {
 public:
  static constexpr size_t kMaxLine = 64 << 10;

  // Breaks a line of more than `max_line` bytes, excluding the newline, after
  // every `max_line` bytes. `max_line` is at least 1.
  explicit LineSplitter(size_t max_line) : max_line_(max_line) {}

  // The texts are valid only during the call of `emit`.
  void Append(std::string_view bytes, absl::FunctionRef<void(Piece)> emit);

  // Emits an incomplete line, if there is one, as kPartial, and restarts the
  // count of its length.
  void Flush(absl::FunctionRef<void(Piece)> emit);

  bool has_partial() const { return !partial_.empty(); }

 private:
  void AppendToLine(std::string_view bytes,
                    absl::FunctionRef<void(Piece)> emit);

  size_t max_line_;
  std::string partial_;
};

// The prefixes of `count` ranks from `first` on, such as "[ 8] ", "[ 9] ",
// "[10] ", padded to the width of the largest rank below `world_size`; with
// terminal colours if `colour`.
std::vector<std::string> RankPrefixes(int64_t first, int64_t count,
                                      int64_t world_size, bool colour);

// Writes the lines of many ranks into one stream without mixing them.
//
//   LineWriter writer(RankPrefixes(0, 4, 4, false));
//   writer.Write(1, {"step 7", PieceEnd::kNewline}, out);  // "[1] step 7\n"
//
// With prefixes, every line begins with its rank's prefix. A line that was
// flushed before its end is continued if no other rank wrote in between;
// otherwise it is ended, and its rest begins a new line. Without prefixes no
// byte is added.
class LineWriter {
 public:
  // A writer that adds no prefix and no newline.
  LineWriter() = default;
  // `prefixes[i]` is the prefix of source i.
  explicit LineWriter(std::vector<std::string> prefixes)
      : prefixes_(std::move(prefixes)), interrupted_(prefixes_.size()) {}

  // Appends a piece of source `source`, which is below the number of prefixes,
  // to `out`.
  void Write(size_t source, const Piece& piece, std::string& out);

  // Ends the open line, if there is one.
  void Finish(std::string& out);

 private:
  std::vector<std::string> prefixes_;
  std::vector<bool> interrupted_;  // An open line was ended for another source.
  std::optional<size_t> open_;     // The source of the open line.
};

// Buffers bytes for a descriptor that may be slow, such as a terminal or a
// pipe.
//
//   DescriptorSink sink(STDOUT_FILENO, "standard output");
//   sink.buffer() += text;
//   while (sink.pending() > 0) {
//     pollfd fd = {sink.fd(), POLLOUT, 0};
//     poll(&fd, 1, -1);
//     TESSERA_RETURN_IF_ERROR(sink.WriteSome());
//   }
//
// Does not change the descriptor's blocking mode, because other processes share
// it, and therefore writes only as much at a time as is sure to fit.
class DescriptorSink {
 public:
  // `fd` is borrowed. `name` is for messages.
  DescriptorSink(int fd, std::string name);

  int fd() const { return fd_; }
  std::string& buffer() { return buffer_; }
  size_t pending() const { return buffer_.size() - written_; }

  // Writes as much as possible without waiting. Unavailable, with the system's
  // message, if writing fails: pending and later bytes are dropped.
  absl::Status WriteSome();

 private:
  absl::Status WriteOnce();
  bool IsReady() const;

  int fd_;
  std::string name_;
  bool is_file_;  // Never blocks.
  std::string buffer_;
  size_t written_ = 0;
  absl::Status failure_;
};

enum class Stream { kOut, kErr };

// Bounded: while a sink is slow, the ranks' pipes fill up and the ranks wait.
// Not thread-safe.
class OutputMultiplexer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // An incomplete line is written after this time.
  static constexpr std::chrono::milliseconds kPartialLineAge{500};

  // Borrows `out_fd` and `err_fd`; each gets a copy of `writer`.
  OutputMultiplexer(int out_fd, int err_fd, const LineWriter& writer);

  // Adds the non-blocking `read_end` as the output of source `source` of the
  // LineWriter.
  void Add(size_t source, Stream stream, UniqueFd read_end);

  // Appends the descriptors that Service reads and writes.
  void AppendPollFds(std::vector<pollfd>& fds);
  // Milliseconds until an incomplete line is due; -1 if there is none.
  int PollMillis(Time now) const;
  // Reads and writes the ready descriptors. `fds` is the vector of
  // AppendPollFds after poll(2). After a write error, every call returns that
  // error and discards the output it reads.
  absl::Status Service(std::span<const pollfd> fds, Time now);

  // Reads what is in the pipes without waiting, closes them and ends every
  // line. This is all output if all writers have exited.
  absl::Status ReadRemaining();

  // True if bytes are pending for a slow reader; Service writes them.
  bool has_pending() const;

 private:
  struct Channel {
    size_t source = 0;
    Stream stream = Stream::kOut;
    UniqueFd fd;
    LineSplitter splitter{LineSplitter::kMaxLine};
    std::optional<Time> partial_since = std::nullopt;
  };
  struct Target {
    DescriptorSink sink;
    LineWriter writer;
  };

  Target& TargetOf(const Channel& channel) {
    return targets_[channel.stream == Stream::kOut ? 0 : 1];
  }
  // Returns the number of bytes read; 0 if there are none now or at the end.
  int64_t ReadOnce(Channel& channel, Time now);
  void FlushPartial(Channel& channel);
  absl::Status WriteSinks();

  std::array<Target, 2> targets_;
  std::vector<Channel> channels_;
  // The channels of the entries of `fds` from index polled_from_ on, in order.
  std::vector<size_t> polled_channels_;
  size_t polled_from_ = 0;
  std::vector<char> read_buffer_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_MULTIPLEXER_H_

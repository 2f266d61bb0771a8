// OutputMultiplexer: reads what many ranks print and writes it, line by line,
// to standard output and standard error.
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
//
// Bounded: while a reader of ours is slow, the ranks' pipes fill up and the
// ranks wait. Not for use by several threads at once.
#ifndef TESSERA_TOOLS_LAUNCH_MULTIPLEXER_H_
#define TESSERA_TOOLS_LAUNCH_MULTIPLEXER_H_

#include <poll.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/os/unique_fd.h"
#include "tools/launch/descriptor_sink.h"
#include "tools/launch/line_splitter.h"
#include "tools/launch/line_writer.h"

namespace tessera::tools {

enum class Stream { kOut, kErr };

class OutputMultiplexer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // A line without its end is shown after this time.
  static constexpr std::chrono::milliseconds kPartialLineAge{500};

  // `out_fd` and `err_fd` are borrowed; `writer` is how both begin.
  OutputMultiplexer(int out_fd, int err_fd, const LineWriter& writer);

  // What comes out of `read_end`, which must not block, is output of source
  // `source` of the writer.
  void Add(size_t source, Stream stream, UniqueFd read_end);

  // Appends what Service waits for.
  void AppendPollFds(std::vector<pollfd>& fds);
  // How long poll(2) may wait: until a partial line is to be shown; -1 for
  // ever.
  int PollMillis(Time now) const;
  // Reads and writes what is ready. `fds` is the vector of AppendPollFds after
  // poll(2). The first error of writing; later ones repeat it, and output is
  // read and dropped from then on.
  absl::Status Service(std::span<const pollfd> fds, Time now);

  // Reads what is in the pipes at this moment, waiting for nobody, closes them
  // and ends every line. With all writers dead, that is everything.
  absl::Status ReadRemaining();

  // Whether bytes wait for a slow reader; Service writes them.
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
  // How many bytes came; 0 where there are none now, or will never be.
  int64_t ReadOnce(Channel& channel, Time now);
  void FlushPartial(Channel& channel);
  absl::Status WriteSinks();

  std::array<Target, 2> targets_;
  std::vector<Channel> channels_;
  // What stands in `fds` from index polled_from_ on, in that order.
  std::vector<size_t> polled_channels_;
  size_t polled_from_ = 0;
  std::vector<char> read_buffer_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_MULTIPLEXER_H_

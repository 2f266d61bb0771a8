// DescriptorSink: bytes that wait to be written to a descriptor that may be
// slow, such as a terminal or a pipe.
//
//   DescriptorSink sink(STDOUT_FILENO, "standard output");
//   sink.buffer() += text;
//   while (sink.pending() > 0) {
//     pollfd fd = {sink.fd(), POLLOUT, 0};
//     poll(&fd, 1, -1);
//     TESSERA_RETURN_IF_ERROR(sink.WriteSome());
//   }
//
// The descriptor stays as blocking as it is, because it is shared with other
// processes; no more than fits is written at a time.
#ifndef TESSERA_TOOLS_LAUNCH_DESCRIPTOR_SINK_H_
#define TESSERA_TOOLS_LAUNCH_DESCRIPTOR_SINK_H_

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"

namespace tessera::tools {

class DescriptorSink {
 public:
  // `fd` is borrowed. `name` is for messages.
  DescriptorSink(int fd, std::string name);

  int fd() const { return fd_; }
  std::string& buffer() { return buffer_; }
  size_t pending() const { return buffer_.size() - written_; }

  // Writes as much as can be written without waiting. Unavailable, with the
  // system's words, where the descriptor takes no more: what was pending is
  // dropped then, and so is everything that comes after.
  absl::Status WriteSome();

 private:
  absl::Status WriteOnce();
  bool IsReady() const;

  int fd_;
  std::string name_;
  bool is_file_;  // Never makes anybody wait.
  std::string buffer_;
  size_t written_ = 0;
  absl::Status failure_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_DESCRIPTOR_SINK_H_

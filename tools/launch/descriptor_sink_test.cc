#include "tools/launch/descriptor_sink.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/os/unique_fd.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using ::testing::HasSubstr;

struct Pipe {
  Pipe() {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    reader.Reset(fds[0]);
    writer.Reset(fds[1]);
  }
  std::string Read(size_t count) {
    std::string bytes(count, '\0');
    const ssize_t got = read(reader.get(), bytes.data(), count);
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }
  UniqueFd reader;
  UniqueFd writer;
};

TEST(DescriptorSinkTest, WritesWhatFitsAndKeepsTheRestInOrder) {
  Pipe pipe;
  DescriptorSink sink(pipe.writer.get(), "the pipe");
  std::string sent;
  for (int i = 0; sent.size() < (1 << 20); ++i) sent += std::to_string(i);
  sink.buffer() = sent;
  std::string received;
  while (true) {
    // The reader is slow, and this thread is it: a blocking write would hang.
    TESSERA_ASSERT_OK(sink.WriteSome());
    if (sink.pending() == 0) break;
    received += pipe.Read(10000);
  }
  pipe.writer.Reset();
  while (received.size() < sent.size()) received += pipe.Read(1 << 20);
  EXPECT_EQ(received, sent);
}

TEST(DescriptorSinkTest, DoesNotGrowWhileItIsNeverEmpty) {
  Pipe pipe;
  DescriptorSink sink(pipe.writer.get(), "the pipe");
  sink.buffer() = std::string(1 << 20, 'x');
  for (int i = 0; i < 2000; ++i) {
    TESSERA_ASSERT_OK(sink.WriteSome());
    sink.buffer().append(pipe.Read(8192).size(), 'y');
    ASSERT_LT(sink.buffer().size(), size_t{3} << 20);
  }
  EXPECT_GT(sink.pending(), size_t{900} << 10);
}

TEST(DescriptorSinkTest, WritesAFileAtOnce) {
  std::string path = testing::TempDir() + "/sink_XXXXXX";
  UniqueFd file(mkstemp(path.data()));
  ASSERT_TRUE(file.valid());
  DescriptorSink sink(file.get(), "the file");
  sink.buffer() = std::string(1 << 20, 'x');
  TESSERA_ASSERT_OK(sink.WriteSome());
  EXPECT_EQ(sink.pending(), 0u);
  EXPECT_EQ(lseek(file.get(), 0, SEEK_END), 1 << 20);
  unlink(path.c_str());
}

TEST(DescriptorSinkTest, AReaderThatIsGoneIsAnErrorFromThenOn) {
  signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  DescriptorSink sink(pipe.writer.get(), "standard output");
  pipe.reader.Reset();
  for (int i = 0; i < 2; ++i) {
    sink.buffer() += "lost\n";
    EXPECT_THAT(
        sink.WriteSome(),
        StatusIs(absl::StatusCode::kUnavailable,
                 HasSubstr("standard output could not be written: Broken")));
    EXPECT_EQ(sink.pending(), 0u);
  }
}

TEST(DescriptorSinkTest, AFullDeviceIsAnError) {
  UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  DescriptorSink sink(full.get(), "standard output");
  sink.buffer() = "lost\n";
  EXPECT_THAT(sink.WriteSome(), StatusIs(absl::StatusCode::kUnavailable,
                                         HasSubstr("No space left")));
}

}  // namespace
}  // namespace tessera::tools

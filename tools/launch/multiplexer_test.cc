#include "tools/launch/multiplexer.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::tools {
namespace {

using std::chrono::milliseconds;

class MultiplexerTest : public ::testing::Test {
 protected:
  struct Pipe {
    UniqueFd reader;
    UniqueFd writer;
  };

  static Pipe MakePipe() {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    EXPECT_EQ(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    return {UniqueFd(fds[0]), UniqueFd(fds[1])};
  }

  // The end to write into.
  UniqueFd AddSource(size_t source, Stream stream = Stream::kOut) {
    Pipe pipe = MakePipe();
    output_.Add(source, stream, std::move(pipe.reader));
    return std::move(pipe.writer);
  }

  static void Print(const UniqueFd& fd, std::string_view text) {
    ASSERT_EQ(write(fd.get(), text.data(), text.size()),
              static_cast<ssize_t>(text.size()));
  }

  static std::string Read(const Pipe& pipe) {
    std::string bytes(1 << 20, '\0');
    const ssize_t got = read(pipe.reader.get(), bytes.data(), bytes.size());
    bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
    return bytes;
  }

  void Step() {
    std::vector<pollfd> fds = {{-1, 0, 0}};
    output_.AppendPollFds(fds);
    poll(fds.data(), fds.size(), 0);
    TESSERA_ASSERT_OK(output_.Service(fds, now_));
  }

  Pipe out_ = MakePipe();
  Pipe err_ = MakePipe();
  OutputMultiplexer output_{out_.writer.get(), err_.writer.get(),
                            LineWriter(RankPrefixes(0, 2, 2, false))};
  OutputMultiplexer::Time now_{};
};

TEST_F(MultiplexerTest, KeepsStandardOutputAndErrorApart) {
  const UniqueFd out = AddSource(0);
  const UniqueFd err = AddSource(1, Stream::kErr);
  Print(out, "result\n");
  Print(err, "progress\n");
  Step();
  EXPECT_EQ(Read(out_), "[0] result\n");
  EXPECT_EQ(Read(err_), "[1] progress\n");
}

TEST_F(MultiplexerTest, HoldsAPartialLineBackForAWhile) {
  const UniqueFd first = AddSource(0);
  const UniqueFd second = AddSource(1);
  Print(first, "lo");
  Step();
  EXPECT_EQ(output_.PollMillis(now_), 500);
  now_ += milliseconds(499);
  Print(second, "a\n");
  Print(first, "ss");
  Step();
  EXPECT_EQ(output_.PollMillis(now_), 1);
  EXPECT_EQ(Read(out_), "[1] a\n");
  now_ += milliseconds(1);
  Step();
  EXPECT_EQ(Read(out_), "[0] loss");
  EXPECT_EQ(output_.PollMillis(now_), -1);
  Print(first, " 2.3\n");
  Step();
  EXPECT_EQ(Read(out_), " 2.3\n");
}

TEST_F(MultiplexerTest, ACompletedLineIsNoLongerPartial) {
  const UniqueFd source = AddSource(0);
  Print(source, "lo");
  Step();
  now_ += milliseconds(400);
  Print(source, "ss\nne");
  Step();
  EXPECT_EQ(Read(out_), "[0] loss\n");
  EXPECT_EQ(output_.PollMillis(now_), 500);
  Print(source, "xt\n");
  Step();
  EXPECT_EQ(output_.PollMillis(now_), -1);
}

TEST_F(MultiplexerTest, EndOfFileShowsWhatIsLeft) {
  UniqueFd source = AddSource(0);
  Print(source, "bye");
  source.Reset();
  Step();
  Step();
  EXPECT_EQ(Read(out_), "[0] bye");
  TESSERA_EXPECT_OK(output_.ReadRemaining());
  EXPECT_EQ(Read(out_), "\n");
}

TEST_F(MultiplexerTest, ReadRemainingWaitsForNobody) {
  const UniqueFd source = AddSource(0);
  Print(source, "one\ntwo");
  TESSERA_EXPECT_OK(output_.ReadRemaining());  // The pipe is still open.
  EXPECT_EQ(Read(out_), "[0] one\n[0] two\n");
  EXPECT_FALSE(output_.has_pending());
}

TEST_F(MultiplexerTest, ASlowReaderMakesTheSourcesWaitAndLosesNothing) {
  UniqueFd source = AddSource(0);
  ASSERT_EQ(fcntl(source.get(), F_SETFL, O_NONBLOCK), 0);
  const std::string line(1023, 'x');
  int64_t printed = 0;
  for (int i = 0; i < 10000; ++i) {
    if (write(source.get(), absl::StrCat(line, "\n").data(), 1024) == 1024) {
      ++printed;
    }
    Step();
  }
  EXPECT_LT(printed, 2000);  // Of 10,000: about what the buffers hold.
  source.Reset();
  std::string all;
  for (int i = 0; i < 10000; ++i) {
    Step();
    const std::string bytes = Read(out_);
    if (bytes.empty() && !output_.has_pending()) break;
    all += bytes;
  }
  std::string expected;
  for (int64_t i = 0; i < printed; ++i) {
    absl::StrAppend(&expected, "[0] ", line, "\n");
  }
  EXPECT_EQ(all, expected);
}

TEST_F(MultiplexerTest, AfterAnErrorOutputIsReadAndDropped) {
  UniqueFd full(open("/dev/full", O_WRONLY | O_CLOEXEC));
  OutputMultiplexer output(full.get(), err_.writer.get(), LineWriter());
  Pipe pipe = MakePipe();
  output.Add(0, Stream::kOut, std::move(pipe.reader));
  for (int i = 0; i < 3; ++i) {
    Print(pipe.writer, "lost\n");
    std::vector<pollfd> fds;
    output.AppendPollFds(fds);
    ASSERT_EQ(poll(fds.data(), fds.size(), 1000), 1);
    EXPECT_THAT(output.Service(fds, now_),
                StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_FALSE(output.has_pending());
  }
}

}  // namespace
}  // namespace tessera::tools

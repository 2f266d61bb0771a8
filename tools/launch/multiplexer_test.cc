#include "tools/launch/multiplexer.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/os/unique_fd.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::tools {

namespace {

using Pieces = std::vector<std::pair<std::string, PieceEnd>>;

struct Collector {
  void operator()(Piece piece) const {
    pieces.emplace_back(std::string(piece.text), piece.end);
  }
  mutable Pieces pieces;
};

// Processes the whole stream at once, byte by byte.
Pieces Reference(const std::string& stream, size_t max_line) {
  Pieces pieces;
  std::string line;
  for (const char byte : stream) {
    if (byte == '\n') {
      pieces.emplace_back(std::exchange(line, ""), PieceEnd::kNewline);
      continue;
    }
    if (line.size() == max_line) {
      pieces.emplace_back(std::exchange(line, ""), PieceEnd::kBroken);
    }
    line += byte;
  }
  if (!line.empty()) pieces.emplace_back(line, PieceEnd::kPartial);
  return pieces;
}

Pieces Split(std::string_view stream, size_t max_line) {
  Collector collector;
  LineSplitter splitter(max_line);
  splitter.Append(stream, collector);
  splitter.Flush(collector);
  return collector.pieces;
}

TEST(LineSplitterTest, CutsAtNewlinesAndKeepsTheRest) {
  Collector collector;
  LineSplitter splitter(LineSplitter::kMaxLine);
  splitter.Append("loss 2.3\nlo", collector);
  EXPECT_EQ(collector.pieces, (Pieces{{"loss 2.3", PieceEnd::kNewline}}));
  EXPECT_TRUE(splitter.has_partial());
  splitter.Append("ss\n\n", collector);
  EXPECT_EQ(collector.pieces, (Pieces{{"loss 2.3", PieceEnd::kNewline},
                                      {"loss", PieceEnd::kNewline},
                                      {"", PieceEnd::kNewline}}));
  EXPECT_FALSE(splitter.has_partial());
}

TEST(LineSplitterTest, FlushesPartialLineOnce) {
  Collector collector;
  LineSplitter splitter(8);
  splitter.Flush(collector);
  splitter.Append("", collector);
  splitter.Append("name: ", collector);
  splitter.Flush(collector);
  splitter.Flush(collector);
  EXPECT_EQ(collector.pieces, (Pieces{{"name: ", PieceEnd::kPartial}}));
  splitter.Append("\n", collector);
  EXPECT_EQ(collector.pieces.back(),
            std::pair(std::string(), PieceEnd::kNewline));
}

TEST(LineSplitterTest, BreaksOnlyTooLongLines) {
  EXPECT_EQ(Split("1234\n", 4), (Pieces{{"1234", PieceEnd::kNewline}}));
  EXPECT_EQ(Split("1234", 4), (Pieces{{"1234", PieceEnd::kPartial}}));
  EXPECT_EQ(Split("12345\n", 4),
            (Pieces{{"1234", PieceEnd::kBroken}, {"5", PieceEnd::kNewline}}));
  EXPECT_EQ(Split("12345678\n", 4), (Pieces{{"1234", PieceEnd::kBroken},
                                            {"5678", PieceEnd::kNewline}}));
}

TEST(LineSplitterTest, KeepsEveryByteValue) {
  std::string stream;
  for (int byte = 0; byte < 256; ++byte) stream += static_cast<char>(byte);
  EXPECT_EQ(Split(stream, 1000), Reference(stream, 1000));
}

TEST(LineSplitterTest, MatchesReferenceForAnyChunking) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    const size_t max_line = 1 + random() % 12;
    const size_t newline_odds = 1 + random() % 12;
    std::string stream(random() % 80, 'x');
    for (char& byte : stream) {
      byte = random() % newline_odds == 0 ? '\n'
                                          : static_cast<char>(random() % 256);
    }
    Collector collector;
    LineSplitter splitter(max_line);
    for (size_t at = 0; at < stream.size();) {
      const size_t length = std::min(random() % 9, stream.size() - at);
      splitter.Append(std::string_view(stream).substr(at, length), collector);
      at += length;
    }
    splitter.Flush(collector);
    ASSERT_EQ(collector.pieces, Reference(stream, max_line)) << round;
  }
}

TEST(LineSplitterTest, FlushesAnywhereLoseNoByte) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 5000; ++round) {
    std::string stream;
    std::string rebuilt;
    const auto emit = [&](Piece piece) {
      ASSERT_LE(piece.text.size(), 5u);
      rebuilt += piece.text;
      if (piece.end == PieceEnd::kNewline) rebuilt += '\n';
    };
    LineSplitter splitter(5);
    for (int step = 0; step < 20; ++step) {
      std::string bytes(random() % 7, 'y');
      for (char& byte : bytes) byte = random() % 4 == 0 ? '\n' : 'a';
      splitter.Append(bytes, emit);
      stream += bytes;
      if (random() % 3 == 0) splitter.Flush(emit);
    }
    splitter.Flush(emit);
    ASSERT_EQ(rebuilt, stream);
  }
}

using ::testing::ElementsAre;

class LineWriterTest : public ::testing::Test {
 protected:
  void Line(size_t source, std::string_view text) {
    writer_.Write(source, {text, PieceEnd::kNewline}, out_);
  }
  void Partial(size_t source, std::string_view text) {
    writer_.Write(source, {text, PieceEnd::kPartial}, out_);
  }

  LineWriter writer_{RankPrefixes(0, 3, 3, false)};
  std::string out_;
};

TEST(RankPrefixesTest, HaveEqualWidth) {
  EXPECT_THAT(RankPrefixes(8, 3, 11, false),
              ElementsAre("[ 8] ", "[ 9] ", "[10] "));
  EXPECT_THAT(RankPrefixes(0, 1, 1, false), ElementsAre("[0] "));
  EXPECT_THAT(RankPrefixes(0, 2, 10, false), ElementsAre("[0] ", "[1] "));
}

TEST(RankPrefixesTest, ColourOnlyLabel) {
  EXPECT_THAT(RankPrefixes(0, 2, 2, true),
              ElementsAre("\x1b[36m[0]\x1b[0m ", "\x1b[33m[1]\x1b[0m "));
}

TEST_F(LineWriterTest, PutsThePrefixBeforeEveryLine) {
  Line(0, "a");
  Line(2, "");
  Line(0, "b");
  EXPECT_EQ(out_, "[0] a\n[2] \n[0] b\n");
}

TEST_F(LineWriterTest, RepeatsPrefixAfterBreak) {
  writer_.Write(1, {"long", PieceEnd::kBroken}, out_);
  Line(1, "er");
  EXPECT_EQ(out_, "[1] long\n[1] er\n");
}

TEST_F(LineWriterTest, ContinuesUninterruptedFlushedLine) {
  Partial(0, "10 %");
  Partial(0, "\r20 %");
  Line(0, " done");
  EXPECT_EQ(out_, "[0] 10 %\r20 % done\n");
}

TEST_F(LineWriterTest, EndsFlushedLineBeforeLineOfAnother) {
  Partial(0, "name: ");
  Line(1, "hello");
  Line(0, "x");
  EXPECT_EQ(out_, "[0] name: \n[1] hello\n[0] x\n");
}

TEST_F(LineWriterTest, OmitsNewlineOfEndedLine) {
  Partial(0, "name: ");
  Line(1, "hello");
  Line(0, "");
  Line(0, "");
  EXPECT_EQ(out_, "[0] name: \n[1] hello\n[0] \n");
}

TEST_F(LineWriterTest, FinishEndsAnOpenLineOnce) {
  Partial(0, "bye");
  writer_.Finish(out_);
  writer_.Finish(out_);
  EXPECT_EQ(out_, "[0] bye\n");
}

TEST(PlainLineWriterTest, AddsNoByte) {
  LineWriter writer;
  std::string out;
  writer.Write(0, {"long", PieceEnd::kBroken}, out);
  writer.Write(0, {"er", PieceEnd::kNewline}, out);
  writer.Write(0, {"part", PieceEnd::kPartial}, out);
  writer.Write(1, {"x", PieceEnd::kNewline}, out);
  writer.Write(0, {"", PieceEnd::kNewline}, out);
  writer.Finish(out);
  EXPECT_EQ(out, "longer\npartx\n\n");
}

// For every order of pieces, each line starts with a prefix, and the text after
// a source's prefixes is what the source wrote.
TEST(LineWriterFuzzTest, LinesNeverMixAndNothingIsLost) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 5000; ++round) {
    LineWriter writer(RankPrefixes(0, 3, 3, false));
    std::string out;
    std::map<size_t, std::string> written;
    for (int step = 0; step < 20; ++step) {
      const size_t source = random() % 3;
      const std::string text(random() % 3, static_cast<char>('a' + source));
      writer.Write(source, {text, static_cast<PieceEnd>(random() % 3)}, out);
      written[source] += text;
    }
    writer.Finish(out);
    ASSERT_EQ(out.back(), '\n');
    out.pop_back();
    std::map<size_t, std::string> shown;
    for (std::string_view line : absl::StrSplit(out, '\n')) {
      ASSERT_GE(line.size(), 4u) << out;
      const size_t source = static_cast<size_t>(line[1] - '0');
      ASSERT_TRUE(absl::StartsWith(line, absl::StrCat("[", source, "] ")));
      shown[source] += line.substr(4);
    }
    for (const auto& [source, text] : written) ASSERT_EQ(shown[source], text);
  }
}

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

TEST(DescriptorSinkTest, KeepsUnwrittenBytesInOrder) {
  Pipe pipe;
  DescriptorSink sink(pipe.writer.get(), "the pipe");
  std::string sent;
  for (int i = 0; sent.size() < (1 << 20); ++i) sent += std::to_string(i);
  sink.buffer() = sent;
  std::string received;
  while (true) {
    // This thread is also the slow reader, so a blocking write would hang.
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

TEST(DescriptorSinkTest, FailsAfterReaderCloses) {
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

  // Returns the write end.
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

TEST_F(MultiplexerTest, SeparatesStandardOutputAndError) {
  const UniqueFd out = AddSource(0);
  const UniqueFd err = AddSource(1, Stream::kErr);
  Print(out, "result\n");
  Print(err, "progress\n");
  Step();
  EXPECT_EQ(Read(out_), "[0] result\n");
  EXPECT_EQ(Read(err_), "[1] progress\n");
}

TEST_F(MultiplexerTest, DelaysPartialLine) {
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

TEST_F(MultiplexerTest, EndOfFileFlushesRest) {
  UniqueFd source = AddSource(0);
  Print(source, "bye");
  source.Reset();
  Step();
  Step();
  EXPECT_EQ(Read(out_), "[0] bye");
  TESSERA_EXPECT_OK(output_.ReadRemaining());
  EXPECT_EQ(Read(out_), "\n");
}

TEST_F(MultiplexerTest, ReadRemainingDoesNotBlock) {
  const UniqueFd source = AddSource(0);
  Print(source, "one\ntwo");
  TESSERA_EXPECT_OK(output_.ReadRemaining());  // The pipe is still open.
  EXPECT_EQ(Read(out_), "[0] one\n[0] two\n");
  EXPECT_FALSE(output_.has_pending());
}

TEST_F(MultiplexerTest, SlowReaderBlocksSourcesWithoutLoss) {
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

TEST_F(MultiplexerTest, DropsOutputAfterError) {
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

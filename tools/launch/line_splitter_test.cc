#include "tools/launch/line_splitter.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

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

// The whole stream at once, byte by byte.
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

TEST(LineSplitterTest, FlushesAPartialLineOnceAndNothingWhereThereIsNone) {
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

TEST(LineSplitterTest, BreaksOnlyLinesThatAreTooLong) {
  EXPECT_EQ(Split("1234\n", 4), (Pieces{{"1234", PieceEnd::kNewline}}));
  EXPECT_EQ(Split("1234", 4), (Pieces{{"1234", PieceEnd::kPartial}}));
  EXPECT_EQ(Split("12345\n", 4),
            (Pieces{{"1234", PieceEnd::kBroken}, {"5", PieceEnd::kNewline}}));
  EXPECT_EQ(Split("12345678\n", 4), (Pieces{{"1234", PieceEnd::kBroken},
                                            {"5678", PieceEnd::kNewline}}));
}

TEST(LineSplitterTest, KeepsZerosCarriageReturnsAndEveryOtherByte) {
  std::string stream;
  for (int byte = 0; byte < 256; ++byte) stream += static_cast<char>(byte);
  EXPECT_EQ(Split(stream, 1000), Reference(stream, 1000));
}

TEST(LineSplitterTest, AnyCutOfAnyStreamGivesTheReferencesPieces) {
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

}  // namespace
}  // namespace tessera::tools

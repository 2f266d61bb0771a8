// LineSplitter: a stream of bytes, cut into lines of bounded length.
//
//   LineSplitter splitter(LineSplitter::kMaxLine);
//   splitter.Append("loss 2.3\nlo", emit);   // emits "loss 2.3", kNewline
//   splitter.Flush(emit);                    // emits "lo", kPartial
//
// What comes out does not depend on how the stream was cut into Append calls,
// and no byte is lost: the pieces' texts, with a newline after each kNewline,
// are the stream.
#ifndef TESSERA_TOOLS_LAUNCH_LINE_SPLITTER_H_
#define TESSERA_TOOLS_LAUNCH_LINE_SPLITTER_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"

namespace tessera::tools {

enum class PieceEnd {
  kNewline,  // The line is complete; its newline is not in the text.
  kBroken,   // The line was too long; the rest follows.
  kPartial,  // Flushed; the rest may follow.
};

struct Piece {
  std::string_view text;
  PieceEnd end = PieceEnd::kNewline;

  friend bool operator==(const Piece&, const Piece&) = default;
};

class LineSplitter {
 public:
  static constexpr size_t kMaxLine = 64 << 10;

  // A line of more than `max_line` bytes, its newline not counted, is broken
  // after every `max_line` bytes. `max_line` is at least 1.
  explicit LineSplitter(size_t max_line) : max_line_(max_line) {}

  // The texts are valid during the call of `emit` only.
  void Append(std::string_view bytes, absl::FunctionRef<void(Piece)> emit);

  // Emits the line that has begun, if any, as kPartial. Its length counts from
  // here again.
  void Flush(absl::FunctionRef<void(Piece)> emit);

  bool has_partial() const { return !partial_.empty(); }

 private:
  void AppendToLine(std::string_view bytes,
                    absl::FunctionRef<void(Piece)> emit);

  size_t max_line_;
  std::string partial_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_LINE_SPLITTER_H_

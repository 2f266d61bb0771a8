// LineWriter: the lines of many ranks in one stream, none inside another.
//
//   LineWriter writer(RankPrefixes({...}));
//   writer.Write(1, {"step 7", PieceEnd::kNewline}, out);   // "[1] step 7\n"
//
// With prefixes, every line of the result begins with its rank's prefix, and a
// line that was flushed before its end is continued where nobody wrote in
// between; otherwise it is ended, and its rest begins a line of its own.
// Without prefixes no byte is added at all.
#ifndef TESSERA_TOOLS_LAUNCH_LINE_WRITER_H_
#define TESSERA_TOOLS_LAUNCH_LINE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/launch/line_splitter.h"

namespace tessera::tools {

// "[ 8] ", "[ 9] ", "[10] ": of `count` ranks from `first` on, as wide as the
// widest of a world of `world_size`; with the terminal's colours if `colour`.
std::vector<std::string> RankPrefixes(int64_t first, int64_t count,
                                      int64_t world_size, bool colour);

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

  // Ends the line that is open, if any.
  void Finish(std::string& out);

 private:
  std::vector<std::string> prefixes_;
  std::vector<bool> interrupted_;  // An open line was ended for another source.
  std::optional<size_t> open_;     // Whose line the stream is in.
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_LINE_WRITER_H_

#include "tools/launch/line_writer.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera::tools {
namespace {

// Foreground colours that can be read on dark and on light terminals.
constexpr std::array<int, 6> kColours = {36, 33, 32, 35, 34, 31};

}  // namespace

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
  // The newline of a line that has had one already.
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

}  // namespace tessera::tools

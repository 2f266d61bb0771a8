#include "tools/launch/line_splitter.h"

namespace tessera::tools {

void LineSplitter::Append(std::string_view bytes,
                          absl::FunctionRef<void(Piece)> emit) {
  while (true) {
    const size_t newline = bytes.find('\n');
    if (newline == std::string_view::npos) {
      AppendToLine(bytes, emit);
      return;
    }
    if (partial_.empty() && newline <= max_line_) {
      emit({bytes.substr(0, newline), PieceEnd::kNewline});
    } else {
      AppendToLine(bytes.substr(0, newline), emit);
      emit({partial_, PieceEnd::kNewline});
      partial_.clear();
    }
    bytes.remove_prefix(newline + 1);
  }
}

void LineSplitter::AppendToLine(std::string_view bytes,
                                absl::FunctionRef<void(Piece)> emit) {
  while (partial_.size() + bytes.size() > max_line_) {
    const size_t taken = max_line_ - partial_.size();
    partial_.append(bytes.substr(0, taken));
    emit({partial_, PieceEnd::kBroken});
    partial_.clear();
    bytes.remove_prefix(taken);
  }
  partial_.append(bytes);
}

void LineSplitter::Flush(absl::FunctionRef<void(Piece)> emit) {
  if (partial_.empty()) return;
  emit({partial_, PieceEnd::kPartial});
  partial_.clear();
}

}  // namespace tessera::tools

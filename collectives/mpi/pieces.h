// Pieces: splits counts that exceed MPI's int.
#ifndef TESSERA_COLLECTIVES_MPI_PIECES_H_
#define TESSERA_COLLECTIVES_MPI_PIECES_H_

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace tessera::collectives {

struct Piece {
  int64_t first = 0;
  int length = 0;

  friend bool operator==(const Piece&, const Piece&) = default;
};

// Splits [0, count) into pieces of at most `limit`, in order; one empty piece
// if count is 0.
//
//   for (Piece piece : Pieces(count, limit)) ...
inline absl::InlinedVector<Piece, 1> Pieces(int64_t count, int limit) {
  absl::InlinedVector<Piece, 1> pieces;
  int64_t first = 0;
  do {
    const int64_t length = std::min<int64_t>(limit, count - first);
    pieces.push_back({first, static_cast<int>(length)});
    first += length;
  } while (first < count);
  return pieces;
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_PIECES_H_

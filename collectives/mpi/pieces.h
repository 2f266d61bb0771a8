// Pieces: splits counts that exceed MPI's int.
#ifndef TESSERA_COLLECTIVES_MPI_PIECES_H_
#define TESSERA_COLLECTIVES_MPI_PIECES_H_

#include <algorithm>
#include <cstdint>

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
class Pieces {
 public:
  Pieces(int64_t count, int limit) : count_(count), limit_(limit) {}

  class Iterator {
   public:
    Iterator(int64_t number, const Pieces& pieces)
        : number_(number), pieces_(pieces) {}
    Piece operator*() const {
      const int64_t first = number_ * pieces_.limit_;
      return {first, static_cast<int>(std::min<int64_t>(
                         pieces_.limit_, pieces_.count_ - first))};
    }
    Iterator& operator++() {
      ++number_;
      return *this;
    }
    bool operator!=(const Iterator& other) const {
      return number_ != other.number_;
    }

   private:
    int64_t number_;
    const Pieces& pieces_;
  };

  int64_t size() const {
    return std::max<int64_t>(1, count_ / limit_ + (count_ % limit_ != 0));
  }
  Iterator begin() const { return {0, *this}; }
  Iterator end() const { return {size(), *this}; }

 private:
  int64_t count_;
  int limit_;
};

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_MPI_PIECES_H_

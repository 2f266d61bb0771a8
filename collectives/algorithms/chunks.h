// Chunks: a range of elements parted into pieces that move one after another,
// so that one piece is worked on while the next one travels.
//
//   const Chunks chunks(10, 4);   // 4, 4, 2
//
// There is always at least one chunk: nothing, too, is sent as a message, so
// that ranks which disagree about a count find out.
#ifndef TESSERA_COLLECTIVES_ALGORITHMS_CHUNKS_H_
#define TESSERA_COLLECTIVES_ALGORITHMS_CHUNKS_H_

#include <algorithm>
#include <cstdint>

namespace tessera::collectives {

class Chunks {
 public:
  // `total` elements in pieces of `size`; size is at least 1.
  constexpr Chunks(int64_t total, int64_t size)
      : total_(total),
        size_(size),
        count_(std::max<int64_t>(1, total / size + (total % size != 0))) {}

  constexpr int64_t count() const { return count_; }
  constexpr int64_t total() const { return total_; }
  constexpr int64_t first(int64_t k) const { return k * size_; }
  constexpr int64_t length(int64_t k) const {
    return std::min(size_, total_ - k * size_);
  }
  // The longest chunk.
  constexpr int64_t longest() const { return std::min(size_, total_); }

 private:
  int64_t total_;
  int64_t size_;
  int64_t count_;
};

// How many elements of `element_bytes` make a chunk of about `chunk_bytes`.
constexpr int64_t ChunkElements(int64_t chunk_bytes, int64_t element_bytes) {
  return std::max<int64_t>(1, chunk_bytes / element_bytes);
}

// The least k for which 2^k is at least `n`, n being at least 1.
constexpr int64_t CeilLog2(int64_t n) {
  int64_t k = 0;
  while ((int64_t{1} << k) < n) ++k;
  return k;
}

// The greatest k for which 2^k is at most `n`, n being at least 1.
constexpr int64_t FloorLog2(int64_t n) {
  int64_t k = 0;
  while (n >> (k + 1) != 0) ++k;
  return k;
}

}  // namespace tessera::collectives

#endif  // TESSERA_COLLECTIVES_ALGORITHMS_CHUNKS_H_

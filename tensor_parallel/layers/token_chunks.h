// TokenChunks: every rank's tokens in several chunks, so that some travel while
// others are worked on.
//
//   const TokenChunks chunks(*Partition::Balanced(10, 2), 2);
//   chunks.TokensOf(0, 1);    // {5, 8}: chunk 0 of rank 1
//   chunks.SizesOf(0);        // 3, 3: what a collective of chunk 0 moves
//   chunks.RowsOf(1, 1);      // {8, 10}
//
// In memory where chunk follows chunk, and in each the ranks' parts follow one
// another, a chunk is what one all-gather fills or one reduce-scatter reads:
// RowsOf says where a part lies there. Pure arithmetic.
#ifndef TESSERA_TENSOR_PARALLEL_LAYERS_TOKEN_CHUNKS_H_
#define TESSERA_TENSOR_PARALLEL_LAYERS_TOKEN_CHUNKS_H_

#include <cstdint>
#include <vector>

#include "tensor_parallel/sharding/index_range.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

class TokenChunks {
 public:
  // As many chunks as asked for, but no more than the largest rank has tokens,
  // and at least one. Chunks of a rank differ by at most one token.
  TokenChunks(const Partition& tokens, int64_t chunks);

  const Partition& tokens() const { return tokens_; }
  int64_t count() const { return count_; }

  // `chunk` is in [0, count()), `rank` in [0, tokens().parts()).
  // Among all tokens, and among those of the rank.
  IndexRange TokensOf(int64_t chunk, int64_t rank) const;
  IndexRange LocalOf(int64_t chunk, int64_t rank) const;

  // By rank.
  std::vector<int64_t> SizesOf(int64_t chunk) const;

  // In memory by chunk, then rank.
  IndexRange RowsOf(int64_t chunk) const;
  IndexRange RowsOf(int64_t chunk, int64_t rank) const;

 private:
  Partition tokens_;
  int64_t count_;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_LAYERS_TOKEN_CHUNKS_H_

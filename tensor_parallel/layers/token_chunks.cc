#include "tensor_parallel/layers/token_chunks.h"

#include <algorithm>

namespace tessera::tensor_parallel {
namespace {

// Of `size` elements dealt out to `parts`, how many the first `index` get.
int64_t FirstOf(int64_t size, int64_t parts, int64_t index) {
  return size / parts * index + std::min(index, size % parts);
}

}  // namespace

TokenChunks::TokenChunks(const Partition& tokens, int64_t chunks)
    : tokens_(tokens),
      count_(std::max<int64_t>(1, std::min(chunks, tokens.largest()))) {}

IndexRange TokenChunks::LocalOf(int64_t chunk, int64_t rank) const {
  const int64_t size = tokens_.SizeOf(rank);
  return {FirstOf(size, count_, chunk), FirstOf(size, count_, chunk + 1)};
}

IndexRange TokenChunks::TokensOf(int64_t chunk, int64_t rank) const {
  const int64_t begin = tokens_.RangeOf(rank).begin;
  const IndexRange local = LocalOf(chunk, rank);
  return {begin + local.begin, begin + local.end};
}

std::vector<int64_t> TokenChunks::SizesOf(int64_t chunk) const {
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < tokens_.parts(); ++rank) {
    sizes.push_back(LocalOf(chunk, rank).size());
  }
  return sizes;
}

IndexRange TokenChunks::RowsOf(int64_t chunk) const {
  IndexRange rows;
  for (int64_t rank = 0; rank < tokens_.parts(); ++rank) {
    const IndexRange local = LocalOf(chunk, rank);
    rows.begin += local.begin;
    rows.end += local.end;
  }
  return rows;
}

IndexRange TokenChunks::RowsOf(int64_t chunk, int64_t rank) const {
  int64_t begin = RowsOf(chunk).begin;
  for (int64_t before = 0; before < rank; ++before) {
    begin += LocalOf(chunk, before).size();
  }
  return {begin, begin + LocalOf(chunk, rank).size()};
}

}  // namespace tessera::tensor_parallel

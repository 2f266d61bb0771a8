#include "tools/text/permutation.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/text/text_hash.h"

namespace tessera::text {

namespace {

constexpr int64_t kMostSize = int64_t{1} << 62;
constexpr uint64_t kRounds = 8;

}  // namespace

absl::StatusOr<Permutation> Permutation::Create(int64_t size, uint64_t key) {
  if (size < 0 || size > kMostSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("an order of ", size, "; it must be from 0 to 2^62"));
  }
  const auto cells = std::max<uint64_t>(1, static_cast<uint64_t>(size));
  // Any number near the square root works, but it must be the same on every
  // machine.
  auto rows = static_cast<uint64_t>(std::sqrt(static_cast<double>(cells)));
  while (rows * rows > cells) --rows;
  while ((rows + 1) * (rows + 1) <= cells) ++rows;
  return Permutation(size, key, rows, (cells + rows - 1) / rows);
}

// One pass of the network, which is a bijection of the cells: alternately
// shifts the row and the column by a number that depends on the other
// coordinate and the round.
uint64_t Permutation::Walk(uint64_t cell) const {
  uint64_t row = cell / columns_;
  uint64_t column = cell % columns_;
  for (uint64_t round = 0; round < kRounds; round += 2) {
    row = (row + Scramble(Scramble(key_ + round) ^ column) % rows_) % rows_;
    column = (column + Scramble(Scramble(key_ + round + 1) ^ row) % columns_) %
             columns_;
  }
  return row * columns_ + column;
}

int64_t Permutation::operator()(int64_t index) const {
  auto cell = static_cast<uint64_t>(index);
  do {
    cell = Walk(cell);
  } while (cell >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(cell);
}

}  // namespace tessera::text

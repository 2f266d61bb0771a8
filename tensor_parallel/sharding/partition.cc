#include "tensor_parallel/sharding/partition.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

absl::Status CheckCounts(int64_t size, int64_t parts, int64_t block) {
  if (size < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a dimension of ", size, " elements; 0 and more are allowed"));
  }
  if (parts < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a dimension in ", parts,
                     " parts; give the number of ranks that share it, 1 or "
                     "more"));
  }
  if (block < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("blocks of ", block, " elements; 1 and more are allowed"));
  }
  return absl::OkStatus();
}

int64_t CeilOfQuotient(int64_t a, int64_t b) { return a / b + (a % b != 0); }

}  // namespace

absl::StatusOr<Partition> Partition::Balanced(int64_t size, int64_t parts) {
  return Blocks(size, parts, 1);
}

absl::StatusOr<Partition> Partition::Blocks(int64_t size, int64_t parts,
                                            int64_t block) {
  TESSERA_RETURN_IF_ERROR(CheckCounts(size, parts, block));
  return Partition(size, parts, block);
}

int64_t Partition::FirstBlockOf(int64_t part) const {
  const int64_t blocks = CeilOfQuotient(size_, block_);
  return blocks / parts_ * part + std::min(part, blocks % parts_);
}

IndexRange Partition::RangeOf(int64_t part) const {
  const int64_t begin = FirstBlockOf(part);
  const int64_t end = FirstBlockOf(part + 1);
  // Avoids the product for a partial last block, which may overflow.
  const auto element = [&](int64_t block) {
    return block == CeilOfQuotient(size_, block_) ? size_ : block * block_;
  };
  return {element(begin), element(end)};
}

std::vector<int64_t> Partition::Sizes() const {
  std::vector<int64_t> sizes;
  for (int64_t part = 0; part < parts_; ++part) sizes.push_back(SizeOf(part));
  return sizes;
}

std::string Partition::ToString() const {
  constexpr int64_t kMostShown = 16;
  std::vector<int64_t> shown;
  for (int64_t part = 0; part < std::min(parts_, kMostShown); ++part) {
    shown.push_back(SizeOf(part));
  }
  return absl::StrCat(size_, " in ", parts_, " parts of ",
                      absl::StrJoin(shown, " "),
                      parts_ > kMostShown ? " ..." : "");
}

std::ostream& operator<<(std::ostream& os, const Partition& partition) {
  return os << partition.ToString();
}

}  // namespace tessera::tensor_parallel

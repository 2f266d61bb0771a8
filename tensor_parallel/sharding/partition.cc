#include "tensor_parallel/sharding/partition.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

constexpr size_t kMostParts = 4096;  // In the text of uneven sizes.

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

absl::Status CheckSizes(int64_t size, int64_t parts,
                        const std::vector<int64_t>& sizes) {
  int64_t left = size;
  bool fits = static_cast<int64_t>(sizes.size()) == parts;
  for (const int64_t part : sizes) {
    fits = fits && 0 <= part && part <= left;
    if (fits) left -= part;
  }
  if (fits && left == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "parts of ", absl::StrJoin(sizes, "+"), " for a dimension of ", size,
      " elements in ", parts, " parts; give ", parts,
      " sizes of 0 or more that add up to ", size));
}

int64_t CeilOfQuotient(int64_t a, int64_t b) { return a / b + (a % b != 0); }

// Accepts only digits, so that each number has one text.
bool ParseCount(std::string_view text, int64_t* count) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, count);
}

}  // namespace

absl::StatusOr<PartitionRule> PartitionRule::Parse(std::string_view text) {
  if (text == "balanced") return Balanced();
  if (text == "ceil") return CeilChunks();
  int64_t count = 0;
  if (std::string_view block = text; absl::ConsumePrefix(&block, "blocks") &&
                                     ParseCount(block, &count) && count > 1) {
    return Blocks(count);
  }
  std::vector<int64_t> sizes;
  for (std::string_view size :
       absl::StrSplit(text, absl::MaxSplits('+', kMostParts))) {
    if (!ParseCount(size, &count) || sizes.size() == kMostParts) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(text),
                       " is not a rule of a partition; allowed are balanced, "
                       "ceil, blocks4, or the size of each part, such as "
                       "5+3+2"));
    }
    sizes.push_back(count);
  }
  return Uneven(std::move(sizes));
}

std::string PartitionRule::ToString() const {
  switch (kind) {
    case Kind::kCeilChunks:
      return "ceil";
    case Kind::kUneven:
      return absl::StrJoin(sizes, "+");
    case Kind::kBalanced:
      break;
  }
  return block == 1 ? "balanced" : absl::StrCat("blocks", block);
}

absl::StatusOr<Partition> Partition::Create(int64_t size, int64_t parts,
                                            PartitionRule rule) {
  TESSERA_RETURN_IF_ERROR(CheckCounts(size, parts, rule.block));
  if (rule.kind == PartitionRule::Kind::kUneven) {
    TESSERA_RETURN_IF_ERROR(CheckSizes(size, parts, rule.sizes));
  }
  return Partition(size, parts, std::move(rule));
}

int64_t Partition::BeginOf(int64_t part) const {
  if (rule_.kind == PartitionRule::Kind::kUneven) {
    return std::accumulate(rule_.sizes.begin(), rule_.sizes.begin() + part,
                           int64_t{0});
  }
  if (rule_.kind == PartitionRule::Kind::kCeilChunks) {
    const int64_t chunk = std::max<int64_t>(CeilOfQuotient(size_, parts_), 1);
    return part > size_ / chunk ? size_ : part * chunk;
  }
  const int64_t blocks = CeilOfQuotient(size_, rule_.block);
  const int64_t first =
      blocks / parts_ * part + std::min(part, blocks % parts_);
  // Avoids the product for a partial last block, which may overflow.
  return first == blocks ? size_ : first * rule_.block;
}

int64_t Partition::largest() const {
  if (rule_.sizes.empty()) return SizeOf(0);
  return *std::max_element(rule_.sizes.begin(), rule_.sizes.end());
}

bool Partition::even() const {
  if (rule_.sizes.empty()) return SizeOf(0) == SizeOf(parts_ - 1);
  return largest() == *std::min_element(rule_.sizes.begin(), rule_.sizes.end());
}

std::vector<int64_t> Partition::Sizes() const {
  if (!rule_.sizes.empty()) return rule_.sizes;
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

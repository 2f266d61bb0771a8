#include "tensor_parallel/sharding/fused_partition.h"

#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel {

namespace {

absl::Status CheckPart(size_t number, const FusedPart& part, int64_t ranks) {
  if (part.size < 0 || part.unit < 1 || part.groups < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "part ", number, " has ", part.size, " elements in units of ",
        part.unit, " and ", part.groups,
        " groups; sizes of 0 and more, units and groups of 1 and more are "
        "allowed"));
  }
  if (ranks % part.groups != 0 || part.size % part.groups != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("part ", number, " has ", part.groups,
                     " groups, which must divide its ", part.size,
                     " elements and the ", ranks, " ranks"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<FusedPart>> QkvParts(int64_t query_heads,
                                                int64_t kv_heads,
                                                int64_t head_size,
                                                int64_t ranks) {
  if (query_heads < 1 || kv_heads < 1 || head_size < 1 || ranks < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        query_heads, " query heads and ", kv_heads, " kv heads of ", head_size,
        " elements over ", ranks, " ranks; all must be 1 or more"));
  }
  if (query_heads % kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(kv_heads, " kv heads do not divide ", query_heads,
                     " query heads; every kv head must serve equally many"));
  }
  int64_t elements = 0;
  if (__builtin_mul_overflow(query_heads, head_size, &elements)) {
    return absl::InvalidArgumentError(
        absl::StrCat(query_heads, " heads of ", head_size,
                     " elements have more than 2^63-1 elements"));
  }
  const int64_t kv_elements = kv_heads * head_size;
  if (kv_heads >= ranks) {
    const FusedPart kv = {.size = kv_elements, .unit = head_size};
    return std::vector<FusedPart>{
        {.size = elements, .unit = elements / kv_heads}, kv, kv};
  }
  if (ranks % kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        kv_heads, " kv heads over ", ranks,
        " ranks: with fewer heads than ranks they must divide the ranks, so "
        "that each head is held by as many; use fewer ranks"));
  }
  const FusedPart kv = {.size = kv_elements,
                        .unit = head_size,
                        .groups = kv_heads,
                        .replicated = true};
  return std::vector<FusedPart>{
      {.size = elements, .unit = head_size, .groups = kv_heads}, kv, kv};
}

std::vector<FusedPart> GatedMlpParts(int64_t hidden) {
  return {{.size = hidden}, {.size = hidden}};
}

absl::StatusOr<FusedPartition> FusedPartition::Create(
    std::span<const FusedPart> parts, int64_t ranks) {
  if (parts.empty() || ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(parts.size(), " parts over ", ranks,
                     " ranks; there must be 1 or more of both"));
  }
  std::vector<int64_t> starts = {0};
  for (size_t i = 0; i < parts.size(); ++i) {
    TESSERA_RETURN_IF_ERROR(CheckPart(i, parts[i], ranks));
    if (parts[i].size > std::numeric_limits<int64_t>::max() - starts.back()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "parts 0 to ", i, " have more than 2^63-1 elements together"));
    }
    starts.push_back(starts.back() + parts[i].size);
  }
  return FusedPartition({parts.begin(), parts.end()}, std::move(starts), ranks);
}

IndexRange FusedPartition::RangeOf(int64_t part, int64_t rank) const {
  const FusedPart& cut = parts_[static_cast<size_t>(part)];
  const int64_t neighbours = ranks_ / cut.groups;
  const int64_t elements = cut.size / cut.groups;
  const int64_t start =
      starts_[static_cast<size_t>(part)] + rank / neighbours * elements;
  if (cut.replicated) return {start, start + elements};
  const IndexRange own = Partition::Blocks(elements, neighbours, cut.unit)
                             ->RangeOf(rank % neighbours);
  return {start + own.begin, start + own.end};
}

std::vector<IndexRange> FusedPartition::RangesOf(int64_t rank) const {
  std::vector<IndexRange> ranges;
  for (size_t part = 0; part < parts_.size(); ++part) {
    ranges.push_back(RangeOf(static_cast<int64_t>(part), rank));
  }
  return ranges;
}

int64_t FusedPartition::SizeOf(int64_t rank) const {
  return LocalRange(static_cast<int64_t>(parts_.size()) - 1, rank).end;
}

IndexRange FusedPartition::LocalRange(int64_t part, int64_t rank) const {
  int64_t begin = 0;
  for (int64_t before = 0; before < part; ++before) {
    begin += RangeOf(before, rank).size();
  }
  return {begin, begin + RangeOf(part, rank).size()};
}

}  // namespace tessera::tensor_parallel

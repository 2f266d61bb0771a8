#include "tensor_parallel/sharding/sharded_layout.h"

#include <algorithm>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

constexpr int kMostDims = 64;
constexpr std::string_view kReplicated = "replicated";
constexpr std::string_view kSum = "sum";

absl::StatusOr<Placement> ParsePlacement(std::string_view text) {
  const std::vector<std::string_view> fields =
      absl::StrSplit(text, absl::MaxSplits(':', 2));
  Placement placement = {.axis = std::string(fields[0])};
  const bool is_partial = fields.size() == 2 && fields[1] == kSum;
  if (fields.size() < 2 || fields[0].empty() ||
      (!is_partial && (!absl::SimpleAtoi(fields[1], &placement.dim) ||
                       placement.dim < 0 || placement.dim >= kMostDims))) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(text),
                     " is not a placement; give an axis and its dimension, "
                     "such as tp:1 or dp:0:ceil, or an axis of partial sums, "
                     "such as cp:sum, or ",
                     kReplicated));
  }
  if (fields.size() == 3) {
    TESSERA_ASSIGN_OR_RETURN(placement.rule, PartitionRule::Parse(fields[2]));
  }
  return placement;
}

std::string FormatPlacement(const Placement& placement) {
  if (placement.is_partial()) return absl::StrCat(placement.axis, ":", kSum);
  return absl::StrCat(placement.axis, ":", placement.dim,
                      placement.rule == PartitionRule()
                          ? ""
                          : absl::StrCat(":", placement.rule.ToString()));
}

// One order for each set of placements that mean the same.
Placements Sorted(Placements placements) {
  std::stable_sort(
      placements.begin(), placements.end(),
      [](const Placement& a, const Placement& b) {
        return a.dim < b.dim ||
               (a.dim == b.dim && a.is_partial() && a.axis < b.axis);
      });
  return placements;
}

}  // namespace

absl::StatusOr<Placements> ParsePlacements(std::string_view text) {
  Placements placements;
  if (text == kReplicated) return placements;
  for (std::string_view item :
       absl::StrSplit(text, absl::MaxSplits(',', topology::kMaxAxes))) {
    TESSERA_ASSIGN_OR_RETURN(placements.emplace_back(), ParsePlacement(item));
  }
  return placements;
}

std::string FormatPlacements(const Placements& placements) {
  if (placements.empty()) return std::string(kReplicated);
  return absl::StrJoin(placements, ",",
                       [](std::string* out, const Placement& placement) {
                         out->append(FormatPlacement(placement));
                       });
}

absl::StatusOr<ShardedLayout> ShardedLayout::Create(
    const topology::Mesh& mesh, std::span<const int64_t> shape,
    Placements placements, EmptyShards empty) {
  ShardedLayout layout(std::make_shared<topology::Mesh>(mesh),
                       Dims(shape.begin(), shape.end()),
                       Sorted(std::move(placements)), empty);
  TESSERA_RETURN_IF_ERROR(layout.Check(), Annotate(_, layout.ToString()));
  return layout;
}

absl::StatusOr<ShardedLayout> ShardedLayout::With(Placements placements,
                                                  EmptyShards empty) const {
  ShardedLayout layout(mesh_, shape_, Sorted(std::move(placements)), empty);
  TESSERA_RETURN_IF_ERROR(layout.Check(), Annotate(_, layout.ToString()));
  return layout;
}

absl::Status ShardedLayout::Check() const {
  TESSERA_RETURN_IF_ERROR(ElementCount(shape_).status());
  const std::vector<std::string> axes = this->axes();
  if (!axes.empty()) {
    TESSERA_RETURN_IF_ERROR(mesh_->DivisionWith(axes).status());
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    if (std::count(axes.begin(), axes.end(), axes[i]) > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("axis ", axes[i],
                       " is placed twice; an axis shards one dimension, "
                       "holds partial sums, or is replicated"));
    }
    const int dim = placements_[i].dim;
    if (dim >= Placement::kPartial && dim < static_cast<int>(shape_.size())) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("axis ", axes[i], " shards dimension ", dim,
                     " of a tensor of ", shape_.size(),
                     " dimensions, which are numbered from 0; give a "
                     "smaller dimension"));
  }
  for (size_t dim = 0; dim < shape_.size(); ++dim) {
    TESSERA_RETURN_IF_ERROR(CheckDim(dim));
  }
  return absl::OkStatus();
}

absl::Status ShardedLayout::CheckDim(size_t dim) const {
  std::set<int64_t> sizes = {shape_[dim]};  // Of the parts of all ranks.
  int64_t ranks = 1;
  for (const Placement& placement : placements_) {
    if (placement.dim != static_cast<int>(dim)) continue;
    if (ranks > 1 && placement.rule.kind == PartitionRule::Kind::kUneven) {
      return absl::InvalidArgumentError(absl::StrCat(
          "axis ", placement.axis, " has uneven sizes on dimension ", dim,
          ", which another axis divides before; give it first or another "
          "rule"));
    }
    const int64_t along = mesh_->SizeOf(placement.axis)->value();
    ranks *= along;
    std::set<int64_t> next;
    for (const int64_t size : sizes) {
      TESSERA_ASSIGN_OR_RETURN(
          const Partition partition,
          Partition::Create(size, along, placement.rule),
          Annotate(
              _, absl::StrCat("axis ", placement.axis, " on dimension ", dim)));
      for (const int64_t part : partition.Sizes()) next.insert(part);
    }
    sizes = std::move(next);
  }
  if (*sizes.begin() > 0 || empty_ == EmptyShards::kAllowed ||
      WholeBox(shape_).element_count() == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "dimension ", dim, " has ", shape_[dim], " elements for ", ranks,
      " ranks, of which some would have none; use fewer ranks or another "
      "rule, or allow empty shards"));
}

bool ShardedLayout::IsOn(const topology::Mesh& mesh) const {
  const std::span<const topology::Axis> a = mesh_->axes(), b = mesh.axes();
  return mesh_->first_rank() == mesh.first_rank() &&
         std::equal(a.begin(), a.end(), b.begin(), b.end());
}

std::vector<std::string> ShardedLayout::axes() const {
  std::vector<std::string> axes;
  for (const Placement& placement : placements_) {
    axes.push_back(placement.axis);
  }
  return axes;
}

Box ShardedLayout::BoxOf(topology::Rank rank) const {
  Box box = WholeBox(shape_);
  for (const Placement& placement : placements_) {
    if (placement.is_partial()) continue;
    IndexRange& range = box.ranges[static_cast<size_t>(placement.dim)];
    // Check has found that these succeed.
    const IndexRange own =
        Partition::Create(range.size(), mesh_->SizeOf(placement.axis)->value(),
                          placement.rule)
            ->RangeOf(*mesh_->CoordinateOf(rank, placement.axis));
    range = {range.begin + own.begin, range.begin + own.end};
  }
  return box;
}

bool ShardedLayout::AnyAxis(bool partial) const {
  return std::any_of(placements_.begin(), placements_.end(),
                     [&](const Placement& placement) {
                       return placement.is_partial() == partial &&
                              mesh_->SizeOf(placement.axis)->value() > 1;
                     });
}

bool ShardedLayout::is_sharded() const { return AnyAxis(/*partial=*/false); }
bool ShardedLayout::is_partial() const { return AnyAxis(/*partial=*/true); }

std::string ShardedLayout::ToString() const {
  return absl::StrCat(DimsToString(shape_), " as ",
                      FormatPlacements(placements_));
}

std::ostream& operator<<(std::ostream& os, const ShardedLayout& layout) {
  return os << layout.ToString();
}

}  // namespace tessera::tensor_parallel

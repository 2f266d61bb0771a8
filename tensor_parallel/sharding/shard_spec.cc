#include "tensor_parallel/sharding/shard_spec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

constexpr size_t kMostShown = 64;

std::string FormatDim(const DimSharding& dim) {
  if (dim.axes.empty()) return "-";
  const std::string axes =
      dim.axes.size() == 1
          ? dim.axes[0]
          : absl::StrCat("(", absl::StrJoin(dim.axes, ", "), ")");
  if (dim.rule == PartitionRule::CeilChunks()) return axes;
  return absl::StrCat(axes, ":", dim.rule.ToString());
}

std::vector<std::string> Sorted(std::vector<std::string> axes) {
  std::sort(axes.begin(), axes.end());
  return axes;
}

int64_t SizeOf(std::span<const IndexRange> ranges) {
  int64_t size = 0;
  for (const IndexRange range : ranges) size += range.size();
  return size;
}

absl::Status CheckRules(const ShardSpec& spec) {
  for (size_t i = 0; i < spec.dims.size(); ++i) {
    if (spec.dims[i].rule.block() >= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("dimension ", i, " of ", spec.ToString(),
                     " has blocks of ", spec.dims[i].rule.block(),
                     " elements; 1 and more are "
                     "allowed"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<IndexRange>> RangesOf(const topology::Mesh& mesh,
                                                 const DimSharding& dim,
                                                 int64_t size,
                                                 topology::Rank rank) {
  std::vector<int64_t> sizes;
  std::vector<int64_t> coordinates;
  for (const std::string& axis : dim.axes) {
    TESSERA_ASSIGN_OR_RETURN(const topology::AxisSize along, mesh.SizeOf(axis));
    TESSERA_ASSIGN_OR_RETURN(const int64_t coordinate,
                             mesh.CoordinateOf(rank, axis));
    sizes.push_back(along.value());
    coordinates.push_back(coordinate);
  }
  return dim.rule.RangesOf(size, sizes, coordinates);
}

std::vector<IndexRange> Common(std::span<const IndexRange> a,
                               std::span<const IndexRange> b) {
  std::vector<IndexRange> common;
  size_t j = 0;
  for (size_t i = 0; i < a.size() && j < b.size();) {
    const IndexRange both = Intersection(a[i], b[j]);
    if (!both.empty()) common.push_back(both);
    if (a[i].end < b[j].end) {
      ++i;
    } else {
      ++j;
    }
  }
  return common;
}

}  // namespace

std::vector<std::string> ShardSpec::AxesInUse() const {
  std::vector<std::string> axes = partial;
  for (const DimSharding& dim : dims) {
    axes.insert(axes.end(), dim.axes.begin(), dim.axes.end());
  }
  return axes;
}

bool ShardSpec::IsPartial(std::string_view axis) const {
  return std::find(partial.begin(), partial.end(), axis) != partial.end();
}

std::string ShardSpec::ToString() const {
  std::string text =
      absl::StrCat("[",
                   absl::StrJoin(dims, ", ",
                                 [](std::string* out, const DimSharding& dim) {
                                   out->append(FormatDim(dim));
                                 }),
                   "]");
  if (!partial.empty()) {
    absl::StrAppend(&text, " partial {", absl::StrJoin(Sorted(partial), ", "),
                    "}");
  }
  return text;
}

bool operator==(const ShardSpec& a, const ShardSpec& b) {
  return Sorted(a.partial) == Sorted(b.partial) &&
         std::equal(a.dims.begin(), a.dims.end(), b.dims.begin(), b.dims.end(),
                    [](const DimSharding& x, const DimSharding& y) {
                      return x.axes == y.axes &&
                             (x.axes.empty() || x.rule == y.rule);
                    });
}

std::ostream& operator<<(std::ostream& os, const ShardSpec& spec) {
  return os << spec.ToString();
}

absl::Status Validate(const ShardSpec& spec, const topology::Mesh& mesh) {
  const std::vector<std::string> axes = Sorted(spec.AxesInUse());
  for (const std::string& axis : axes) {
    TESSERA_RETURN_IF_ERROR(mesh.SizeOf(axis).status(),
                            Annotate(_, "shard spec"));
  }
  const auto twice = std::adjacent_find(axes.begin(), axes.end());
  if (twice != axes.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "shard spec ", spec.ToString(), " uses axis \"",
        twice->substr(0, kMostShown),
        "\" twice; an axis shards one dimension or is partial, once"));
  }
  TESSERA_RETURN_IF_ERROR(CheckRules(spec));
  if (axes.empty()) return absl::OkStatus();
  return Annotate(mesh.DivisionWith(axes).status(), "shard spec");
}

Dims Shard::shape() const {
  Dims shape;
  for (const std::vector<IndexRange>& dim : ranges) {
    shape.push_back(SizeOf(dim));
  }
  return shape;
}

bool Shard::HasShape(std::span<const int64_t> shape) const {
  return std::equal(ranges.begin(), ranges.end(), shape.begin(), shape.end(),
                    [](const std::vector<IndexRange>& dim, int64_t size) {
                      return SizeOf(dim) == size;
                    });
}

int64_t Shard::element_count() const {
  int64_t count = 1;
  for (const std::vector<IndexRange>& dim : ranges) count *= SizeOf(dim);
  return count;
}

Shard Intersection(const Shard& a, const Shard& b) {
  Shard both;
  for (size_t dim = 0; dim < a.ranges.size(); ++dim) {
    both.ranges.push_back(Common(a.ranges[dim], b.ranges[dim]));
  }
  return both;
}

absl::StatusOr<Shard> ShardOf(const topology::Mesh& mesh, const ShardSpec& spec,
                              std::span<const int64_t> shape,
                              topology::Rank rank) {
  TESSERA_RETURN_IF_ERROR(Validate(spec, mesh));
  TESSERA_RETURN_IF_ERROR(ElementCount(shape).status());
  if (shape.size() != spec.dims.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard spec ", spec.ToString(), " has ", spec.dims.size(),
                     " dimensions, shape ", DimsToString(shape), " has ",
                     shape.size(), "; they must be the same"));
  }
  TESSERA_RETURN_IF_ERROR(mesh.CoordinatesOf(rank).status());
  Shard shard;
  for (size_t i = 0; i < shape.size(); ++i) {
    TESSERA_ASSIGN_OR_RETURN(
        std::vector<IndexRange> ranges,
        RangesOf(mesh, spec.dims[i], shape[i], rank),
        Annotate(_, absl::StrCat("dimension ", i, " of ", spec.ToString())));
    shard.ranges.push_back(std::move(ranges));
  }
  return shard;
}

}  // namespace tessera::tensor_parallel

#include "tensor_parallel/sharding/shard_spec.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
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

// ShardSpec::Parse: recursive descent without recursion, as specs do not nest.

namespace {

constexpr size_t kMostCharacters = 4096;
constexpr size_t kMostDims = 64;
constexpr size_t kMostAxes = 64;
constexpr size_t kMostParts = 256;
constexpr size_t kMostNameCharacters = 64;

bool IsNameCharacter(char c) { return (c >= 'a' && c <= 'z') || c == '_'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The unparsed rest of a text.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) {}

  bool AtEnd() {
    SkipBlanks();
    return at_ == text_.size();
  }

  // Takes `token` where it comes next.
  bool Take(std::string_view token) {
    SkipBlanks();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  // Takes the characters that come next and are of a kind.
  template <typename Is>
  std::string_view TakeWhile(Is is) {
    SkipBlanks();
    const size_t begin = at_;
    while (at_ < text_.size() && is(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  absl::Status Expect(std::string_view token) {
    return Take(token) ? absl::OkStatus()
                       : Fail(absl::StrCat("\"", token, "\""));
  }

  // Names the place, what is there and what should be.
  absl::Status Fail(std::string_view expected) {
    constexpr size_t kShown = 24;
    SkipBlanks();
    const std::string_view rest = text_.substr(at_);
    const std::string found =
        rest.empty() ? "the end"
                     : absl::StrCat("\"", absl::CEscape(rest.substr(0, kShown)),
                                    rest.size() > kShown ? "...\"" : "\"");
    const std::string before = absl::CEscape(
        text_.substr(at_ - std::min(at_, kShown), std::min(at_, kShown)));
    return absl::InvalidArgumentError(
        absl::StrCat("shard spec: character ", at_ + 1, ", after \"", before,
                     "\", is ", found, "; expected ", expected,
                     ", as in \"[dp, (tp, cp):balanced, -] partial {ep}\""));
  }

 private:
  void SkipBlanks() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
};

absl::StatusOr<int64_t> ParseNumber(Cursor& cursor, int64_t least) {
  const Cursor before = cursor;
  const std::string_view digits = cursor.TakeWhile(IsDigit);
  int64_t number = 0;
  if (!digits.empty() && absl::SimpleAtoi(digits, &number) && number >= least) {
    return number;
  }
  cursor = before;
  return cursor.Fail(absl::StrCat("a number from ", least, " to 2^63-1"));
}

absl::Status ParseAxis(Cursor& cursor, std::vector<std::string>& axes) {
  const Cursor before = cursor;
  const std::string_view name = cursor.TakeWhile(IsNameCharacter);
  if (!name.empty() && name.size() <= kMostNameCharacters &&
      axes.size() < kMostAxes) {
    axes.emplace_back(name);
    return absl::OkStatus();
  }
  cursor = before;
  return cursor.Fail(absl::StrCat(
      "an axis of lower-case letters and underscores, at most ",
      kMostNameCharacters, " characters and ", kMostAxes, " axes"));
}

// "a, b)", up to `end`.
absl::Status ParseAxes(Cursor& cursor, std::string_view end,
                       std::vector<std::string>& axes) {
  TESSERA_RETURN_IF_ERROR(ParseAxis(cursor, axes));
  while (!cursor.Take(end)) {
    if (!cursor.Take(",")) {
      return cursor.Fail(absl::StrCat("\",\" or \"", end, "\""));
    }
    TESSERA_RETURN_IF_ERROR(ParseAxis(cursor, axes));
  }
  return absl::OkStatus();
}

absl::StatusOr<FusedPart> ParsePart(Cursor& cursor) {
  FusedPart part;
  TESSERA_ASSIGN_OR_RETURN(part.size, ParseNumber(cursor, 0));
  TESSERA_RETURN_IF_ERROR(cursor.Expect("/"));
  TESSERA_ASSIGN_OR_RETURN(part.unit, ParseNumber(cursor, 1));
  TESSERA_RETURN_IF_ERROR(cursor.Expect("/"));
  TESSERA_ASSIGN_OR_RETURN(part.groups, ParseNumber(cursor, 1));
  part.replicated = cursor.Take("r");
  return part;
}

absl::StatusOr<PartitionRule> ParseRule(Cursor& cursor) {
  if (cursor.Take("ceil")) return PartitionRule::CeilChunks();
  if (cursor.Take("balanced")) return PartitionRule::Balanced();
  if (cursor.Take("blocks(")) {
    TESSERA_ASSIGN_OR_RETURN(const int64_t block, ParseNumber(cursor, 1));
    TESSERA_RETURN_IF_ERROR(cursor.Expect(")"));
    return PartitionRule::Blocks(block);
  }
  if (!cursor.Take("fused(")) {
    return cursor.Fail(
        "ceil, balanced, blocks(4) or fused(64/8/1 16/8/2r ...)");
  }
  std::vector<FusedPart> parts;
  do {
    if (parts.size() == kMostParts) {
      return cursor.Fail(absl::StrCat("at most ", kMostParts, " fused parts"));
    }
    TESSERA_ASSIGN_OR_RETURN(const FusedPart part, ParsePart(cursor));
    parts.push_back(part);
  } while (!cursor.Take(")"));
  return PartitionRule::Fused(std::move(parts));
}

absl::StatusOr<DimSharding> ParseDim(Cursor& cursor) {
  DimSharding dim;
  if (cursor.Take("-")) return dim;
  if (cursor.Take("(")) {
    TESSERA_RETURN_IF_ERROR(ParseAxes(cursor, ")", dim.axes));
  } else {
    TESSERA_RETURN_IF_ERROR(ParseAxis(cursor, dim.axes));
  }
  if (cursor.Take(":")) {
    TESSERA_ASSIGN_OR_RETURN(dim.rule, ParseRule(cursor));
  }
  return dim;
}

absl::Status ParseDims(Cursor& cursor, std::vector<DimSharding>& dims) {
  TESSERA_RETURN_IF_ERROR(cursor.Expect("["));
  if (cursor.Take("]")) return absl::OkStatus();
  while (true) {
    if (dims.size() == kMostDims) {
      return cursor.Fail(absl::StrCat("at most ", kMostDims, " dimensions"));
    }
    TESSERA_ASSIGN_OR_RETURN(DimSharding dim, ParseDim(cursor));
    dims.push_back(std::move(dim));
    if (cursor.Take("]")) return absl::OkStatus();
    if (!cursor.Take(",")) return cursor.Fail("\",\" or \"]\"");
  }
}

}  // namespace

absl::StatusOr<ShardSpec> ShardSpec::Parse(std::string_view text) {
  if (text.size() > kMostCharacters) {
    return absl::InvalidArgumentError(
        absl::StrCat("a shard spec of ", text.size(), " characters; at most ",
                     kMostCharacters, " are allowed"));
  }
  Cursor cursor(text);
  ShardSpec spec;
  TESSERA_RETURN_IF_ERROR(ParseDims(cursor, spec.dims));
  if (cursor.Take("partial")) {
    TESSERA_RETURN_IF_ERROR(cursor.Expect("{"));
    TESSERA_RETURN_IF_ERROR(ParseAxes(cursor, "}", spec.partial));
  }
  if (!cursor.AtEnd()) {
    return cursor.Fail(spec.partial.empty() ? "\" partial {\" or the end"
                                            : "the end");
  }
  return spec;
}

}  // namespace tessera::tensor_parallel

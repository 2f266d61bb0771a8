#include "tools/train/checkpoint/held_tensor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/sharding/box.h"
#include "tensor_parallel/sharding/partition.h"
#include "zero3/layout/state_layout.h"
#include "zero3/parameters/model_parameters.h"

namespace tessera::train {

namespace {

using tensor_parallel::IndexRange;
using tensor_parallel::ParameterRows;

// Accepts only digits, so that each number has one representation.
absl::StatusOr<int64_t> ParseSize(std::string_view text) {
  int64_t size = 0;
  const bool is_plain =
      !text.empty() &&
      std::all_of(text.begin(), text.end(),
                  [](unsigned char c) { return absl::ascii_isdigit(c); });
  if (is_plain && absl::SimpleAtoi(text, &size) &&
      size <= zero3::kMaxLayoutElements) {
    return size;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(text), " is not a number from 0 to ", zero3::kMaxLayoutElements));
}

absl::StatusOr<IndexRange> ParseRange(std::string_view text, int64_t size) {
  const std::pair<std::string_view, std::string_view> ends =
      absl::StrSplit(text, absl::MaxSplits('-', 1));
  IndexRange range;
  TESSERA_ASSIGN_OR_RETURN(range.begin, ParseSize(ends.first));
  TESSERA_ASSIGN_OR_RETURN(range.end, ParseSize(ends.second));
  if (range.begin <= range.end && range.end <= size) return range;
  return absl::InvalidArgumentError(
      absl::StrCat(Quoted(text), " is not a range within ", size));
}

absl::StatusOr<std::vector<int64_t>> ParseShape(std::string_view text) {
  const std::pair<std::string_view, std::string_view> sizes =
      absl::StrSplit(text, absl::MaxSplits('x', 1));
  std::vector<int64_t> shape;
  TESSERA_ASSIGN_OR_RETURN(shape.emplace_back(), ParseSize(sizes.first));
  if (sizes.first.size() == text.size()) return shape;
  TESSERA_ASSIGN_OR_RETURN(shape.emplace_back(), ParseSize(sizes.second));
  if (shape[1] == 0 || shape[0] <= zero3::kMaxLayoutElements / shape[1]) {
    return shape;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Quoted(text), " has more than ", zero3::kMaxLayoutElements, " elements"));
}

absl::StatusOr<std::vector<ParameterRows>> ParseRows(std::string_view text,
                                                     int64_t size) {
  const std::vector<std::string_view> ranges =
      absl::StrSplit(text, absl::MaxSplits(',', kMaxHeldRanges));
  if (ranges.size() > kMaxHeldRanges) {
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kMaxHeldRanges, " ranges of rows"));
  }
  std::vector<ParameterRows> rows;
  int64_t held = 0;
  for (std::string_view range : ranges) {
    ParameterRows& added = rows.emplace_back();
    added.primary = !absl::ConsumeSuffix(&range, "*");
    TESSERA_ASSIGN_OR_RETURN(added.range, ParseRange(range, size));
    held += added.range.size();
  }
  if (held <= size) return rows;
  return absl::InvalidArgumentError(
      absl::StrCat("holds ", held, " rows of ", size));
}

absl::StatusOr<HeldTensor> ParseLine(std::string_view line) {
  const std::vector<std::string_view> fields =
      absl::StrSplit(line, absl::MaxSplits(' ', 4));
  if (fields.size() != 4 || fields[0].empty() ||
      fields[0].size() > zero3::kMaxParameterName) {
    return absl::InvalidArgumentError(absl::StrCat(
        Quoted(line), " is not a name, a shape, rows and columns"));
  }
  HeldTensor tensor = {.name = std::string(fields[0])};
  TESSERA_ASSIGN_OR_RETURN(tensor.shape, ParseShape(fields[1]));
  TESSERA_ASSIGN_OR_RETURN(tensor.rows, ParseRows(fields[2], tensor.shape[0]));
  TESSERA_ASSIGN_OR_RETURN(
      tensor.columns,
      ParseRange(fields[3], tensor.shape.size() == 2 ? tensor.shape[1] : 1));
  if (tensor.shape.size() == 1 && tensor.columns != IndexRange{0, 1}) {
    return absl::InvalidArgumentError("a vector has the columns 0-1");
  }
  return tensor;
}

std::string FormatRange(IndexRange range) {
  return absl::StrCat(range.begin, "-", range.end);
}

}  // namespace

int64_t HeldTensor::whole_elements() const {
  return shape.size() == 2 ? shape[0] * shape[1] : shape[0];
}

std::vector<int64_t> HeldTensor::held_shape() const {
  int64_t held = 0;
  for (const ParameterRows& one : rows) held += one.range.size();
  if (shape.size() == 1) return {held};
  return {held, width()};
}

HeldTensor HeldTensorOf(const tensor_parallel::Parameter& parameter) {
  return {.name = parameter.name(),
          .shape = parameter.shape(),
          .rows = parameter.rows(),
          .columns = parameter.columns()};
}

HeldTensor WholeTensor(std::string name, std::vector<int64_t> shape) {
  HeldTensor tensor = {.name = std::move(name), .shape = std::move(shape)};
  tensor.rows = {{{0, tensor.shape[0]}}};
  if (tensor.shape.size() == 2) tensor.columns = {0, tensor.shape[1]};
  return tensor;
}

bool HoldSame(const HeldTensor& a, const HeldTensor& b) {
  return a.shape == b.shape && a.columns == b.columns &&
         std::equal(a.rows.begin(), a.rows.end(), b.rows.begin(), b.rows.end(),
                    [](const ParameterRows& x, const ParameterRows& y) {
                      return x.range == y.range;
                    });
}

std::string FormatHeldTensors(std::span<const HeldTensor> tensors) {
  std::string text;
  for (const HeldTensor& tensor : tensors) {
    absl::StrAppend(
        &text, tensor.name, " ", absl::StrJoin(tensor.shape, "x"), " ",
        absl::StrJoin(tensor.rows, ",",
                      [](std::string* out, const ParameterRows& rows) {
                        absl::StrAppend(out, FormatRange(rows.range),
                                        rows.primary ? "" : "*");
                      }),
        " ", FormatRange(tensor.columns), "\n");
  }
  return text;
}

absl::StatusOr<std::vector<HeldTensor>> ParseHeldTensors(
    std::string_view text) {
  std::vector<HeldTensor> tensors;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    if (end == std::string_view::npos || tensors.size() == kMaxHeldTensors) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", tensors.size() + 1, " of the tensors ",
                       tensors.size() == kMaxHeldTensors ? "is one too many"
                                                         : "does not end"));
    }
    TESSERA_ASSIGN_OR_RETURN(
        tensors.emplace_back(), ParseLine(text.substr(0, end)),
        Annotate(_,
                 absl::StrCat("line ", tensors.size() + 1, " of the tensors")));
    text.remove_prefix(end + 1);
  }
  return tensors;
}

namespace {

using tensor_parallel::Box;

// A box of the whole tensor, [rows, columns] also for a vector, whose first
// element is at `place` in a part.
struct PlacedBox {
  Box box = {};
  int64_t place = 0;
};

// Splits elements [begin, end) of one range of rows into boxes: the end of a
// row, whole rows, the beginning of a row. The range begins at `place`.
void AddBoxes(IndexRange rows, IndexRange columns, int64_t place, int64_t begin,
              int64_t end, std::vector<PlacedBox>& to) {
  const int64_t width = columns.size();
  begin = std::max(begin, place);
  end = std::min(end, place + rows.size() * width);
  while (begin < end) {
    const int64_t row = rows.begin + (begin - place) / width;
    const int64_t column = (begin - place) % width;
    const int64_t left = end - begin;
    PlacedBox added = {{{{row, row + 1}, columns}}, begin};
    if (column > 0 || left < width) {
      const int64_t first = columns.begin + column;
      added.box.ranges[1] = {first, first + std::min(width - column, left)};
    } else {
      added.box.ranges[0].end = row + left / width;
    }
    begin += added.box.element_count();
    to.push_back(std::move(added));
  }
}

std::vector<PlacedBox> BoxesOf(const HeldTensor& tensor, int64_t begin,
                               int64_t end) {
  std::vector<PlacedBox> boxes;
  int64_t place = 0;
  for (const ParameterRows& rows : tensor.rows) {
    AddBoxes(rows.range, tensor.columns, place, begin, end, boxes);
    place += rows.range.size() * tensor.width();
  }
  return boxes;
}

std::vector<PlacedBox> PrimaryBoxes(const HeldTensor& tensor) {
  std::vector<PlacedBox> boxes;
  int64_t place = 0;
  for (const ParameterRows& rows : tensor.rows) {
    PlacedBox held = {{{rows.range, tensor.columns}}, place};
    place += held.box.element_count();
    if (rows.primary && place > held.place) boxes.push_back(std::move(held));
  }
  return boxes;
}

void Straighten(TensorCopy& copy) {
  const bool is_one_run =
      copy.from_width == copy.columns && copy.to_width == copy.columns;
  if (copy.rows > 1 && !is_one_run) return;
  copy.columns *= copy.rows;
  copy.rows = 1;
  copy.from_width = copy.to_width = copy.columns;
}

}  // namespace

std::vector<TensorCopy> CopiesTo(const HeldTensor& target, int64_t begin,
                                 int64_t end,
                                 std::span<const HeldTensor* const> sources) {
  const std::vector<PlacedBox> wanted = BoxesOf(target, begin, end);
  std::vector<TensorCopy> copies;
  for (size_t s = 0; s < sources.size(); ++s) {
    const std::vector<PlacedBox> there = PrimaryBoxes(*sources[s]);
    for (const PlacedBox& to : wanted) {
      for (const PlacedBox& from : there) {
        const Box both = Intersection(to.box, from.box);
        if (both.element_count() == 0) continue;
        TensorCopy& copy = copies.emplace_back();
        copy = {.source = s,
                .rows = both.ranges[0].size(),
                .columns = both.ranges[1].size(),
                .from = from.place + OffsetIn(from.box, both),
                .from_width = sources[s]->width(),
                .to = to.place + OffsetIn(to.box, both),
                .to_width = target.width()};
        Straighten(copy);
      }
    }
  }
  return copies;
}

bool CoverOnce(std::span<const HeldTensor* const> sources) {
  std::vector<PlacedBox> all;
  for (const HeldTensor* source : sources) {
    const std::vector<PlacedBox> some = PrimaryBoxes(*source);
    all.insert(all.end(), some.begin(), some.end());
  }
  if (sources.empty()) return false;
  int64_t left = sources[0]->whole_elements();
  const auto rows = [&](size_t i) { return all[i].box.ranges[0]; };
  std::sort(all.begin(), all.end(), [](const PlacedBox& a, const PlacedBox& b) {
    return a.box.ranges[0].begin < b.box.ranges[0].begin;
  });
  for (size_t i = 0; i < all.size(); ++i) {
    // Does not overflow: no earlier part exceeds the rest.
    left -= all[i].box.element_count();
    if (left < 0) return false;
    for (size_t j = i + 1; j < all.size() && rows(j).begin < rows(i).end; ++j) {
      if (Intersection(all[i].box, all[j].box).element_count() > 0) {
        return false;
      }
    }
  }
  return left == 0;
}

}  // namespace tessera::train

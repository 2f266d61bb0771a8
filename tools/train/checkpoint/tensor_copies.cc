#include "tools/train/checkpoint/tensor_copies.h"

#include <algorithm>

#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/sharding/index_range.h"

namespace tessera::train {
namespace {

using tensor_parallel::IndexRange;
using tensor_parallel::Intersection;
using tensor_parallel::ParameterRows;

// A rectangle of the whole tensor, of which a part of a tensor holds the first
// element at `place`.
struct Rectangle {
  IndexRange rows = {};
  IndexRange columns = {};
  int64_t place = 0;
};

// Elements [begin, end) of one range of rows as rectangles: the rest of a row,
// whole rows, the beginning of a row. `place` is where the range begins.
void AddRectangles(IndexRange rows, IndexRange columns, int64_t place,
                   int64_t begin, int64_t end, std::vector<Rectangle>& to) {
  const int64_t width = columns.size();
  begin = std::max(begin, place);
  end = std::min(end, place + rows.size() * width);
  while (begin < end) {
    const int64_t row = (begin - place) / width;
    const int64_t column = (begin - place) % width;
    const int64_t left = end - begin;
    Rectangle added = {.place = begin};
    added.rows.begin = rows.begin + row;
    if (column > 0 || left < width) {
      const int64_t count = std::min(width - column, left);
      added.rows.end = added.rows.begin + 1;
      added.columns = {columns.begin + column, columns.begin + column + count};
    } else {
      added.rows.end = added.rows.begin + left / width;
      added.columns = columns;
    }
    begin += added.rows.size() * added.columns.size();
    to.push_back(added);
  }
}

std::vector<Rectangle> RectanglesOf(const HeldTensor& tensor, int64_t begin,
                                    int64_t end) {
  std::vector<Rectangle> rectangles;
  int64_t place = 0;
  for (const ParameterRows& rows : tensor.rows) {
    AddRectangles(rows.range, tensor.columns, place, begin, end, rectangles);
    place += rows.range.size() * tensor.width();
  }
  return rectangles;
}

std::vector<Rectangle> PrimaryRectangles(const HeldTensor& tensor) {
  std::vector<Rectangle> rectangles;
  int64_t place = 0;
  for (const ParameterRows& rows : tensor.rows) {
    const int64_t elements = rows.range.size() * tensor.width();
    if (rows.primary && elements > 0) {
      rectangles.push_back({rows.range, tensor.columns, place});
    }
    place += elements;
  }
  return rectangles;
}

int64_t PlaceOf(const Rectangle& rectangle, int64_t width, int64_t row,
                int64_t column) {
  return rectangle.place + (row - rectangle.rows.begin) * width + column -
         rectangle.columns.begin;
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
  const std::vector<Rectangle> wanted = RectanglesOf(target, begin, end);
  std::vector<TensorCopy> copies;
  for (size_t s = 0; s < sources.size(); ++s) {
    const std::vector<Rectangle> there = PrimaryRectangles(*sources[s]);
    for (const Rectangle& to : wanted) {
      for (const Rectangle& from : there) {
        const IndexRange rows = Intersection(to.rows, from.rows);
        const IndexRange columns = Intersection(to.columns, from.columns);
        if (rows.empty() || columns.empty()) continue;
        TensorCopy& copy = copies.emplace_back();
        copy = {.source = s,
                .rows = rows.size(),
                .columns = columns.size(),
                .from = PlaceOf(from, sources[s]->width(), rows.begin,
                                columns.begin),
                .from_width = sources[s]->width(),
                .to = PlaceOf(to, target.width(), rows.begin, columns.begin),
                .to_width = target.width()};
        Straighten(copy);
      }
    }
  }
  return copies;
}

bool CoverOnce(std::span<const HeldTensor* const> sources) {
  std::vector<Rectangle> all;
  for (const HeldTensor* source : sources) {
    const std::vector<Rectangle> some = PrimaryRectangles(*source);
    all.insert(all.end(), some.begin(), some.end());
  }
  if (sources.empty()) return false;
  int64_t left = sources[0]->whole_elements();
  std::sort(all.begin(), all.end(), [](const Rectangle& a, const Rectangle& b) {
    return a.rows.begin < b.rows.begin;
  });
  for (size_t i = 0; i < all.size(); ++i) {
    // None before has more than is left, so this does not overflow.
    left -= all[i].rows.size() * all[i].columns.size();
    if (left < 0) return false;
    for (size_t j = i + 1;
         j < all.size() && all[j].rows.begin < all[i].rows.end; ++j) {
      if (!Intersection(all[i].columns, all[j].columns).empty()) return false;
    }
  }
  return left == 0;
}

}  // namespace tessera::train

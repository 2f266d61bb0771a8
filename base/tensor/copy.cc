#include "base/tensor/copy.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/tensor/copy_rows.h"
#include "base/tensor/strided_loop.h"

namespace tessera {
namespace {

// An element is moved as an integer of its size, through memcpy, because
// neither side needs to be aligned.
template <typename Word>
Word Load(const std::byte* source) {
  Word word;
  std::memcpy(&word, source, sizeof(Word));
  return word;
}
template <typename Word>
void Store(Word word, std::byte* target) {
  std::memcpy(target, &word, sizeof(Word));
}

template <typename Word>
void CopyRow(const std::byte* source, std::byte* target, const LoopDim& dim) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(Word));
  if (dim.source_stride == 1 && dim.target_stride == 1) {
    std::memcpy(target, source, static_cast<size_t>(dim.size * kSize));
  } else if (dim.source_stride == 0 && dim.target_stride == 1) {
    const Word word = Load<Word>(source);
    for (int64_t i = 0; i < dim.size; ++i) Store(word, target + i * kSize);
  } else {
    const int64_t source_step = dim.source_stride * kSize;
    const int64_t target_step = dim.target_stride * kSize;
    for (int64_t i = 0; i < dim.size; ++i) {
      Store(Load<Word>(source + i * source_step), target + i * target_step);
    }
  }
}

// The side of a tile of a transpose: two cache lines of elements.
template <typename Word>
constexpr int64_t kTile = std::min<int64_t>(64, 128 / sizeof(Word));

// Copies one tile by way of a packed tile. Each source line is read at once and
// each target line is written at once, so lines need not stay in the cache when
// they map to the same cache set, as in matrices whose column count is a power
// of two.
template <typename Word>
void CopyTile(const std::byte* source, std::byte* target, const LoopDim& row,
              const LoopDim& column) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(Word));
  std::array<Word, kTile<Word> * kTile<Word>> packed;
  for (int64_t c = 0; c < column.size; ++c) {
    const std::byte* const from = source + c * column.source_stride * kSize;
    for (int64_t r = 0; r < row.size; ++r) {
      packed[static_cast<size_t>(r * kTile<Word> + c)] =
          Load<Word>(from + r * row.source_stride * kSize);
    }
  }
  const LoopDim line = {column.size, 1, column.target_stride};
  for (int64_t r = 0; r < row.size; ++r) {
    CopyRow<Word>(reinterpret_cast<const std::byte*>(packed.data()) +
                      r * kTile<Word> * kSize,
                  target + r * row.target_stride * kSize, line);
  }
}

// Runs two loops in tiles. `row` is the loop along which the source is denser.
template <typename Word>
void CopyTiled(const std::byte* source, std::byte* target, const LoopDim& row,
               const LoopDim& column) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(Word));
  for (int64_t r = 0; r < row.size; r += kTile<Word>) {
    for (int64_t c = 0; c < column.size; c += kTile<Word>) {
      LoopDim rows = row, columns = column;
      rows.size = std::min(kTile<Word>, row.size - r);
      columns.size = std::min(kTile<Word>, column.size - c);
      const int64_t from = r * row.source_stride + c * column.source_stride;
      const int64_t to = r * row.target_stride + c * column.target_stride;
      CopyTile<Word>(source + from * kSize, target + to * kSize, rows, columns);
    }
  }
}

// The loop, other than the innermost, along which the source is densest, if it
// is denser there than along the innermost; -1 if there is none, or the
// innermost is dense enough.
int FindSourceRow(const StridedLoop& loop) {
  int best = -1;
  if (std::abs(loop.back().source_stride) <= 1) return best;
  int64_t stride = std::abs(loop.back().source_stride);
  for (size_t i = 0; i + 1 < loop.size(); ++i) {
    if (std::abs(loop[i].source_stride) >= stride) continue;
    stride = std::abs(loop[i].source_stride);
    best = static_cast<int>(i);
  }
  return best;
}

// Copies runs of `column` elements that are contiguous on both sides.
template <typename Word>
void CopyRuns(const std::byte* source, std::byte* target, StridedLoop loop,
              const LoopDim& column) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(Word));
  RowCopy rows = {.rows = 1, .bytes = column.size * kSize};
  if (!loop.empty()) {
    rows = {.rows = loop.back().size,
            .bytes = column.size * kSize,
            .source_step = loop.back().source_stride * kSize,
            .target_step = loop.back().target_stride * kSize};
    loop.pop_back();
  }
  ForEachStep(loop, [&](int64_t from, int64_t to) {
    CopyRows(rows, source + from * kSize, target + to * kSize);
  });
}

template <typename Word>
void CopyElements(const std::byte* source, std::byte* target,
                  StridedLoop loop) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(Word));
  const LoopDim column = loop.back();
  const int row_index = FindSourceRow(loop);
  loop.pop_back();
  if (column.source_stride == 1 && column.target_stride == 1) {
    return CopyRuns<Word>(source, target, std::move(loop), column);
  }
  if (row_index < 0) {
    ForEachStep(loop, [&](int64_t from, int64_t to) {
      CopyRow<Word>(source + from * kSize, target + to * kSize, column);
    });
    return;
  }
  const LoopDim row = loop[static_cast<size_t>(row_index)];
  loop.erase(loop.begin() + row_index);
  ForEachStep(loop, [&](int64_t from, int64_t to) {
    CopyTiled<Word>(source + from * kSize, target + to * kSize, row, column);
  });
}

void CopyDisjoint(const std::byte* source, const Dims& source_strides,
                  std::byte* target, const Dims& target_strides,
                  const Dims& shape, DType dtype) {
  const StridedLoop loop =
      MakeStridedLoop(shape, source_strides, target_strides);
  switch (SizeInBytes(dtype)) {
    case 1:
      return CopyElements<uint8_t>(source, target, loop);
    case 2:
      return CopyElements<uint16_t>(source, target, loop);
    case 4:
      return CopyElements<uint32_t>(source, target, loop);
    case 8:
      return CopyElements<uint64_t>(source, target, loop);
  }
  std::abort();  // Unreachable: no dtype has another size.
}

absl::Status CheckTarget(const TensorView& target) {
  if (!IsHostAccessible(target.kind())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CPU cannot write ", MemoryKindName(target.kind()),
                     " memory; use Transfer"));
  }
  if (!target.layout().HasDistinctElements()) {
    return absl::InvalidArgumentError(
        absl::StrCat("target of shape ", DimsToString(target.shape()),
                     " with strides ", DimsToString(target.strides()),
                     " has several indices for one element"));
  }
  return absl::OkStatus();
}

absl::Status CheckCopy(const ConstTensorView& source,
                       const TensorView& target) {
  if (source.dtype() != target.dtype()) {
    return absl::InvalidArgumentError(
        absl::StrCat("copy of ", DTypeName(source.dtype()), " elements to ",
                     DTypeName(target.dtype()), "; use Convert"));
  }
  if (source.shape() != target.shape()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "copy of shape ", DimsToString(source.shape()), " to shape ",
        DimsToString(target.shape()), "; they must be the same"));
  }
  if (!IsHostAccessible(source.kind())) {
    return absl::FailedPreconditionError(
        absl::StrCat("the CPU cannot read ", MemoryKindName(source.kind()),
                     " memory; use Transfer"));
  }
  return CheckTarget(target);
}

// Returns true if the memory ranges from the lowest to the highest element
// intersect.
bool RangesIntersect(const ConstTensorView& a, const ConstTensorView& b) {
  const int64_t size = SizeInBytes(a.dtype());
  const auto begin = [&](const ConstTensorView& view) {
    return reinterpret_cast<intptr_t>(view.data()) +
           view.layout().lowest_offset() * size;
  };
  const auto end = [&](const ConstTensorView& view) {
    return reinterpret_cast<intptr_t>(view.data()) +
           (view.layout().highest_offset() + 1) * size;
  };
  return begin(a) < end(b) && begin(b) < end(a);
}

}  // namespace

absl::Status Copy(ConstTensorView source, TensorView target) {
  TESSERA_RETURN_IF_ERROR(CheckCopy(source, target));
  if (target.element_count() == 0) return absl::OkStatus();
  if (!RangesIntersect(source, target)) {
    if (source.IsContiguous() && target.IsContiguous()) {
      CopyRows({.rows = 1, .bytes = source.size_in_bytes()}, source.data(),
               target.data());
      return absl::OkStatus();
    }
    CopyDisjoint(source.data(), source.strides(), target.data(),
                 target.strides(), source.shape(), source.dtype());
    return absl::OkStatus();
  }
  TESSERA_ASSIGN_OR_RETURN(
      Buffer packed,
      Buffer::Allocate(HostMemory(),
                       static_cast<size_t>(source.size_in_bytes())));
  TESSERA_ASSIGN_OR_RETURN(const Layout row_major,
                           Layout::RowMajor(source.shape()));
  CopyDisjoint(source.data(), source.strides(), packed.data(),
               row_major.strides(), source.shape(), source.dtype());
  CopyDisjoint(packed.data(), row_major.strides(), target.data(),
               target.strides(), source.shape(), source.dtype());
  return absl::OkStatus();
}

absl::Status FillBytes(TensorView target, std::span<const std::byte> element) {
  if (static_cast<int64_t>(element.size()) != SizeInBytes(target.dtype())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fill with an element of ", element.size(), " bytes; ",
        DTypeName(target.dtype()), " has ", SizeInBytes(target.dtype())));
  }
  TESSERA_RETURN_IF_ERROR(CheckTarget(target));
  if (target.element_count() == 0) return absl::OkStatus();
  // A source with zero strides repeats one element at every index.
  const Dims zeros(target.shape().size(), 0);
  CopyDisjoint(element.data(), zeros, target.data(), target.strides(),
               target.shape(), target.dtype());
  return absl::OkStatus();
}

}  // namespace tessera

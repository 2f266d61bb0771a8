#include "zero3/state/factored_moments.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"
#include "base/os/thread_pool.h"

namespace tessera::zero3 {

namespace {

// Calls `run` with a value of the element's type and one of the moments' type.
template <typename Function>
void WithTypes(DType dtype, const Function& run) {
  if (dtype == DType::kF64) return run(double(), double());
  if (dtype == DType::kF32) return run(float(), float());
  if (dtype == DType::kBF16) return run(BF16(), float());
  run(F16(), float());
}

template <typename T>
T* As(std::byte* data) {
  return reinterpret_cast<T*>(data);
}
template <typename T>
const T* As(const std::byte* data) {
  return reinterpret_cast<const T*>(data);
}

// The elements that a thread processes at a time, in whole rows.
constexpr int64_t kElementsOfPass = int64_t{1} << 16;

// Calls pass(i) for each i below `count`.
void RunPasses(ThreadPool* pool, int64_t count,
               absl::FunctionRef<void(int64_t)> pass) {
  if (pool != nullptr && count > 1) return pool->Run(count, pass);
  for (int64_t i = 0; i < count; ++i) pass(i);
}

// Elements [begin, end) are those of a row, from `column` on.
struct Row {
  Row(const MatrixElements& elements, int64_t row) {
    const int64_t first = row * elements.width - elements.offset;
    begin = std::max<int64_t>(first, 0);
    end = std::min(first + elements.width, elements.count);
    column = begin - first;
  }

  int64_t begin;
  int64_t end;
  int64_t column;
};

int64_t RowsOf(const MatrixElements& elements) {
  return (elements.offset + elements.count + elements.width - 1) /
         elements.width;
}

// Calls use(first, end) for parts of [0, count), whose elements are of `width`
// numbers each.
void ForEachPart(ThreadPool* pool, int64_t count, int64_t width,
                 absl::FunctionRef<void(int64_t, int64_t)> use) {
  const int64_t part = std::max<int64_t>(1, kElementsOfPass / width);
  RunPasses(pool, (count + part - 1) / part,
            [&](int64_t i) { use(i * part, std::min(count, (i + 1) * part)); });
}

template <int lanes>
double SumOfLanes(double (&sums)[lanes]) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    for (int i = 0; i < distance; ++i) sums[i] += sums[i + distance];
  }
  return sums[0];
}

// scale * value, in the type of moments.
template <typename S, typename T>
S Scaled(T value, S scale) {
  return static_cast<S>(value) * scale;
}

template <typename S>
double Square(S x) {
  return static_cast<double>(x) * static_cast<double>(x);
}

template <typename S>
void AddTo(S& moment, double weight, double sum) {
  moment = static_cast<S>(static_cast<double>(moment) + weight * sum);
}

// The sum of the squares of `count` values, by lanes.
template <typename T, typename S>
double SumOfSquares(const T* values, int64_t count, S scale) {
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane] += Square(Scaled(values[i + lane], scale));
    }
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    sums[lane] += Square(Scaled(values[i], scale));
  }
  return SumOfLanes(sums);
}

// Adds the squares of a group of rows to the rows, and to `sums` of columns
// unless it is null.
template <typename T, typename S>
void AddGroup(const MatrixElements& elements, int64_t group, double weight,
              S* rows, double* sums) {
  const T* const values = As<T>(elements.values);
  const S scale = static_cast<S>(elements.scale);
  const int64_t end = std::min(RowsOf(elements), (group + 1) * kRowsOfGroup);
  for (int64_t r = group * kRowsOfGroup; r < end; ++r) {
    const Row row(elements, r);
    const T* const from = values + row.begin;
    const int64_t count = row.end - row.begin;
    AddTo(rows[r], weight, SumOfSquares(from, count, scale));
    if (sums == nullptr) continue;
    double* const to = sums + row.column;
    for (int64_t i = 0; i < count; ++i) to[i] += Square(Scaled(from[i], scale));
  }
}

// The numbers of an update.
template <typename S>
struct Update {
  template <typename T>
  S Of(T value, S moment) const {
    const S root = std::sqrt(moment > least ? moment : least);
    return Scaled(value, scale) / root * factor;
  }

  // Loops that compilers vectorize.
  template <typename T>
  void WriteRow(const T* __restrict from, int64_t count, S of_row,
                const S* __restrict columns, S* __restrict to) const {
    if (columns == nullptr) {
      for (int64_t i = 0; i < count; ++i) to[i] = Of(from[i], of_row);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        to[i] = Of(from[i], of_row * columns[i]);
      }
    }
  }

  S scale;
  S least;
  S factor;
};

}  // namespace

void ScaleValues(DType dtype, double factor, std::byte* values, int64_t count) {
  WithTypes(dtype, [&]<typename T, typename S>(T, S) {
    S* const moments = As<S>(values);
    for (int64_t i = 0; i < count; ++i) moments[i] *= static_cast<S>(factor);
  });
}

void AddSquares(const MatrixElements& elements, double row_weight,
                std::byte* rows, double column_weight, std::byte* columns,
                ThreadPool* pool) {
  const int64_t width = elements.width;
  const int64_t groups = (RowsOf(elements) + kRowsOfGroup - 1) / kRowsOfGroup;
  std::vector<double> sums(
      columns == nullptr ? 0 : static_cast<size_t>(groups * width));
  WithTypes(elements.dtype, [&]<typename T, typename S>(T, S) {
    ForEachPart(
        pool, groups, kRowsOfGroup * width, [&](int64_t first, int64_t end) {
          for (int64_t group = first; group < end; ++group) {
            AddGroup<T>(elements, group, row_weight, As<S>(rows),
                        sums.empty() ? nullptr : sums.data() + group * width);
          }
        });
    if (columns == nullptr) return;
    ForEachPart(pool, width, groups, [&](int64_t first, int64_t end) {
      for (int64_t column = first; column < end; ++column) {
        double sum = 0;
        for (int64_t group = 0; group < groups; ++group) {
          sum += sums[static_cast<size_t>(group * width + column)];
        }
        AddTo(As<S>(columns)[column], column_weight, sum);
      }
    });
  });
}

void DivideByMean(DType dtype, const std::byte* rows, int64_t row_count,
                  double least, std::byte* columns, int64_t column_count) {
  WithTypes(dtype, [&]<typename T, typename S>(T, S) {
    double sums[kMeanLanes] = {};
    for (int64_t i = 0; i < row_count; ++i) {
      sums[i % kMeanLanes] += static_cast<double>(As<S>(rows)[i]);
    }
    const double mean = SumOfLanes(sums) / static_cast<double>(row_count);
    const S divisor = static_cast<S>(std::max(mean, least));
    for (int64_t i = 0; i < column_count; ++i) As<S>(columns)[i] /= divisor;
  });
}

void WriteUpdate(const MatrixElements& elements, const std::byte* rows,
                 const std::byte* columns, double least, double factor,
                 std::byte* update, ThreadPool* pool) {
  WithTypes(elements.dtype, [&]<typename T, typename S>(T, S) {
    const Update<S> numbers = {static_cast<S>(elements.scale),
                               static_cast<S>(least * least),
                               static_cast<S>(factor)};
    const auto write = [&](int64_t first, int64_t end) {
      for (int64_t r = first; r < end; ++r) {
        const Row row(elements, r);
        numbers.WriteRow(
            As<T>(elements.values) + row.begin, row.end - row.begin,
            As<S>(rows)[r],
            columns == nullptr ? nullptr : As<S>(columns) + row.column,
            As<S>(update) + row.begin);
      }
    };
    ForEachPart(pool, RowsOf(elements), elements.width, write);
  });
}

}  // namespace tessera::zero3

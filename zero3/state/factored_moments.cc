#include "zero3/state/factored_moments.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "base/dtype/dtype.h"
#include "base/dtype/small_float.h"

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

// Calls `use` with the index of each row, the range of elements in it, and the
// column of the first one.
template <typename Function>
void ForEachRow(const MatrixElements& elements, const Function& use) {
  int64_t row = 0, column = elements.offset;
  for (int64_t begin = 0; begin < elements.count; ++row, column = 0) {
    const int64_t end =
        std::min(elements.count, begin + elements.width - column);
    use(row, begin, end, column);
    begin = end;
  }
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

template <typename T, typename S>
void AddToRows(const MatrixElements& elements, double weight, S* rows) {
  const T* const values = As<T>(elements.values);
  const S scale = static_cast<S>(elements.scale);
  ForEachRow(elements, [&](int64_t row, int64_t begin, int64_t end, int64_t) {
    double sums[kLanes] = {};
    for (int64_t i = begin; i < end; i += kLanes) {
      const auto used = static_cast<int>(std::min<int64_t>(kLanes, end - i));
      for (int lane = 0; lane < used; ++lane) {
        sums[lane] += Square(Scaled(values[i + lane], scale));
      }
    }
    AddTo(rows[row], weight, SumOfLanes(sums));
  });
}

template <typename T, typename S>
void AddToColumns(const MatrixElements& elements, double weight, S* columns) {
  const T* const values = As<T>(elements.values);
  const S scale = static_cast<S>(elements.scale);
  const auto width = static_cast<size_t>(elements.width);
  std::vector<double> sums(width), group(width);
  const auto add_group = [&] {
    for (size_t i = 0; i < width; ++i) sums[i] += group[i];
    std::fill(group.begin(), group.end(), 0);
  };
  ForEachRow(elements,
             [&](int64_t row, int64_t begin, int64_t end, int64_t column) {
               if (row > 0 && row % kRowsOfGroup == 0) add_group();
               double* const to = group.data() + column;
               for (int64_t i = begin; i < end; ++i) {
                 to[i - begin] += Square(Scaled(values[i], scale));
               }
             });
  add_group();
  for (size_t i = 0; i < width; ++i) AddTo(columns[i], weight, sums[i]);
}

}  // namespace

void ScaleMoments(DType dtype, double factor, std::byte* values,
                  int64_t count) {
  WithTypes(dtype, [&]<typename T, typename S>(T, S) {
    S* const moments = As<S>(values);
    for (int64_t i = 0; i < count; ++i) moments[i] *= static_cast<S>(factor);
  });
}

void AddSquares(const MatrixElements& elements, double row_weight,
                std::byte* rows, double column_weight, std::byte* columns) {
  WithTypes(elements.dtype, [&]<typename T, typename S>(T, S) {
    AddToRows<T>(elements, row_weight, As<S>(rows));
    if (columns == nullptr) return;
    AddToColumns<T>(elements, column_weight, As<S>(columns));
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
                 std::byte* update) {
  WithTypes(elements.dtype, [&]<typename T, typename S>(T, S) {
    const T* const values = As<T>(elements.values);
    const S scale = static_cast<S>(elements.scale);
    const S low = static_cast<S>(least * least);
    const S times = static_cast<S>(factor);
    ForEachRow(
        elements, [&](int64_t row, int64_t begin, int64_t end, int64_t column) {
          const S of_row = As<S>(rows)[row];
          const S* const of_column =
              columns == nullptr ? nullptr : As<S>(columns) + column;
          for (int64_t i = begin; i < end; ++i) {
            const S moment =
                of_column == nullptr ? of_row : of_row * of_column[i - begin];
            As<S>(update)[i] = Scaled(values[i], scale) /
                               std::sqrt(std::max(moment, low)) * times;
          }
        });
  });
}

}  // namespace tessera::zero3

#include "zero3/parameters/statistics.h"

#include <algorithm>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tessera::zero3 {
namespace {

// Precondition: `sorted` is sorted and not empty.
void SetMedian(const std::vector<int64_t>& sorted,
               ParameterStatistics& statistics) {
  const size_t middle = sorted.size() / 2;
  const int64_t upper = sorted[middle];
  const int64_t lower = sorted.size() % 2 == 0 ? sorted[middle - 1] : upper;
  statistics.median = lower + (upper - lower) / 2;
  statistics.median_has_half = (upper - lower) % 2 != 0;
}

}  // namespace

ParameterStatistics StatisticsOf(std::span<const ModelParameter> parameters) {
  ParameterStatistics statistics;
  std::vector<int64_t> sizes;
  for (const ModelParameter& parameter : parameters) {
    sizes.push_back(parameter.elements);
    ++statistics.count;
    statistics.elements += parameter.elements;
    statistics.bytes += parameter.bytes;
    if (!parameter.trainable()) continue;
    ++statistics.trainable_count;
    statistics.trainable_elements += parameter.elements;
    statistics.trainable_bytes += parameter.bytes;
  }
  if (sizes.empty()) return statistics;
  std::sort(sizes.begin(), sizes.end());
  statistics.mean = statistics.elements / statistics.count;
  statistics.mean_remainder = statistics.elements % statistics.count;
  SetMedian(sizes, statistics);
  statistics.least = sizes.front();
  statistics.most = sizes.back();
  return statistics;
}

std::string ParameterStatistics::ToString() const {
  std::string mean_text = absl::StrCat(mean);
  if (mean_remainder > 0) {
    const auto hundredths =
        static_cast<int>(absl::int128(mean_remainder) * 100 / count);
    absl::StrAppendFormat(&mean_text, ".%02d", hundredths);
  }
  std::string text = absl::StrCat(
      count, " parameters, ", elements, " elements, ", bytes,
      " bytes; elements each: mean ", mean_text, ", median ", median,
      median_has_half ? ".5" : "", ", least ", least, ", most ", most);
  if (trainable_count < count) {
    absl::StrAppend(&text, "; trainable: ", trainable_count, " parameters, ",
                    trainable_elements, " elements, ", trainable_bytes,
                    " bytes");
  }
  return text;
}

}  // namespace tessera::zero3

// Statistics of a model's parameters, in exact integers.
//
//   const ParameterStatistics statistics = StatisticsOf(model);
//   statistics.ToString();
//   // "6 parameters, 1050 elements, 4200 bytes; elements each: mean 175,
//   //  median 30.5, least 10, most 500"
#ifndef TESSERA_ZERO3_PARAMETERS_STATISTICS_H_
#define TESSERA_ZERO3_PARAMETERS_STATISTICS_H_

#include <cstdint>
#include <string>

#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

// Every field is 0 for a model without parameters.
struct ParameterStatistics {
  int64_t count = 0;
  int64_t elements = 0;
  int64_t bytes = 0;
  // The part of these that is trained.
  int64_t trainable_count = 0;
  int64_t trainable_elements = 0;
  int64_t trainable_bytes = 0;

  // Elements per parameter. The exact mean is mean + mean_remainder / count;
  // the exact median is median, or median + 1/2 if median_has_half (for an even
  // count, the mean of the two in the middle).
  int64_t mean = 0;
  int64_t mean_remainder = 0;
  int64_t median = 0;
  bool median_has_half = false;
  int64_t least = 0;
  int64_t most = 0;

  // In words; the mean is cut to two decimals.
  std::string ToString() const;

  friend bool operator==(const ParameterStatistics&,
                         const ParameterStatistics&) = default;
};

ParameterStatistics StatisticsOf(const ModelParameters& model);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_PARAMETERS_STATISTICS_H_

// ParameterStatistics: the sizes of a model's parameters in exact integers.
//
//   const ParameterStatistics statistics = StatisticsOf(model.all());
//   statistics.ToString();
//   // "6 parameters, 1050 elements, 4200 bytes; elements each: mean 175,
//   //  median 30.5, least 10, most 500"
#ifndef TESSERA_ZERO3_PARAMETERS_STATISTICS_H_
#define TESSERA_ZERO3_PARAMETERS_STATISTICS_H_

#include <cstdint>
#include <span>
#include <string>

#include "zero3/parameters/model_parameters.h"

namespace tessera::zero3 {

// Every field is 0 if there are no parameters.
struct ParameterStatistics {
  int64_t count = 0;
  int64_t elements = 0;
  int64_t bytes = 0;
  // The same three sums over the trainable parameters only.
  int64_t trainable_count = 0;
  int64_t trainable_elements = 0;
  int64_t trainable_bytes = 0;

  // The elements of a parameter. The exact mean is mean + mean_remainder /
  // count. The exact median is median, plus 1/2 if median_has_half; for an even
  // count it is the mean of the two middle sizes.
  int64_t mean = 0;
  int64_t mean_remainder = 0;
  int64_t median = 0;
  bool median_has_half = false;
  int64_t least = 0;
  int64_t most = 0;

  // The statistics in words. The mean is truncated to two decimals. The
  // trainable part is only named if some parameters are frozen.
  std::string ToString() const;

  friend bool operator==(const ParameterStatistics&,
                         const ParameterStatistics&) = default;
};

// The parameters may come from several models. Precondition: their elements and
// bytes together are at most 2^63-1, as in any one ModelParameters.
ParameterStatistics StatisticsOf(std::span<const ModelParameter> parameters);

}  // namespace tessera::zero3

#endif  // TESSERA_ZERO3_PARAMETERS_STATISTICS_H_

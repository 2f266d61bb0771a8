#include "tools/comm_bench/row.h"

#include <algorithm>

#include "collectives/record/flight_recorder.h"

namespace tessera::tools {

double Overlap::Hidden() const {
  const double shorter = std::min(compute_seconds, operation_seconds);
  if (shorter <= 0) return 0;
  return (compute_seconds + operation_seconds - both_seconds) / shorter;
}

double Row::AlgorithmBandwidth() const {
  return seconds <= 0 ? 0 : static_cast<double>(bytes) / seconds * 1e-9;
}

double Row::BusBandwidth() const {
  return AlgorithmBandwidth() * collectives::BusFactor(op, world);
}

std::optional<double> Row::Share() const {
  if (!bound_seconds.has_value() || seconds <= 0) return std::nullopt;
  return *bound_seconds / seconds;
}

}  // namespace tessera::tools

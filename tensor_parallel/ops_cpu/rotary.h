// Rotary positions of ops/ops.h on the CPU.
//
//   RotaryTable table;
//   TESSERA_RETURN_IF_ERROR(table.Rotate(10000, false, positions, query));
//   TESSERA_RETURN_IF_ERROR(table.Rotate(10000, false, positions, key));
//
// Angles are computed in f64. The table keeps the sines and cosines of the last
// call, of d values a token in statistics, and computes them anew only where
// base, d, type or positions are others. Used by one thread at a time.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CPU_ROTARY_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CPU_ROTARY_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/tensor/tensor_view.h"

namespace tessera::tensor_parallel::cpu {

class RotaryTable {
 public:
  absl::Status Rotate(double base, bool inverse,
                      std::span<const int64_t> positions, const TensorView& x);

 private:
  template <typename S>
  void Prepare(std::vector<S>& table, double base, int64_t d,
               std::span<const int64_t> positions);

  double base_ = 0;
  int64_t d_ = 0;
  std::vector<int64_t> positions_;
  // For each token d/2 cosines, then d/2 sines; one of the two is in use.
  std::vector<float> f32_;
  std::vector<double> f64_;
};

}  // namespace tessera::tensor_parallel::cpu

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CPU_ROTARY_H_

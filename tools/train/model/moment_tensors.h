// The tensors in which Adafactor keeps its second moments: one for each weight,
// held by ranks as the weight is, so that checkpoints restore it on any mesh.
//
//   const auto matrices =
//       MatricesOf(weight.name(), weight.shape()[0], model);
//   const MomentTensor moments =
//       MomentsOf({weight.name(), weight.shape(), weight.rows(),
//                  weight.columns()},
//                 matrices);
//
// The moments of a vector are those of its elements. The moments of a matrix
// [rows, columns] that consists of n matrices are `rows` moments of rows, then
// n * columns moments of the columns of each. A rank holds the moments of the
// rows and columns of which it holds elements.
#ifndef TESSERA_TOOLS_TRAIN_MODEL_MOMENT_TENSORS_H_
#define TESSERA_TOOLS_TRAIN_MODEL_MOMENT_TENSORS_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor_parallel/layers/parameter.h"
#include "tensor_parallel/sharding/partition.h"
#include "tools/model_files/model_config.h"

namespace tessera::train {

// The name of the moments is the weight's with this suffix.
inline constexpr std::string_view kMomentsSuffix = ".second_moment";
// The suffix of Shampoo's statistics (shampoo_blocks.h).
inline constexpr std::string_view kStatisticsSuffix = ".statistics";

// True for the frozen parameters in which these optimizers keep their state,
// which is zero at first.
inline bool IsMoments(std::string_view name) {
  return name.ends_with(kMomentsSuffix) || name.ends_with(kStatisticsSuffix);
}

// The ranges of rows of a fused tensor that are separate matrices, or vectors,
// in the published models: queries, keys and values; gate and up; and the same
// for each expert. `rows` are those of the whole tensor.
std::vector<tensor_parallel::IndexRange> MatricesOf(
    std::string_view name, int64_t rows, const model_files::ModelConfig& model);

// The part of a weight that a rank holds, as Parameter has it.
struct HeldWeight {
  std::string_view name;
  std::span<const int64_t> shape;
  std::span<const tensor_parallel::ParameterRows> rows;
  tensor_parallel::IndexRange columns;
};

// A vector: the whole size, and the ranges that a rank holds.
struct MomentTensor {
  std::string name = "";
  int64_t size = 0;
  std::vector<tensor_parallel::ParameterRows> rows = {};
};

MomentTensor MomentsOf(const HeldWeight& weight,
                       std::span<const tensor_parallel::IndexRange> matrices);

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_MODEL_MOMENT_TENSORS_H_

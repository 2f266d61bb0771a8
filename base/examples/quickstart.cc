// A bfloat16 matrix, the right half of whose columns belongs to one rank.
#include <iostream>

#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "base/tensor/tensor.h"

absl::Status Run() {
  using namespace tessera;
  TESSERA_ASSIGN_OR_RETURN(Tensor weights,
                           Tensor::Create(DType::kBF16, {{4, 6}}));
  TESSERA_RETURN_IF_ERROR(Fill(weights.view(), 0.1));
  TESSERA_ASSIGN_OR_RETURN(TensorView shard, weights.view().Narrow(1, 3, 3));
  TESSERA_RETURN_IF_ERROR(Fill(shard, 2));
  TESSERA_ASSIGN_OR_RETURN(Elements<BF16> x, weights.view().As<BF16>());
  std::cout << shard.dtype() << " " << shard.layout() << "\n"
            << x(0, 2) << " " << x(0, 3) << "\n";
  return absl::OkStatus();
}

int main() { return Run().ok() ? 0 : 1; }

// The memory of a transformer block on a rank, before anything is allocated.
#include <iostream>

#include "base/status_macros.h"
#include "tensor_parallel/blocks/predict_block.h"

using namespace tessera;
using namespace tessera::tensor_parallel;

absl::Status Run() {
  TransformerBlockOptions block = {.attention = {.width = 4096,
                                                 .heads = 32,
                                                 .kv_heads = 8,
                                                 .head_size = 128,
                                                 .dtype = DType::kBF16},
                                   .hidden = 14336};
  for (const int64_t ranks : {1, 8}) {
    for (const Recompute recompute :
         {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
      block.recompute = recompute;
      TESSERA_ASSIGN_OR_RETURN(
          const BlockMemory memory,
          PredictBlock(block, {.length = 8192,
                               .tensor_ranks = ranks,
                               .sequence_parallel = true}));
      std::cout << ranks << " ranks, recompute " << recompute << ": "
                << (memory.held >> 20) << " MiB for each micro-batch, "
                << (memory.pool_peak >> 20) << " MiB during its backward\n";
    }
  }
  return absl::OkStatus();
}

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

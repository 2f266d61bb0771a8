// A gated MLP whose weights are sharded over the ranks; weights and result are
// the same for any number of ranks.
#include <iostream>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "base/tensor/copy.h"
#include "base/tensor/tensor.h"
#include "collectives/in_process/in_process.h"
#include "tensor_parallel/layers/linear.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

using namespace tessera;
using namespace tessera::tensor_parallel;

constexpr int64_t kTokens = 4, kWidth = 6, kHidden = 10;

// down(silu(gate x) * up x), of which this rank has a part of the hidden units.
absl::StatusOr<double> RunMlp(const TensorGroup& group) {
  TESSERA_ASSIGN_OR_RETURN(
      auto gate_up,
      ColumnParallelLinear::Create(group, {.in = kWidth,
                                           .out = 2 * kHidden,
                                           .dtype = DType::kF64,
                                           .parts = GatedMlpParts(kHidden)}));
  const IndexRange gate = gate_up.partition().LocalRange(0, group.rank());
  const IndexRange up = gate_up.partition().LocalRange(1, group.rank());
  const IndexRange hidden = gate_up.partition().RangeOf(0, group.rank());
  TESSERA_ASSIGN_OR_RETURN(
      auto down, RowParallelLinear::Create(group, {.in = kHidden,
                                                   .out = kWidth,
                                                   .columns = hidden,
                                                   .dtype = DType::kF64}));
  TESSERA_RETURN_IF_ERROR(
      gate_up.weights().FillNormal(group.ops(), {.seed = 1, .stream = 0}, 0.4));
  TESSERA_RETURN_IF_ERROR(
      down.weights().FillNormal(group.ops(), {.seed = 1, .stream = 1}, 0.4));

  TESSERA_ASSIGN_OR_RETURN(Tensor x,
                           Tensor::Create(DType::kF64, {{kTokens, kWidth}}));
  TESSERA_ASSIGN_OR_RETURN(
      Tensor both, Tensor::Create(DType::kF64, {{kTokens, 2 * hidden.size()}}));
  TESSERA_ASSIGN_OR_RETURN(
      Tensor product, Tensor::Create(DType::kF64, {{kTokens, hidden.size()}}));
  TESSERA_RETURN_IF_ERROR(Fill(x.view(), 1.0));
  TESSERA_ASSIGN_OR_RETURN(const Partition tokens,
                           Partition::Balanced(kTokens, group.size()));
  TESSERA_RETURN_IF_ERROR(gate_up.Forward(tokens, x.view(), both.view()));
  TESSERA_ASSIGN_OR_RETURN(const TensorView g,
                           both.view().Narrow(1, gate.begin, gate.size()));
  TESSERA_ASSIGN_OR_RETURN(const TensorView u,
                           both.view().Narrow(1, up.begin, up.size()));
  TESSERA_RETURN_IF_ERROR(
      group.ops().Run(op::Glu{GluKind::kSwiGlu, g, u, product.view()}));
  TESSERA_RETURN_IF_ERROR(down.Forward(tokens, product.view(), x.view()));
  TESSERA_ASSIGN_OR_RETURN(const auto y, x.view().AsSpan<double>());
  return y[0];
}

int main() {
  for (const int ranks : {1, 2, 3, 4}) {
    auto engines = collectives::CreateInProcessEngines(ranks);
    std::vector<std::thread> threads;
    for (auto& engine : *engines) {
      threads.emplace_back([&engine] {
        auto group = collectives::Communicator::Create(std::move(engine));
        CpuOps ops({.threads = 1});
        const auto y = RunMlp(TensorGroup(ops, group->get()));
        if ((*group)->rank().value() == 0) {
          std::cout << (*group)->size() << " ranks: " << *y << "\n";
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

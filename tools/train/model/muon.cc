#include "tools/train/model/muon.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "base/status_macros.h"
#include "offload/optimizer/parameter_range.h"
#include "tools/train/model/newton_schulz.h"

namespace tessera::train {

namespace {

namespace tp = tensor_parallel;

// The factor on the square root of the larger side: J. Liu et al., equation 4.
constexpr double kUpdateScale = 0.2;

}  // namespace

absl::StatusOr<std::unique_ptr<Muon>> Muon::Create(
    std::span<tp::Parameter* const> parameters,
    const zero3::StateLayout& layout, collectives::Communicator* shard,
    const zero3::StateDevice& device, const MatrixUpdateOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(std::vector<StateMatrix> matrices,
                           MatricesIn(parameters, options));
  std::vector<int64_t> work;
  for (const StateMatrix& matrix : matrices) work.push_back(WorkOf(matrix));
  const int64_t ranks =
      (shard == nullptr ? 1 : shard->size()) *
      (options.tensor == nullptr ? 1 : options.tensor->size());
  TESSERA_ASSIGN_OR_RETURN(const std::vector<topology::Rank> balanced,
                           zero3::BalanceLargestFirst(work, ranks));
  std::vector<int64_t> owners;
  for (const topology::Rank owner : balanced) owners.push_back(owner.value());
  TESSERA_ASSIGN_OR_RETURN(
      std::unique_ptr<MatrixExchange> exchange,
      MatrixExchange::Create(
          std::move(matrices), owners, layout, shard, device, options,
          {.name = "Muon", .scratch = [](const MatrixPart& whole) {
             return NewtonSchulzElements(whole.rows.size(),
                                         whole.columns.size());
           }}));
  return std::unique_ptr<Muon>(new Muon(*options.ops, std::move(exchange)));
}

absl::Status Muon::Run(zero3::MatrixShards& shards) {
  absl::Status status;
  for (size_t round = 0; status.ok() && round < exchange_->rounds(); ++round) {
    status = RunRound(round, shards);
  }
  return exchange_->AbortOnError(status);
}

absl::Status Muon::RunRound(size_t round, zero3::MatrixShards& shards) {
  TESSERA_ASSIGN_OR_RETURN(
      TensorView update,
      exchange_->Gather(round, [&](zero3::ParameterId id, int64_t begin,
                                   const offload::TypedSpan& direction) {
        return shards.WriteDirection(id, begin, direction);
      }));
  if (exchange_->OwnIn(round)) {
    TESSERA_ASSIGN_OR_RETURN(update, Update(round, update));
  }
  return exchange_->Scatter(round, update,
                            [&](zero3::ParameterId id, int64_t begin,
                                const offload::TypedSpan& values) {
                              return shards.Apply(id, begin, values);
                            });
}

// The factor is negative because the direction is.
absl::StatusOr<TensorView> Muon::Update(size_t round,
                                        const TensorView& direction) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView other, exchange_->OtherOf(round));
  TESSERA_ASSIGN_OR_RETURN(const TensorView scratch, exchange_->Scratch());
  TESSERA_ASSIGN_OR_RETURN(const TensorView update,
                           Orthogonalise(ops_, direction, other, scratch));
  const auto larger =
      static_cast<double>(std::max(direction.shape()[0], direction.shape()[1]));
  TESSERA_RETURN_IF_ERROR(
      ops_.Run(tp::op::Scale{-kUpdateScale * std::sqrt(larger), update}));
  return update;
}

}  // namespace tessera::train

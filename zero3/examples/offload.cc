// Trains one step with the optimizer state in 10 kB of host memory, and in a
// file beyond that.
#include <iostream>
#include <utility>

#include "base/status_macros.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "zero3/config/offload_config.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/state/sharded_state.h"

namespace {

using namespace tessera;
using namespace tessera::zero3;

absl::Status Train(collectives::Communicator& group) {
  TESSERA_ASSIGN_OR_RETURN(
      const OffloadConfig config,
      OffloadConfig::Parse(R"({"optimizer": true, "host_budget": 10000,
                               "directory": "/tmp"})"));
  TESSERA_ASSIGN_OR_RETURN(const OffloadTier offload,
                           MakeOffloadTier(config, DType::kF32));
  TESSERA_ASSIGN_OR_RETURN(const ModelParameters model,
                           ModelParameters::Builder()
                               .Add({.name = "up", .shape = {64, 16}})
                               .Add({.name = "down", .shape = {16, 64}})
                               .Build());
  ShardedStateOptions options = {.stage = 3};
  AddTo(options, config, offload.tier.get());
  TESSERA_ASSIGN_OR_RETURN(
      const auto state,
      ShardedState::Create(model, options, {.shard = &group}));
  for (const ParameterId id : model.in_use_order()) {
    TESSERA_RETURN_IF_ERROR(state->Gradient(id).status());
  }
  TESSERA_RETURN_IF_ERROR(state->ReduceGradients(model.in_use_order()));
  TESSERA_RETURN_IF_ERROR(state->Step().status());
  for (const offload::TierUsage& one : offload.tier->usage()) {
    std::cout << one.tier << ": " << one.usage.current << " bytes\n";
  }
  OffloadConfig rounded = config;
  rounded.codec = "int8";
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes,
                           rounded.EffectiveHostBudget(DType::kF32));
  std::cout << "as int8 the budget holds " << bytes << " bytes of gradients\n";
  return absl::OkStatus();
}

absl::Status Run() {
  TESSERA_ASSIGN_OR_RETURN(auto engines,
                           collectives::CreateInProcessEngines(1));
  TESSERA_ASSIGN_OR_RETURN(const auto group, collectives::Communicator::Create(
                                                 std::move(engines[0])));
  return Train(*group);
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

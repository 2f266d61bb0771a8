// One rank of a job of processes that share memory. Start it with
// //tools/launch, torchrun, mpirun or srun: launch --np=4 -- processes
#include <algorithm>
#include <iostream>
#include <memory>

#include "base/status_macros.h"
#include "collectives/bootstrap/join_job.h"
#include "collectives/communicator.h"
#include "collectives/shared_memory/shared_memory.h"

namespace {

using namespace tessera::collectives;

absl::Status Run() {
  TESSERA_ASSIGN_OR_RETURN(const Job job, JoinJob(ProcessEnvironment()));
  TESSERA_ASSIGN_OR_RETURN(auto engine, CreateSharedMemoryEngine(*job.store));
  TESSERA_ASSIGN_OR_RETURN(auto communicator,
                           Communicator::Create(std::move(engine)));
  // On memory from AllocateShared an all-reduce makes no copies.
  constexpr int64_t kCount = 1 << 20;
  TESSERA_ASSIGN_OR_RETURN(
      auto memory, communicator->AllocateShared(kCount * sizeof(float)));
  const Buffer gradient(memory->bytes().data(), kCount, tessera::DType::kF32);
  std::fill_n(static_cast<float*>(gradient.data), kCount,
              static_cast<float>(job.rank.value()));
  TESSERA_RETURN_IF_ERROR(
      communicator->AllReduce(gradient, Reduction::Average()));
  if (job.rank.value() == 0) {
    std::cout << job.world_size << " ranks agree on "
              << static_cast<float*>(gradient.data)[kCount - 1] << "\n";
  }
  return communicator->Barrier();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

// One rank of a model-parallel job: joins the job, and divides a matrix among
// its ranks. Start it with //tools/launch, torchrun, mpirun or srun:
// launch --np=4 -- context
#include <iostream>
#include <string_view>
#include <vector>

#include "base/device/host_device.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"
#include "collectives/bootstrap/join_job.h"
#include "collectives/communicator.h"
#include "collectives/groups/group_manager.h"
#include "collectives/shared_memory/shared_memory.h"
#include "tensor_parallel/sharding/distributed_tensor.h"
#include "topology/device_mesh.h"
#include "topology/mesh.h"

using namespace tessera;
using namespace tessera::collectives;
using namespace tessera::tensor_parallel;

absl::Status Run() {
  TESSERA_ASSIGN_OR_RETURN(const Job job, JoinJob(ProcessEnvironment()));
  TESSERA_ASSIGN_OR_RETURN(auto engine, CreateSharedMemoryEngine(*job.store));
  TESSERA_ASSIGN_OR_RETURN(auto world, Communicator::Create(std::move(engine)));
  const std::vector<topology::Axis> axes = {{"tp", job.world_size}};
  TESSERA_ASSIGN_OR_RETURN(const auto mesh, topology::Mesh::Create(axes));
  TESSERA_ASSIGN_OR_RETURN(auto groups, GroupManager::Create(*world, mesh));
  const std::vector<std::string_view> lines = {"tp"};
  TESSERA_ASSIGN_OR_RETURN(const auto devices, topology::DeviceMesh::FromMesh(
                                                   mesh, lines, job.rank));

  const std::vector<float> values(128 * 512, 1.0f);
  TESSERA_ASSIGN_OR_RETURN(
      const auto whole, ConstTensorView::Of(std::span(values), {{128, 512}}));
  TESSERA_ASSIGN_OR_RETURN(
      const auto layout,
      ShardedLayout::Create(mesh, {{128, 512}}, {{"tp", 0}}));
  TESSERA_ASSIGN_OR_RETURN(
      const auto rows,
      DistributedTensor::FromWhole(layout, job.rank, whole, HostQueue()));
  TESSERA_ASSIGN_OR_RETURN(
      const auto columns,
      Redistribute(*groups, HostQueue(), rows, {{"tp", 1}}));
  TESSERA_ASSIGN_OR_RETURN(const auto all,
                           Gather(*groups, HostQueue(), columns, 1));
  if (job.rank.value() == 0) {
    std::cout << "devices " << devices.ToString() << rows.ToString() << "\n"
              << columns.ToString() << "\n"
              << all.ToString() << "\n";
  }
  return world->Barrier();
}

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

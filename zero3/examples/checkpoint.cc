// Four ranks save while they continue to train; three ranks load.
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "collectives/in_process/in_process.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/load_checkpoint.h"

namespace {

using namespace tessera;
using namespace tessera::zero3;
using collectives::Communicator;

absl::StatusOr<std::unique_ptr<ShardedState>> NewState(int stage,
                                                       Communicator& group) {
  TESSERA_ASSIGN_OR_RETURN(
      const ModelParameters model,
      ModelParameters::Builder()
          .Add({.name = "weight", .shape = {512, 64}, .dtype = DType::kBF16})
          .Build());
  return ShardedState::Create(model, {.stage = stage}, {.shard = &group});
}

absl::Status Save(const std::string& directory, Communicator& group) {
  TESSERA_ASSIGN_OR_RETURN(auto state, NewState(3, group));
  TESSERA_ASSIGN_OR_RETURN(
      auto writer, CheckpointWriter::Create(
                       {.shard = &group}, {.directory = directory, .keep = 2}));
  const PendingCheckpoint pending =
      writer->Start(*state, {{"data", "shard 7, line 19"}});
  // ... training goes on here ...
  return pending.Wait().status();
}

absl::Status Load(const std::string& directory, Communicator& group) {
  TESSERA_ASSIGN_OR_RETURN(auto state, NewState(1, group));
  TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoint latest,
                           LatestCheckpoint(directory));
  TESSERA_ASSIGN_OR_RETURN(
      const LoadedCheckpoint loaded,
      LoadCheckpoint(latest.path, {.shard = &group}, *state));
  if (group.rank() == collectives::Rank(0)) {
    std::cout << "loaded step " << loaded.step << ", data at "
              << loaded.metadata.at("data") << "\n";
  }
  return absl::OkStatus();
}

absl::Status OnRanks(int64_t ranks, const std::string& directory,
                     absl::Status (*body)(const std::string&, Communicator&)) {
  TESSERA_ASSIGN_OR_RETURN(auto engines,
                           collectives::CreateInProcessEngines(ranks));
  std::vector<absl::Status> results(engines.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < engines.size(); ++r) {
    threads.emplace_back([&, r] {
      auto group = Communicator::Create(std::move(engines[r]));
      results[r] = group.ok() ? body(directory, **group) : group.status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  absl::Status first;
  for (const absl::Status& result : results) first.Update(result);
  return first;
}

absl::Status Run(const std::string& directory) {
  TESSERA_RETURN_IF_ERROR(OnRanks(4, directory, Save));
  TESSERA_ASSIGN_OR_RETURN(const FoundCheckpoint latest,
                           LatestCheckpoint(directory));
  TESSERA_RETURN_IF_ERROR(VerifyCheckpoint(latest.path));
  TESSERA_ASSIGN_OR_RETURN(const CheckpointManifest manifest,
                           ReadManifest(latest.path));
  for (const CheckpointFile& file : manifest.parts[0].files) {
    std::cout << file.bytes << " bytes\n";
  }
  return OnRanks(3, directory, Load);
}

}  // namespace

int main() {
  char directory[] = "/tmp/checkpoint.XXXXXX";
  if (mkdtemp(directory) == nullptr) return 1;
  const absl::Status status = Run(directory);
  std::filesystem::remove_all(directory);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}

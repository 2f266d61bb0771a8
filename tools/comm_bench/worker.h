// RunWorker: a process of one job, which executes the tasks that the parent
// sends on a unix socket. Between tasks it waits in poll(2) and takes no
// processor time from other jobs.
//
//   int main(int argc, char** argv) {
//     if (IsWorker(argc, argv)) return RunWorker(argc, argv, catalogue);
//     ...
//   }
//
// Every program that starts jobs begins like this, because its workers are the
// same binary.
#ifndef TESSERA_TOOLS_COMM_BENCH_WORKER_H_
#define TESSERA_TOOLS_COMM_BENCH_WORKER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/device/device.h"
#include "collectives/communicator.h"
#include "tools/comm_bench/engine_catalogue.h"
#include "tools/comm_bench/operands.h"
#include "tools/comm_bench/task.h"

namespace tessera::tools {

// The capabilities of an engine, from which the variants follow.
struct Capabilities {
  uint32_t kinds = 0;  // Bit k: the engine implements the OpKind k.
  bool has_transport = false;

  bool Implements(collectives::OpKind kind) const {
    return (kinds >> static_cast<int>(kind) & 1) != 0;
  }
  // The value as one number of an Answer.
  double Pack() const { return kinds * 2.0 + (has_transport ? 1 : 0); }
  static Capabilities Unpack(double packed);

  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

// One rank of a job under test.
//
//   TESSERA_ASSIGN_OR_RETURN(auto session,
//                            RankSession::Create(std::move(engine), 0));
//   Answer answer = session->Execute(task);
//
// All ranks of a job execute the same tasks in the same order. A session keeps
// the buffers of the last task and the communicators that tasks have used.
//
// Timing: before each iteration the buffers are rewritten and a barrier of the
// engine under test, or of the host beside a device, aligns the ranks; neither
// is timed. An iteration is a batch of operations back to back, on a device
// enqueued and waited for once; its time, on this rank's CLOCK_MONOTONIC, is
// divided by the batch. The results of the first and the last iteration are
// checked.
class RankSession {
 public:
  // A collective call. Ranks [0, group_size), [group_size, 2 group_size), ...
  // are near each other; 0: all ranks are.
  static absl::StatusOr<std::unique_ptr<RankSession>> Create(
      std::unique_ptr<collectives::Engine> engine, int64_t group_size);
  // For memory of `device`, with the communicator's own algorithm only.
  static absl::StatusOr<std::unique_ptr<RankSession>> CreateOnDevice(
      std::shared_ptr<Device> device,
      std::unique_ptr<collectives::Communicator> communicator);

  const Capabilities& capabilities() const { return capabilities_; }

  // The answer's status holds an error of the task.
  Answer Execute(const Task& task);

 private:
  RankSession() = default;

  absl::StatusOr<collectives::Communicator*> CommunicatorFor(const Task& task);
  absl::StatusOr<std::unique_ptr<collectives::Communicator>> MakeCommunicator(
      const Task& task);
  absl::StatusOr<Operands*> OperandsFor(const Task& task,
                                        collectives::Communicator* owner);
  absl::Status RunTask(const Task& task, Answer* answer);

  // Members refer to earlier ones.
  std::shared_ptr<Device> device_;         // Null for memory of the host.
  std::unique_ptr<Queue> queue_;           // Copies operands.
  collectives::Engine* engine_ = nullptr;  // Owned by plain_; null on a device.
  Capabilities capabilities_;
  collectives::CommunicatorOptions options_;
  uint32_t groups_ = 1000;  // Above the group numbers of plain_.
  std::unique_ptr<collectives::Communicator> plain_;
  // [reproducible][adaptive]; created on first use.
  std::unique_ptr<collectives::Communicator> others_[2][2];

  // The operands of the last task; destroyed before the communicator, whose
  // memory they may hold.
  std::optional<Operands> operands_;
  Task operands_task_;
  const collectives::Communicator* operands_owner_ = nullptr;
};

// The parent's message to each worker after its greeting; sent as raw bytes.
struct WorkerSetup {
  char device[16] = {};
  char engine[64] = {};
  int64_t world = 1;
  int64_t group_size = 0;  // See RankSession::Create.
  bool bind = true;        // Binds each rank to its share of the processors.
};

// The arguments of a worker. `socket` is the parent's name in the abstract
// namespace. If `threads` is above 0, ranks 0 to threads - 1 are threads of one
// process.
std::vector<std::string> WorkerArguments(const std::string& socket,
                                         int64_t threads);

bool IsWorker(int argc, char** argv);

// Returns the exit code once the parent ends the job or is gone.
int RunWorker(int argc, char** argv, const EngineCatalogue& catalogue);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_WORKER_H_

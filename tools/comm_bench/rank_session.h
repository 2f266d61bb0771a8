// RankSession: one rank of a job under test, which carries out tasks.
//
//   TESSERA_ASSIGN_OR_RETURN(auto session,
//                            RankSession::Create(std::move(engine), setup));
//   Answer answer = session->Execute(task);
//
// Every rank of a job is given the same tasks in the same order. It keeps the
// buffers of the last task, and the communicators that tasks have asked for.
#ifndef TESSERA_TOOLS_COMM_BENCH_RANK_SESSION_H_
#define TESSERA_TOOLS_COMM_BENCH_RANK_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"
#include "tools/comm_bench/operands.h"
#include "tools/comm_bench/task.h"

namespace tessera::tools {

// What an engine can do, for planning.
struct Capabilities {
  uint32_t kinds = 0;  // Bit k: it implements the OpKind of value k.
  bool has_transport = false;

  bool Implements(collectives::OpKind kind) const {
    return (kinds >> static_cast<int>(kind) & 1) != 0;
  }
  // One number that travels as an answer's only one.
  double Pack() const { return kinds * 2.0 + (has_transport ? 1 : 0); }
  static Capabilities Unpack(double packed);

  friend bool operator==(const Capabilities&, const Capabilities&) = default;
};

class RankSession {
 public:
  // A collective. Ranks [0, group_size), [group_size, 2 group_size), ... are
  // near each other; 0: all are.
  static absl::StatusOr<std::unique_ptr<RankSession>> Create(
      std::unique_ptr<collectives::Engine> engine, int64_t group_size);

  const Capabilities& capabilities() const { return capabilities_; }

  // An error of the task is the answer's status.
  Answer Execute(const Task& task);

 private:
  RankSession() = default;

  absl::StatusOr<collectives::Communicator*> CommunicatorFor(const Task& task);
  absl::StatusOr<std::unique_ptr<collectives::Communicator>> MakeCommunicator(
      const Task& task);
  absl::StatusOr<Operands*> OperandsFor(const Task& task,
                                        collectives::Communicator* owner);
  absl::Status Carry(const Task& task, Answer* answer);

  collectives::Engine* engine_ = nullptr;  // Owned by plain_.
  Capabilities capabilities_;
  collectives::CommunicatorOptions options_;
  uint32_t groups_ = 1000;  // Beyond the numbers that plain_ gives out itself.
  std::unique_ptr<collectives::Communicator> plain_;
  // [reproducible][adaptive]; made when a task asks for one.
  std::unique_ptr<collectives::Communicator> others_[2][2];

  // Of the last task. Dies before the communicator whose memory it may hold.
  std::optional<Operands> operands_;
  Task operands_task_;
  const collectives::Communicator* operands_owner_ = nullptr;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_RANK_SESSION_H_

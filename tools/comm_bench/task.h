// Task and Answer: a request of the benchmark to a worker, and the result;
// JobSpec: the arguments of the workers.
//
//   TESSERA_RETURN_IF_ERROR(SendStruct(socket, task, deadline));
//   TESSERA_ASSIGN_OR_RETURN(Answer answer, ReceiveAnswer(socket, deadline));
//
// Both ends are the same binary on the same host, so structs are sent as raw
// bytes.
#ifndef TESSERA_TOOLS_COMM_BENCH_TASK_H_
#define TESSERA_TOOLS_COMM_BENCH_TASK_H_

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/socket.h"
#include "collectives/operation/operation.h"
#include "tools/comm_bench/operands.h"

namespace tessera::tools {

// The ranks of one engine, which serve many tasks.
struct JobSpec {
  std::string device = "cpu";
  std::string engine;
  int64_t world = 1;
  // Ranks [0, group_size), [group_size, 2 group_size), ... are near each other;
  // 0: all ranks are.
  int64_t group_size = 0;
  bool bind = true;  // Binds each rank to its share of the processors.
};

// The arguments of a worker of the job. `socket` is the parent's name in the
// abstract namespace.
std::vector<std::string> WorkerArguments(const JobSpec& spec,
                                         const std::string& socket);

// Parses these arguments. Returns false for any other arguments.
bool ReadWorkerArguments(int argc, char** argv, JobSpec* spec,
                         std::string* socket);

// The capabilities of an engine, from which its variants follow.
struct Capabilities {
  uint32_t kinds = 0;  // Bit k: the engine implements the OpKind k.
  bool has_transport = false;

  bool Implements(collectives::OpKind kind) const {
    return (kinds >> static_cast<int>(kind) & 1) != 0;
  }
};

// One way to execute an operation, which a case compares with others. Without
// an algorithm the communicator chooses: its default, or the adaptive choice.
struct Variant {
  std::optional<collectives::Algorithm> algorithm = std::nullopt;
  bool adaptive = false;
  bool reproducible = false;

  // "ring", "engine+reproducible".
  std::string Name() const;
  friend bool operator==(const Variant&, const Variant&) = default;
};

enum class TaskKind : uint8_t {
  kQuit,
  kTime,  // Times an operation: seconds of one operation, for each iteration.
  kOverlap,  // Three seconds for each iteration: compute, operation, both.
  kChoose,   // Text: the algorithm that the adaptive chooser selects, a line
             // feed, and the reason.
};

struct Task {
  TaskKind kind = TaskKind::kQuit;
  Variant variant;
  OperandShape shape;
  bool check = true;
  int64_t first_iteration = 0;
  int64_t warmup = 0;  // Iterations that are not timed.
  int64_t iterations = 0;
  int64_t batch = 1;  // Operations of an iteration.
};

struct Answer {
  absl::Status status;
  Capabilities capabilities;  // In the first answer.
  std::vector<double> seconds;
  std::string text;
};

// The first message of a worker, which the parent returns when all workers have
// connected.
struct Greeting {
  int64_t rank = -1;
  int64_t pid = 0;
};

// Deadlines and closed sockets are reported as in collectives/channel/socket.h.
template <typename T>
absl::Status SendStruct(const UniqueFd& socket, const T& value,
                        const collectives::Deadline& deadline) {
  static_assert(std::is_trivially_copyable_v<T>);
  return collectives::SendAll(
      socket, {reinterpret_cast<const char*>(&value), sizeof(value)}, deadline);
}

template <typename T>
absl::StatusOr<T> ReceiveStruct(const UniqueFd& socket,
                                const collectives::Deadline& deadline) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value;
  TESSERA_RETURN_IF_ERROR(collectives::ReceiveAll(
      socket, {reinterpret_cast<char*>(&value), sizeof(value)}, deadline));
  return value;
}

absl::Status SendAnswer(const UniqueFd& socket, const Answer& answer,
                        const collectives::Deadline& deadline);
absl::StatusOr<Answer> ReceiveAnswer(const UniqueFd& socket,
                                     const collectives::Deadline& deadline);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_TASK_H_

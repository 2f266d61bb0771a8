// Task and Answer: a request of the benchmark to a worker, and the result.
//
//   TESSERA_RETURN_IF_ERROR(SendTask(socket, task, deadline));
//   TESSERA_ASSIGN_OR_RETURN(Answer answer, ReceiveAnswer(socket, deadline));
//
// Both ends are the same binary on the same host, so structs are sent as raw
// bytes.
#ifndef TESSERA_TOOLS_COMM_BENCH_TASK_H_
#define TESSERA_TOOLS_COMM_BENCH_TASK_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype/dtype.h"
#include "base/os/unique_fd.h"
#include "collectives/channel/deadline.h"
#include "collectives/operation/operation.h"

namespace tessera::tools {

enum class TaskKind : uint8_t {
  kQuit,
  kTime,  // Times an operation: seconds of one operation, for each iteration.
  kOverlap,  // Three seconds for each iteration: compute, operation, both.
  kChoose,   // Text: the algorithm that the adaptive chooser selects, a line
             // feed, and the reason.
};

// The source of the algorithm of an operation.
enum class AlgorithmSource : uint8_t {
  kDefault,    // The communicator's default.
  kAlgorithm,  // Task::algorithm.
  kAdaptive,
};

struct Task {
  TaskKind kind = TaskKind::kQuit;
  AlgorithmSource source = AlgorithmSource::kDefault;
  collectives::Algorithm algorithm = collectives::Algorithm::kEngine;
  collectives::OpKind op = collectives::OpKind::kBarrier;
  DType dtype = DType::kF32;
  bool in_place = false;
  bool registered = false;
  bool reproducible = false;
  bool check = true;
  collectives::Reduction reduction = {};
  int64_t count = 0;  // As in OperandShape.
  int64_t first_iteration = 0;
  int64_t warmup = 0;  // Iterations that are not timed.
  int64_t iterations = 0;
  int64_t batch = 1;  // Operations of an iteration.
};
static_assert(std::is_trivially_copyable_v<Task>);

struct Answer {
  absl::Status status;
  std::vector<double> seconds;
  std::string text;
};

// The first message of a worker.
struct Greeting {
  int64_t rank = -1;
  int64_t pid = 0;
};

// Deadlines and closed sockets are reported as in collectives/channel/socket.h.
absl::Status SendGreeting(const UniqueFd& socket, const Greeting& greeting,
                          const collectives::Deadline& deadline);
absl::StatusOr<Greeting> ReceiveGreeting(const UniqueFd& socket,
                                         const collectives::Deadline& deadline);
absl::Status SendTask(const UniqueFd& socket, const Task& task,
                      const collectives::Deadline& deadline);
absl::StatusOr<Task> ReceiveTask(const UniqueFd& socket,
                                 const collectives::Deadline& deadline);
absl::Status SendAnswer(const UniqueFd& socket, const Answer& answer,
                        const collectives::Deadline& deadline);
absl::StatusOr<Answer> ReceiveAnswer(const UniqueFd& socket,
                                     const collectives::Deadline& deadline);

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_COMM_BENCH_TASK_H_

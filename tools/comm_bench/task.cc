#include "tools/comm_bench/task.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera::tools {
namespace {

using collectives::Deadline;

constexpr std::string_view kWorkerArgument = "--comm_bench_worker";

// Limits of an answer.
constexpr size_t kMaxSeconds = size_t{1} << 20;
constexpr size_t kMaxText = size_t{1} << 20;

struct AnswerHeader {
  absl::StatusCode code = absl::StatusCode::kOk;
  Capabilities capabilities;
  size_t message = 0;  // Bytes.
  size_t text = 0;     // Bytes.
  size_t seconds = 0;  // Numbers.
};

}  // namespace

std::vector<std::string> WorkerArguments(const JobSpec& spec,
                                         const std::string& socket) {
  return {std::string(kWorkerArgument),
          socket,
          spec.device,
          spec.engine,
          absl::StrCat(spec.world),
          absl::StrCat(spec.group_size),
          absl::StrCat(spec.bind)};
}

bool ReadWorkerArguments(int argc, char** argv, JobSpec* spec,
                         std::string* socket) {
  if (argc != 8 || argv[1] != kWorkerArgument) return false;
  *socket = argv[2];
  spec->device = argv[3];
  spec->engine = argv[4];
  return absl::SimpleAtoi(argv[5], &spec->world) &&
         absl::SimpleAtoi(argv[6], &spec->group_size) &&
         absl::SimpleAtob(argv[7], &spec->bind);
}

std::string Variant::Name() const {
  const std::string_view name =
      adaptive
          ? "adaptive"
          : AlgorithmName(algorithm.value_or(collectives::Algorithm::kEngine));
  return absl::StrCat(name, reproducible ? "+reproducible" : "");
}

absl::Status SendAnswer(const UniqueFd& socket, const Answer& answer,
                        const Deadline& deadline) {
  const std::string_view message =
      std::string_view(answer.status.message()).substr(0, kMaxText);
  const std::string_view text =
      std::string_view(answer.text).substr(0, kMaxText);
  const AnswerHeader header = {answer.status.code(), answer.capabilities,
                               message.size(), text.size(),
                               answer.seconds.size()};
  TESSERA_RETURN_IF_ERROR(SendStruct(socket, header, deadline));
  std::string bytes = absl::StrCat(message, text);
  bytes.append(reinterpret_cast<const char*>(answer.seconds.data()),
               answer.seconds.size() * sizeof(double));
  return collectives::SendAll(socket, bytes, deadline);
}

absl::StatusOr<Answer> ReceiveAnswer(const UniqueFd& socket,
                                     const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(const auto header,
                           ReceiveStruct<AnswerHeader>(socket, deadline));
  if (std::max(header.message, header.text) > kMaxText ||
      header.seconds > kMaxSeconds) {
    return absl::InternalError("a worker's answer is malformed");
  }
  std::string message(header.message, '\0');
  TESSERA_RETURN_IF_ERROR(collectives::ReceiveAll(socket, message, deadline));
  Answer answer;
  answer.status = absl::Status(header.code, message);
  answer.capabilities = header.capabilities;
  answer.text.resize(header.text);
  TESSERA_RETURN_IF_ERROR(
      collectives::ReceiveAll(socket, answer.text, deadline));
  answer.seconds.resize(header.seconds);
  TESSERA_RETURN_IF_ERROR(
      collectives::ReceiveAll(socket,
                              {reinterpret_cast<char*>(answer.seconds.data()),
                               answer.seconds.size() * sizeof(double)},
                              deadline));
  return answer;
}

}  // namespace tessera::tools

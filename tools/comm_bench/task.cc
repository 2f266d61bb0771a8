#include "tools/comm_bench/task.h"

#include <cstring>
#include <span>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/channel/socket.h"

namespace tessera::tools {
namespace {

using collectives::Deadline;
using collectives::ReceiveAll;
using collectives::SendAll;

// Limits of an answer.
constexpr uint64_t kMaxSeconds = uint64_t{1} << 20;
constexpr uint64_t kMaxText = uint64_t{1} << 20;

struct AnswerHeader {
  int64_t code = 0;
  uint64_t message = 0;  // Bytes.
  uint64_t text = 0;     // Bytes.
  uint64_t seconds = 0;  // Numbers.
};

template <typename T>
absl::Status SendValue(const UniqueFd& socket, const T& value,
                       const Deadline& deadline) {
  return SendAll(socket, {reinterpret_cast<const char*>(&value), sizeof(value)},
                 deadline);
}

template <typename T>
absl::StatusOr<T> ReceiveValue(const UniqueFd& socket,
                               const Deadline& deadline) {
  T value;
  TESSERA_RETURN_IF_ERROR(ReceiveAll(
      socket, {reinterpret_cast<char*>(&value), sizeof(value)}, deadline));
  return value;
}

absl::StatusOr<std::string> ReceiveText(const UniqueFd& socket, uint64_t size,
                                        const Deadline& deadline) {
  std::string text(size, '\0');
  TESSERA_RETURN_IF_ERROR(
      ReceiveAll(socket, {text.data(), text.size()}, deadline));
  return text;
}

}  // namespace

absl::Status SendGreeting(const UniqueFd& socket, const Greeting& greeting,
                          const Deadline& deadline) {
  return SendValue(socket, greeting, deadline);
}

absl::StatusOr<Greeting> ReceiveGreeting(const UniqueFd& socket,
                                         const Deadline& deadline) {
  return ReceiveValue<Greeting>(socket, deadline);
}

absl::Status SendTask(const UniqueFd& socket, const Task& task,
                      const Deadline& deadline) {
  return SendValue(socket, task, deadline);
}

absl::StatusOr<Task> ReceiveTask(const UniqueFd& socket,
                                 const Deadline& deadline) {
  return ReceiveValue<Task>(socket, deadline);
}

absl::Status SendAnswer(const UniqueFd& socket, const Answer& answer,
                        const Deadline& deadline) {
  const std::string_view message =
      std::string_view(answer.status.message()).substr(0, kMaxText);
  const std::string_view text =
      std::string_view(answer.text).substr(0, kMaxText);
  AnswerHeader header;
  header.code = static_cast<int64_t>(answer.status.code());
  header.message = message.size();
  header.text = text.size();
  header.seconds = answer.seconds.size();
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  absl::StrAppend(&bytes, message, text);
  bytes.append(reinterpret_cast<const char*>(answer.seconds.data()),
               answer.seconds.size() * sizeof(double));
  return SendAll(socket, bytes, deadline);
}

absl::StatusOr<Answer> ReceiveAnswer(const UniqueFd& socket,
                                     const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(const AnswerHeader header,
                           ReceiveValue<AnswerHeader>(socket, deadline));
  if (header.message > kMaxText || header.text > kMaxText ||
      header.seconds > kMaxSeconds) {
    return absl::InternalError("a worker's answer is malformed");
  }
  Answer answer;
  TESSERA_ASSIGN_OR_RETURN(const std::string message,
                           ReceiveText(socket, header.message, deadline));
  answer.status =
      absl::Status(static_cast<absl::StatusCode>(header.code), message);
  TESSERA_ASSIGN_OR_RETURN(answer.text,
                           ReceiveText(socket, header.text, deadline));
  answer.seconds.resize(header.seconds);
  TESSERA_RETURN_IF_ERROR(
      ReceiveAll(socket,
                 {reinterpret_cast<char*>(answer.seconds.data()),
                  answer.seconds.size() * sizeof(double)},
                 deadline));
  return answer;
}

}  // namespace tessera::tools

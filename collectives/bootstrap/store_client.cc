#include "collectives/bootstrap/store_client.h"

#include <poll.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/peer_process.h"
#include "collectives/bootstrap/store_table.h"

namespace tessera::collectives {
namespace {

// How long the server may take to answer at a deadline.
constexpr absl::Duration kGrace = absl::Milliseconds(200);
constexpr absl::Duration kFarewell = absl::Milliseconds(200);

// The server's reply to the greeting.
absl::StatusOr<Message> Greet(Connection& connection, const Message& hello,
                              const Deadline& deadline) {
  connection.Queue(hello);
  std::vector<Message> in;
  while (true) {
    const absl::Status status = connection.Advance(&in);
    if (!in.empty()) return std::move(in.front());
    TESSERA_RETURN_IF_ERROR(status);
    TESSERA_ASSIGN_OR_RETURN(
        const bool ready,
        WaitReady(connection.fd(), connection.events(), deadline));
    if (!ready) {
      return absl::DeadlineExceededError(
          "connected, but the other end sent nothing");
    }
  }
}

absl::StatusOr<std::string> ServerName(const Message& welcome) {
  if (welcome.type == MessageType::kRefuse && !welcome.value.empty() &&
      welcome.code != absl::StatusCode::kOk) {
    return absl::Status(welcome.code,
                        absl::StrCat("rank 0 rejected this rank: ",
                                     welcome.value.substr(0, 1000)));
  }
  if (welcome.type != MessageType::kWelcome) {
    return absl::InvalidArgumentError(
        "the other end does not answer the greeting");
  }
  TESSERA_ASSIGN_OR_RETURN(const HelloBody body, ParseHello(welcome.value));
  return absl::StrCat(
      "rank 0 (",
      DescribePlace(absl::CHexEscape(welcome.key).substr(0, 128), body.pid),
      ")");
}

}  // namespace

absl::StatusOr<std::unique_ptr<StoreClient>> StoreClient::Join(
    std::unique_ptr<ByteChannel> channel, Rank rank, int64_t size,
    const Deadline& deadline) {
  Connection connection(std::move(channel));
  const Message hello = {.type = MessageType::kHello,
                         .number = rank.value(),
                         .key = HostName(),
                         .value = FormatHello({size, getpid()})};
  TESSERA_ASSIGN_OR_RETURN(const Message welcome,
                           Greet(connection, hello, deadline));
  TESSERA_ASSIGN_OR_RETURN(std::string server, ServerName(welcome));
  TESSERA_ASSIGN_OR_RETURN(WakeFd wake, WakeFd::Create());
  return std::unique_ptr<StoreClient>(new StoreClient(
      std::move(connection), std::move(wake), rank, size, std::move(server)));
}

StoreClient::StoreClient(Connection connection, WakeFd wake, Rank rank,
                         int64_t size, std::string server)
    : rank_(rank),
      size_(size),
      server_(std::move(server)),
      wake_(std::move(wake)),
      connection_(std::move(connection)),
      thread_([this] { Run(); }) {}

StoreClient::~StoreClient() {
  if (pid_ != getpid()) {
    // In a forked child the thread does not exist.
    thread_.detach();
    return;
  }
  stopping_ = true;
  wake_.Wake();
  thread_.join();
}

absl::StatusOr<std::shared_ptr<StoreClient::Answer>> StoreClient::Send(
    Message& request) {
  TESSERA_RETURN_IF_ERROR(CheckOwner(rank_, pid_));
  TESSERA_RETURN_IF_ERROR(CheckMessage(request));
  auto answer = std::make_shared<Answer>();
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return broken_;
    request.id = next_id_++;
    waiting_[request.id] = answer;
    outbox_.push_back(request);
  }
  wake_.Wake();
  return answer;
}

absl::StatusOr<std::string> StoreClient::Finish(uint64_t id, Answer& answer,
                                                absl::Time deadline) {
  if (auto value = answer.Take(deadline)) {
    return *std::move(value);
  }
  {
    absl::MutexLock lock(&mutex_);
    waiting_.erase(id);
  }
  return absl::DeadlineExceededError(
      absl::StrCat(server_, ", which keeps the job's store, does not answer"));
}

absl::StatusOr<std::string> StoreClient::Ask(Message request,
                                             absl::Time deadline) {
  TESSERA_ASSIGN_OR_RETURN(const auto answer, Send(request));
  return Finish(request.id, *answer, deadline);
}

absl::StatusOr<std::string> StoreClient::AskUntil(Message request,
                                                  absl::Time deadline) {
  TESSERA_ASSIGN_OR_RETURN(const auto answer, Send(request));
  if (auto value = answer->Take(deadline)) return *std::move(value);
  {
    absl::MutexLock lock(&mutex_);
    outbox_.push_back({.type = MessageType::kCancel, .id = request.id});
  }
  wake_.Wake();
  return Finish(request.id, *answer, absl::Now() + kGrace);
}

absl::Status StoreClient::SetFor(int64_t reads, std::string_view key,
                                 std::string_view value, absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(CheckEntry(reads, key, value));
  return Ask({.type = MessageType::kSet,
              .number = reads,
              .key = std::string(key),
              .value = std::string(value)},
             deadline)
      .status();
}

absl::StatusOr<std::string> StoreClient::GetFrom(Rank owner,
                                                 std::string_view key,
                                                 absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(CheckKey(key));
  return AskUntil({.type = MessageType::kGet,
                   .number = owner.value(),
                   .key = std::string(key)},
                  deadline);
}

absl::Status StoreClient::Erase(std::string_view prefix,
                                std::span<const Rank> ranks,
                                absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(CheckRankList(prefix, ranks, size_));
  return Ask({.type = MessageType::kErase,
              .key = std::string(prefix),
              .value = FormatRanks(ranks)},
             deadline)
      .status();
}

absl::StatusOr<MissingMembers> StoreClient::AwaitAll(
    std::string_view prefix, std::span<const Rank> ranks, absl::Time deadline) {
  TESSERA_RETURN_IF_ERROR(CheckRankList(prefix, ranks, size_));
  TESSERA_ASSIGN_OR_RETURN(const std::string value,
                           AskUntil({.type = MessageType::kAbsent,
                                     .key = std::string(prefix),
                                     .value = FormatRanks(ranks)},
                                    deadline));
  return ParseMissingMembers(value);
}

void StoreClient::Run() {
  const Deadline never = Deadline::After(absl::InfiniteDuration());
  while (!stopping_ && !over_) Step(never);
  if (!over_) SayFarewell();
  connection_.Close();
}

// Waits for events and handles them.
void StoreClient::Step(const Deadline& until) {
  pollfd fds[] = {{wake_.fd(), POLLIN, 0},
                  {connection_.fd(), connection_.events(), 0}};
  if (poll(fds, 2, until.PollMillis()) <= 0) return;
  if (fds[0].revents != 0) wake_.Drain();
  TakeOutbox();
  std::vector<Message> in;
  const absl::Status status = connection_.Advance(&in);
  for (Message& message : in) Deliver(std::move(message));
  if (!status.ok()) {
    Break(absl::UnavailableError(
        absl::StrCat(server_,
                     ", which keeps the job's store, closed the "
                     "connection, most likely because it died: ",
                     status.message())));
  }
}

void StoreClient::TakeOutbox() {
  std::vector<Message> messages;
  {
    absl::MutexLock lock(&mutex_);
    messages.swap(outbox_);
  }
  for (const Message& message : messages) connection_.Queue(message);
}

void StoreClient::Deliver(Message message) {
  if (message.type == MessageType::kBye) {
    Break(absl::UnavailableError(absl::StrCat(
        server_, ", which keeps the job's store, has left the job")));
    return;
  }
  if (message.type != MessageType::kReply) return;
  std::shared_ptr<Answer> answer;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = waiting_.find(message.id);
    if (it == waiting_.end()) return;
    answer = std::move(it->second);
    waiting_.erase(it);
  }
  if (message.code == absl::StatusCode::kOk) {
    answer->Put(std::move(message.value));
  } else {
    answer->Put(absl::Status(message.code, message.value));
  }
}

void StoreClient::Break(const absl::Status& status) {
  over_ = true;
  absl::flat_hash_map<uint64_t, std::shared_ptr<Answer>> waiting;
  {
    absl::MutexLock lock(&mutex_);
    if (broken_.ok()) broken_ = status;
    waiting.swap(waiting_);
  }
  for (const auto& [id, answer] : waiting) answer->Put(status);
}

void StoreClient::SayFarewell() {
  const Deadline farewell = Deadline::After(kFarewell);
  TakeOutbox();
  connection_.Queue({.type = MessageType::kBye});
  std::vector<Message> in;
  while (connection_.Advance(&in).ok() && connection_.queued_bytes() > 0) {
    const auto ready =
        WaitReady(connection_.fd(), connection_.events(), farewell);
    if (!ready.ok() || !*ready) return;
  }
}

}  // namespace tessera::collectives

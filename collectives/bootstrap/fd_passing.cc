#include "collectives/bootstrap/fd_passing.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/little_endian.h"
#include "base/status_macros.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/message.h"
#include "collectives/channel/random_bytes.h"
#include "collectives/channel/socket.h"

namespace tessera::collectives {

namespace {

constexpr size_t kMaxToken = 64;
constexpr size_t kMaxFds = 8;

// A control message buffer for descriptors, aligned as the kernel requires.
template <size_t fds>
struct Control {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * fds)> bytes = {};
};

std::vector<UniqueFd> TakeFds(msghdr& message) {
  std::vector<UniqueFd> fds;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  return fds;
}

// recvmsg that waits for the first byte.
absl::StatusOr<size_t> ReceiveMessage(const UniqueFd& socket, msghdr& message,
                                      const Deadline& deadline) {
  while (true) {
    TESSERA_ASSIGN_OR_RETURN(const bool ready,
                             WaitReady(socket.get(), POLLIN, deadline));
    if (!ready) {
      return absl::DeadlineExceededError(
          "the deadline passed before a descriptor was received");
    }
    const ssize_t got =
        recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) {
      return absl::UnavailableError("the other end closed the connection");
    }
    if (errno != EAGAIN && errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("cannot receive: ", std::strerror(errno)));
    }
  }
}

}  // namespace

absl::Status SendFd(const UniqueFd& socket, const UniqueFd& fd,
                    std::string_view token, const Deadline& deadline) {
  if (token.empty() || token.size() > kMaxToken) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the token has ", token.size(), " bytes; use 1 to ", kMaxToken));
  }
  Control<1> control;
  // The descriptor is sent with the first byte; the rest of the token follows.
  iovec bytes = {const_cast<char*>(token.data()), 1};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  cmsghdr* part = CMSG_FIRSTHDR(&message);
  part->cmsg_level = SOL_SOCKET;
  part->cmsg_type = SCM_RIGHTS;
  part->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = fd.get();
  std::memcpy(CMSG_DATA(part), &number, sizeof(int));
  while (sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      return absl::UnavailableError(
          absl::StrCat("cannot send a descriptor: ", std::strerror(errno)));
    }
    TESSERA_ASSIGN_OR_RETURN(const bool ready,
                             WaitReady(socket.get(), POLLOUT, deadline));
    if (!ready) return absl::DeadlineExceededError("cannot send a descriptor");
  }
  return SendAll(socket, token.substr(1), deadline);
}

absl::StatusOr<UniqueFd> ReceiveFd(const UniqueFd& socket,
                                   std::string_view token,
                                   const Deadline& deadline) {
  std::string got(token.size(), '\0');
  Control<kMaxFds> control;
  iovec bytes = {got.data(), got.size()};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes.data();
  message.msg_controllen = control.bytes.size();
  TESSERA_ASSIGN_OR_RETURN(const size_t size,
                           ReceiveMessage(socket, message, deadline));
  std::vector<UniqueFd> fds = TakeFds(message);
  TESSERA_RETURN_IF_ERROR(
      ReceiveAll(socket, std::span(got).subspan(size), deadline));
  if (fds.size() == 1 && SecretsEqual(got, token)) return std::move(fds[0]);
  return absl::PermissionDeniedError(
      absl::StrCat("the other end sent ", fds.size(), " descriptors",
                   SecretsEqual(got, token) ? "" : " and the wrong token"));
}

namespace {

constexpr size_t kTokenBytes = 32;  // 128 bits in hexadecimal.
constexpr size_t kRequestBytes = kTokenBytes + sizeof(uint32_t);
constexpr size_t kMaxPending = 64;
// If more connections are waiting, the oldest is dropped after this time.
constexpr absl::Duration kMaxSilence = absl::Seconds(1);
// How often the first member checks that the others are alive.
constexpr absl::Duration kLook = absl::Milliseconds(50);

// Published by the first member.
struct Meeting {
  std::string socket_name;
  std::string client_token;  // Sent by connecting members.
  std::string server_token;  // Sent with the descriptor.

  std::string ToString() const {
    return absl::StrCat(socket_name, " ", client_token, " ", server_token);
  }
};

absl::StatusOr<Meeting> MakeMeeting() {
  Meeting meeting;
  TESSERA_ASSIGN_OR_RETURN(const std::string name, RandomHex(kTokenBytes / 2));
  meeting.socket_name = absl::StrCat("tessera-", name);
  TESSERA_ASSIGN_OR_RETURN(meeting.client_token, RandomHex(kTokenBytes / 2));
  TESSERA_ASSIGN_OR_RETURN(meeting.server_token, RandomHex(kTokenBytes / 2));
  return meeting;
}

absl::StatusOr<Meeting> ParseMeeting(std::string_view text, Rank first) {
  std::vector<std::string> parts = absl::StrSplit(text, ' ');
  if (parts.size() == 3 && parts[1].size() == kTokenBytes &&
      parts[2].size() == kTokenBytes) {
    return Meeting{parts[0], parts[1], parts[2]};
  }
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", first.value(), " has no descriptor to share",
                   text.empty() ? "" : ": ", text));
}

// The first member's side: sends the descriptor to every other member.
class Giver {
 public:
  Giver(Store& store, std::span<const Rank> members, const Meeting& meeting,
        const UniqueFd& listener, const UniqueFd& fd, const Deadline& deadline)
      : store_(store),
        members_(members),
        meeting_(meeting),
        listener_(listener),
        fd_(fd),
        deadline_(deadline) {}

  absl::Status Run();

 private:
  struct Pending {
    UniqueFd socket;
    std::string request;
    Deadline silence;
  };

  absl::Status WaitForSomething();
  absl::Status AcceptAll();
  // Returns true if the connection is finished (served or rejected).
  bool Serve(Pending& pending);
  std::optional<Rank> RankOf(std::string_view request) const;
  absl::Status CheckMissing() const;

  Store& store_;
  std::span<const Rank> members_;
  const Meeting& meeting_;
  const UniqueFd& listener_;
  const UniqueFd& fd_;
  const Deadline& deadline_;
  std::vector<Pending> pending_;
  absl::flat_hash_set<Rank> served_;
};

absl::Status Giver::Run() {
  absl::Time next_look = absl::Now() + kLook;
  while (served_.size() + 1 < members_.size()) {
    TESSERA_RETURN_IF_ERROR(WaitForSomething());
    TESSERA_RETURN_IF_ERROR(AcceptAll());
    std::erase_if(pending_,
                  [this](Pending& pending) { return Serve(pending); });
    if (served_.size() + 1 == members_.size()) break;
    if (deadline_.Expired() || absl::Now() >= next_look) {
      TESSERA_RETURN_IF_ERROR(CheckMissing());
      next_look = absl::Now() + kLook;
    }
  }
  return absl::OkStatus();
}

absl::Status Giver::WaitForSomething() {
  // Accepts no more connections while too many are pending.
  const bool full = pending_.size() == kMaxPending;
  std::vector<pollfd> fds = {{full ? -1 : listener_.get(), POLLIN, 0}};
  for (const Pending& pending : pending_) {
    fds.push_back({pending.socket.get(), POLLIN, 0});
  }
  const int millis =
      std::min(deadline_.PollMillis(),
               static_cast<int>(absl::ToInt64Milliseconds(kLook)));
  if (poll(fds.data(), fds.size(), millis) < 0 && errno != EINTR) {
    return absl::ErrnoToStatus(errno, "cannot wait for the other members");
  }
  return absl::OkStatus();
}

absl::Status Giver::AcceptAll() {
  // Members send their token at once; drop connections that stay silent.
  if (pending_.size() == kMaxPending && pending_[0].silence.Expired()) {
    pending_.erase(pending_.begin());
  }
  while (pending_.size() < kMaxPending) {
    TESSERA_ASSIGN_OR_RETURN(UniqueFd socket, Accept(listener_));
    if (!socket.valid()) return absl::OkStatus();
    if (!CheckSameUser(socket).ok()) continue;
    pending_.push_back({std::move(socket), "", Deadline::After(kMaxSilence)});
  }
  return absl::OkStatus();
}

bool Giver::Serve(Pending& pending) {
  char buffer[kRequestBytes];
  const ssize_t got =
      recv(pending.socket.get(), buffer, kRequestBytes - pending.request.size(),
           MSG_DONTWAIT);
  if (got < 0) return errno != EAGAIN && errno != EINTR;
  if (got == 0) return true;
  pending.request.append(buffer, static_cast<size_t>(got));
  if (pending.request.size() < kRequestBytes) return false;
  const std::optional<Rank> rank = RankOf(pending.request);
  // The message fits into a new socket's buffer, so this does not block.
  if (rank &&
      SendFd(pending.socket, fd_, meeting_.server_token, deadline_).ok()) {
    served_.insert(*rank);
  }
  return true;
}

// Returns the requesting member if its token is correct.
std::optional<Rank> Giver::RankOf(std::string_view request) const {
  const std::string_view token = request.substr(0, kTokenBytes);
  if (!SecretsEqual(token, meeting_.client_token)) {
    return std::nullopt;
  }
  request.remove_prefix(kTokenBytes);
  uint32_t number = 0;
  TakeLittleEndian(&request, &number);
  const Rank rank(number);
  const bool member =
      rank != members_.front() &&
      std::find(members_.begin(), members_.end(), rank) != members_.end();
  return member ? std::optional(rank) : std::nullopt;
}

// Returns an error if a member is gone or the deadline passed.
absl::Status Giver::CheckMissing() const {
  std::vector<Rank> missing;
  for (const Rank rank : members_.subspan(1)) {
    if (!served_.contains(rank)) missing.push_back(rank);
  }
  TESSERA_ASSIGN_OR_RETURN(MissingMembers absence,
                           store_.AwaitAll("", missing, absl::InfinitePast()));
  if (absence.AnyGone()) {
    return absl::UnavailableError(DescribeMissing(absence));
  }
  if (!deadline_.Expired()) return absl::OkStatus();
  std::vector<std::string> numbers;
  for (const Rank rank : missing) {
    if (numbers.size() < MissingMembers::kMaxNamed) {
      numbers.push_back(absl::StrCat(rank.value()));
    }
  }
  return absl::DeadlineExceededError(absl::StrCat(
      "the deadline passed: ", missing.size(), " of ", members_.size(),
      " members have not asked for it: rank ", absl::StrJoin(numbers, ", ")));
}

absl::StatusOr<UniqueFd> Give(Store& store, std::span<const Rank> members,
                              const std::string& key, UniqueFd mine,
                              const Deadline& deadline) {
  const auto reads = static_cast<int64_t>(members.size()) - 1;
  if (!mine.valid()) {
    TESSERA_RETURN_IF_ERROR(store.SetFor(reads, key, "", deadline.AsTime()));
    return ParseMeeting("", members.front()).status();
  }
  TESSERA_ASSIGN_OR_RETURN(const Meeting meeting, MakeMeeting());
  TESSERA_ASSIGN_OR_RETURN(const SocketAddress address,
                           SocketAddress::Abstract(meeting.socket_name));
  TESSERA_ASSIGN_OR_RETURN(const UniqueFd listener, Listen(address));
  TESSERA_RETURN_IF_ERROR(
      store.SetFor(reads, key, meeting.ToString(), deadline.AsTime()));
  TESSERA_RETURN_IF_ERROR(
      Giver(store, members, meeting, listener, mine, deadline).Run());
  return mine;
}

absl::StatusOr<UniqueFd> TakeFrom(Store& store, Rank first,
                                  const std::string& key,
                                  const Deadline& deadline) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           store.GetFrom(first, key, deadline.AsTime()));
  TESSERA_ASSIGN_OR_RETURN(const Meeting meeting, ParseMeeting(text, first));
  TESSERA_ASSIGN_OR_RETURN(const SocketAddress address,
                           SocketAddress::Abstract(meeting.socket_name));
  std::string request = meeting.client_token;
  AppendLittleEndian(static_cast<uint32_t>(store.rank().value()), &request);
  const std::string who = absl::StrCat("rank ", first.value(), ", who has it");
  TESSERA_ASSIGN_OR_RETURN(const UniqueFd socket, Connect(address, deadline),
                           Annotate(_, who));
  TESSERA_RETURN_IF_ERROR(CheckSameUser(socket), Annotate(_, who));
  TESSERA_RETURN_IF_ERROR(SendAll(socket, request, deadline), Annotate(_, who));
  TESSERA_ASSIGN_OR_RETURN(UniqueFd fd,
                           ReceiveFd(socket, meeting.server_token, deadline),
                           Annotate(_, who));
  return fd;
}

absl::Status CheckMembers(const Store& store, std::span<const Rank> members) {
  const absl::flat_hash_set<Rank> distinct(members.begin(), members.end());
  if (distinct.size() == members.size() && distinct.contains(store.rank())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the members must be distinct ranks that include this one, ",
                   store.rank().value()));
}

}  // namespace

absl::StatusOr<UniqueFd> ShareFd(Store& store, std::span<const Rank> members,
                                 std::string_view name, UniqueFd mine,
                                 absl::Time deadline) {
  const std::string context =
      absl::StrCat("sharing descriptor \"", name.substr(0, 200), "\" on rank ",
                   store.rank().value());
  TESSERA_RETURN_IF_ERROR(CheckMembers(store, members), Annotate(_, context));
  const std::string key = absl::StrCat("tessera/fd/", name);
  const bool first = store.rank() == members.front();
  if (first && mine.valid() && members.size() == 1) return mine;
  const Deadline until(deadline);
  absl::StatusOr<UniqueFd> fd =
      first ? Give(store, members, key, std::move(mine), until)
            : TakeFrom(store, members.front(), key, until);
  if (fd.ok()) return fd;
  return Annotate(fd.status(), context);
}

}  // namespace tessera::collectives

#include "collectives/mpi/mpi_group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/os/processors.h"
#include "base/status_macros.h"

namespace tessera::collectives {
namespace {

using topology::Rank;

using PeerText = std::array<char, PeerTable::kMaxDescriptionBytes>;

// The message of an abort.
struct AbortNote {
  int32_t code;
  char text[508];
};

// Memory of abandoned operations, which MPI may still read.
void KeepForGood(std::shared_ptr<const void> memory) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

absl::Status Late(int64_t deadline, const char* what) {
  if (MonotonicNanos() < deadline) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat(
      what, ": the deadline passed before the other ranks called"));
}

}  // namespace

MpiGroup::MpiGroup(MPI_Comm comm, const MpiOptions& options,
                   std::shared_ptr<const MpiTypes> types)
    : comm_(comm), options_(options), types_(std::move(types)) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

MpiGroup::~MpiGroup() {
  if (failed() || broken_) {
    KeepForGood(scratch_);
    AbandonMpi();
    return;
  }
  MPI_Comm comm = comm_;
  if (MpiRuns()) MPI_Comm_free(&comm);
}

absl::StatusOr<std::shared_ptr<MpiGroup>> MpiGroup::World(
    const MpiOptions& options) {
  TESSERA_RETURN_IF_ERROR(StartMpi());
  const int64_t deadline = DeadlineAfter(options.timeout);
  auto duplicate = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  TESSERA_RETURN_IF_ERROR(
      MpiStatus(MPI_Comm_idup(options.communicator, duplicate.get(), &request),
                "MPI_Comm_idup"));
  const absl::Status met =
      Poll({&request, 1}, nullptr, /*may_spin=*/false,
           [&] { return Late(deadline, "creating the mpi engine"); });
  if (!met.ok()) {
    KeepForGood(duplicate);
    AbandonMpi();
    return met;
  }
  TESSERA_ASSIGN_OR_RETURN(auto types, MpiTypes::Create());
  const std::shared_ptr<MpiGroup> world(
      new MpiGroup(*duplicate, options, std::move(types)));
  TESSERA_RETURN_IF_ERROR(world->ExchangePeers(deadline));
  return world;
}

absl::Status MpiGroup::ExchangePeers(int64_t deadline) {
  struct Texts {
    PeerText mine{};
    std::vector<PeerText> all;
  };
  const auto texts = std::make_shared<Texts>();
  const std::string self = PeerTable::DescribeSelf();
  std::memcpy(texts->mine.data(), self.data(),
              std::min(self.size(), texts->mine.size() - 1));
  texts->all.resize(static_cast<size_t>(size_));
  MPI_Request request = MPI_REQUEST_NULL;
  const int bytes = static_cast<int>(sizeof(PeerText));
  TESSERA_RETURN_IF_ERROR(MpiStatus(
      MPI_Iallgather(texts->mine.data(), bytes, MPI_CHAR, texts->all.data(),
                     bytes, MPI_CHAR, comm_, &request),
      "MPI_Iallgather"));
  const absl::Status met =
      Poll({&request, 1}, nullptr, /*may_spin=*/false,
           [&] { return Late(deadline, "creating the mpi engine"); });
  if (!met.ok()) {
    KeepForGood(texts);
    failure_.Set(met);
    return met;
  }
  std::vector<std::string> all;
  for (const PeerText& text : texts->all) {
    all.emplace_back(text.data(), strnlen(text.data(), text.size()));
  }
  SetPeers(PeerTable::Of(all));
  return absl::OkStatus();
}

void MpiGroup::SetPeers(PeerTable peers) {
  peers_ = std::move(peers);
  may_spin_ = peers_.RanksOnHostOf(Rank(rank_)) <= AvailableProcessors();
}

int MpiGroup::SubgroupTag(uint32_t group) const {
  int* largest = nullptr;
  int given = 0;
  MPI_Comm_get_attr(comm_, MPI_TAG_UB, &largest, &given);
  const int64_t bound = given != 0 ? *largest : 32767;
  return static_cast<int>(kFirstSubgroupTag +
                          group % (bound + 1 - kFirstSubgroupTag));
}

absl::StatusOr<std::shared_ptr<MpiGroup>> MpiGroup::Subgroup(
    std::span<const Rank> members, uint32_t group, int64_t deadline) {
  TESSERA_RETURN_IF_ERROR(CheckAlive());
  const int tag = SubgroupTag(group);
  TESSERA_RETURN_IF_ERROR(Meet(members, group, tag, deadline));
  std::vector<int> ranks;
  for (Rank member : members) {
    ranks.push_back(static_cast<int>(member.value()));
  }
  MPI_Group all = MPI_GROUP_NULL, part = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  int code = MPI_Comm_group(comm_, &all);
  if (code == MPI_SUCCESS) {
    code = MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(),
                          &part);
    MPI_Group_free(&all);
  }
  if (code == MPI_SUCCESS) {
    // This function has no non-blocking form, but all members have arrived.
    code = MPI_Comm_create_group(comm_, part, tag, &comm);
    MPI_Group_free(&part);
  }
  TESSERA_RETURN_IF_ERROR(MpiStatus(code, "MPI_Comm_create_group"));
  const std::shared_ptr<MpiGroup> subgroup(
      new MpiGroup(comm, options_, types_));
  subgroup->SetPeers(peers_.Restrict(members));
  return subgroup;
}

namespace {

// The messages of a meeting: from every member to the first, and back.
struct Meeting {
  uint32_t mine = 0;
  std::vector<uint32_t> others;
  std::vector<MPI_Request> requests;
};

// "; missing: rank 1, 2": the members whose messages are not complete.
std::string MissingIn(const Meeting& meeting, std::span<const Rank> peers) {
  std::string missing;
  for (size_t i = 0; i < meeting.requests.size(); ++i) {
    if (meeting.requests[i] == MPI_REQUEST_NULL) continue;
    absl::StrAppend(&missing, missing.empty() ? "; missing: rank " : ", ",
                    peers[i].value());
  }
  return missing;
}

absl::Status CheckGroups(const Meeting& meeting) {
  for (uint32_t other : meeting.others) {
    if (other == meeting.mine) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "members of a subgroup gave different groups, ", meeting.mine, " and ",
        other, "; all must create the same subgroups in the same order"));
  }
  return absl::OkStatus();
}

}  // namespace

// Waits until all members have called.
absl::Status MpiGroup::Meet(std::span<const Rank> members, uint32_t group,
                            int tag, int64_t deadline) {
  const auto meeting = std::make_shared<Meeting>();
  meeting->mine = group;
  const bool first = members.front() == Rank(rank_);
  std::vector<Rank> peers(members.begin() + 1, members.end());
  if (!first) peers = {members.front()};
  meeting->others.resize(peers.size());
  const auto exchange = [&](bool receive) -> absl::Status {
    meeting->requests.assign(peers.size(), MPI_REQUEST_NULL);
    for (size_t i = 0; i < peers.size(); ++i) {
      const int peer = static_cast<int>(peers[i].value());
      TESSERA_RETURN_IF_ERROR(
          MpiStatus(receive ? MPI_Irecv(&meeting->others[i], 1, MPI_UINT32_T,
                                        peer, tag, comm_, &meeting->requests[i])
                            : MPI_Isend(&meeting->mine, 1, MPI_UINT32_T, peer,
                                        tag, comm_, &meeting->requests[i]),
                    "meeting the members of a subgroup"));
    }
    return Poll(meeting->requests, nullptr, may_spin_, [&]() -> absl::Status {
      TESSERA_RETURN_IF_ERROR(CheckAlive());
      return Late(deadline, "creating a subgroup");
    });
  };
  absl::Status met = exchange(/*receive=*/first);
  if (met.ok()) met = exchange(/*receive=*/!first);
  if (!met.ok()) {
    const std::string missing = MissingIn(*meeting, peers);
    KeepForGood(meeting);
    AbandonMpi();
    return absl::Status(met.code(), absl::StrCat(met.message(), missing));
  }
  return CheckGroups(*meeting);
}

absl::Status MpiGroup::Await(std::span<MPI_Request> requests,
                             OperationContext& context, MPI_Status* statuses) {
  return Poll(requests, statuses, may_spin_, [&]() -> absl::Status {
    TESSERA_RETURN_IF_ERROR(CheckAlive());
    if (!context.Expired()) return absl::OkStatus();
    return peers_.Missing(context, Rank(rank_));
  });
}

absl::Status MpiGroup::CheckAlive() {
  constexpr int64_t kProbeEvery = 1'000'000;
  if (failed()) return failure_.status();
  const int64_t now = MonotonicNanos();
  if (now < next_probe_.load(std::memory_order_relaxed)) {
    return absl::OkStatus();
  }
  const std::unique_lock lock(probe_mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return absl::OkStatus();
  next_probe_.store(now + kProbeEvery, std::memory_order_relaxed);
  HearAbort();
  return failure_.status();
}

void MpiGroup::HearAbort() {
  int flag = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  if (MPI_Improbe(MPI_ANY_SOURCE, kAbortTag, comm_, &flag, &message, &status) !=
          MPI_SUCCESS ||
      flag == 0) {
    return;
  }
  AbortNote note{};
  MPI_Mrecv(&note, static_cast<int>(sizeof(note)), MPI_BYTE, &message, &status);
  note.text[sizeof(note.text) - 1] = '\0';
  auto code = static_cast<absl::StatusCode>(note.code);
  if (code == absl::StatusCode::kOk) code = absl::StatusCode::kAborted;
  failure_.Set(absl::Status(
      code, absl::StrCat("rank ", status.MPI_SOURCE, " aborted: ", note.text)));
}

void MpiGroup::Abort(const absl::Status& reason) {
  if (!failure_.Set(reason) || !MpiRuns()) return;
  auto note = std::make_shared<AbortNote>();
  note->code = static_cast<int32_t>(reason.code());
  const std::string_view text =
      reason.message().substr(0, sizeof(note->text) - 1);
  std::memcpy(note->text, text.data(), text.size());
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(note.get(), static_cast<int>(sizeof(*note)), MPI_BYTE, peer,
                  kAbortTag, comm_, &request) == MPI_SUCCESS) {
      MPI_Request_free(&request);
    }
  }
  KeepForGood(std::move(note));
}

}  // namespace tessera::collectives

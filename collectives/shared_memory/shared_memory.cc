#include "collectives/shared_memory/shared_memory.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/os/processors.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/peer_process.h"
#include "collectives/channel/deadline.h"
#include "collectives/host_memory/host_memory_engine.h"
#include "collectives/shared_memory/shared_memory_domain.h"

namespace tessera::collectives {

namespace {

absl::Status MalformedCapabilities(std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text.substr(0, 64),
      "\" are malformed rank capabilities; expected for example \"2 1 0,1\""));
}

}  // namespace

std::string RankCapabilities::ToString() const {
  return absl::StrCat(usable_processors, " ", reads_peers ? 1 : 0, " ",
                      absl::StrJoin(allowed_processors, ","));
}

absl::StatusOr<RankCapabilities> RankCapabilities::Parse(
    std::string_view text) {
  const std::vector<std::string_view> parts = absl::StrSplit(text, ' ');
  RankCapabilities capabilities;
  if (parts.size() != 3 ||
      !absl::SimpleAtoi(parts[0], &capabilities.usable_processors) ||
      capabilities.usable_processors < 1 ||
      (parts[1] != "0" && parts[1] != "1")) {
    return MalformedCapabilities(text);
  }
  capabilities.reads_peers = parts[1] == "1";
  for (std::string_view number :
       absl::StrSplit(parts[2], ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(number,
                          &capabilities.allowed_processors.emplace_back())) {
      return MalformedCapabilities(text);
    }
  }
  return capabilities;
}

int64_t ProcessorsTogether(std::span<const RankCapabilities> ranks) {
  std::set<int> all;
  for (const RankCapabilities& rank : ranks) {
    all.insert(rank.allowed_processors.begin(), rank.allowed_processors.end());
  }
  auto together = std::max<int64_t>(1, static_cast<int64_t>(all.size()));
  for (const RankCapabilities& rank : ranks) {
    const auto allowed = static_cast<int64_t>(rank.allowed_processors.size());
    if (rank.usable_processors < allowed) {
      together = std::min(together, rank.usable_processors);
    }
  }
  return together;
}

namespace {

using host_memory::Announcement;
using host_memory::kAnnouncements;

std::string MyCapabilities(
    const absl::StatusOr<std::shared_ptr<SharedMemoryDomain>>& domain) {
  RankCapabilities capabilities;
  capabilities.usable_processors = AvailableProcessors();
  capabilities.allowed_processors = AllowedProcessors();
  capabilities.reads_peers = domain.ok() && (*domain)->MayReadPeers();
  return capabilities.ToString();
}

// All ranks derive the same values.
absl::Status UseCapabilities(const std::vector<std::string>& texts,
                             SharedMemoryDomain& domain) {
  std::vector<RankCapabilities> ranks;
  bool reads_peers = true;
  for (const std::string& text : texts) {
    TESSERA_ASSIGN_OR_RETURN(ranks.emplace_back(),
                             RankCapabilities::Parse(text));
    reads_peers = reads_peers && ranks.back().reads_peers;
  }
  domain.UseProcessors(ProcessorsTogether(ranks));
  domain.UsePeerCopies(reads_peers);
  return absl::OkStatus();
}

absl::Status CheckOneHost(std::span<const Rank> members,
                          std::span<const PeerProcess> peers) {
  for (size_t r = 1; r < peers.size(); ++r) {
    if (peers[r].host == peers[0].host) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "shared memory: rank ", members[r].value(), " (host ",
        peers[r].host_name, ") and rank ", members[0].value(), " (host ",
        peers[0].host_name,
        ") are not on one host or in one container; use auto, mpi, gloo or "
        "nccl"));
  }
  return absl::OkStatus();
}

// The rank that serves the store is about to fail. It waits for a limited time
// until all ranks have read the error.
void AwaitHeard(Store& store, std::span<const Rank> members,
                const std::string& name, absl::Time deadline) {
  const absl::Time patience = absl::Now() + absl::Seconds(2);
  static_cast<void>(AllGather(store, members, name + "/heard", "",
                              std::min(deadline, patience))
                        .status());
}

// Exchanges the ranks' statuses; an error on one rank becomes an error on all.
absl::StatusOr<std::vector<std::string>> Agree(
    Store& store, std::span<const Rank> members, const std::string& name,
    const absl::Status& mine, std::string_view text, absl::Time deadline) {
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<std::string> all,
      AllGather(store, members, name,
                mine.ok() ? absl::StrCat("+", text)
                          : absl::StrCat("-", mine.message().substr(0, 1000)),
                deadline));
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].substr(0, 1) == "+") continue;
    AwaitHeard(store, members, name, deadline);
    return absl::ResourceExhaustedError(
        absl::StrCat("rank ", members[r].value(), ": ", all[r].substr(1)));
  }
  for (std::string& answer : all) answer.erase(0, 1);
  return all;
}

// Rank 0 allocates the announcements and the world's block.
absl::Status PrepareSegment(SharedMemoryDomain& domain, const Tuning& tuning) {
  // The first allocation returns the segment's first bytes.
  TESSERA_ASSIGN_OR_RETURN(std::byte* const first,
                           domain.Allocate(sizeof(SegmentHeader)));
  if (first != reinterpret_cast<std::byte*>(&domain.header())) {
    return absl::InternalError(
        "shared memory: the header is not at the start of the segment");
  }
  const int64_t bytes = domain.size() * kAnnouncements *
                        static_cast<int64_t>(sizeof(Announcement));
  TESSERA_ASSIGN_OR_RETURN(std::byte* const announcements,
                           domain.Allocate(bytes));
  TESSERA_ASSIGN_OR_RETURN(
      const host_memory::GroupBlock world,
      host_memory::CreateGroupBlock(domain, domain.size(),
                                    host_memory::kWorldGroup, tuning));
  SegmentHeader& header = domain.header();
  header.announcements = *domain.OffsetOf(announcements, bytes);
  header.world = *domain.OffsetOf(world.start(), 1);
  header.magic = kSegmentMagic;
  return absl::OkStatus();
}

// Waits until every rank has stopped using the store.
absl::Status AwaitAttached(SharedMemoryDomain& domain,
                           const Deadline& deadline) {
  std::atomic<uint32_t>& attached = domain.header().attached;
  attached.fetch_add(1, std::memory_order_acq_rel);
  const auto all = static_cast<uint32_t>(domain.size());
  while (attached.load(std::memory_order_acquire) != all) {
    absl::SleepFor(absl::Microseconds(100));
    for (int64_t rank = 0; rank < domain.size(); ++rank) {
      if (!domain.IsDead(rank)) continue;
      if (attached.load(std::memory_order_acquire) == all) break;
      return absl::UnavailableError(absl::StrCat(
          "shared memory: rank ", rank, " (pid ", domain.PidOf(rank),
          ") died while the ranks were joining"));
    }
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(
          absl::StrCat("shared memory: ", all - attached.load(), " of ", all,
                       " ranks have not joined"));
    }
  }
  return absl::OkStatus();
}

// The file that rank 0 has created and keeps open.
absl::StatusOr<UniqueFd> OpenSegmentFile(const PeerProcess& creator,
                                         std::string_view descriptor) {
  int number = -1;
  if (!absl::SimpleAtoi(descriptor, &number)) {
    return absl::InternalError(absl::StrCat("shared memory: \"", descriptor,
                                            "\" is not a descriptor"));
  }
  return OpenDescriptorOf(creator, number);
}

absl::StatusOr<std::shared_ptr<SharedMemoryDomain>> OpenDomain(
    const SharedMemoryOptions& options, int64_t rank, UniqueFd file,
    std::vector<PeerProcess> peers) {
  TESSERA_ASSIGN_OR_RETURN(
      Segment segment,
      Segment::Map(std::move(file), static_cast<int64_t>(peers.size())));
  auto domain = std::make_shared<SharedMemoryDomain>(
      std::move(segment), rank, std::move(peers), options.memory_limit);
  TESSERA_RETURN_IF_ERROR(domain->Watch());
  if (rank == 0) {
    TESSERA_RETURN_IF_ERROR(PrepareSegment(*domain, options.tuning));
  }
  return domain;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateSharedMemoryEngine(
    Store& store, const SharedMemoryOptions& options) {
  const absl::Time deadline = absl::Now() + options.timeout;
  const std::string name = absl::StrCat("shared_memory/", options.name, "/");
  const std::vector<Rank> everybody =
      options.members.empty() ? AllRanks(store.size()) : options.members;
  const auto found =
      std::find(everybody.begin(), everybody.end(), store.rank());
  if (found == everybody.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("shared memory: rank ", store.rank().value(),
                     " is not one of the world's members"));
  }
  const int64_t rank = found - everybody.begin();
  const auto size = static_cast<int64_t>(everybody.size());
  TESSERA_ASSIGN_OR_RETURN(
      std::vector<PeerProcess> peers,
      ExchangeProcesses(store, everybody, name + "processes", deadline));
  TESSERA_RETURN_IF_ERROR(CheckOneHost(everybody, peers));

  absl::StatusOr<UniqueFd> file = UniqueFd();
  if (rank == 0) file = CreateSegmentFile(size, options.slice_bytes);
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> descriptors,
      Agree(store, everybody, name + "file", file.status(),
            absl::StrCat(file.ok() ? file->get() : -1), deadline));
  if (rank > 0) file = OpenSegmentFile(peers[0], descriptors[0]);
  auto domain =
      file.ok()
          ? OpenDomain(options, rank, *std::move(file), std::move(peers))
          : absl::StatusOr<std::shared_ptr<SharedMemoryDomain>>(file.status());
  TESSERA_ASSIGN_OR_RETURN(
      const std::vector<std::string> capabilities,
      Agree(store, everybody, name + "mapped", domain.status(),
            MyCapabilities(domain), deadline));
  const SegmentHeader& header = (*domain)->header();
  if (header.magic != kSegmentMagic) {
    return absl::InternalError("shared memory: the segment has no header");
  }
  TESSERA_RETURN_IF_ERROR(UseCapabilities(capabilities, **domain));
  TESSERA_RETURN_IF_ERROR(AwaitAttached(**domain, Deadline(deadline)));
  const host_memory::GroupBlock world((*domain)->At(header.world), size);
  std::vector<int64_t> members(static_cast<size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return std::make_unique<host_memory::HostMemoryEngine>(
      "shared_memory", *std::move(domain), world, std::move(members),
      /*owns_block=*/rank == 0);
}

}  // namespace tessera::collectives

#include "tools/train/launch/nodes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/byte_size.h"
#include "base/file.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/random_bytes.h"
#include "collectives/channel/socket.h"
#include "tools/cli/typed_flags.h"
#include "tools/launch/environment.h"
#include "tools/launch/launch_command.h"
#include "tools/launch/signals.h"
#include "tools/train/settings/settings_table.h"

namespace tessera::train {
namespace {

using tools::RankStart;
using topology::Rank;

constexpr absl::Duration kPoll = absl::Milliseconds(50);
constexpr std::chrono::milliseconds kBeat{500};
// A node that is alive writes within this time.
constexpr absl::Duration kSigns = absl::Seconds(2);
constexpr int64_t kMaxBytes = int64_t{1} << 20;
constexpr std::string_view kNode = "node";

std::string ReadText(const std::string& path) {
  return ReadFile(path, kMaxBytes).value_or("");
}

std::string NodeFile(const AttemptFiles& files, int64_t node) {
  return absl::StrCat(files.directory, "/", kNode, node);
}

std::string RoundFile(const AttemptFiles& files, int64_t round) {
  return absl::StrCat(files.directory, "/round", round);
}

// The names of the nodes that have met, by number.
std::vector<std::string> ReadStart(const AttemptFiles& files) {
  return absl::StrSplit(ReadText(files.directory + "/start"), ' ',
                        absl::SkipEmpty());
}

// The name of a node in the text of its file.
std::string_view NameIn(std::string_view text) {
  return text.substr(0, text.find(' '));
}

size_t Size(int64_t number) { return static_cast<size_t>(number); }

// Selects the address of rank 0 for a round and publishes it.
absl::Status PublishAddress(const AttemptFiles& files, int64_t round,
                            const topology::EnvironmentLookup& lookup,
                            const collectives::Deadline& deadline) {
  const std::string master = lookup("MASTER_ADDR").value_or("");
  TESSERA_ASSIGN_OR_RETURN(const std::string address,
                           collectives::LocalAddressTowards(master, deadline));
  TESSERA_ASSIGN_OR_RETURN(const int port,
                           collectives::FreePort(address, deadline));
  return WriteFile(RoundFile(files, round), absl::StrCat(address, " ", port));
}

// The checks of a run on several nodes.
absl::Status CheckNodes(const NodePlace& place, const Settings& settings) {
  const topology::MeshSizes& mesh = settings.parallel.mesh;
  if (mesh.world_size() % place.nodes != 0) {
    return RefuseFlag("nnodes", place.nodes,
                      absl::StrCat("does not divide the ", mesh.world_size(),
                                   " ranks of --mesh=", mesh.ToFlag()));
  }
  if (place.master_addr.empty()) {
    return RefuseFlag("master_addr", "",
                      "with --nnodes, expected the address of a host, such as "
                      "that of --node_rank=0");
  }
  if (settings.run_dir.empty()) {
    return RefuseFlag("run_dir", "",
                      "with --nnodes, expected a directory that all hosts "
                      "share");
  }
  if (settings.engine != "auto" && settings.engine != "gloo") {
    return RefuseFlag("engine", settings.engine,
                      "with --nnodes, expected auto or gloo, which reach other "
                      "hosts");
  }
  if (settings.elastic || settings.parallel.memory_limit != ByteSize()) {
    return RefuseFlag("nnodes", place.nodes,
                      "--elastic and --memory_limit are for runs on one host; "
                      "omit them");
  }
  return tools::MakeSecret(tools::CleanEnvironment(), place.nodes).status();
}

}  // namespace

std::vector<tools::Flag> NodeFlags(NodePlace& place) {
  std::vector<tools::Flag> flags = {
      tools::FieldFlag(
          "nnodes",
          "number of hosts: this command runs on each, with the same flags but "
          "--node_rank, and starts an equal part of the ranks; --run_dir is a "
          "directory that all hosts share. 1: all ranks are started here",
          place.nodes),
      tools::FieldFlag(
          "node_rank",
          "with --nnodes, the number of this host, from 0. From --nnodes on it "
          "is in reserve: with --max_restarts and --snapshot_every it starts "
          "the ranks of a lost host",
          place.node),
      tools::FieldFlag(
          "master_addr",
          "with --nnodes, the address of any host in the network of the ranks",
          place.master_addr)};
  for (tools::Flag& flag : flags) flag.section = "Launcher";
  return flags;
}

absl::Status CheckPlace(const NodePlace& place, const Settings& settings) {
  constexpr int64_t kMost = 4096;
  TESSERA_RETURN_IF_ERROR(
      tools::CheckFlagRange("nnodes", place.nodes, 1, kMost));
  const bool may_wait = !place.is_alone() && settings.snapshot_every > 0;
  const int64_t last = may_wait ? kMost : place.nodes - 1;
  if (place.node < 0 || place.node > last) {
    return RefuseFlag("node_rank", place.node,
                      absl::StrCat("expected 0 to ", place.nodes - 1,
                                   " with --nnodes=", place.nodes,
                                   "; hosts in reserve have higher numbers and "
                                   "need --max_restarts and --snapshot_every"));
  }
  return place.is_alone() ? absl::OkStatus() : CheckNodes(place, settings);
}

absl::StatusOr<topology::EnvironmentLookup> VariablesOfRound(
    const AttemptFiles& files, int64_t round,
    const topology::EnvironmentLookup& lookup, absl::Time deadline) {
  if (lookup("RANK") == "0") {
    TESSERA_RETURN_IF_ERROR(
        PublishAddress(files, round, lookup, collectives::Deadline(deadline)));
  }
  for (;; absl::SleepFor(kPoll)) {
    const std::vector<std::string> found =
        absl::StrSplit(ReadText(RoundFile(files, round)), ' ');
    if (found.size() == 2) {
      return [lookup, address = found[0], port = found[1]](
                 std::string_view name) -> std::optional<std::string> {
        if (name == "MASTER_ADDR") return address;
        if (name == "MASTER_PORT" || name == "TESSERA_MASTER_PORT") return port;
        return lookup(name);
      };
    }
    const int64_t first = files.ReadRound(0).number;
    if (first > round) {
      return absl::AbortedError(absl::StrCat("rank 0 has gone on to round ",
                                             first, " of the rendezvous"));
    }
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(
          "rank 0 has not joined round ", round, " of the rendezvous"));
    }
  }
}

absl::StatusOr<std::unique_ptr<Nodes>> Nodes::Meet(const Options& options) {
  const absl::Time deadline = absl::Now() + options.patience;
  std::unique_ptr<Nodes> nodes(new Nodes(options));
  TESSERA_ASSIGN_OR_RETURN(nodes->name_, collectives::RandomHex(8));
  TESSERA_RETURN_IF_ERROR(nodes->CheckIsAlone());
  if (options.place.node == 0) {
    TESSERA_RETURN_IF_ERROR(nodes->Prepare(deadline));
  }
  nodes->heart_ =
      tools::StartThreadWithoutSignals([self = nodes.get()] { self->Beat(); });
  TESSERA_RETURN_IF_ERROR(nodes->AwaitStart(deadline));
  return nodes;
}

Nodes::~Nodes() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ended_.notify_all();
  if (heart_.joinable()) heart_.join();
}

// A file of a node that was killed does not change.
absl::Status Nodes::CheckIsAlone() const {
  const std::string path = NodeFile(options_.files, options_.place.node);
  const std::string before = ReadText(path);
  if (before.empty()) return absl::OkStatus();
  absl::SleepFor(kSigns);
  const std::string after = ReadText(path);
  if (after.empty() || after == before) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "node ", options_.place.node, " of the run in ", options_.files.directory,
      " is already running; give each host its own --node_rank, from ",
      options_.place.nodes, " on for hosts in reserve"));
}

bool Nodes::HasLiveMember() const {
  const std::vector<std::string> start = ReadStart(options_.files);
  return std::any_of(seen_.begin(), seen_.end(), [&](const auto& one) {
    return absl::Now() - one.second.changed < kSigns &&
           absl::c_linear_search(start, NameIn(one.second.text));
  });
}

bool Nodes::IsRunning(const AttemptFiles& files) {
  Nodes observer({.files = files});
  const absl::Time end = absl::Now() + kSigns;
  for (; PathExists(files.directory + "/start") && absl::Now() < end;
       absl::SleepFor(kPoll)) {
    observer.Observe();
    if (observer.HasLiveMember()) return !observer.ReadFailure().has_value();
  }
  return false;
}

// A run that goes on without this node keeps its files. After a failed attempt,
// waits until the other nodes have ended theirs.
absl::Status Nodes::Prepare(absl::Time deadline) {
  const absl::Time begin = absl::Now();
  for (; PathExists(options_.files.directory + "/start");
       absl::SleepFor(kPoll)) {
    Observe();
    const bool is_live = HasLiveMember();
    if (is_live && !ReadFailure().has_value()) return absl::OkStatus();
    if (!is_live && absl::Now() - begin > kSigns) break;
    if (absl::Now() > deadline) {
      return absl::FailedPreconditionError(
          "the nodes of the last attempt have not ended");
    }
  }
  seen_.clear();
  begins_ = true;
  return options_.prepare();
}

// Without a sync, which can take seconds. Before node 0 has made the directory
// there is no file.
void Nodes::WriteBeat(const std::string& text) const {
  const std::string path = NodeFile(options_.files, options_.place.node);
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  // If it fails, the next one may succeed.
  [[maybe_unused]] const ssize_t written =
      pwrite(file.get(), text.data(), text.size(), 0);
}

void Nodes::Beat() {
  std::unique_lock lock(mutex_);
  for (int64_t count = 0; !is_ending_; ++count) {
    lock.unlock();
    WriteBeat(absl::StrFormat("%s %019d", name_, count));
    lock.lock();
    ended_.wait_for(lock, kBeat, [this] { return is_ending_; });
  }
}

std::vector<int64_t> Nodes::MissingNodes() const {
  std::vector<int64_t> missing;
  for (int64_t node = 0; node < options_.place.nodes; ++node) {
    if (!seen_.contains(node)) missing.push_back(node);
  }
  return missing;
}

// Node 0 waits for all others, and these for node 0, or for signs of life of a
// run that has started without them.
absl::Status Nodes::AwaitStart(absl::Time deadline) {
  const NodePlace& place = options_.place;
  for (;; absl::SleepFor(kPoll)) {
    Observe();
    const std::vector<std::string> start = ReadStart(options_.files);
    if (absl::c_linear_search(start, name_)) {  // It has just been written.
      for (auto& [node, seen] : seen_) seen.changed = absl::Now();
      break;
    }
    if (begins_ && MissingNodes().empty()) {
      std::vector<std::string_view> names;
      for (int64_t node = 0; node < place.nodes; ++node) {
        names.push_back(NameIn(seen_[node].text));
      }
      TESSERA_RETURN_IF_ERROR(WriteFile(options_.files.directory + "/start",
                                        absl::StrJoin(names, " ")));
      continue;
    }
    if (HasLiveMember() && !ReadFailure().has_value()) break;
    if (absl::Now() > deadline) {
      const std::string missing =
          begins_ ? absl::StrJoin(MissingNodes(), ", ") : "0";
      return absl::FailedPreconditionError(absl::StrCat(
          "node ", missing, " of ", place.nodes, " has not started within ",
          absl::FormatDuration(options_.patience),
          "; start the same command there with its --node_rank, and with "
          "--run_dir in a directory that all hosts share"));
    }
  }
  return absl::OkStatus();
}

// A file that has not changed since this node began says nothing. One that is
// missing may be that of a node that has ended.
void Nodes::Observe() {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(options_.files.directory, error)) {
    const std::string file = entry.path().filename().string();
    std::string_view number = file;
    int64_t node = 0;
    if (!absl::ConsumePrefix(&number, kNode) ||
        !absl::SimpleAtoi(number, &node)) {
      continue;
    }
    const std::string text = ReadText(entry.path().string());
    if (text.empty()) continue;
    Seen& seen = seen_[node];
    if (seen.text == text) continue;
    seen = {text, has_observed_ ? absl::Now() : absl::InfinitePast()};
  }
  has_observed_ = true;
}

std::map<int64_t, std::string> Nodes::LiveNodes() const {
  std::map<int64_t, std::string> live = {{options_.place.node, name_}};
  for (const auto& [node, seen] : seen_) {
    if (absl::Now() - seen.changed < options_.silence) {
      live.emplace(node, NameIn(seen.text));
    }
  }
  return live;
}

void Nodes::ReadHomes() {
  std::vector<std::string> homes = absl::StrSplit(
      ReadText(options_.files.directory + "/homes"), ' ', absl::SkipEmpty());
  const std::vector<std::string> start = ReadStart(options_.files);
  if (homes.empty() && start.size() == Size(options_.place.nodes)) {
    for (int64_t rank = 0; rank < options_.ranks; ++rank) {
      homes.push_back(
          start[Size(rank * options_.place.nodes / options_.ranks)]);
    }
  }
  if (homes.size() == Size(options_.ranks)) homes_ = std::move(homes);
}

// By the first node that is alive.
void Nodes::AssignRanksOfLostNodes() {
  const std::map<int64_t, std::string> live = LiveNodes();
  if (live.begin()->second != name_) return;
  std::map<std::string, int64_t> ranks_of;
  for (const auto& [node, name] : live) ranks_of[name] = 0;
  std::vector<int64_t> rounds;
  for (size_t rank = 0; rank < homes_.size(); ++rank) {
    rounds.push_back(
        options_.files.ReadRound(static_cast<int64_t>(rank)).number);
    const auto home = ranks_of.find(homes_[rank]);
    if (home != ranks_of.end()) ++home->second;
  }
  std::vector<size_t> moved;
  for (size_t rank = 0; rank < homes_.size(); ++rank) {
    const bool is_missed =
        rounds[rank] < *std::max_element(rounds.begin(), rounds.end());
    if (ranks_of.contains(homes_[rank]) || !is_missed ||
        rounds[rank] >= options_.most_rounds) {
      continue;
    }
    // The first of those with the fewest ranks.
    const auto least = std::min_element(
        live.begin(), live.end(), [&](const auto& a, const auto& b) {
          return ranks_of[a.second] < ranks_of[b.second];
        });
    homes_[rank] = least->second;
    ++ranks_of[least->second];
    moved.push_back(rank);
  }
  if (moved.empty() || !WriteFile(options_.files.directory + "/homes",
                                  absl::StrJoin(homes_, " "))
                            .ok()) {
    return;
  }
  options_.notice(absl::StrCat(
      "the node of rank ", absl::StrJoin(moved, ", "), " has been silent for ",
      absl::FormatDuration(options_.silence),
      "; other nodes start new processes in its place"));
}

bool Nodes::IsHere(Rank rank) const {
  return Size(rank.value()) < homes_.size() &&
         homes_[Size(rank.value())] == name_;
}

absl::StatusOr<std::vector<RankStart>> Nodes::AwaitRanks() {
  ReadHomes();
  std::vector<RankStart> ranks;
  for (int64_t rank = 0; rank < options_.ranks; ++rank) {
    if (!IsHere(Rank(rank))) continue;
    ranks.push_back({Rank(rank)});
    started_.insert(rank);
  }
  if (!ranks.empty()) return ranks;
  options_.notice(absl::StrCat("node ", options_.place.node,
                               " is in reserve until another one is lost"));
  for (; ranks.empty() && !PathExists(options_.files.result());
       absl::SleepFor(absl::FromChrono(kBeat))) {
    ranks = TakeOver();
    if (const auto failure = ReadFailure()) return failure->status;
    if (ranks.empty() && LiveNodes().size() == 1) {
      return absl::UnavailableError("all other nodes are lost");
    }
  }
  return ranks;
}

std::vector<RankStart> Nodes::TakeOver() {
  Observe();
  ReadHomes();
  AssignRanksOfLostNodes();
  std::vector<RankStart> starts;
  for (int64_t rank = 0; rank < options_.ranks; ++rank) {
    if (!IsHere(Rank(rank)) || started_.contains(rank)) continue;
    const int64_t round = options_.files.ReadRound(rank).number + 1;
    if (!options_.files.WriteRound(rank, round).ok()) continue;
    started_.insert(rank);
    starts.push_back({Rank(rank), round});
  }
  return starts;
}

std::vector<Rank> Nodes::RanksToEnd() {
  const bool has_lost =
      std::any_of(started_.begin(), started_.end(),
                  [&](int64_t rank) { return !IsHere(Rank(rank)); });
  std::vector<Rank> ranks;
  if (!has_lost && !ReadFailure().has_value()) return ranks;
  for (const int64_t rank : started_) ranks.emplace_back(rank);
  return ranks;
}

std::optional<RankReport> Nodes::ReadFailure() const {
  const std::string text = ReadText(options_.files.directory + "/failed");
  if (text.empty()) return std::nullopt;
  const size_t end = text.find('\n');
  int64_t node = 0;
  const auto report =
      end == std::string::npos || !absl::SimpleAtoi(text.substr(0, end), &node)
          ? absl::DataLossError("")
          : ParseReport(node, text.substr(end + 1));
  return report.value_or(
      RankReport{0, 1, absl::UnknownError("a node has failed")});
}

// False if node 0 has begun another attempt.
bool Nodes::IsPartOfRun() const {
  for (const std::string_view file : {"/start", "/homes"}) {
    const std::string text =
        ReadText(absl::StrCat(options_.files.directory, file));
    if (absl::StrContains(text, name_)) return true;
  }
  return false;
}

absl::Status Nodes::Leave(const absl::Status& status, bool is_final) {
  absl::Status outcome = status;
  const std::optional<RankReport> failure = ReadFailure();
  const int64_t self = options_.place.node;
  if (failure.has_value() && failure->rank != self && !status.ok()) {
    const std::string message =
        absl::StrCat("node ", failure->rank, ": ", failure->status.message());
    // The caller restarts after Aborted, and not after Cancelled.
    outcome = failure->nanos == 1 ? absl::CancelledError(message)
                                  : absl::AbortedError(message);
  } else if (!status.ok() && !failure.has_value() && IsPartOfRun()) {
    WriteFile(options_.files.directory + "/failed",
              absl::StrCat(self, "\n",
                           FormatReport({self, is_final ? 1 : 0, status})))
        .IgnoreError();
  }
  Observe();
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ended_.notify_all();
  heart_.join();
  unlink(NodeFile(options_.files, self).c_str());
  const std::map<int64_t, std::string> live = LiveNodes();
  const bool is_last = std::none_of(live.begin(), live.end(), [&](auto& one) {
    return PathExists(NodeFile(options_.files, one.first));
  });
  if (is_last) options_.files.Remove();
  return outcome;
}

}  // namespace tessera::train

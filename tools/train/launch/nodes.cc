#include "tools/train/launch/nodes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
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
#include "base/steady_now.h"
#include "collectives/channel/deadline.h"
#include "collectives/channel/random_bytes.h"
#include "collectives/channel/socket.h"
#include "tools/cli/typed_flags.h"
#include "tools/launch/environment.h"
#include "tools/launch/launch_command.h"
#include "tools/launch/signals.h"
#include "tools/train/launch/rank_process.h"
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

std::string NodeFile(const std::string& directory, int64_t node) {
  return absl::StrCat(directory, "/", kNode, node);
}

std::string RoundFile(const AttemptFiles& files, int64_t round) {
  return absl::StrCat(files.directory, "/round", round);
}

// The names of the nodes that have met, in their order.
std::vector<std::string> ReadStart(const AttemptFiles& files) {
  return absl::StrSplit(ReadText(files.directory + "/start"), ' ',
                        absl::SkipEmpty());
}

// True if an attempt has ended, or its ranks end.
bool IsOver(const AttemptFiles& files) {
  return !ReadText(files.directory + "/failed").empty() ||
         !ReadText(files.stopped_by()).empty() || PathExists(files.result());
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
  if (settings.parallel.memory_limit != ByteSize()) {
    return RefuseFlag("nnodes", place.nodes,
                      "--memory_limit is for runs on one host; omit it");
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
          "is in reserve: with --max_restarts it starts the ranks of a lost "
          "host, or more ranks with --max_dp",
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
  const bool may_wait = !place.is_alone() && settings.max_restarts > 0;
  const int64_t last = may_wait ? kMost : place.nodes - 1;
  if (place.node < 0 || place.node > last) {
    return RefuseFlag("node_rank", place.node,
                      absl::StrCat("expected 0 to ", place.nodes - 1,
                                   " with --nnodes=", place.nodes,
                                   "; hosts in reserve have higher numbers and "
                                   "need --max_restarts"));
  }
  if (!place.is_alone()) return CheckNodes(place, settings);
  if (settings.max_dp <= settings.parallel.mesh.dp) return absl::OkStatus();
  return RefuseFlag(
      "max_dp", settings.max_dp,
      absl::StrCat("a run on one host does not grow above the "
                   "dp ",
                   settings.parallel.mesh.dp, " of --mesh; use --nnodes"));
}

absl::StatusOr<topology::EnvironmentLookup> VariablesOfRound(
    const AttemptFiles& files, int64_t round,
    const topology::EnvironmentLookup& lookup, absl::Duration patience) {
  const auto deadline = collectives::Deadline::After(patience);
  if (lookup("RANK") == "0") {
    TESSERA_RETURN_IF_ERROR(PublishAddress(files, round, lookup, deadline));
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
    const int64_t first = files.ReadRound(0);
    if (first > round) {
      return absl::AbortedError(absl::StrCat("rank 0 has gone on to round ",
                                             first, " of the rendezvous"));
    }
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(absl::StrCat(
          "rank 0 has not joined round ", round, " of the rendezvous"));
    }
  }
}

absl::StatusOr<std::unique_ptr<Nodes>> Nodes::Join(const Options& options) {
  std::unique_ptr<Nodes> nodes(new Nodes(options));
  TESSERA_ASSIGN_OR_RETURN(nodes->name_, collectives::RandomHex(8));
  TESSERA_RETURN_IF_ERROR(nodes->CheckIsAlone());
  if (options.place.node == 0 && !IsRunning(options.directory)) {
    std::error_code error;
    std::filesystem::create_directories(options.directory, error);
    if (error) {
      return absl::ErrnoToStatus(
          error.value(),
          absl::StrCat("cannot make the directory ", options.directory));
    }
    TESSERA_RETURN_IF_ERROR(nodes->RemoveOldFiles());
    nodes->wanted_ = 1;
  }
  nodes->heart_ =
      tools::StartThreadWithoutSignals([self = nodes.get()] { self->Beat(); });
  return nodes;
}

Nodes::~Nodes() {
  if (!heart_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  ended_.notify_all();
  heart_.join();
  Observe();
  unlink(NodeFile(options_.directory, options_.place.node).c_str());
  const bool is_last =
      std::none_of(seen_.begin(), seen_.end(), [&](const auto& one) {
        return one.first != options_.place.node &&
               SteadyNow() - one.second.changed < options_.silence &&
               PathExists(NodeFile(options_.directory, one.first));
      });
  // A node that has not found a run leaves the files of others.
  if (is_last && wanted_ > 0) AttemptFiles{options_.directory}.Remove();
}

std::string Nodes::DirectoryOf(int64_t attempt) const {
  return absl::StrCat(options_.directory, "/", attempt);
}

// A file of a node that was killed does not change.
absl::Status Nodes::CheckIsAlone() const {
  const std::string path = NodeFile(options_.directory, options_.place.node);
  const std::string before = ReadText(path);
  if (before.empty()) return absl::OkStatus();
  absl::SleepFor(kSigns);
  const std::string after = ReadText(path);
  if (after.empty() || after == before) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "node ", options_.place.node, " of the run in ", options_.directory,
      " is already running; give each host its own --node_rank, from ",
      options_.place.nodes, " on for hosts in reserve"));
}

bool Nodes::HasLiveRun() const {
  return std::any_of(seen_.begin(), seen_.end(), [&](const auto& one) {
    return one.first != options_.place.node && one.second.attempt > 0 &&
           SteadyNow() - one.second.changed < kSigns;
  });
}

bool Nodes::IsRunning(const std::string& directory) {
  Nodes observer({.place = {.node = -1}, .directory = directory});
  const auto end = collectives::Deadline::After(kSigns);
  for (; observer.NewestAttempt() > 0 && !end.Expired();
       absl::SleepFor(kPoll)) {
    observer.Observe();
    if (observer.HasLiveRun()) return true;
  }
  return false;
}

// Nodes that wait write theirs again.
absl::Status Nodes::RemoveOldFiles() const {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(options_.directory, error)) {
    std::filesystem::remove_all(entry.path(), error);
  }
  const int64_t left = NewestAttempt();
  if (left == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot remove the files of an earlier run, ", DirectoryOf(left)));
}

int64_t Nodes::NewestAttempt() const {
  int64_t newest = 0;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(options_.directory, error)) {
    int64_t number = 0;
    if (absl::SimpleAtoi(entry.path().filename().string(), &number)) {
      newest = std::max(newest, number);
    }
  }
  return newest;
}

// Without a sync, which can take seconds. Before node 0 has made the directory
// there is no file.
void Nodes::WriteBeat(const std::string& text) const {
  const std::string path = NodeFile(options_.directory, options_.place.node);
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  // If it fails, the next one may succeed.
  [[maybe_unused]] const ssize_t written =
      pwrite(file.get(), text.data(), text.size(), 0);
}

void Nodes::Beat() {
  std::unique_lock lock(mutex_);
  for (int64_t count = 0; !is_ending_; ++count) {
    lock.unlock();
    WriteBeat(absl::StrFormat("%s %09d %019d", name_, wanted_.load(), count));
    lock.lock();
    ended_.wait_for(lock, kBeat, [this] { return is_ending_; });
  }
}

// A file that has not changed since this node began says nothing. One that is
// missing may be that of a node that has ended.
void Nodes::Observe() {
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(options_.directory, error)) {
    const std::string file = entry.path().filename().string();
    std::string_view number = file;
    int64_t node = 0;
    if (!absl::ConsumePrefix(&number, kNode) ||
        !absl::SimpleAtoi(number, &node)) {
      continue;
    }
    const std::string text = ReadText(entry.path().string());
    const std::vector<std::string> fields = absl::StrSplit(text, ' ');
    int64_t attempt = 0;
    if (fields.size() != 3 || !absl::SimpleAtoi(fields[1], &attempt)) continue;
    Seen& seen = seen_[node];
    if (seen.text == text) continue;
    seen = {text, fields[0], attempt,
            has_observed_ ? SteadyNow() : -absl::InfiniteDuration()};
  }
  has_observed_ = true;
}

Nodes::Names Nodes::LiveNodes() const {
  Names live = {{options_.place.node, name_}};
  for (const auto& [node, seen] : seen_) {
    if (seen.attempt == wanted_ &&
        SteadyNow() - seen.changed < options_.silence) {
      live.emplace(node, seen.name);
    }
  }
  return live;
}

// All nodes that are alive wait for the same attempt.
bool Nodes::IsSettled() const {
  return std::all_of(seen_.begin(), seen_.end(), [&](const auto& one) {
    const auto& [node, seen] = one;
    return node == options_.place.node || seen.attempt == wanted_ ||
           SteadyNow() - seen.changed >= options_.silence ||
           !PathExists(NodeFile(options_.directory, node));
  });
}

std::vector<int64_t> Nodes::MissingNodes() const {
  const Names live = LiveNodes();
  std::vector<int64_t> missing;
  for (int64_t node = 0; node < options_.place.nodes; ++node) {
    if (!live.contains(node)) missing.push_back(node);
  }
  return missing;
}

// For a node that has not taken part in an attempt.
void Nodes::FollowRun() {
  if (!HasLiveRun()) {
    wanted_ = 0;
    return;
  }
  const int64_t newest = NewestAttempt();
  wanted_ = newest > 0 && !IsOver({DirectoryOf(newest)}) ? newest : newest + 1;
}

// True on the node that begins the attempt: the first one, of those that had
// ranks in the last attempt if there are any.
bool Nodes::IsFirst() const {
  const Names live = LiveNodes();
  for (const auto& [node, name] : live) {
    if (absl::c_linear_search(homes_, name)) return name == name_;
  }
  return live.begin()->second == name_;
}

absl::Status Nodes::BeginIfReady(const ChooseCrew& choose, bool is_late) {
  if (wanted_ != attempt_ + 1 || !IsFirst()) return absl::OkStatus();
  const bool are_ready = wanted_ == 1 ? MissingNodes().empty() : IsSettled();
  if (!are_ready && !is_late) return absl::OkStatus();
  const std::optional<Crew> crew = choose(std::ssize(LiveNodes()));
  return crew.has_value() ? MakeAttempt(*crew) : absl::OkStatus();
}

// Another node may do the same: the first one to rename its directory wins.
absl::Status Nodes::MakeAttempt(const Crew& crew) const {
  const std::string target = DirectoryOf(wanted_);
  const AttemptFiles made = {absl::StrCat(target, ".", name_)};
  TESSERA_RETURN_IF_ERROR(made.Make());
  TESSERA_RETURN_IF_ERROR(WriteSettings(crew.settings, made.settings()));
  std::vector<std::string> names;
  for (const auto& [node, name] : LiveNodes()) {
    if (std::ssize(names) < crew.nodes) names.push_back(name);
  }
  TESSERA_RETURN_IF_ERROR(
      WriteFile(made.directory + "/start", absl::StrJoin(names, " ")));
  if (rename(made.directory.c_str(), target.c_str()) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  made.Remove();
  if (error == EEXIST || error == ENOTEMPTY) return absl::OkStatus();
  return absl::ErrnoToStatus(error, absl::StrCat("cannot make ", target));
}

absl::StatusOr<Settings> Nodes::Begin(const ChooseCrew& choose) {
  const auto deadline = collectives::Deadline::After(options_.patience);
  const bool is_new = attempt_ == 0 && wanted_ == 0;
  if (!is_new) wanted_ = attempt_ + 1;
  for (;; absl::SleepFor(kPoll)) {
    Observe();
    if (is_new) FollowRun();
    if (wanted_ > 0 && PathExists(DirectoryOf(wanted_))) break;
    const bool is_late = deadline.Expired();
    TESSERA_RETURN_IF_ERROR(BeginIfReady(choose, is_late));
    if (!is_late || PathExists(DirectoryOf(wanted_))) continue;
    const std::vector<int64_t> missing = MissingNodes();
    return absl::FailedPreconditionError(absl::StrCat(
        "node ", wanted_ == 0 ? "0" : absl::StrJoin(missing, ", "), " of ",
        options_.place.nodes, " has not started within ",
        absl::FormatDuration(options_.patience),
        "; start the same command there with its --node_rank, and with "
        "--run_dir in a directory that all hosts share"));
  }
  attempt_ = wanted_;
  choose_ = choose;
  start_ = ReadStart(files());
  if (start_.empty()) {
    return absl::UnavailableError(
        absl::StrCat("cannot read ", directory(), "/start"));
  }
  homes_.clear();
  started_.clear();
  // The nodes of the start have just been alive.
  for (auto& [node, seen] : seen_) {
    if (absl::c_linear_search(start_, seen.name)) seen.changed = SteadyNow();
  }
  TESSERA_ASSIGN_OR_RETURN(settings_, ReadSettings(files().settings()));
  return settings_;
}

void Nodes::ReadHomes() {
  const auto ranks = Size(settings_.parallel.mesh.world_size());
  std::vector<std::string> homes =
      absl::StrSplit(ReadText(directory() + "/homes"), ' ', absl::SkipEmpty());
  for (size_t rank = 0; homes.size() == rank && rank < ranks && !start_.empty();
       ++rank) {
    homes.push_back(start_[rank * start_.size() / ranks]);
  }
  if (homes.size() == ranks) homes_ = std::move(homes);
}

// True if the attempt ends without the moved ranks: they cannot be replaced
// often enough, or have no node of their own and the run may have fewer ranks.
bool Nodes::EndsWithout(const std::vector<size_t>& moved,
                        const std::vector<int64_t>& rounds,
                        const std::string& reason) {
  if (files().ReadEnding().has_value()) return true;
  const size_t most = homes_.size() / start_.size();
  const bool is_replaced = absl::c_all_of(moved, [&](size_t rank) {
    return rounds[rank] < ReplacementsOf(settings_);
  });
  const bool fits = absl::c_all_of(moved, [&](size_t rank) {
    return Size(absl::c_count(homes_, homes_[rank])) <= most;
  });
  if (is_replaced && (fits || !choose_(std::ssize(LiveNodes())).has_value())) {
    return false;
  }
  return files()
      .WriteEnding(
          {*absl::c_max_element(rounds),
           {static_cast<int64_t>(moved[0]), 0, absl::UnavailableError(reason)}})
      .ok();
}

// By the first node that is alive.
void Nodes::AssignRanksOfLostNodes() {
  const Names live = LiveNodes();
  if (live.begin()->second != name_) return;
  std::map<std::string, int64_t> ranks_of;
  for (const auto& [node, name] : live) ranks_of[name] = 0;
  std::vector<int64_t> rounds;
  for (size_t rank = 0; rank < homes_.size(); ++rank) {
    rounds.push_back(files().ReadRound(static_cast<int64_t>(rank)));
    const auto home = ranks_of.find(homes_[rank]);
    if (home != ranks_of.end()) ++home->second;
  }
  std::vector<size_t> moved;
  for (size_t rank = 0; rank < homes_.size(); ++rank) {
    const bool is_missed =
        rounds[rank] < *std::max_element(rounds.begin(), rounds.end());
    if (ranks_of.contains(homes_[rank]) || !is_missed ||
        rounds[rank] >= LastRoundOf(settings_)) {
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
  if (moved.empty()) return;
  const std::string reason = absl::StrCat(
      "the node of rank ", absl::StrJoin(moved, ", "), " has been silent for ",
      absl::FormatDuration(options_.silence));
  const bool ends = EndsWithout(moved, rounds, reason);
  if (!WriteFile(directory() + "/homes", absl::StrJoin(homes_, " ")).ok()) {
    return;
  }
  options_.notice(absl::StrCat(
      reason, ends ? "; the others save their copies in memory"
                   : "; other nodes start new processes in its place"));
}

bool Nodes::IsHere(Rank rank) const {
  return Size(rank.value()) < homes_.size() &&
         homes_[Size(rank.value())] == name_;
}

absl::StatusOr<std::vector<RankStart>> Nodes::AwaitRanks() {
  ReadHomes();
  std::vector<RankStart> ranks;
  for (size_t rank = 0; rank < homes_.size(); ++rank) {
    if (homes_[rank] != name_) continue;
    ranks.push_back({Rank(static_cast<int64_t>(rank))});
    started_.insert(static_cast<int64_t>(rank));
  }
  if (!ranks.empty()) return ranks;
  options_.notice(absl::StrCat("node ", options_.place.node,
                               " is in reserve until another one is lost"));
  for (; ranks.empty(); absl::SleepFor(absl::FromChrono(kBeat))) {
    ranks = TakeOver();
    if (const auto failure = ReadFailure()) return failure->status;
    if (IsOver(files())) break;
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
  for (int64_t rank = 0; rank < std::ssize(homes_); ++rank) {
    if (!IsHere(Rank(rank)) || started_.contains(rank)) continue;
    const int64_t round = files().ReadRound(rank) + 1;
    if (!files().WriteRound(rank, round).ok()) continue;
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

bool Nodes::MustGrow() const {
  if (!IsHere(Rank(0))) return false;
  const std::optional<Crew> crew = choose_(std::ssize(LiveNodes()));
  return crew.has_value() &&
         crew->settings.parallel.mesh.dp > settings_.parallel.mesh.dp;
}

std::optional<RankReport> Nodes::ReadFailure() const {
  const std::string text = ReadText(directory() + "/failed");
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

absl::Status Nodes::End(const absl::Status& status, bool is_final) {
  const std::optional<RankReport> failure = ReadFailure();
  const int64_t self = options_.place.node;
  if (failure.has_value() && failure->rank != self && !status.ok()) {
    // That node may only repeat what this one has reported.
    const std::string_view cause = failure->status.message();
    const std::string message =
        cause == status.message()
            ? std::string(cause)
            : absl::StrCat("node ", failure->rank, ": ", cause);
    // The caller restarts after Aborted, and not after Cancelled.
    return failure->nanos == 1 ? absl::CancelledError(message)
                               : absl::AbortedError(message);
  }
  if (!status.ok() && !failure.has_value() &&
      absl::c_linear_search(homes_, name_)) {
    WriteFile(directory() + "/failed",
              absl::StrCat(self, "\n",
                           FormatReport({self, is_final ? 1 : 0, status})))
        .IgnoreError();
  }
  return status;
}

}  // namespace tessera::train

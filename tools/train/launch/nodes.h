// Nodes: the commands that start the ranks of one run on several hosts, one
// command on each, and that take over the ranks of a host that is lost.
//
//   TESSERA_ASSIGN_OR_RETURN(auto nodes, Nodes::Meet({.place = place, ...}));
//   TESSERA_ASSIGN_OR_RETURN(plan.ranks, nodes->AwaitRanks());
//   plan.take_over = [&] { return nodes->TakeOver(); };
//   ...  // Launch(plan, sinks)
//   nodes->Leave(status, /*is_final=*/true);
//
// They communicate by files in the run directory, which all hosts share, so
// that no host has to survive:
//
//   node2        written every half second by node 2: its name and a count
//   start        the names of the nodes that have met; written by node 0
//   homes        the name of the node of each rank; missing: its own node
//   round3       where rank 0 listens in round 3 of the rendezvous
//   failed       why the run has failed on a node; the others end too
//
// The files are polled, because a shared file system notifies nobody.
//
// A node is lost if its file does not change for a while. If in addition other
// ranks have left a round because of its ranks, the first of the other nodes
// assigns these ranks to the nodes with the fewest ranks: first to nodes in
// reserve, such as a lost one that was started again and has a new name.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_NODES_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_NODES_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/cli/cli.h"
#include "tools/launch/launcher.h"
#include "tools/train/launch/attempt_files.h"
#include "tools/train/settings/settings.h"
#include "topology/discovery/launcher_environment.h"
#include "topology/rank.h"

namespace tessera::train {

// The place of this command among those of a run. The fields are the values of
// --nnodes, --node_rank and --master_addr.
struct NodePlace {
  int64_t nodes = 1;
  int64_t node = 0;  // From `nodes` on: in reserve.
  std::string master_addr = "";

  bool is_alone() const { return nodes == 1; }
};

// The flags that set the fields of `place`, which must outlive them. They are
// not settings, because they differ between nodes.
std::vector<tools::Flag> NodeFlags(NodePlace& place);

// InvalidArgument, with the flag, unless nodes can run these settings.
absl::Status CheckPlace(const NodePlace& place, const Settings& settings);

// The variables of this process, with those that rank 0 or the other ranks need
// to join a round. Rank 0 selects a port and says where it listens; the others
// wait for that, until the deadline or until rank 0 has gone on to a later
// round (Aborted).
absl::StatusOr<topology::EnvironmentLookup> VariablesOfRound(
    const AttemptFiles& files, int64_t round,
    const topology::EnvironmentLookup& lookup, absl::Time deadline);

// One thread.
class Nodes {
 public:
  struct Options {
    NodePlace place = {};
    AttemptFiles files = {};
    int64_t ranks = 1;             // Of the run.
    int64_t most_rounds = 0;       // LaunchPlan::replacements.
    absl::Duration patience = {};  // The longest time to meet.
    absl::Duration silence = {};   // After which a node is lost.
    std::function<void(const std::string&)> notice = nullptr;
    // Called on node 0 of a new run: makes the directory of the files.
    std::function<absl::Status()> prepare = nullptr;
  };

  // True if a run that others have started goes on with these files: one of
  // their nodes is alive, and it has not failed. Takes two seconds if there are
  // files of an earlier run.
  static bool IsRunning(const AttemptFiles& files);

  // Waits for the other nodes. FailedPrecondition naming the nodes that have
  // not started; AlreadyExists if this node is running already; errors of
  // `prepare`.
  static absl::StatusOr<std::unique_ptr<Nodes>> Meet(const Options& options);
  ~Nodes();

  bool IsHere(topology::Rank rank) const;
  // The ranks that this node starts. In reserve it waits for them: none if the
  // run has ended before; otherwise an error if it failed or all other nodes
  // are lost.
  absl::StatusOr<std::vector<tools::RankStart>> AwaitRanks();
  // Further ones, of nodes that are lost. Call it once per second.
  std::vector<tools::RankStart> TakeOver();
  // Another node has failed, or has taken over ranks of this one, which has
  // been silent. The ranks to end: all that run here.
  std::vector<topology::Rank> RanksToEnd();

  // Ends the part of this node with its outcome. Returns that of the node that
  // failed first, which may be another one. After a final error the others do
  // not restart the run.
  absl::Status Leave(const absl::Status& status, bool is_final);

 private:
  // The text of a node's file, and when this node saw it change.
  struct Seen {
    std::string text = "";
    absl::Time changed = absl::InfinitePast();
  };

  explicit Nodes(const Options& options) : options_(options) {}

  absl::Status CheckIsAlone() const;
  // True if a node that began with the run is alive.
  bool HasLiveMember() const;
  absl::Status Prepare(absl::Time deadline);
  absl::Status AwaitStart(absl::Time deadline);
  std::vector<int64_t> MissingNodes() const;
  void Beat();
  void WriteBeat(const std::string& text) const;
  void Observe();
  // The other nodes that are alive, and this one: names by number.
  std::map<int64_t, std::string> LiveNodes() const;
  void ReadHomes();
  void AssignRanksOfLostNodes();
  std::optional<RankReport> ReadFailure() const;
  bool IsPartOfRun() const;

  const Options options_;
  std::string name_;  // Of this command, new for each.
  std::map<int64_t, Seen> seen_;
  bool has_observed_ = false;
  bool begins_ = false;  // This is node 0 of a run that has not started.
  std::vector<std::string> homes_;  // By rank.
  std::set<int64_t> started_;       // Ranks.
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ending_ = false;
  std::thread heart_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_NODES_H_

// Nodes: the commands that start the ranks of one run on several hosts, one
// command on each, that take over the ranks of a host that is lost, and that
// restart the run on the hosts that are there.
//
//   TESSERA_ASSIGN_OR_RETURN(auto nodes, Nodes::Join({.place = place, ...}));
//   TESSERA_ASSIGN_OR_RETURN(const Settings settings, nodes->Begin(choose));
//   TESSERA_ASSIGN_OR_RETURN(plan.ranks, nodes->AwaitRanks());
//   plan.take_over = [&] { return nodes->TakeOver(); };
//   ...  // Launch(plan, sinks)
//   nodes->End(status, /*is_final=*/false);  // and Begin again
//
// They communicate by files in the run directory, which all hosts share, so
// that no host has to survive:
//
//   node2        written every half second by node 2: its name, the attempt in
//                which it takes part or for which it waits, and a count
//   3/           the files of attempt 3 (AttemptFiles); it begins when this
//                directory gets its name, and has
//     start      the names of the nodes that have met
//     homes      the name of the node of each rank; missing: its own node
//     round3     where rank 0 listens in round 3 of the rendezvous
//     failed     why the attempt has failed on a node; the others end too
//
// The files are polled, because a shared file system notifies nobody.
//
// A node is lost if its file does not change for a while. If in addition other
// ranks have left a round because of its ranks, the first of the other nodes
// assigns these ranks to the nodes with the fewest ranks: first to nodes in
// reserve, such as a lost one that was started again and has a new name. If no
// node is in reserve and the run may go on with fewer ranks, the new processes
// only help to save copies in memory (AttemptFiles::Ending), and the next
// attempt begins with the nodes that are there.
#ifndef TESSERA_TOOLS_TRAIN_LAUNCH_NODES_H_
#define TESSERA_TOOLS_TRAIN_LAUNCH_NODES_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <iterator>
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
// wait for that, for the given time or until rank 0 has gone on to a later
// round (Aborted).
absl::StatusOr<topology::EnvironmentLookup> VariablesOfRound(
    const AttemptFiles& files, int64_t round,
    const topology::EnvironmentLookup& lookup, absl::Duration patience);

// The settings of an attempt, and the number of nodes that start its ranks.
struct Crew {
  Settings settings = {};
  int64_t nodes = 1;
};

// The crew for an attempt on at most that many nodes; nullopt: these are too
// few.
using ChooseCrew = std::function<std::optional<Crew>(int64_t nodes)>;

// One thread.
class Nodes {
 public:
  struct Options {
    NodePlace place = {};
    std::string directory = "";    // Of the files.
    absl::Duration patience = {};  // The longest time to meet.
    absl::Duration silence = {};   // After which a node is lost.
    std::function<void(const std::string&)> notice = nullptr;
  };

  // True if a run that others have started goes on with these files: one of
  // their nodes is alive. Takes two seconds if there are files of an earlier
  // run.
  static bool IsRunning(const std::string& directory);

  // AlreadyExists if this node is running already.
  static absl::StatusOr<std::unique_ptr<Nodes>> Join(const Options& options);
  // The last node removes the files.
  ~Nodes();

  // Waits for the other nodes and the begin of the next attempt, or takes part
  // in the one that goes on. The first one begins when all nodes are there;
  // after a failed attempt, or if a node does not come, when those that are
  // there suffice. Returns the settings of the attempt. FailedPrecondition
  // naming the nodes that have not started.
  absl::StatusOr<Settings> Begin(const ChooseCrew& choose);

  const NodePlace& place() const { return options_.place; }
  int64_t attempt() const { return attempt_; }
  // The nodes that have met.
  int64_t size() const { return std::ssize(start_); }
  // The directory with the files of the attempt.
  std::string directory() const { return DirectoryOf(attempt_); }

  bool IsHere(topology::Rank rank) const;
  // The ranks that this node starts. In reserve it waits for them: none if the
  // attempt has ended before; otherwise an error if it failed or all other
  // nodes are lost.
  absl::StatusOr<std::vector<tools::RankStart>> AwaitRanks();
  // Further ones, of nodes that are lost. Call it once per second.
  std::vector<tools::RankStart> TakeOver();
  // Another node has failed, or has taken over ranks of this one, which has
  // been silent. The ranks to end: all that run here.
  std::vector<topology::Rank> RanksToEnd();
  // True if the run may go on without this node.
  bool MayLeave() const {
    return choose_(std::ssize(LiveNodes()) - 1).has_value();
  }
  // True on the node of rank 0 if with the nodes that are there the run could
  // have more ranks.
  bool MustGrow() const;

  // Ends the part of this node in the attempt with its outcome. Returns that of
  // the node that failed first, which may be another one. After a final error
  // the others do not restart the run.
  absl::Status End(const absl::Status& status, bool is_final);

 private:
  // The contents of a node's file, and when this node saw them change.
  struct Seen {
    std::string text = "";
    std::string name = "";
    int64_t attempt = 0;
    absl::Duration changed = -absl::InfiniteDuration();  // SteadyNow.
  };
  using Names = std::map<int64_t, std::string>;  // By number of the node.

  explicit Nodes(const Options& options) : options_(options) {}

  std::string DirectoryOf(int64_t attempt) const;
  AttemptFiles files() const { return {directory()}; }
  absl::Status CheckIsAlone() const;
  bool HasLiveRun() const;
  absl::Status RemoveOldFiles() const;
  int64_t NewestAttempt() const;
  void FollowRun();
  bool IsFirst() const;
  bool IsSettled() const;
  std::vector<int64_t> MissingNodes() const;
  absl::Status BeginIfReady(const ChooseCrew& choose, bool is_late);
  absl::Status MakeAttempt(const Crew& crew) const;
  void Beat();
  void WriteBeat(const std::string& text) const;
  void Observe();
  // The nodes of the same attempt that are alive, with this one.
  Names LiveNodes() const;
  void ReadHomes();
  void AssignRanksOfLostNodes();
  bool EndsWithout(const std::vector<size_t>& moved,
                   const std::vector<int64_t>& rounds,
                   const std::string& reason);
  std::optional<RankReport> ReadFailure() const;

  const Options options_;
  std::string name_;  // Of this command, new for each.
  std::map<int64_t, Seen> seen_;
  bool has_observed_ = false;
  ChooseCrew choose_;
  int64_t attempt_ = 0;             // The last one; 0: none.
  Settings settings_;               // Of the attempt.
  std::vector<std::string> start_;  // Names.
  std::vector<std::string> homes_;  // By rank.
  std::set<int64_t> started_;       // Ranks.
  // The attempt in which this node takes part or for which it waits; 0: it has
  // not found the run.
  std::atomic<int64_t> wanted_ = 0;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_ending_ = false;
  std::thread heart_;
};

}  // namespace tessera::train

#endif  // TESSERA_TOOLS_TRAIN_LAUNCH_NODES_H_

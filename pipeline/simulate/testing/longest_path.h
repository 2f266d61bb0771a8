// For tests: the longest path through an explicit graph, found by relaxing all
// edges until nothing changes. It shares only the rules in simulate.h with
// Simulate.
//
//   LongestPath graph(schedule, costs);
//   graph.makespan();
//   graph.Stretch(/*rank=*/0, /*position=*/3, -0.5);  // Only one action.
//   graph.makespan();
#ifndef TESSERA_PIPELINE_SIMULATE_TESTING_LONGEST_PATH_H_
#define TESSERA_PIPELINE_SIMULATE_TESTING_LONGEST_PATH_H_

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"

namespace tessera::pipeline {

class LongestPath {
 public:
  LongestPath(const Schedule& schedule, const Costs& costs);

  double makespan() const { return makespan_; }
  // The begin of a computation, UNSHARD or REDUCE_GRAD.
  double BeginOf(size_t rank, size_t position) const {
    return nodes_[static_cast<size_t>(place_.at({rank, position}))].begin;
  }
  double TimeOf(size_t rank, size_t position) const {
    return nodes_[static_cast<size_t>(place_.at({rank, position}))].time;
  }

  // Makes a computation, UNSHARD or REDUCE_GRAD take longer, or shorter.
  void Stretch(size_t rank, size_t position, double by);

 private:
  // A message that is in flight is distinct from one that occupies its link.
  struct Node {
    double time = 0;
    double wire = 0;
    double begin = 0;
  };
  struct Edge {
    int from;
    int to;
    bool by_wire;
  };
  using Message = std::tuple<bool, int32_t, int32_t>;

  int Add(double time, double wire = 0);
  void Join(int from, int to, bool by_wire = false);
  int MessageOf(bool forward, int32_t source, int32_t microbatch);
  void AddRank(size_t rank);
  void AddInputs(size_t rank);
  void AddLinks();
  void AddOptimizer();
  void Solve();

  const Schedule& schedule_;
  const Costs& costs_;
  bool lowered_ = false;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::map<std::pair<size_t, size_t>, int> place_;
  std::map<Message, int> messages_;
  std::map<Message, int> producers_;
  std::map<std::pair<int32_t, int32_t>, std::vector<int>> on_link_;
  std::vector<std::vector<int>> last_;  // By rank, what the optimizer awaits.
  double makespan_ = 0;
};

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_TESTING_LONGEST_PATH_H_

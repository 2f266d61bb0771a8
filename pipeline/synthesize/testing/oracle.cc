#include "pipeline/synthesize/testing/oracle.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "pipeline/schedule/schedule.h"

namespace tessera::pipeline {
namespace {

// The jobs of a rank in order, by index.
using List = std::vector<int>;

struct Job {
  ActionKind kind;
  int32_t stage;
  int32_t microbatch;
  int rank;
  double time;
  int64_t bytes;
  // Up to two predecessors, and the minimum delay after each.
  std::vector<std::pair<int, double>> needs;
};

class Exhaustion {
 public:
  Exhaustion(const StageMap& map, int32_t microbatches, const Costs& costs,
             int64_t limit, bool in_turn)
      : microbatches_(microbatches), limit_(limit), in_turn_(in_turn) {
    frame_.map = map;
    frame_.microbatches = microbatches;
    stages_ = static_cast<int32_t>(map.stages());
    for (int32_t stage = 0; stage < stages_; ++stage) {
      for (int32_t m = 0; m < microbatches; ++m) {
        for (const ActionKind kind :
             {ActionKind::kForward, ActionKind::kBackwardInput,
              ActionKind::kBackwardWeight}) {
          AddJob(costs, kind, stage, m);
        }
      }
    }
    lists_.resize(static_cast<size_t>(map.ranks()));
    for (size_t rank = 0; rank < lists_.size(); ++rank) {
      List list;
      Extend(static_cast<int>(rank), 0, list);
    }
  }

  Oracle Run() {
    for (const auto& lists : lists_) {
      if (lists.empty()) return oracle_;
    }
    chosen_.resize(lists_.size());
    Combine(0);
    return oracle_;
  }

 private:
  int JobOf(ActionKind kind, int32_t stage, int32_t microbatch) const {
    const int part = kind == ActionKind::kForward         ? 0
                     : kind == ActionKind::kBackwardInput ? 1
                                                          : 2;
    return (stage * microbatches_ + microbatch) * 3 + part;
  }

  void AddJob(const Costs& costs, ActionKind kind, int32_t stage, int32_t m) {
    const StageCosts& cost = costs.stages[static_cast<size_t>(stage)];
    Job job{kind,
            stage,
            m,
            frame_.RankOf(stage, m),
            cost.TimeOf(kind),
            cost.BytesOf(kind),
            {}};
    const auto need = [&](ActionKind other, int32_t from) {
      const double delay =
          frame_.RankOf(from, m) == job.rank
              ? 0
              : costs.stages[static_cast<size_t>(from)].communication;
      job.needs.emplace_back(JobOf(other, from, m), delay);
    };
    if (kind == ActionKind::kForward) {
      if (stage > 0) need(kind, stage - 1);
    } else if (kind == ActionKind::kBackwardInput) {
      need(ActionKind::kForward, stage);
      if (stage + 1 < stages_) need(kind, stage + 1);
    } else {
      need(ActionKind::kBackwardInput, stage);
    }
    jobs_.push_back(job);
  }

  // Returns true if `job` comes after everything of this rank that it needs,
  // directly or through other ranks.
  bool Allowed(int job, const List& list) const {
    const Job& next = jobs_[static_cast<size_t>(job)];
    for (int other = 0; other < static_cast<int>(jobs_.size()); ++other) {
      const Job& before = jobs_[static_cast<size_t>(other)];
      if (before.rank != next.rank || other == job) continue;
      if (!ComesFirst(before, next)) continue;
      if (std::find(list.begin(), list.end(), other) == list.end()) {
        return false;
      }
    }
    return true;
  }

  bool ComesFirst(const Job& a, const Job& b) const {
    if (a.microbatch != b.microbatch) {
      return in_turn_ && a.kind == b.kind && a.stage == b.stage &&
             a.microbatch < b.microbatch;
    }
    if (b.kind == ActionKind::kForward) {
      return a.kind == b.kind && a.stage < b.stage;
    }
    if (b.kind == ActionKind::kBackwardInput) {
      return a.kind == ActionKind::kForward ||
             (a.kind == b.kind && a.stage > b.stage);
    }
    return a.kind == ActionKind::kBackwardInput && a.stage == b.stage;
  }

  // All lists of the rank that begin with `list`.
  void Extend(int rank, int64_t held, List& list) {
    bool complete = true;
    for (int job = 0; job < static_cast<int>(jobs_.size()); ++job) {
      const Job& next = jobs_[static_cast<size_t>(job)];
      if (next.rank != rank ||
          std::find(list.begin(), list.end(), job) != list.end()) {
        continue;
      }
      complete = false;
      if (!Allowed(job, list)) continue;
      if (limit_ > 0 && held + std::max<int64_t>(next.bytes, 0) > limit_) {
        continue;
      }
      list.push_back(job);
      Extend(rank, held + next.bytes, list);
      list.pop_back();
    }
    if (complete) lists_[static_cast<size_t>(rank)].push_back(list);
  }

  void Combine(size_t rank) {
    if (rank == lists_.size()) {
      Measure();
      return;
    }
    for (const List& list : lists_[rank]) {
      chosen_[rank] = &list;
      Combine(rank + 1);
    }
  }

  void Measure() {
    ++oracle_.schedules;
    ends_.assign(jobs_.size(), -1);
    next_.assign(chosen_.size(), 0);
    free_.assign(chosen_.size(), 0);
    first_.assign(chosen_.size(), -1);
    size_t done = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t rank = 0; rank < chosen_.size(); ++rank) {
        while (next_[rank] < chosen_[rank]->size() && Step(rank)) {
          moved = true;
          ++done;
        }
      }
    }
    if (done < jobs_.size()) return;
    double longest = 0;
    double makespan = 0;
    for (size_t rank = 0; rank < chosen_.size(); ++rank) {
      longest = std::max(longest, free_[rank] - first_[rank]);
      makespan = std::max(makespan, free_[rank]);
    }
    oracle_.longest_stage = std::min(oracle_.longest_stage, longest);
    oracle_.makespan = std::min(oracle_.makespan, makespan);
  }

  bool Step(size_t rank) {
    const auto index = static_cast<size_t>((*chosen_[rank])[next_[rank]]);
    double begin = free_[rank];
    for (const auto& [job, delay] : jobs_[index].needs) {
      const double end = ends_[static_cast<size_t>(job)];
      if (end < 0) return false;
      begin = std::max(begin, end + delay);
    }
    if (first_[rank] < 0) first_[rank] = begin;
    free_[rank] = ends_[index] = begin + jobs_[index].time;
    ++next_[rank];
    return true;
  }

  Schedule frame_;
  int32_t microbatches_;
  int32_t stages_;
  int64_t limit_;
  bool in_turn_;
  std::vector<Job> jobs_;
  std::vector<std::vector<List>> lists_;
  std::vector<const List*> chosen_;
  std::vector<double> ends_;
  std::vector<size_t> next_;
  std::vector<double> free_;
  std::vector<double> first_;
  Oracle oracle_;
};

}  // namespace

Oracle BestOfAll(const StageMap& map, int32_t microbatches, const Costs& costs,
                 int64_t memory_limit, bool in_turn) {
  return Exhaustion(map, microbatches, costs, memory_limit, in_turn).Run();
}

}  // namespace tessera::pipeline

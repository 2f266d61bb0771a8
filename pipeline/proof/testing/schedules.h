// For tests: schedules without communication, made without a generator.
#ifndef TESSERA_PIPELINE_PROOF_TESTING_SCHEDULES_H_
#define TESSERA_PIPELINE_PROOF_TESTING_SCHEDULES_H_

#include <algorithm>
#include <cstdint>
#include <random>
#include <string_view>
#include <utility>
#include <vector>

#include "pipeline/proof/action_position.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/schedule/schedule_text.h"

namespace tessera::pipeline {

inline Schedule Empty(StageMap map, int32_t microbatches) {
  Schedule schedule;
  schedule.name = "test";
  schedule.ranks.resize(static_cast<size_t>(map.ranks()));
  schedule.map = std::move(map);
  schedule.microbatches = microbatches;
  return schedule;
}

inline void Append(Schedule& schedule, ActionKind kind, int32_t stage,
                   int32_t microbatch) {
  schedule.ranks[static_cast<size_t>(schedule.RankOf(stage, microbatch))]
      .push_back({kind, stage, microbatch});
}

// All forwards, then all backwards, stage by stage.
inline Schedule AllForwardAllBackward(StageMap map, int32_t microbatches) {
  Schedule schedule = Empty(std::move(map), microbatches);
  const auto stages = static_cast<int32_t>(schedule.map.stages());
  for (int32_t stage = 0; stage < stages; ++stage) {
    for (int32_t mb = 0; mb < microbatches; ++mb) {
      Append(schedule, ActionKind::kForward, stage, mb);
    }
  }
  for (int32_t stage = stages - 1; stage >= 0; --stage) {
    for (int32_t mb = 0; mb < microbatches; ++mb) {
      Append(schedule, ActionKind::kBackward, stage, mb);
    }
  }
  return schedule;
}

// A stage on each rank; rank r is min(m, p - r) forwards ahead.
inline Schedule OneForwardOneBackward(int32_t ranks, int32_t microbatches) {
  Schedule schedule = Empty(*StageMap::Linear(ranks), microbatches);
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const int32_t ahead = std::min(microbatches, ranks - rank);
    for (int32_t mb = 0; mb < microbatches + ahead; ++mb) {
      if (mb < microbatches) Append(schedule, ActionKind::kForward, rank, mb);
      if (mb >= ahead - 1 && mb - ahead + 1 < microbatches) {
        Append(schedule, ActionKind::kBackward, rank, mb - ahead + 1);
      }
    }
  }
  return schedule;
}

// A valid random order of the computations. If `split`, each backward is whole
// or split at random.
inline Schedule RandomOrder(StageMap map, int32_t microbatches, bool split,
                            std::mt19937_64& random) {
  Schedule schedule = Empty(std::move(map), microbatches);
  const auto last = static_cast<int32_t>(schedule.map.stages()) - 1;
  std::vector<Action> ready;
  for (int32_t mb = 0; mb < microbatches; ++mb) {
    ready.push_back({ActionKind::kForward, 0, mb});
  }
  const auto add_backward = [&](int32_t stage, int32_t mb) {
    const bool halves = split && random() % 2 == 0;
    ready.push_back(
        {halves ? ActionKind::kBackwardInput : ActionKind::kBackward, stage,
         mb});
  };
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    const auto [kind, stage, mb, with_next] = ready.back();
    ready.pop_back();
    Append(schedule, kind, stage, mb);
    if (kind == ActionKind::kForward) {
      if (stage < last) {
        ready.push_back({ActionKind::kForward, stage + 1, mb});
      } else {
        add_backward(stage, mb);
      }
    } else if (kind != ActionKind::kBackwardWeight) {
      if (stage > 0) add_backward(stage - 1, mb);
      if (kind == ActionKind::kBackwardInput) {
        ready.push_back({ActionKind::kBackwardWeight, stage, mb});
      }
    }
  }
  return schedule;
}

// The lowered schedule, with every adjacent send and receive with the same peer
// fused into one exchange: 1SEND_F3,1RECV_B0 -> (1SEND_F3;1RECV_B0).
inline Schedule FuseMessages(Schedule schedule) {
  for (std::vector<Action>& actions : schedule.ranks) {
    for (size_t at = 0; at + 1 < actions.size(); ++at) {
      const Action& next = actions[at + 1];
      if (actions[at].with_next) {
        ++at;
      } else if (Communicates(actions[at].kind) && Communicates(next.kind) &&
                 !next.with_next &&
                 Sends(actions[at].kind) != Sends(next.kind) &&
                 PeerOf(schedule, actions[at]) == PeerOf(schedule, next)) {
        actions[at++].with_next = true;
      }
    }
  }
  return schedule;
}

// One of the maps of a few ranks.
inline StageMap RandomMap(std::mt19937_64& random, int64_t least_ranks = 1) {
  const int64_t ranks =
      least_ranks + static_cast<int64_t>(random() % (4 - least_ranks));
  switch (random() % 4) {
    case 0:
      return *StageMap::Linear(ranks);
    case 1:
      return *StageMap::Loop(ranks, 2);
    case 2:
      return *StageMap::Zigzag(ranks, 2);
    default:
      return *StageMap::TwoWay(ranks);
  }
}

// A line for each rank; see ReadCsv.
inline Schedule FromCsv(std::string_view text) { return *ReadCsv(text); }

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_PROOF_TESTING_SCHEDULES_H_

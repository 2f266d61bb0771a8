// For tests: random valid schedules with random costs, of every kind that
// Simulate supports.
#ifndef TESSERA_PIPELINE_SIMULATE_TESTING_RANDOM_CASES_H_
#define TESSERA_PIPELINE_SIMULATE_TESTING_RANDOM_CASES_H_

#include <cstdint>
#include <random>
#include <utility>

#include "pipeline/passes/add_communication.h"
#include "pipeline/passes/place_parameters.h"
#include "pipeline/proof/testing/schedules.h"
#include "pipeline/schedule/schedule.h"
#include "pipeline/simulate/costs.h"

namespace tessera::pipeline {

struct RandomCase {
  Schedule schedule;
  Costs costs;
};

// Eighths and powers of 2, so that sums are exact in any order.
inline double RandomTime(std::mt19937_64& random, int most = 24) {
  return static_cast<double>(random() % static_cast<uint64_t>(most)) / 8;
}

inline Link RandomLink(std::mt19937_64& random) {
  Link link{.latency = RandomTime(random, 8)};
  if (random() % 4 != 0) {
    link.bandwidth = static_cast<double>(uint64_t{1} << random() % 4);
  }
  return link;
}

inline StageCosts RandomStage(std::mt19937_64& random) {
  const auto bytes = [&](int64_t most) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  StageCosts stage;
  stage.forward = RandomTime(random);
  stage.backward_input = RandomTime(random);
  stage.backward_weight = RandomTime(random);
  if (random() % 2 == 0) stage.communication = RandomTime(random, 8);
  stage.forward_bytes = bytes(100);
  stage.backward_input_bytes = 30 - bytes(60);
  stage.backward_weight_bytes =
      -stage.forward_bytes - stage.backward_input_bytes;
  stage.activation_bytes = bytes(20);
  stage.gradient_bytes = bytes(20);
  stage.unshard = RandomTime(random);
  stage.reduce_gradient = RandomTime(random);
  stage.unsharded_bytes = bytes(100);
  return stage;
}

inline Costs RandomCosts(const Schedule& schedule, std::mt19937_64& random) {
  Costs costs;
  for (int64_t stage = 0; stage < schedule.map.stages(); ++stage) {
    costs.stages.push_back(RandomStage(random));
    if (random() % 2 == 0) costs.stages.back().optimizer = RandomTime(random);
  }
  if (random() % 3 != 0) costs.links.everywhere = RandomLink(random);
  const auto ranks = static_cast<uint64_t>(schedule.map.ranks());
  for (int i = 0; i < 3 && ranks > 1; ++i) {
    const auto from = static_cast<int32_t>(random() % ranks);
    const auto to = static_cast<int32_t>(random() % ranks);
    if (from != to) costs.links.exceptions[{from, to}] = RandomLink(random);
  }
  costs.overlap_communication = random() % 2 == 0;
  costs.synchronise_optimizer = random() % 2 == 0;
  costs.synchronisation = RandomTime(random);
  return costs;
}

// With or without gathered parameters, sends and exchanges; with whole or split
// backwards.
inline RandomCase MakeRandomCase(std::mt19937_64& random) {
  const auto microbatches = static_cast<int32_t>(1 + random() % 5);
  Schedule schedule =
      RandomOrder(RandomMap(random), microbatches, random() % 2 == 0, random);
  if (random() % 2 == 0) {
    schedule = *PlaceParameters(
        schedule, {.prefetch = static_cast<int64_t>(random() % 3)});
  }
  if (random() % 2 == 0) {
    schedule = *AddCommunication(schedule);
    if (random() % 2 == 0) schedule = FuseMessages(std::move(schedule));
  }
  Costs costs = RandomCosts(schedule, random);
  return {std::move(schedule), std::move(costs)};
}

}  // namespace tessera::pipeline

#endif  // TESSERA_PIPELINE_SIMULATE_TESTING_RANDOM_CASES_H_

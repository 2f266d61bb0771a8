// The policies that a search begins with, and how it goes on from one.
//
//   for (const Policy& policy : FirstPolicies(model)) greedy.Run(policy);
//   greedy.Run(Vary(model, best, random));
#ifndef TESSERA_PIPELINE_SYNTHESIZE_POLICIES_H_
#define TESSERA_PIPELINE_SYNTHESIZE_POLICIES_H_

#include <random>
#include <vector>

#include "pipeline/synthesize/greedy.h"
#include "pipeline/synthesize/model.h"

namespace tessera::pipeline::synthesis {

// All ranks keen on the same, the most promising first.
std::vector<Policy> FirstPolicies(const Model& model);

// A policy that differs in one respect, on one rank, some or all.
Policy Vary(const Model& model, const Policy& policy, std::mt19937_64& random);

}  // namespace tessera::pipeline::synthesis

#endif  // TESSERA_PIPELINE_SYNTHESIZE_POLICIES_H_

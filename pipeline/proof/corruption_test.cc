// Compares Validate with an independent brute-force execution.
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/passes/place_parameters.h"
#include "pipeline/proof/testing/oracle.h"
#include "pipeline/proof/testing/schedules.h"
#include "pipeline/proof/validate.h"

namespace tessera::pipeline {
namespace {

// Marks random neighbours that may run together.
void PairAtRandom(Schedule& schedule, std::mt19937_64& random) {
  const ValidateOptions implied{.communication = Communication::kImplied};
  for (auto& actions : schedule.ranks) {
    for (size_t i = 0; i + 1 < actions.size(); ++i) {
      if (random() % 3 != 0) continue;
      actions[i].with_next = true;
      if (!OracleAllows(schedule, implied)) actions[i].with_next = false;
    }
  }
}

Schedule RandomComputations(std::mt19937_64& random, int64_t least_ranks) {
  const StageMap map = RandomMap(random, least_ranks);
  const auto microbatches = static_cast<int32_t>(1 + random() % 3);
  Schedule schedule = RandomOrder(map, microbatches, random() % 2 == 0, random);
  if (random() % 2 == 0) PairAtRandom(schedule, random);
  if (random() % 2 == 0) {
    schedule = *PlaceParameters(
        schedule, {.prefetch = static_cast<int64_t>(random() % 4),
                   .max_unsharded = static_cast<int64_t>(random() % 2) * 2});
  }
  return schedule;
}

// Lowers the schedule and fuses messages in half of the cases.
Schedule RandomLowered(const Schedule& schedule, std::mt19937_64& random) {
  Schedule lowered = *AddCommunication(schedule);
  return random() % 2 == 0 ? FuseMessages(lowered) : lowered;
}

// Returns the verdict of both, which must agree.
bool Verdict(const Schedule& schedule, const ValidateOptions& options) {
  const bool allowed = OracleAllows(schedule, options);
  const auto proof = Validate(schedule, options);
  EXPECT_EQ(allowed, proof.ok()) << WriteCsv(schedule) << "buffers "
                                 << options.buffers << ": " << proof.status();
  if (!proof.ok()) {
    EXPECT_FALSE(proof.status().message().empty());
  }
  return proof.ok();
}

// Swaps neighbours, few or many times.
void Shuffle(Schedule& schedule, std::mt19937_64& random) {
  for (uint64_t swaps = 1 + random() % 6; swaps > 0; --swaps) {
    auto& actions = schedule.ranks[random() % schedule.ranks.size()];
    if (actions.size() < 2) continue;
    const size_t i = random() % (actions.size() - 1);
    std::swap(actions[i], actions[i + 1]);
  }
}

TEST(CorruptionTest, VerdictsMatchBruteForce) {
  std::mt19937_64 random(1);
  int allowed = 0;
  int rendezvous_refused_alone = 0;
  constexpr int kSchedules = 20000;
  for (int i = 0; i < kSchedules && !HasFailure(); ++i) {
    Schedule schedule = RandomComputations(random, 2);
    const bool lowered = random() % 4 != 0;
    if (lowered) schedule = RandomLowered(schedule, random);
    Shuffle(schedule, random);
    if (!lowered) {
      allowed += Verdict(schedule, {.communication = Communication::kImplied});
      continue;
    }
    const bool strict = Verdict(schedule, {});
    const bool one = Verdict(schedule, {.buffers = 1});
    const bool two = Verdict(schedule, {.buffers = 2});
    EXPECT_LE(strict, one);
    EXPECT_LE(one, two);
    allowed += strict;
    rendezvous_refused_alone += !strict && one;
  }
  // Both verdicts are frequent, and strictness changes some of them.
  EXPECT_GT(allowed, kSchedules / 20);
  EXPECT_LT(allowed, kSchedules * 19 / 20);
  EXPECT_GT(rendezvous_refused_alone, 20);
}

enum class Corruption { kDrop, kSwap, kDuplicate, kStage, kMicroBatch };

// Returns false if there was nothing to corrupt.
bool Corrupt(Schedule& schedule, Corruption corruption,
             std::mt19937_64& random) {
  auto& actions = schedule.ranks[random() % schedule.ranks.size()];
  if (actions.size() < 2) return false;
  const size_t at = random() % actions.size();
  Action& action = actions[at];
  const auto other = [&](int32_t index, int64_t count) {
    return static_cast<int32_t>(
        (index + 1 + static_cast<int64_t>(random() % (count + 1))) %
        (count + 2));
  };
  switch (corruption) {
    case Corruption::kDrop:
      actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(at));
      return true;
    case Corruption::kSwap: {
      const size_t with = random() % actions.size();
      std::swap(action, actions[with]);
      return at != with;
    }
    case Corruption::kDuplicate: {
      const Action copy = action;
      const size_t to = random() % (actions.size() + 1);
      actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(to), copy);
      return true;
    }
    case Corruption::kStage:
      action.stage = other(action.stage, schedule.map.stages());
      return true;
    case Corruption::kMicroBatch:
      action.microbatch = other(action.microbatch, schedule.microbatches);
      return true;
  }
  return false;
}

int64_t Reductions(const Schedule& schedule) {
  int64_t reductions = 0;
  for (const auto& actions : schedule.ranks) {
    for (const Action& action : actions) {
      reductions += action.kind == ActionKind::kReduceGradient;
    }
  }
  return reductions;
}

TEST(CorruptionTest, DetectsTenThousandCorruptions) {
  std::mt19937_64 random(2);
  int corrupted = 0;
  int harmless_swaps = 0;
  int more_reductions = 0;
  while (corrupted < 12000 && !HasFailure()) {
    Schedule schedule = RandomLowered(RandomComputations(random, 2), random);
    ASSERT_TRUE(Verdict(schedule, {})) << WriteCsv(schedule);
    const auto corruption = static_cast<Corruption>(random() % 5);
    const Schedule before = schedule;
    if (!Corrupt(schedule, corruption, random)) continue;
    if (Verdict(schedule, {})) {
      // A stage may be reduced after any of its weight gradients.
      if (corruption == Corruption::kDuplicate &&
          Reductions(schedule) > Reductions(before)) {
        ++more_reductions;
        continue;
      }
      EXPECT_EQ(corruption, Corruption::kSwap) << WriteCsv(before) << "became\n"
                                               << WriteCsv(schedule);
      ++harmless_swaps;
      continue;
    }
    ++corrupted;
  }
  EXPECT_EQ(corrupted, 12000);
  EXPECT_LT(harmless_swaps, 2400);
  EXPECT_LT(more_reductions, 600);
}

}  // namespace
}  // namespace tessera::pipeline

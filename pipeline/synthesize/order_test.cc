#include <cstddef>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "pipeline/proof/validate.h"
#include "pipeline/synthesize/model.h"
#include "pipeline/synthesize/testing/random_order.h"

namespace tessera::pipeline::synthesis {
namespace {

TEST(OrderTest, RoundTripsThroughSchedule) {
  std::mt19937_64 random(1);
  for (int64_t p = 1; p <= 4; ++p) {
    for (int64_t m = 1; m <= 5; ++m) {
      for (int64_t chunks = 1; chunks <= 3; ++chunks) {
        const StageMap map = RandomMap(p, chunks, random);
        const Model model =
            MakeModel(map, m, Costs::Uniform(p * chunks, {}), 0);
        const Order order = RandomOrder(model, random);
        const Schedule schedule = ScheduleOf(model, map, m, order, "test");
        EXPECT_EQ(schedule.name, "test");
        TESSERA_EXPECT_OK(
            Validate(schedule, {.communication = Communication::kImplied}));
        EXPECT_EQ(OrderOf(model, schedule), order);
      }
    }
  }
}

TEST(OrderTest, MatchesSplitScheduleOfGenerator) {
  for (const std::string_view name : {"1f1b", "zb_h1", "zb_h2"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 Generate(name, {4, 1, 7}));
    Schedule split = schedule;
    for (std::vector<Action>& actions : split.ranks) {
      for (size_t at = 0; at < actions.size(); ++at) {
        if (actions[at].kind != ActionKind::kBackward) continue;
        actions[at].kind = ActionKind::kBackwardInput;
        Action weights = actions[at];
        weights.kind = ActionKind::kBackwardWeight;
        actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(++at),
                       weights);
      }
    }
    const Model model = MakeModel(schedule.map, 7, Costs::Uniform(4, {}), 0);
    const Schedule back = ScheduleOf(model, schedule.map, 7,
                                     OrderOf(model, schedule), schedule.name);
    EXPECT_EQ(back, split) << name;
  }
}

TEST(OrderTest, EveryGeneratorsOrderIsValid) {
  for (const Generator& generator : Generators()) {
    const int64_t chunks = generator.chunks == 0 ? 3 : generator.chunks;
    TESSERA_ASSERT_OK_AND_ASSIGN(const Schedule schedule,
                                 generator.generate({4, chunks, 9}));
    const Model model = MakeModel(schedule.map, 9,
                                  Costs::Uniform(schedule.map.stages(), {}), 0);
    TESSERA_EXPECT_OK(Validate(
        ScheduleOf(model, schedule.map, 9, OrderOf(model, schedule), "test"),
        {.communication = Communication::kImplied}))
        << generator.name;
  }
}

}  // namespace
}  // namespace tessera::pipeline::synthesis

// The table of schedules in topology, which may not know pipeline, and
// pipeline's generators, which may not know topology, say the same.
#include <cstdint>
#include <set>
#include <string>

#include "gtest/gtest.h"
#include "pipeline/generate/generate.h"
#include "topology/config/options/schedule_kind.h"
#include "topology/config/parallel_config.h"

namespace tessera {
namespace {

// What a planner makes, for given times and memory, has no generator.
const std::set<std::string_view> kPlanned = {"auto", "zb_1p", "zb_2p"};

topology::ParallelConfig ConfigOf(topology::ScheduleKind kind,
                                  const pipeline::PipelineShape& shape) {
  topology::ParallelConfig config;
  config.schedule = kind;
  config.pp = topology::AxisSize(shape.ranks);
  config.chunks = shape.chunks;
  config.micro_batches = shape.microbatches;
  config.layers = 1000;
  return config;
}

TEST(ScheduleNamesTest, EveryGeneratorIsInTheTableAndEveryNameIsMade) {
  std::set<std::string_view> names(kPlanned);
  for (const std::string_view name : pipeline::GeneratorNames()) {
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  std::set<std::string_view> table;
  for (const auto& [name, kind] :
       topology::EnumNames<topology::ScheduleKind>::kTable) {
    table.insert(name);
  }
  EXPECT_EQ(table, names);
}

TEST(ScheduleNamesTest, TheConfigurationAllowsWhatTheGeneratorMakes) {
  int64_t made = 0;
  int64_t refused = 0;
  for (const auto& [name, kind] :
       topology::EnumNames<topology::ScheduleKind>::kTable) {
    if (kPlanned.count(name) > 0) continue;
    for (int64_t ranks = 1; ranks <= 6; ++ranks) {
      for (int64_t chunks = 0; chunks <= 4; ++chunks) {
        for (int64_t microbatches = 0; microbatches <= 13; ++microbatches) {
          const pipeline::PipelineShape shape = {ranks, chunks, microbatches};
          const auto schedule = pipeline::Generate(name, shape);
          const auto config = ConfigOf(kind, shape).Validate();
          ASSERT_EQ(config.ok(), schedule.ok())
              << name << " for " << ranks << " ranks, " << chunks << " chunks, "
              << microbatches << " micro-batches\n"
              << schedule.status() << "\n"
              << config;
          ++(schedule.ok() ? made : refused);
        }
      }
    }
  }
  EXPECT_GT(made, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(ScheduleNamesTest, TheTableSaysWhatTheGeneratorsSay) {
  for (const pipeline::Generator& generator : pipeline::Generators()) {
    const auto kind =
        topology::ParseEnum<topology::ScheduleKind>(generator.name);
    ASSERT_TRUE(kind.ok()) << generator.name;
    const topology::ScheduleTraits traits = topology::TraitsOf(*kind);
    const bool fixed = generator.chunks > 0;
    EXPECT_EQ(traits.min_chunks, fixed ? generator.chunks : 1);
    EXPECT_EQ(traits.max_chunks,
              fixed ? generator.chunks : topology::ScheduleTraits::kNoLimit);
    EXPECT_EQ(traits.even_pp, generator.even_ranks) << generator.name;
  }
}

}  // namespace
}  // namespace tessera

#include "topology/config/parallel_config.h"

#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

TEST(ParallelConfigTest, DefaultsAreOneRank) {
  const ParallelConfig config;
  EXPECT_EQ(config.mesh.world_size(), 1);
  EXPECT_EQ(config, ParallelConfig{});
  ParallelConfig other;
  other.mesh.dp_replicate = 2;
  EXPECT_NE(config, other);
}

}  // namespace
}  // namespace tessera::topology

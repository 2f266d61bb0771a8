#include "collectives/engine/engine.h"

#include <sys/wait.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

TEST(ProcessGenerationTest, ChangesInTheChildOnly) {
  const uint64_t mine = ProcessGeneration();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(ProcessGeneration() == mine + 1 ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ProcessGeneration(), mine);
}

}  // namespace

}  // namespace tessera::collectives

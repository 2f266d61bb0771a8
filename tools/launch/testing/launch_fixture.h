// A fixture that launches rank_program and fails if a process is left
// afterwards.
//
//   TEST_F(LaunchTest, Greets) {
//     EXPECT_EQ(Run({"say:hello"}, {.np = 2}).ExitCode(), 0);
//     EXPECT_THAT(OutLines(), UnorderedElementsAre("[0] hello", "[1] hello"));
//   }
#ifndef TESSERA_TOOLS_LAUNCH_TESTING_LAUNCH_FIXTURE_H_
#define TESSERA_TOOLS_LAUNCH_TESTING_LAUNCH_FIXTURE_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "gtest/gtest.h"
#include "tools/launch/launcher.h"

namespace tessera::tools {

class LaunchTest : public ::testing::Test {
 protected:
  LaunchTest();

  // Fails if a process is left, even a zombie.
  void TearDown() override;

  // A plan that runs rank_program with these actions. Its environment marks the
  // processes as belonging to this test.
  LaunchPlan PlanFor(std::vector<std::string> actions,
                     LaunchPlan plan = {}) const;

  // Launches with files as the sinks.
  absl::StatusOr<LaunchOutcome> TryRun(const LaunchPlan& plan);
  // The same for a valid plan.
  LaunchOutcome Run(std::vector<std::string> actions, LaunchPlan plan = {});

  // The output so far.
  std::string Out() const { return Contents(out_); }
  std::string Err() const { return Contents(err_); }
  std::vector<std::string> OutLines() const;

  // Launches in a child process, which leads its own process group and exits
  // with the outcome's exit code.
  pid_t Fork(const LaunchPlan& plan);
  // Waits for the child and returns its wait status.
  static int Wait(pid_t child);
  // False if the condition does not hold within ten seconds.
  static bool Await(const std::function<bool()>& condition);
  bool AwaitOut(const std::string& text) const;

  // The processes of this test other than this process and its children.
  std::vector<pid_t> MarkedProcesses() const;

  const std::string& program() const { return program_; }
  std::string NewDirectory() const;

 private:
  static std::string Contents(const UniqueFd& file);

  std::string program_;
  std::string marker_;
  UniqueFd out_;
  UniqueFd err_;
};

}  // namespace tessera::tools

#endif  // TESSERA_TOOLS_LAUNCH_TESTING_LAUNCH_FIXTURE_H_

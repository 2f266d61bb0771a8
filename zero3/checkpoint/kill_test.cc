// Kills processes that write checkpoints with SIGKILL at 1,000 random moments:
// the latest complete checkpoint always loads, and a checkpoint that was
// reported complete is never lost.
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/os/unique_fd.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/checkpoint/testing/state.h"

namespace tessera::zero3 {
namespace {

using testing::CheckLatestSmall;
using testing::NewDirectory;
using testing::RankGroups;

constexpr int kRounds = 8;
constexpr int kKills = 125;

// Signals the parent that one more is done.
void Tell(const UniqueFd& pipe) {
  if (write(pipe.get(), "x", 1) != 1) _exit(2);
}

// Continues after the latest checkpoint and saves every step, sometimes while
// the next one is computed. Rank 0 signals its start and each complete
// checkpoint.
absl::Status SaveForEver(const std::string& directory, const RankGroups& groups,
                         const UniqueFd& pipe) {
  TESSERA_ASSIGN_OR_RETURN(
      auto state, ShardedState::Create(testing::SmallModel(), {.stage = 2},
                                       groups.of_state()));
  TESSERA_ASSIGN_OR_RETURN(
      auto writer,
      CheckpointWriter::Create(groups.of_checkpoint(),
                               {.directory = directory, .keep = 2}));
  const auto latest = LatestCheckpoint(directory);
  if (latest.ok()) {
    TESSERA_RETURN_IF_ERROR(
        LoadCheckpoint(latest->path, groups.of_checkpoint(), *state).status());
    TESSERA_RETURN_IF_ERROR(testing::CheckStamp(*state, latest->step));
  }
  if (groups.rank == 0) Tell(pipe);
  std::optional<PendingCheckpoint> pending;
  while (true) {
    TESSERA_RETURN_IF_ERROR(testing::Stamp(*state, state->steps() + 1));
    if (pending) {
      TESSERA_RETURN_IF_ERROR(pending->Wait().status());
      pending.reset();
      if (groups.rank == 0) Tell(pipe);
    }
    if (state->steps() % 3 != 0) {
      pending = writer->Start(*state, {});
      continue;
    }
    TESSERA_RETURN_IF_ERROR(writer->Save(*state, {}).status());
    if (groups.rank == 0) Tell(pipe);
  }
}

// Runs a process that saves into `directory` and kills it up to `delay` after
// it has signalled `tells` times.
void KillOne(const std::string& directory, int tells, absl::Duration delay) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  UniqueFd read_end(ends[0]), write_end(ends[1]);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    testing::OnRanks(2, 1, [&](const RankGroups& groups) {
      return SaveForEver(directory, groups, write_end);
    });
    _exit(1);  // Unreachable: the loop does not end.
  }
  write_end.Reset();
  char byte;
  for (int i = 0; i < tells; ++i) {
    if (read(read_end.get(), &byte, 1) != 1) break;  // Checked below.
  }
  absl::SleepFor(delay);
  kill(child, SIGKILL);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

class KillTest : public ::testing::TestWithParam<int> {};

TEST_P(KillTest, TheLatestCompleteCheckpointLoads) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  const std::string directory = NewDirectory("kill");
  int64_t latest = 0;
  for (int kill_number = 0; kill_number < kKills; ++kill_number) {
    const auto saved = static_cast<int>(random() % 3);
    ASSERT_NO_FATAL_FAILURE(
        KillOne(directory, 1 + saved, absl::Microseconds(random() % 10'000)));
    const absl::StatusOr<int64_t> now = CheckLatestSmall(directory);
    if (latest + saved == 0 && !now.ok()) continue;  // No checkpoint yet.
    ASSERT_THAT(now, IsOk());
    ASSERT_GE(*now, latest + saved);
    latest = *now;
  }
  EXPECT_GT(latest, kKills / 2);
}

INSTANTIATE_TEST_SUITE_P(Rounds, KillTest, ::testing::Range(0, kRounds));

}  // namespace
}  // namespace tessera::zero3

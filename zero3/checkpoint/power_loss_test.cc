// The machine stops at every call in turn: whichever unsynced writes survive,
// the last complete checkpoint is intact, and saving continues after it.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/testing/files.h"
#include "zero3/checkpoint/testing/state.h"

namespace tessera::zero3 {
namespace {

using testing::AllOk;
using ::testing::AnyOf;
using testing::CheckLatestSmall;
using ::testing::Eq;
using testing::NewDirectory;
using testing::PowerLossCalls;
using testing::SaveSmall;
using testing::Survival;

// The number of random disk states tested for each call.
constexpr int kRandomDisks = 8;

// Checks the states allowed after a stop while `step` was saved and `before`
// was the latest.
void ExpectWhole(const std::string& directory, int64_t before, int64_t step,
                 bool is_saved) {
  if (before == 0 && !is_saved && !LatestCheckpoint(directory).ok()) {
    return;  // There was no checkpoint.
  }
  const absl::StatusOr<int64_t> latest = CheckLatestSmall(directory);
  ASSERT_THAT(latest, IsOk());
  if (is_saved) {
    ASSERT_EQ(*latest, step);
  } else {
    ASSERT_THAT(*latest, AnyOf(Eq(before), Eq(step)));
  }
}

class PowerLossTest : public ::testing::TestWithParam<int64_t> {};

// `before`: the existing checkpoints. Saves `step` and keeps two.
void StopAtEveryCall(int64_t ranks, const std::vector<int64_t>& before,
                     int64_t step) {
  const int64_t latest = before.empty() ? 0 : before.back();
  bool is_done = false;
  for (int64_t last = 1; !is_done; ++last) {
    ASSERT_LT(last, 200);
    const std::string root = NewDirectory("power_loss");
    const std::string directory = absl::StrCat(root, "/ckpt");
    for (const int64_t old : before) {
      TESSERA_ASSERT_OK(AllOk(SaveSmall({.directory = directory}, 1, old)));
    }
    PowerLossCalls calls(root, last);
    const bool is_saved =
        AllOk(SaveSmall({.directory = directory, .keep = 2, .files = &calls},
                        ranks, step))
            .ok();
    is_done = calls.calls() < last;
    for (int disk = 0; disk < 2 + kRandomDisks; ++disk) {
      const std::string after = absl::StrCat(root, "-", last, "-", disk);
      calls.WriteDisk(disk == 0   ? Survival::kAll
                      : disk == 1 ? Survival::kSynced
                                  : Survival::kRandom,
                      static_cast<uint64_t>(disk), after);
      const std::string there = absl::StrCat(after, "/ckpt");
      if (std::filesystem::exists(there)) {
        ASSERT_NO_FATAL_FAILURE(ExpectWhole(there, latest, step, is_saved))
            << "call " << last << ", disk " << disk;
      } else {
        ASSERT_TRUE(before.empty() && !is_saved);
      }
      if (disk % 4 == 0) {
        TESSERA_ASSERT_OK(
            AllOk(SaveSmall({.directory = there, .keep = 1}, 1, step + 1)));
        ASSERT_THAT(CheckLatestSmall(there), IsOkAndHolds(step + 1));
      }
      std::filesystem::remove_all(after);
    }
    std::filesystem::remove_all(root);
  }
}

TEST_P(PowerLossTest, TheFirstCheckpoint) {
  StopAtEveryCall(GetParam(), {}, 1);
}

TEST_P(PowerLossTest, OneMoreWhileTheOldestGoes) {
  StopAtEveryCall(GetParam(), {1, 2}, 3);
}

TEST_P(PowerLossTest, ReplacementOfSameStep) {
  StopAtEveryCall(GetParam(), {1, 2}, 2);
}

INSTANTIATE_TEST_SUITE_P(Ranks, PowerLossTest, ::testing::Values(1, 2));

}  // namespace
}  // namespace tessera::zero3

#include "collectives/shared_memory/shared_memory.h"

#include <dirent.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "collectives/testing/run_ranks.h"
#include "gtest/gtest.h"

namespace tessera::collectives {

namespace {

TEST(RankCapabilitiesTest, RoundTripsTextAndRejectsOthers) {
  for (const RankCapabilities& capabilities :
       {RankCapabilities{1, {}, false}, RankCapabilities{2, {0, 1}, true},
        RankCapabilities{3, {7, 64, 1023}, true}}) {
    EXPECT_THAT(RankCapabilities::Parse(capabilities.ToString()),
                IsOkAndHolds(capabilities));
  }
  for (const char* text : {"", "2 1", "2 1 0,1 ", "0 1 0", "2 x 0", "2 1 0,b",
                           "2 1 0,99999999999", "-1 0 0"}) {
    EXPECT_THAT(RankCapabilities::Parse(text),
                StatusIs(absl::StatusCode::kInvalidArgument))
        << text;
  }
}

TEST(RankCapabilitiesTest, CountsProcessorsOfAllRanks) {
  const RankCapabilities both{2, {0, 1}, true};
  const std::vector<RankCapabilities> shared = {both, both, both};
  EXPECT_EQ(ProcessorsTogether(shared), 2);
  const std::vector<RankCapabilities> bound = {
      {1, {0}, true}, {1, {1}, true}, {1, {5}, true}};
  EXPECT_EQ(ProcessorsTogether(bound), 3);
  const std::vector<RankCapabilities> quota = {
      {8, {0, 1, 2, 3, 4, 5, 6, 7}, true}, {2, {0, 1, 2, 3, 4, 5, 6, 7}, true}};
  EXPECT_EQ(ProcessorsTogether(quota), 2);
  const std::vector<RankCapabilities> unknown = {{1, {}, false}};
  EXPECT_EQ(ProcessorsTogether(unknown), 1);
}

}  // namespace

// Behaviour specific to processes that share memory.

namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

int64_t OpenDescriptors() {
  int64_t count = 0;
  DIR* const directory = opendir("/proc/self/fd");
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

absl::Status SumOnes(Communicator& communicator, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count), 1.0f);
  TESSERA_RETURN_IF_ERROR(
      communicator.AllReduce(Buffer(std::span(values)), Reduction::Sum()));
  return values.back() == static_cast<float>(communicator.size())
             ? absl::OkStatus()
             : absl::InternalError("wrong sum");
}

void ExpectAllOk(const std::vector<RankOutcome>& outcomes) {
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status, IsOk());
  }
}

TEST(SharedMemoryTest, NamesRankAndSizeWhenOutOfMemory) {
  SharedMemoryOptions little;
  little.memory_limit = 1 << 20;  // Fits the control block but not a window.
  const auto outcomes = RunSharedMemory(
      2,
      [](Communicator& c) -> absl::Status {
        TESSERA_RETURN_IF_ERROR(c.Barrier());
        EXPECT_THAT(c.AllocateShared(10 << 20),
                    StatusIs(absl::StatusCode::kResourceExhausted,
                             HasSubstr("10MiB were requested")));
        return SumOnes(c, 1 << 20);
      },
      {}, little);
  for (const RankOutcome& outcome : outcomes) {
    EXPECT_THAT(outcome.status,
                StatusIs(absl::StatusCode::kResourceExhausted,
                         AllOf(HasSubstr("a window for ordinary buffers"),
                               HasSubstr("limit of 1MiB"))));
    EXPECT_EQ(outcome.signal, 0);
  }
}

TEST(SharedMemoryTest, SmallerWindowsUseLessMemory) {
  SharedMemoryOptions little;
  little.memory_limit = 2 << 20;
  little.tuning.piece_bytes = 8 << 10;
  ExpectAllOk(RunSharedMemory(
      3, [](Communicator& c) { return SumOnes(c, 1 << 20); }, {}, little));
}

TEST(SharedMemoryTest, InvalidTuningFailsOnEveryRank) {
  SharedMemoryOptions wrong;
  wrong.tuning.pieces = 2;
  for (const RankOutcome& outcome : RunSharedMemory(
           2, [](Communicator&) { return absl::OkStatus(); }, {}, wrong)) {
    EXPECT_THAT(
        outcome.status,
        StatusIs(absl::StatusCode::kResourceExhausted,
                 AllOf(HasSubstr("rank 0"), HasSubstr("pieces is 2; 3 to 8"))));
  }
}

TEST(SharedMemoryTest, ManyGroupsUseLittleMemoryAndNoDescriptors) {
  SharedMemoryOptions options;
  options.memory_limit = 64 << 20;
  ExpectAllOk(RunSharedMemory(
      4,
      [](Communicator& c) -> absl::Status {
        const int64_t before = OpenDescriptors();
        std::vector<std::unique_ptr<Communicator>> groups;
        const std::vector<Rank> all = {Rank(0), Rank(1), Rank(2), Rank(3)};
        for (int i = 0; i < 2000; ++i) {
          TESSERA_ASSIGN_OR_RETURN(auto group, c.Subgroup(all));
          groups.push_back(std::move(group));
        }
        for (const auto& group : groups) {
          TESSERA_RETURN_IF_ERROR(SumOnes(*group, 10));
        }
        EXPECT_EQ(OpenDescriptors(), before);
        return absl::OkStatus();
      },
      {}, options));
}

TEST(SharedMemoryTest, DestroyedGroupsFreeMemory) {
  SharedMemoryOptions options;
  options.memory_limit = 24 << 20;  // Fits a few windows, not hundreds.
  ExpectAllOk(RunSharedMemory(
      3,
      [](Communicator& c) -> absl::Status {
        const std::vector<Rank> all = {Rank(2), Rank(0), Rank(1)};
        for (int i = 0; i < 300; ++i) {
          TESSERA_ASSIGN_OR_RETURN(auto group, c.Subgroup(all));
          TESSERA_RETURN_IF_ERROR(SumOnes(*group, 10'000));
          // All ranks have left before the next group is created.
          group.reset();
          TESSERA_RETURN_IF_ERROR(c.Barrier());
        }
        return absl::OkStatus();
      },
      {}, options));
}

// The files that this process maps and shares.
std::vector<std::string> SharedMappings() {
  std::vector<std::string> files;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (fields.size() < 6 || fields[1].back() != 's') continue;
    files.push_back(line.substr(line.find(fields[5])));
  }
  return files;
}

TEST(SharedMemoryTest, SharedMemoryIsUnnamed) {
  ExpectAllOk(RunSharedMemory(3, [](Communicator& c) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(auto memory, c.AllocateShared(1 << 20));
    TESSERA_RETURN_IF_ERROR(SumOnes(c, 100'000));
    EXPECT_THAT(SharedMappings(), AllOf(Contains("/memfd:tessera (deleted)"),
                                        Each(HasSubstr("(deleted)"))));
    return absl::OkStatus();
  }));
}

TEST(SharedMemoryTest, UsesSharedBuffersInPlace) {
  ExpectAllOk(RunSharedMemory(4, [](Communicator& c) -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(auto memory, c.AllocateShared(4 << 20));
    const Buffer buffer(memory->bytes().data(), 1 << 20, DType::kF32);
    auto* const values = static_cast<float*>(buffer.data);
    std::fill_n(values, buffer.count, 2.0f);
    TESSERA_RETURN_IF_ERROR(c.AllReduce(buffer, Reduction::Sum()));
    for (int64_t i = 0; i < buffer.count; ++i) {
      if (values[i] != 8) return absl::InternalError("wrong sum");
    }
    return absl::OkStatus();
  }));
}

}  // namespace

}  // namespace tessera::collectives

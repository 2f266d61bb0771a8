#include "tools/train/predict/choose_device.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

CudaDeviceInfo Gpu(int ordinal, bool is_usable = true, int64_t gib = 80) {
  return {.ordinal = ordinal,
          .properties = {"H100", 9, 0, gib * kGiB, "0000:00:01.0"},
          .usable = is_usable ? absl::OkStatus()
                              : absl::FailedPreconditionError(absl::StrCat(
                                    "GPU ", ordinal, " is too old"))};
}

TEST(ChooseDeviceTest, TheProcessorAndTheEmulatedDeviceNeedNoGpu) {
  for (const char* device : {"cpu", "emulated"}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const DeviceChoice choice,
        ChooseDevice(device, absl::InternalError("not asked"), {}));
    EXPECT_EQ(choice.device, device);
    EXPECT_EQ(choice.note, "");
  }
}

TEST(ChooseDeviceTest, DefaultsToCpuWithoutGpu) {
  for (const absl::Status& error :
       {absl::NotFoundError("no driver"),
        absl::UnimplementedError("built without the CUDA toolkit")}) {
    TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceChoice choice,
                                 ChooseDevice("", error, {}));
    EXPECT_EQ(choice.device, "cpu");
    EXPECT_EQ(choice.note, "");
    EXPECT_THAT(
        ChooseDevice("cuda", error, {}),
        StatusIs(error.code(), AllOf(HasSubstr("--device=cuda"),
                                     HasSubstr(std::string(error.message())))));
  }
}

TEST(ChooseDeviceTest, NotesReasonForUnusedGpu) {
  struct Case {
    absl::StatusOr<std::vector<CudaDeviceInfo>> found;
    DeviceNeeds needs;
    std::string reason;
  };
  const Case cases[] = {
      {absl::FailedPreconditionError("the driver supports CUDA 11.4"),
       {},
       "the driver supports CUDA 11.4"},
      {{{Gpu(0, false), Gpu(1, false)}},
       {},
       "GPU 0 is too old; GPU 1 is too old"},
      {{{Gpu(0)}},
       {.ranks_here = 2},
       "2 ranks on this machine need a GPU each, and there is 1 usable; give "
       "a --mesh of at most 1 rank, --engine=in_process, whose"},
      {{{Gpu(0), Gpu(1, false), Gpu(2)}},
       {.ranks_here = 3},
       "there are 2 usable; give a --mesh of at most 2 ranks, "
       "--engine=in_process, whose ranks share GPUs, or"},
      {{{Gpu(0)}},
       {.bytes = 81 * kGiB},
       "a rank needs 81GiB of device memory, and GPU 0 (H100) has 80GiB; "
       "--device=cuda --dry_run lists the flags that help"},
      {{{Gpu(0)}},
       {.possible = absl::FailedPreconditionError("odd sizes; give bf16")},
       "odd sizes; give bf16"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.reason);
    TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceChoice choice,
                                 ChooseDevice("", c.found, c.needs));
    EXPECT_EQ(choice.device, "cpu");
    EXPECT_THAT(choice.note, HasSubstr(c.reason));
    EXPECT_THAT(choice.note, Not(HasSubstr("\n")));
    // Its memory is for the caller to check.
    if (c.needs.bytes > 0) continue;
    EXPECT_THAT(ChooseDevice("cuda", c.found, c.needs),
                StatusIs(kFailed, AllOf(HasSubstr("--device=cuda"),
                                        HasSubstr(c.reason))));
  }
}

TEST(ChooseDeviceTest, OtherProcessesMayUseAGpu) {
  CudaDeviceInfo gpu = Gpu(0);
  gpu.properties.pci_bus_id = "0000:3B:00.0";
  DeviceNeeds needs = {.bytes = 30 * kGiB,
                       .free_bytes = {{"0000:3b:00.0", 20 * kGiB}}};
  const std::vector<CudaDeviceInfo> found = {gpu};
  TESSERA_ASSERT_OK_AND_ASSIGN(DeviceChoice choice,
                               ChooseDevice("", found, needs));
  EXPECT_EQ(choice.device, "cpu");
  EXPECT_THAT(choice.note, HasSubstr("a rank needs 30GiB of device memory, "
                                     "and GPU 0 (H100) has 80GiB, of which "
                                     "20GiB are free: other processes"));
  needs.bytes = 20 * kGiB;
  TESSERA_ASSERT_OK_AND_ASSIGN(choice, ChooseDevice("", found, needs));
  EXPECT_EQ(choice.device, "cuda");
}

TEST(ChooseDeviceTest, ThreadsShareGpus) {
  const std::vector<CudaDeviceInfo> found = {Gpu(0), Gpu(1)};
  const int64_t room = found[0].properties.total_bytes;
  DeviceNeeds needs = {.ranks_here = 5, .shares_gpus = true, .bytes = room / 3};
  TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceChoice choice,
                               ChooseDevice("", found, needs));
  EXPECT_EQ(choice.device, "cuda");
  needs.bytes = room / 2;
  TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceChoice refused,
                               ChooseDevice("", found, needs));
  EXPECT_THAT(refused.note, HasSubstr("3 ranks of a GPU need"));
}

TEST(ChooseDeviceTest, RoomMatchesTightestGpu) {
  std::vector<CudaDeviceInfo> found = {Gpu(0), Gpu(1, false), Gpu(2, true, 24)};
  found[0].properties.pci_bus_id = "0000:3B:00.0";
  DeviceNeeds needs = {.free_bytes = {{"0000:3b:00.0", 20 * kGiB}}};
  const auto room_of = [&](std::string_view device) {
    return FindDeviceRoom(device, found, needs);
  };
  TESSERA_ASSERT_OK_AND_ASSIGN(DeviceRoom room, room_of("cuda"));
  EXPECT_EQ(room.bytes, 20 * kGiB);
  EXPECT_EQ(room.limit, "GPU 0 (H100)");
  EXPECT_EQ(room.gpus, 2);
  TESSERA_ASSERT_OK_AND_ASSIGN(room, room_of("cuda:2"));
  EXPECT_EQ(room.bytes, 24 * kGiB);
  EXPECT_EQ(room.gpus, 1);
  needs = {.ranks_here = 2};
  TESSERA_ASSERT_OK_AND_ASSIGN(room, room_of("cuda"));
  EXPECT_EQ(room.limit, "GPU 2 (H100)");
  EXPECT_THAT(room_of("cuda:1"), StatusIs(kFailed));
  EXPECT_THAT(FindDeviceRoom("cuda", absl::NotFoundError("no driver"), needs),
              StatusIs(absl::StatusCode::kNotFound));
}

// Every number of GPUs, each usable or not, of ranks and of bytes.
TEST(ChooseDeviceTest, UsesGpusIfThereAreEnoughOfThem) {
  for (int count = 1; count <= 4; ++count) {
    for (unsigned usable = 0; usable < 1u << count; ++usable) {
      std::vector<CudaDeviceInfo> found;
      int64_t enough = 0;
      for (int i = 0; i < count; ++i) {
        found.push_back(Gpu(i, (usable >> i & 1u) != 0));
        enough += found.back().usable.ok() ? 1 : 0;
      }
      for (int64_t ranks = 1; ranks <= 5; ++ranks) {
        for (const int64_t gib : {0, 80, 81}) {
          for (const bool own : {false, true}) {
            const DeviceNeeds needs = {
                .ranks_here = ranks, .has_own_gpu = own, .bytes = gib * kGiB};
            const bool exists = enough > 0 && (own || ranks <= enough);
            const bool fits = exists && gib <= 80;
            SCOPED_TRACE(absl::StrCat(count, " ", usable, " ", ranks, " ", gib,
                                      " ", own));
            EXPECT_EQ(ChooseDevice("cuda", found, needs).ok(), exists);
            TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceChoice choice,
                                         ChooseDevice("", found, needs));
            EXPECT_EQ(choice.device, fits ? "cuda" : "cpu");
            EXPECT_EQ(choice.note.empty(), fits);
          }
        }
      }
    }
  }
}

TEST(ChooseDeviceTest, OneGpuMayBeChosen) {
  const std::vector<CudaDeviceInfo> found = {Gpu(0), Gpu(1, false),
                                             Gpu(2, true, 24)};
  TESSERA_ASSERT_OK_AND_ASSIGN(const DeviceChoice choice,
                               ChooseDevice("cuda:2", found, {}));
  EXPECT_EQ(choice.device, "cuda:2");
  EXPECT_THAT(ChooseDevice("cuda:1", found, {}),
              StatusIs(kFailed, HasSubstr("GPU 1 is too old")));
  EXPECT_THAT(ChooseDevice("cuda:3", found, {}),
              StatusIs(kFailed, AllOf(HasSubstr("--device=cuda:3"),
                                      HasSubstr("sees 3 GPUs"))));
  EXPECT_THAT(ChooseDevice("cuda:0", found, {.ranks_here = 2}),
              StatusIs(kFailed, AllOf(HasSubstr("1 GPU was chosen"),
                                      HasSubstr("or --device=cuda"))));
}

TEST(ChooseDeviceTest, RanksHaveTheUsableGpusInOrder) {
  const std::vector<CudaDeviceInfo> found = {Gpu(0, false), Gpu(1), Gpu(2)};
  EXPECT_THAT(GpuOfRank("cuda", found, 0), IsOkAndHolds(1));
  EXPECT_THAT(GpuOfRank("cuda", found, 1), IsOkAndHolds(2));
  EXPECT_THAT(GpuOfRank("cuda", found, 2),
              StatusIs(kFailed, HasSubstr("2 are usable")));
  EXPECT_THAT(GpuOfRank("cuda:2", found, 0), IsOkAndHolds(2));
  EXPECT_THAT(GpuOfRank("cuda", {Gpu(0)}, 5), IsOkAndHolds(0));
}

TEST(ChooseDeviceTest, RanksHaveTheListedGpusInOrder) {
  const std::vector<CudaDeviceInfo> found = {Gpu(0), Gpu(1, false), Gpu(2),
                                             Gpu(3)};
  EXPECT_THAT(GpuOfRank("cuda:3,0", found, 0), IsOkAndHolds(3));
  EXPECT_THAT(GpuOfRank("cuda:3,0", found, 1), IsOkAndHolds(0));
  EXPECT_THAT(GpuOfRank("cuda:3,0", found, 2),
              StatusIs(kFailed, HasSubstr("2 are chosen")));
  EXPECT_THAT(GpuOfRank("cuda:3,0", found, 2, /*shares_gpus=*/true),
              IsOkAndHolds(3));
  EXPECT_THAT(GpuOfRank("cuda:0,1", found, 0),
              StatusIs(kFailed, HasSubstr("GPU 1 is too old")));
  EXPECT_THAT(GpuOfRank("cuda:0,4", found, 0),
              StatusIs(kFailed, HasSubstr("this process sees 4 GPUs")));
  EXPECT_THAT(ChooseDevice("cuda:0,2", found, {.ranks_here = 3}),
              StatusIs(kFailed, HasSubstr("2 GPUs were chosen")));
  EXPECT_THAT(ChooseDevice("cuda:0,2,3", found, {.ranks_here = 3}), IsOk());
}

TEST(ChooseDeviceTest, RoomMatchesSmallestListedGpu) {
  const std::vector<CudaDeviceInfo> found = {Gpu(0, true, 10), Gpu(1, true, 80),
                                             Gpu(2, true, 40)};
  TESSERA_ASSERT_OK_AND_ASSIGN(
      const DeviceRoom room,
      FindDeviceRoom("cuda:1,2", found, {.ranks_here = 2}));
  EXPECT_EQ(room.bytes, 40 * kGiB);
  EXPECT_EQ(room.gpus, 2);
}

}  // namespace
}  // namespace tessera::train

#include "topology/discovery/nvml.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::topology {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kFake[] = "topology/discovery/testing/libfake_nvml.so";
constexpr char kOld[] = "topology/discovery/testing/libold_nvml.so";

class NvmlTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"FAKE_NVML_FAIL", "FAKE_NVML_CODE",
                             "FAKE_NVML_GPUS", "FAKE_NVML_NVLINK"}) {
      unsetenv(name);
    }
  }

  static void Tell(const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  }
};

TEST_F(NvmlTest, ReadsEveryGpu) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<NvmlGpu> gpus,
                               ReadNvml(kFake));
  ASSERT_THAT(gpus, SizeIs(4));
  EXPECT_EQ(gpus[2].name, "Fake GPU 2");
  EXPECT_EQ(gpus[2].bus_id, "0000:9a:00.0");
  EXPECT_EQ(gpus[2].memory_bytes, int64_t{1} << 36);
  EXPECT_EQ(gpus[2].free_bytes, int64_t{1} << 36);
  EXPECT_EQ(gpus[1].free_bytes, int64_t{1} << 34);
  // 12 links of version 3, 25 GB/s each; GPU 3 has ten of them.
  EXPECT_EQ(gpus[2].nvlink_bandwidth, 300e9);
  EXPECT_EQ(gpus[3].nvlink_bandwidth, 250e9);
  EXPECT_THAT(gpus[2].nvlink_peers, ElementsAre(true, true, false, true));
}

TEST_F(NvmlTest, ReportsNvlinkPeers) {
  Tell("FAKE_NVML_NVLINK", "pairs");
  TESSERA_ASSERT_OK_AND_ASSIGN(std::vector<NvmlGpu> gpus, ReadNvml(kFake));
  EXPECT_THAT(gpus[0].nvlink_peers, ElementsAre(false, true, false, false));
  EXPECT_THAT(gpus[3].nvlink_peers, ElementsAre(false, false, true, false));
  Tell("FAKE_NVML_NVLINK", "none");
  TESSERA_ASSERT_OK_AND_ASSIGN(gpus, ReadNvml(kFake));
  for (const NvmlGpu& gpu : gpus) {
    EXPECT_THAT(gpu.nvlink_peers, Each(false));
    EXPECT_EQ(gpu.nvlink_bandwidth, 0);
  }
}

TEST_F(NvmlTest, AMachineMayHaveNoGpu) {
  Tell("FAKE_NVML_GPUS", "0");
  EXPECT_THAT(ReadNvml(kFake), IsOkAndHolds(SizeIs(0)));
}

TEST_F(NvmlTest, OmitsHiddenGpu) {
  Tell("FAKE_NVML_FAIL", "nvmlDeviceGetHandleByIndex_v2");
  Tell("FAKE_NVML_CODE", "4");
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::vector<NvmlGpu> gpus,
                               ReadNvml(kFake));
  ASSERT_THAT(gpus, SizeIs(3));
  EXPECT_EQ(gpus[1].name, "Fake GPU 2");
  EXPECT_THAT(gpus[1].nvlink_peers, ElementsAre(true, false, true));
}

TEST_F(NvmlTest, NamesFailedCall) {
  for (const std::string call :
       {"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetPciInfo_v3"}) {
    Tell("FAKE_NVML_FAIL", call);
    EXPECT_THAT(ReadNvml(kFake),
                StatusIs(absl::StatusCode::kInternal,
                         AllOf(HasSubstr(call), HasSubstr(kFake),
                               HasSubstr("code 999: Unknown Error"))));
  }
  Tell("FAKE_NVML_CODE", "7");
  EXPECT_THAT(ReadNvml(kFake), StatusIs(absl::StatusCode::kInternal,
                                        HasSubstr("no reason given")));
}

TEST_F(NvmlTest, ToleratesUnsupportedQueries) {
  Tell("FAKE_NVML_FAIL", "nvmlDeviceGetMemoryInfo");
  Tell("FAKE_NVML_CODE", "3");
  TESSERA_ASSERT_OK_AND_ASSIGN(std::vector<NvmlGpu> gpus, ReadNvml(kFake));
  EXPECT_EQ(gpus[0].memory_bytes, 0);
  for (const char* call :
       {"nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion"}) {
    Tell("FAKE_NVML_FAIL", call);
    TESSERA_ASSERT_OK_AND_ASSIGN(gpus, ReadNvml(kFake));
    EXPECT_EQ(gpus[0].nvlink_bandwidth, 0) << call;
  }
  Tell("FAKE_NVML_FAIL", "nvmlDeviceGetP2PStatus");
  TESSERA_ASSERT_OK_AND_ASSIGN(gpus, ReadNvml(kFake));
  EXPECT_THAT(gpus[0].nvlink_peers, Each(false));
}

TEST_F(NvmlTest, UnloadedDriverIsUnavailable) {
  Tell("FAKE_NVML_FAIL", "nvmlInit_v2");
  Tell("FAKE_NVML_CODE", "9");
  EXPECT_THAT(ReadNvml(kFake), StatusIs(absl::StatusCode::kUnavailable,
                                        AllOf(HasSubstr("nvmlInit_v2"),
                                              HasSubstr("Driver Not Loaded"))));
}

TEST_F(NvmlTest, RejectsAbsurdCount) {
  Tell("FAKE_NVML_GPUS", "-1");
  EXPECT_THAT(ReadNvml(kFake),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("4294967295")));
}

TEST_F(NvmlTest, NamesMissingOrOldLibrary) {
  EXPECT_THAT(ReadNvml("libno-such-nvml.so.1"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("NVIDIA's driver"),
                             HasSubstr("libno-such-nvml.so.1"))));
  EXPECT_THAT(ReadNvml(kOld),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("nvmlDeviceGetPciInfo_v3"),
                             HasSubstr(kOld), HasSubstr("update"))));
  // A library without NVML's symbols.
  EXPECT_THAT(ReadNvml("libm.so.6"), StatusIs(absl::StatusCode::kUnimplemented,
                                              HasSubstr("nvmlInit_v2")));
}

TEST_F(NvmlTest, EveryStartIsFollowedByAShutdown) {
  // Kept open so that its call count outlives the calls.
  void* handle = dlopen(kFake, RTLD_NOW);
  ASSERT_NE(handle, nullptr) << dlerror();
  const auto started =
      reinterpret_cast<int (*)()>(dlsym(handle, "fake_nvml_started"));
  ASSERT_NE(started, nullptr);
  TESSERA_EXPECT_OK(ReadNvml(kFake));
  EXPECT_EQ(started(), 0);
  for (const char* call : {"nvmlInit_v2", "nvmlDeviceGetCount_v2",
                           "nvmlDeviceGetName", "nvmlDeviceGetPciInfo_v3"}) {
    Tell("FAKE_NVML_FAIL", call);
    EXPECT_FALSE(ReadNvml(kFake).ok());
    EXPECT_EQ(started(), 0) << call;
  }
  dlclose(handle);
}

}  // namespace
}  // namespace tessera::topology

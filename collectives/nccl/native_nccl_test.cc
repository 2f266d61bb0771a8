#include "collectives/nccl/native_nccl.h"

#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/device/emulated_device.h"
#include "base/status_matchers.h"
#include "collectives/communicator.h"
#include "collectives/in_process/in_process.h"
#include "collectives/nccl/nccl_communicator.h"
#include "gtest/gtest.h"

namespace tessera::collectives {
namespace {

TEST(NativeNcclTest, RejectsDeviceWithoutStreams) {
  if (!NativeNccl().ok()) GTEST_SKIP() << NativeNccl().status();
  TESSERA_ASSERT_OK_AND_ASSIGN(const auto device, EmulatedDevice::Create());
  TESSERA_ASSERT_OK_AND_ASSIGN(auto engines, CreateInProcessEngines(1));
  TESSERA_ASSERT_OK_AND_ASSIGN(auto host,
                               Communicator::Create(std::move(engines[0])));
  EXPECT_THAT(CreateNcclCommunicator(std::move(host), *device),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::HasSubstr("has no CUDA streams")));
}

TEST(NativeNcclTest, ConnectsOneRank) {
  if (!NativeNccl().ok()) GTEST_SKIP() << NativeNccl().status();
  const NcclApi& api = **NativeNccl();
  NcclUniqueId id;
  NcclComm comm = nullptr;
  if (api.GetUniqueId(&id) != NcclResult::kSuccess) {
    GTEST_SKIP() << "NCCL does not start here: there is no GPU";
  }
  NcclResult result = api.CommInit(&comm, 1, id, 0, 0);
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (result == NcclResult::kInProgress && absl::Now() < deadline) {
    const NcclResult asked = api.CommGetAsyncError(comm, &result);
    if (asked != NcclResult::kSuccess) result = asked;
    absl::SleepFor(absl::Milliseconds(1));
  }
  if (result == NcclResult::kUnhandledCudaError) {
    GTEST_SKIP() << "there is no GPU here";
  }
  EXPECT_THAT(NcclStatus(result, "CommInit"), IsOk());
  EXPECT_EQ(result, NcclResult::kSuccess);
  api.CommAbort(comm);
}

}  // namespace
}  // namespace tessera::collectives

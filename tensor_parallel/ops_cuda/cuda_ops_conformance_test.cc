#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/device/emulated_device.h"
#include "base/device/host_device.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops/testing/attention_problem.h"
#include "tensor_parallel/ops/testing/ops_conformance.h"
#include "tensor_parallel/ops_cuda/cuda_ops.h"

namespace tessera::tensor_parallel {
namespace {

// Kernels on memory of the host, where AddressSanitizer sees their accesses.
OpsUnderTest OnHost() {
  return {"EmulatedKernels", []() -> absl::StatusOr<TestedOps> {
            TestedOps tested;
            TESSERA_ASSIGN_OR_RETURN(tested.ops,
                                     emulated::CreateCudaOps(HostQueue()));
            return tested;
          }};
}

// Late, with the accesses that each operation declares.
OpsUnderTest OnEmulatedDevice(uint64_t seed) {
  return {absl::StrCat("EmulatedKernelsOnDevice", seed),
          [seed]() -> absl::StatusOr<TestedOps> {
            TestedOps tested;
            TESSERA_ASSIGN_OR_RETURN(tested.device,
                                     EmulatedDevice::Create({.seed = seed}));
            TESSERA_ASSIGN_OR_RETURN(tested.queue,
                                     tested.device->CreateQueue("compute"));
            TESSERA_ASSIGN_OR_RETURN(tested.ops,
                                     emulated::CreateCudaOps(*tested.queue));
            TESSERA_ASSIGN_OR_RETURN(tested.same_bits,
                                     emulated::CreateCudaOps(HostQueue()));
            return tested;
          }};
}

INSTANTIATE_TEST_SUITE_P(Cuda, OpsConformanceTest,
                         ::testing::Values(OnHost(), OnEmulatedDevice(1)),
                         NameOfOpsUnderTest);

// The comparison of cuda_ops_gpu_test, on sizes for an emulation.
TEST(EmulatedAttentionTest, HasNoRoundingsBetweenProducts) {
  TESSERA_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Ops> ops,
                               emulated::CreateCudaOps(HostQueue()));
  Ops* const all_ops[] = {ops.get()};
  for (const MaskedAttentionCase& attention :
       {MaskedAttentionCase{{2, 70, 70, 4, 2, 64}, BlockKind::kCausal},
        MaskedAttentionCase{{1, 20, 90, 2, 1, 128}, BlockKind::kCausal},
        MaskedAttentionCase{{1, 70, 30, 2, 2, 64}, BlockKind::kFull}}) {
    ExpectAttentionOfBothTypes(all_ops, attention, /*rounds_late=*/false);
  }
}

}  // namespace
}  // namespace tessera::tensor_parallel

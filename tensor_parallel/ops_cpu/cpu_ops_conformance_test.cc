#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/device/emulated_device.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops/testing/ops_conformance.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

OpsUnderTest OnHost() {
  return {"Host", []() -> absl::StatusOr<TestedOps> {
            TestedOps tested;
            tested.ops = std::make_unique<CpuOps>(CpuOpsOptions{.threads = 1});
            return tested;
          }};
}

OpsUnderTest OnEmulatedDevice(uint64_t seed) {
  return {absl::StrCat("EmulatedDevice", seed),
          [seed]() -> absl::StatusOr<TestedOps> {
            const CpuOpsOptions options = {.threads = 1};
            TestedOps tested;
            TESSERA_ASSIGN_OR_RETURN(tested.device,
                                     EmulatedDevice::Create({.seed = seed}));
            TESSERA_ASSIGN_OR_RETURN(tested.queue,
                                     tested.device->CreateQueue("compute"));
            tested.ops = std::make_unique<CpuOps>(options, *tested.queue);
            tested.same_bits = std::make_unique<CpuOps>(options);
            return tested;
          }};
}

INSTANTIATE_TEST_SUITE_P(Cpu, OpsConformanceTest,
                         ::testing::Values(OnHost(), OnEmulatedDevice(1),
                                           OnEmulatedDevice(2),
                                           OnEmulatedDevice(3)),
                         NameOfOpsUnderTest);

}  // namespace
}  // namespace tessera::tensor_parallel

// The bytes that the operations of a block in bf16 read and write outside of
// products and attention, counted from their operands.
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "absl/status/status.h"
#include "base/device/host_device.h"
#include "base/device/operation.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "base/tensor/tensor.h"
#include "base/tensor/tensor_view.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/transformer_block.h"
#include "tensor_parallel/context/sequence_layout.h"
#include "tensor_parallel/layers/tensor_group.h"
#include "tensor_parallel/layers/tensor_pool.h"
#include "tensor_parallel/ops/ops.h"

namespace tessera::tensor_parallel {
namespace {

// By operation: the calls and the bytes of their operands.
struct Traffic {
  int64_t calls = 0;
  std::map<std::string, int64_t> bytes;
};

// True if the operation also reads the first tensor that it writes.
bool UpdatesItsTarget(std::string_view name) {
  for (const std::string_view updating :
       {op::Add::kName, op::Scale::kName, op::AddBias::kName,
        op::SumRows::kName, op::Rotate::kName, op::AddRmsNorm::kName,
        op::RmsNormWeightGradient::kName}) {
    if (name == updating) return true;
  }
  return false;
}

template <typename Operation>
absl::Status Count(Traffic& traffic, const Operation& call) {
  ++traffic.calls;
  if (KindOf(Operation::kName) != OperationKind::kOther) {
    return absl::OkStatus();
  }
  int64_t bytes = 0;
  bool updates = UpdatesItsTarget(Operation::kName);
  const auto add = [&](const auto& operand) {
    using Operand = std::decay_t<decltype(operand)>;
    if constexpr (std::is_same_v<Operand, ConstTensorView>) {
      bytes += operand.element_count() * SizeInBytes(operand.dtype());
    } else if constexpr (std::is_same_v<Operand, TensorView>) {
      const int64_t once =
          operand.element_count() * SizeInBytes(operand.dtype());
      bytes += updates ? 2 * once : once;
      updates = false;
    }
  };
  Operation copy = call;
  std::apply([&](auto&... operands) { (add(operands), ...); }, copy.operands());
  traffic.bytes[std::string(Operation::kName)] += bytes;
  return absl::OkStatus();
}

class BlockTrafficTest : public ::testing::Test {
 protected:
  static constexpr int64_t kSequences = 4;
  static constexpr int64_t kTokens = 256, kWidth = 512, kHidden = 1536;

  static const KernelTable<Traffic, LayerOperations>& Kernels() {
    static const auto& table = *[] {
      auto* const kernels = new KernelTable<Traffic, LayerOperations>();
      LayerOperations::ForEach([&]<typename Op>(std::type_identity<Op>) {
        kernels->Add<Op>([](Traffic& traffic, const Op& call) {
          return Count(traffic, call);
        });
      });
      return kernels;
    }();
    return table;
  }

  // A forward and a backward.
  void Run() {
    const auto counted = std::make_shared<Traffic>();
    Ops ops(HostQueue(), Kernels(), counted);
    const TensorGroup group(ops);
    TESSERA_ASSERT_OK_AND_ASSIGN(
        const SequenceLayout layout,
        SequenceLayout::Contiguous(kTokens / kSequences, 1));
    TESSERA_ASSERT_OK_AND_ASSIGN(
        TransformerBlock block,
        TransformerBlock::Create(group, {.group = group, .layout = layout},
                                 {.attention = {.width = kWidth,
                                                .heads = 8,
                                                .kv_heads = 2,
                                                .head_size = kWidth / 8,
                                                .dtype = DType::kBF16},
                                  .hidden = kHidden,
                                  .borrows_tensors = true}));
    const auto create = [&] {
      return *Tensor::Create(DType::kBF16, {{kTokens, kWidth}});
    };
    Tensor x = create(), y = create(), dy = create(), dx = create();
    TensorPool pool(HostMemory(), &HostQueue());
    BlockActivations activations(pool);
    // The second time nothing is prepared that later micro-batches reuse.
    for (int i = 0; i < 2; ++i) {
      *counted = {};
      TESSERA_ASSERT_OK(
          block.Forward(kSequences, x.view(), y.view(), activations));
      TESSERA_ASSERT_OK(block.Backward(dy.view(), dx.view(), activations));
    }
    traffic_ = *counted;
  }

  Traffic traffic_;
};

TEST_F(BlockTrafficTest, IsThatOfTheDocument) {
  Run();
  double width = 0, hidden = 0;
  for (const auto& [name, bytes] : traffic_.bytes) {
    const bool is_hidden =
        name == op::Glu::kName || name == op::GluGradient::kName;
    const double share =
        static_cast<double>(bytes) / kTokens / (is_hidden ? kHidden : kWidth);
    (is_hidden ? hidden : width) += share;
    std::cout << name << " " << share << (is_hidden ? " F" : " H") << "\n";
  }
  std::cout << "all: " << width << " H + " << hidden << " F, " << traffic_.calls
            << " operations" << std::endl;
  EXPECT_NEAR(width, 44, 0.5);
  EXPECT_EQ(hidden, 16);
}

}  // namespace
}  // namespace tessera::tensor_parallel

// Steps give the same bits with every instruction set, any number of threads,
// and any split of a parameter into ranges.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/dtype.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/lion.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/optimizer/sgd.h"
#include "offload/optimizer/testing/step_state.h"

namespace tessera::offload {
namespace {

using StepFunction =
    std::function<absl::Status(int64_t, std::span<const ParameterRange>)>;
// Creates an optimizer's step with a number of threads.
using Make = std::function<StepFunction(int)>;

constexpr StepScale kScale = {.unscale = 1 / 3.0, .clip_factor = 0.9};

Make MakeAdamW(AdamWOptions options) {
  return [=](int threads) mutable {
    options.threads = threads;
    const std::shared_ptr<AdamW> adamw = *AdamW::Create(options);
    return [=](int64_t step, std::span<const ParameterRange> ranges) {
      return adamw->Step(step, kScale, ranges);
    };
  };
}
Make MakeLion(LionOptions options) {
  return [=](int threads) mutable {
    options.threads = threads;
    const std::shared_ptr<Lion> lion = *Lion::Create(options);
    return [=](int64_t step, std::span<const ParameterRange> ranges) {
      return lion->Step(step, kScale, ranges);
    };
  };
}
Make MakeSgd(SgdOptions options) {
  return [=](int threads) mutable {
    options.threads = threads;
    const std::shared_ptr<Sgd> sgd = *Sgd::Create(options);
    return [=](int64_t step, std::span<const ParameterRange> ranges) {
      return sgd->Step(step, kScale, ranges);
    };
  };
}

std::vector<StepTypes> AllTypes() {
  std::vector<StepTypes> all = {{.parameter = DType::kF64,
                                 .gradient = DType::kF64,
                                 .moments = MomentFormat::F64()}};
  const MomentFormat formats[] = {
      MomentFormat::F32(), MomentFormat::BF16(), MomentFormat::Blockwise8(),
      MomentFormat::Blockwise8(256), MomentFormat::Blockwise8(64)};
  const DType gradients[] = {DType::kF32, DType::kBF16, DType::kF16};
  const DType copies[] = {DType::kI8, DType::kBF16, DType::kF16};
  for (const MomentFormat& format : formats) {
    for (size_t i = 0; i < 3; ++i) {
      all.push_back({DType::kF32, gradients[i], format, copies[i]});
    }
  }
  return all;
}

std::string Title(const StepTypes& types) {
  return types.moments.ToString() + " " +
         std::string(DTypeName(types.gradient));
}

// The bytes that three steps write.
std::vector<std::byte> Bytes(const StepTypes& types, int64_t size,
                             const Make& make, int threads,
                             const std::vector<int64_t>& bounds) {
  StepState state(types, size, /*seed=*/7);
  const StepFunction step = make(threads);
  std::mt19937_64 random(8);
  for (int t = 1; t <= 3; ++t) {
    state.SetGradient(random);
    EXPECT_THAT(step(t, state.Ranges(bounds)), IsOk());
  }
  return state.Bytes();
}

const std::vector<Make>& AllOptimizers() {
  static const auto* const all = new std::vector<Make>{
      MakeAdamW({}),
      MakeAdamW({.weight_decay = 0.1,
                 .decay = WeightDecay::kCoupled,
                 .rounding = MomentRounding::kNearest}),
      MakeLion({.weight_decay = 0.1}),
      MakeSgd({.momentum = 0.9, .weight_decay = 0.1}),
      MakeSgd({.momentum = 0.9, .nesterov = true}),
      MakeSgd({.weight_decay = 0.1, .decay = WeightDecay::kDecoupled}),
  };
  return *all;
}

TEST(Identity, OverInstructionSets) {
  for (const StepTypes& types : AllTypes()) {
    for (const Make& make : AllOptimizers()) {
      for (int64_t size : {1, 67, 2500}) {
        std::vector<std::byte> first;
        const int sets = ForEachInstructionSet([&] {
          const auto bytes = Bytes(types, size, make, 1, {0, size});
          if (first.empty()) first = bytes;
          EXPECT_EQ(bytes, first) << Title(types) << " " << size;
        });
        EXPECT_GE(sets, 1);
      }
    }
  }
}

TEST(Identity, OverThreads) {
  constexpr int64_t kSize = 2 * 65536 + 777;
  for (const StepTypes& types : AllTypes()) {
    const Make& make = AllOptimizers()[0];
    const auto one = Bytes(types, kSize, make, 1, {0, kSize});
    for (int threads : {2, 5}) {
      EXPECT_EQ(Bytes(types, kSize, make, threads, {0, kSize}), one)
          << Title(types);
    }
  }
}

TEST(Identity, OverRanges) {
  constexpr int64_t kSize = 70001;
  const std::vector<int64_t> anywhere = {0,    1,     2,     15,    66,
                                         1000, 30000, 30001, 65536, kSize};
  const std::vector<int64_t> at_blocks = {0,     2048,  4096, 6144,
                                          16384, 65536, kSize};
  for (const StepTypes& types : AllTypes()) {
    const bool has_blocks = types.moments.type == MomentType::kBlockwise8;
    for (const Make& make : AllOptimizers()) {
      const auto whole = Bytes(types, kSize, make, 1, {0, kSize});
      EXPECT_EQ(Bytes(types, kSize, make, 2, has_blocks ? at_blocks : anywhere),
                whole)
          << Title(types);
    }
  }
}

// A step that saves what it overwrites has the bits of one that does not, and
// can be undone.
template <typename Optimizer>
void ExpectUndone(Optimizer& optimizer, int moments, const StepTypes& types,
                  int64_t size) {
  StepState state(types, size, /*seed=*/7), expected(types, size, /*seed=*/7);
  std::mt19937_64 random(8), same(8);
  for (int64_t step = 1; step <= 3; ++step) {
    state.SetGradient(random);
    expected.SetGradient(same);
    ParameterRange range = state.Whole();
    std::vector<std::byte> undo(static_cast<size_t>(UndoBytes(range, moments)));
    range.undo = undo;
    // A step of other numbers, NaN among them, leaves no trace.
    const StepScale wrong = {.unscale = step == 2 ? 1e30 : 1};
    TESSERA_ASSERT_OK(optimizer.Step(step, wrong, {&range, 1}));
    TESSERA_ASSERT_OK(optimizer.Undo({&range, 1}));
    TESSERA_ASSERT_OK(optimizer.Step(step, kScale, {&range, 1}));
    const ParameterRange plain = expected.Whole();
    TESSERA_ASSERT_OK(optimizer.Step(step, kScale, {&plain, 1}));
    ASSERT_EQ(state.Bytes(), expected.Bytes()) << Title(types) << " " << size;
  }
}

TEST(Identity, AStepCanBeUndone) {
  const auto adamw = *AdamW::Create({.threads = 2});
  const auto sgd = *Sgd::Create({.momentum = 0.9, .threads = 2});
  const auto plain = *Sgd::Create({});
  for (const StepTypes& types : AllTypes()) {
    for (const int64_t size : {0, 1, 67, 8192, 70001}) {
      ExpectUndone(*adamw, 2, types, size);
      ExpectUndone(*sgd, 1, types, size);
      ExpectUndone(*plain, 0, types, size);
    }
  }
}

TEST(Identity, ChecksSizeOfUndo) {
  const auto adamw = *AdamW::Create({});
  StepState state({}, 10, 1);
  ParameterRange range = state.Whole();
  std::vector<std::byte> undo(119);
  const std::vector<std::byte> before = state.Bytes();
  const auto refused = [](const std::string& text) {
    return StatusIs(absl::StatusCode::kInvalidArgument,
                    ::testing::HasSubstr(text));
  };
  EXPECT_THAT(adamw->Undo({&range, 1}), refused("has no undo"));
  range.undo = undo;
  EXPECT_THAT(adamw->Step(1, {}, {&range, 1}),
              refused("undo has 119 bytes; the parameter and its moments have "
                      "120"));
  range.undo = {range.parameter.data(), 120};
  EXPECT_THAT(adamw->Step(1, {}, {&range, 1}), refused("overlaps"));
  EXPECT_EQ(state.Bytes(), before);
}

}  // namespace
}  // namespace tessera::offload

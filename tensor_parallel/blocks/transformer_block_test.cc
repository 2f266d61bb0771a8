// Memory, messages and errors of a block. Results are compared in
// parity_test.cc and reference_test.cc.
#include "tensor_parallel/blocks/transformer_block.h"

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor.h"
#include "collectives/communicator.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensor_parallel/blocks/moe_mlp.h"
#include "tensor_parallel/blocks/testing/block_flight.h"
#include "tensor_parallel/blocks/testing/mesh_case.h"
#include "tensor_parallel/layers/testing/layer_case.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::tensor_parallel {
namespace {

using namespace block_flight;
using ::testing::Each;
using ::testing::HasSubstr;

// Computed by hand: elements of the type, then statistics.
int64_t ExpectedBytes(int64_t ranks, bool sequence_parallel,
                      const TransformerBlockOptions& options) {
  const bool wide = options.attention.dtype == DType::kF64;
  const int64_t element = SizeInBytes(options.attention.dtype);
  const int64_t statistic = wide ? 8 : 4;
  const int64_t mine = sequence_parallel ? kTokens / ranks : kTokens;
  const int64_t query = kHeads * kHeadSize / ranks;
  const int64_t kv = kKvHeads * kHeadSize / ranks;
  const int64_t input = mine * kWidth * element;
  if (options.recompute == Recompute::kFull) return input;
  const int64_t core = kTokens * (query * element + kHeads / ranks * statistic);
  // Input, middle, and both normalised; query, key, value; gate, up, product.
  const int64_t rest = 4 * input + 2 * mine * statistic +
                       kTokens * (query + 2 * kv) * element +
                       kTokens * 3 * (kHidden / ranks) * element;
  return options.recompute == Recompute::kSelective ? rest : rest + core;
}

absl::Status CheckBytes(const TensorGroup& group,
                        const TransformerBlockOptions& options) {
  TESSERA_ASSIGN_OR_RETURN(TransformerBlock block, MakeBlock(group, options));
  TensorPool pool(HostMemory());
  const int64_t tokens =
      group.sequence_parallel() ? kTokens / group.size() : kTokens;
  Flight flight(pool, options, tokens, 1);
  TESSERA_RETURN_IF_ERROR(flight.Forward(block));
  const int64_t want =
      ExpectedBytes(group.size(), group.sequence_parallel(), options);
  // The pool rounds up by an eighth at most.
  if (flight.activations.bytes() != want || pool.taken_bytes() < want ||
      pool.taken_bytes() > want + want / 8) {
    return absl::InternalError(absl::StrCat(
        RecomputeName(options.recompute), ": ", flight.activations.bytes(),
        " bytes held, ", pool.taken_bytes(), " taken, instead of ", want));
  }
  int64_t kept = 0;
  for (const KeptTensor& tensor : flight.activations.Kept()) {
    if (tensor.value().has_value()) kept += tensor.value()->size_in_bytes();
  }
  if (kept != want) {
    return absl::InternalError(
        absl::StrCat("Kept() has ", kept, " bytes of ", want));
  }
  TESSERA_RETURN_IF_ERROR(flight.BackwardInput(block));
  TESSERA_RETURN_IF_ERROR(block.BackwardWeight(flight.activations));
  return flight.activations.bytes() == 0 && pool.taken_bytes() == 0
             ? absl::OkStatus()
             : absl::InternalError("something is left");
}

TEST(TransformerBlockTest, ActivationBytesMatchRecomputeLevel) {
  for (const int64_t ranks : {1, 2}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
        for (const Recompute recompute :
             {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          EXPECT_THAT(
              RunMesh({.tp = ranks, .sequence_parallel = sequence_parallel},
                      [&](const TensorGroup& tensor, const TensorGroup&) {
                        return CheckBytes(tensor, OptionsOf(dtype, recompute));
                      }),
              Each(IsOk()));
        }
      }
    }
  }
}

// The README's table, for f32 on one rank.
TEST(TransformerBlockTest, RecomputingShrinksWhatIsHeld) {
  const auto bytes = [](Recompute recompute) {
    return ExpectedBytes(1, false, OptionsOf(DType::kF32, recompute));
  };
  EXPECT_EQ(bytes(Recompute::kNone), 35712);
  EXPECT_EQ(bytes(Recompute::kSelective), 30336);
  EXPECT_EQ(bytes(Recompute::kFull), 2304);
}

// Runs forwards and backwards of several micro-batches in pipeline order (some
// forwards, then one of each, weight gradients late).
absl::Status RunPipeline(TransformerBlock& block, std::deque<Flight>& flights) {
  constexpr size_t kAhead = 2;
  for (size_t i = 0; i < flights.size() + kAhead; ++i) {
    if (i < flights.size()) {
      TESSERA_RETURN_IF_ERROR(flights[i].Forward(block));
    }
    if (i < kAhead) continue;
    TESSERA_RETURN_IF_ERROR(flights[i - kAhead].BackwardInput(block));
    if (i % 2 == 0) continue;
    TESSERA_RETURN_IF_ERROR(
        block.BackwardWeight(flights[i - kAhead - 1].activations));
    TESSERA_RETURN_IF_ERROR(
        block.BackwardWeight(flights[i - kAhead].activations));
  }
  return absl::OkStatus();
}

TEST(TransformerBlockTest, MicroBatchesInFlightDoNotDisturbEachOther) {
  CpuOps ops({.threads = 1});
  for (const Recompute recompute :
       {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    const auto options = OptionsOf(DType::kF64, recompute);
    TESSERA_ASSERT_OK_AND_ASSIGN(TransformerBlock block,
                                 MakeBlock(TensorGroup(ops), options));
    std::vector<Parameter*> parameters;
    block.AppendParameters("", parameters);
    TESSERA_ASSERT_OK(FillWeights(ops, parameters, DType::kF64));
    TensorPool pool(HostMemory());
    std::deque<Flight> alone, together;
    for (uint64_t i = 0; i < 6; ++i) {
      alone.emplace_back(pool, options, kTokens, i);
      together.emplace_back(pool, options, kTokens, i);
    }
    for (Flight& flight : alone) {
      TESSERA_ASSERT_OK(flight.Forward(block));
      TESSERA_ASSERT_OK(flight.BackwardInput(block));
      TESSERA_ASSERT_OK(block.BackwardWeight(flight.activations));
    }
    std::vector<std::vector<double>> want;
    for (Parameter* p : parameters) {
      TESSERA_ASSERT_OK_AND_ASSIGN(want.emplace_back(),
                                   ValuesOf(p->gradient()));
      TESSERA_ASSERT_OK(p->ZeroGradient(ops));
    }
    TESSERA_ASSERT_OK(RunPipeline(block, together));
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_THAT(ValuesOf(parameters[i]->gradient()), IsOkAndHolds(want[i]))
          << parameters[i]->name();
    }
    for (size_t i = 0; i < alone.size(); ++i) {
      TESSERA_EXPECT_OK(
          ExpectSameBits("y", together[i].y.view(), alone[i].y.view()));
      TESSERA_EXPECT_OK(ExpectSameBits(
          "x gradient", together[i].gradient.view(), alone[i].gradient.view()));
    }
    // A second step allocates nothing.
    const int64_t made = pool.blocks_made();
    TESSERA_ASSERT_OK(RunPipeline(block, together));
    EXPECT_EQ(pool.blocks_made(), made);
  }
}

// Bytes that a rank gave to collectives, by kind.
struct Moved {
  int64_t all_reduce = 0, all_gather = 0, reduce_scatter = 0, other = 0;
  friend bool operator==(const Moved&, const Moved&) = default;
};

Moved BytesMoved(const collectives::Communicator& communicator) {
  Moved moved;
  for (const auto& [what, totals] : communicator.Statistics()) {
    switch (what.first) {
      case collectives::OpKind::kAllReduce:
        moved.all_reduce += totals.bytes;
        break;
      case collectives::OpKind::kAllGather:
        moved.all_gather += totals.bytes;
        break;
      case collectives::OpKind::kReduceScatter:
        moved.reduce_scatter += totals.bytes;
        break;
      default:
        moved.other += totals.bytes;
    }
  }
  return moved;
}

enum class Backward { kApart, kTogether };

// In units of tokens x width.
absl::Status CheckMoved(const TensorGroup& group,
                        const TransformerBlockOptions& options,
                        Backward backward, const Moved& forward_units,
                        const Moved& backward_units) {
  TESSERA_ASSIGN_OR_RETURN(TransformerBlock block, MakeBlock(group, options));
  TensorPool pool(HostMemory());
  Flight flight(pool, options,
                group.sequence_parallel() ? kTokens / group.size() : kTokens,
                1);
  const Moved start = BytesMoved(*group.communicator());
  TESSERA_RETURN_IF_ERROR(flight.Forward(block));
  const Moved middle = BytesMoved(*group.communicator());
  if (backward == Backward::kApart) {
    TESSERA_RETURN_IF_ERROR(flight.BackwardInput(block));
    TESSERA_RETURN_IF_ERROR(block.BackwardWeight(flight.activations));
  } else {
    TESSERA_RETURN_IF_ERROR(block.Backward(
        flight.gradient.view(), flight.gradient.view(), flight.activations));
  }
  const Moved end = BytesMoved(*group.communicator());
  const auto check = [](const char* what, const Moved& from, const Moved& to,
                        const Moved& units) {
    constexpr int64_t kUnit = kTokens * kWidth * 4;
    const Moved moved = {
        to.all_reduce - from.all_reduce, to.all_gather - from.all_gather,
        to.reduce_scatter - from.reduce_scatter, to.other - from.other};
    const Moved want = {units.all_reduce * kUnit, units.all_gather * kUnit,
                        units.reduce_scatter * kUnit, 0};
    return moved == want
               ? absl::OkStatus()
               : absl::InternalError(absl::StrCat(
                     what, " moved ", moved.all_reduce, ", ", moved.all_gather,
                     ", ", moved.reduce_scatter, ", ", moved.other,
                     " bytes, in units of ", kUnit));
  };
  TESSERA_RETURN_IF_ERROR(check("forward", start, middle, forward_units));
  return check("backward", middle, end, backward_units);
}

struct MovedCase {
  bool sequence_parallel;
  Recompute recompute;
  Backward backward;
  Moved forward_units;
  Moved backward_units;
};

TEST(TransformerBlockTest, MovesWhatTheReadmeSays) {
  constexpr Recompute kNone = Recompute::kNone, kFull = Recompute::kFull;
  const MovedCase cases[] = {
      {false, kNone, Backward::kTogether, {2, 0, 0}, {2, 0, 0}},
      {false, kNone, Backward::kApart, {2, 0, 0}, {2, 0, 0}},
      {false, Recompute::kSelective, Backward::kApart, {2, 0, 0}, {2, 0, 0}},
      // The attention's projection is reduced again, the MLP's is not.
      {false, kFull, Backward::kTogether, {2, 0, 0}, {3, 0, 0}},
      // The input of each pair of layers and the gradient of its output are
      // gathered; then the gradient of the input is reduce-scattered.
      {true, kNone, Backward::kTogether, {0, 2, 2}, {0, 4, 2}},
      // The gradient of the output is gathered twice.
      {true, kNone, Backward::kApart, {0, 2, 2}, {0, 6, 2}},
      {true, kFull, Backward::kTogether, {0, 2, 2}, {0, 6, 3}},
  };
  for (const MovedCase& c : cases) {
    EXPECT_THAT(RunMesh({.tp = 2, .sequence_parallel = c.sequence_parallel},
                        [&](const TensorGroup& tensor, const TensorGroup&) {
                          return CheckMoved(
                              tensor, OptionsOf(DType::kF32, c.recompute),
                              c.backward, c.forward_units, c.backward_units);
                        }),
                Each(IsOk()))
        << c.sequence_parallel << c.recompute;
  }
}

TEST(TransformerBlockTest, PassesOutOfOrderAreRefused) {
  CpuOps ops({.threads = 1});
  const auto options = OptionsOf(DType::kF32, Recompute::kNone);
  TESSERA_ASSERT_OK_AND_ASSIGN(TransformerBlock block,
                               MakeBlock(TensorGroup(ops), options));
  TensorPool pool(HostMemory());
  Flight flight(pool, options, kTokens, 1);
  EXPECT_THAT(flight.BackwardInput(block),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("BackwardInput of activations that are ready "
                                 "for Forward")));
  EXPECT_THAT(block.BackwardWeight(flight.activations),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  TESSERA_ASSERT_OK(flight.Forward(block));
  EXPECT_THAT(flight.Forward(block),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("ready for BackwardInput")));
  TESSERA_ASSERT_OK(flight.BackwardInput(block));
  EXPECT_THAT(flight.BackwardInput(block),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("ready for BackwardWeight")));
  flight.activations.Clear();
  EXPECT_EQ(pool.taken_bytes(), 0);
  TESSERA_EXPECT_OK(flight.Forward(block));
}

TEST(MoeMlpTest, CreateRejectsInvalidOptions) {
  CpuOps ops({.threads = 1});
  const TensorGroup group(ops);
  const auto create = [&](const MoeOptions& options) {
    return MoeMlp::Create({.tensor = group, .experts = group, .context = group},
                          options)
        .status();
  };
  const auto refused = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  TESSERA_EXPECT_OK(
      create({.width = 4, .experts = 2, .hidden = 3, .capacity = 1}));
  EXPECT_THAT(create({.width = -1, .experts = 2, .hidden = 3}),
              refused("of width -1 with experts of 3 hidden units"));
  EXPECT_THAT(create({.width = 4, .experts = 0, .hidden = 3}),
              refused("with 0 experts over 1 ranks"));
  EXPECT_THAT(
      create(
          {.width = 4, .experts = 2, .hidden = 3, .router = {.per_token = 3}}),
      refused("gives a token 3 experts; 1 to 2 are allowed"));
  EXPECT_THAT(create({.width = 4, .experts = 2, .hidden = 3, .capacity = -1}),
              refused("with a coefficient or capacity of -1"));
  EXPECT_THAT(create({.width = 4, .experts = 2, .hidden = 3, .padded = true}),
              refused("with padded rows and no capacity; give a capacity above "
                      "0"));
}

TEST(TransformerBlockTest, WrongTensorsAreRefused) {
  CpuOps ops({.threads = 1});
  const auto options = OptionsOf(DType::kF32, Recompute::kNone);
  TESSERA_ASSERT_OK_AND_ASSIGN(TransformerBlock block,
                               MakeBlock(TensorGroup(ops), options));
  TensorPool pool(HostMemory());
  BlockActivations activations(pool);
  TESSERA_ASSERT_OK_AND_ASSIGN(Tensor x,
                               RandomTensor(DType::kF32, {{5, kWidth}}, 1));
  EXPECT_THAT(block.Forward(1, x.view(), x.view(), activations),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("x is f32 of 5 x 12; it should be f32 of 16 x "
                                 "12 (tokens of the rank, width)")));
  EXPECT_THAT(
      block.Forward(-1, x.view(), x.view(), activations),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1 sequences")));
  EXPECT_EQ(activations.bytes(), 0);
}

}  // namespace
}  // namespace tessera::tensor_parallel

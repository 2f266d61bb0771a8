// Steps on emulated devices, one per rank, give the bits of the CPU; the host
// waits once a step; and a missing wait is found.
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/device/device.h"
#include "base/device/host_device.h"
#include "base/device/staging.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "base/tensor/memory.h"
#include "collectives/communicator.h"
#include "collectives/testing/run_emulated.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "pipeline/execute/executor.h"
#include "pipeline/execute/testing/layer_stack.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/proof/testing/schedules.h"

namespace tessera::pipeline {
namespace {

using collectives::Communicator;
using collectives::EmulatedRank;
using collectives::RunEmulated;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

// A view that a function of the device holds; null stays null.
template <typename View>
class HeldView {
 public:
  explicit HeldView(const View* view) {
    if (view != nullptr) view_ = *view;
  }
  // The view at the address that the function is given.
  const View* At(const DeviceAddresses& at) {
    if (view_) view_ = at(*view_);
    return view_ ? &*view_ : nullptr;
  }

 private:
  std::optional<View> view_;
};

// A layer whose arithmetic is done by functions on a queue of a device. Its
// weights and what it keeps stay where the functions find them; the tensors of
// passes, and gradients that are added up, are in the device's memory.
template <typename T>
class DeviceLayerStage final : public LayerStage<T> {
 public:
  using Base = LayerStage<T>;

  DeviceLayerStage(const StackShape& shape, int32_t stage, Queue& queue)
      : Base(shape, stage), queue_(queue) {}
  ~DeviceLayerStage() override { queue_.Synchronize().IgnoreError(); }

  absl::Status Forward(const ForwardPass& pass) override {
    HostFunction function{.name = "forward"};
    Read(pass.input, function);
    Write(pass.output, function);
    Write(pass.loss, function);
    function.run = [this, pass, input = HeldView(pass.input),
                    output = HeldView(pass.output), loss = HeldView(pass.loss)](
                       const DeviceAddresses& at) mutable {
      return Done(Base::Forward({pass.microbatch, pass.training, input.At(at),
                                 output.At(at), loss.At(at)}));
    };
    return queue_.Launch(std::move(function));
  }
  absl::Status BackwardInput(const BackwardPass& pass) override {
    return LaunchBackward("backward input", &Base::BackwardInput, pass);
  }
  absl::Status BackwardWeight(const BackwardPass& pass) override {
    return LaunchBackward("backward weight", &Base::BackwardWeight, pass);
  }
  void Release(int32_t microbatch) override {
    queue_
        .Launch({.name = "release",
                 .run =
                     [this, microbatch](const DeviceAddresses&) {
                       Base::Release(microbatch);
                       return absl::StatusOr<Event>(Event());
                     }})
        .IgnoreError();
  }

  // From the first request in a step until ReadGradients, the gradients are in
  // the device's memory.
  absl::StatusOr<std::vector<TensorView>> Gradients() override {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TensorView> own,
                             Base::Gradients());
    if (gradients_.empty()) {
      for (const TensorView& view : own) {
        TESSERA_ASSIGN_OR_RETURN(
            gradients_.emplace_back(),
            Buffer::Allocate(queue_.device().memory(), BytesOf(view).size()));
      }
    }
    std::vector<TensorView> views;
    for (size_t i = 0; i < own.size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(
          const TensorView view,
          TensorView::Create(gradients_[i].bytes(), own[i].dtype(),
                             own[i].shape(), gradients_[i].kind()));
      views.push_back(view);
      if (given_) continue;
      TESSERA_RETURN_IF_ERROR(
          queue_.Copy(BytesOf(own[i]), gradients_[i].bytes()));
    }
    given_ = true;
    return views;
  }
  absl::StatusOr<TensorView> TiedGradient(std::string_view) override {
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TensorView> views, Gradients());
    return views[0];
  }
  absl::Status AddGradient(ConstTensorView gradient, TensorView sum) override {
    return queue_.Launch(
        {.name = "add gradient",
         .accesses = {ReadsFrom(gradient), WritesTo(sum)},
         .run = [this, gradient, sum](const DeviceAddresses& at) {
           return Done(Base::AddGradient(at(gradient), at(sum)));
         }});
  }
  absl::Status CopyGradient(ConstTensorView gradient,
                            TensorView copy) override {
    return queue_.Copy({gradient.data(), BytesOf(copy).size()}, BytesOf(copy));
  }
  absl::Status ReadGradients() {
    if (!std::exchange(given_, false)) return absl::OkStatus();
    TESSERA_ASSIGN_OR_RETURN(const std::vector<TensorView> own,
                             Base::Gradients());
    for (size_t i = 0; i < own.size(); ++i) {
      TESSERA_RETURN_IF_ERROR(
          queue_.Copy(gradients_[i].bytes(), BytesOf(own[i])));
    }
    return queue_.Synchronize();
  }

 private:
  static absl::StatusOr<Event> Done(const absl::Status& status) {
    if (!status.ok()) return status;
    return Event();
  }
  static std::span<std::byte> BytesOf(const TensorView& view) {
    return {view.data(), static_cast<size_t>(view.element_count() *
                                             SizeInBytes(view.dtype()))};
  }
  static void Read(const ConstTensorView* view, HostFunction& function) {
    if (view != nullptr) function.accesses.push_back(ReadsFrom(*view));
  }
  static void Write(const TensorView* view, HostFunction& function) {
    if (view != nullptr) function.accesses.push_back(WritesTo(*view));
  }

  absl::Status LaunchBackward(
      std::string_view name,
      absl::Status (Base::*backward)(const BackwardPass&),
      const BackwardPass& pass) {
    HostFunction function{.name = name};
    Read(pass.input, function);
    Read(pass.output_gradient, function);
    Write(pass.input_gradient, function);
    function.run = [this, is_weight = backward == &Base::BackwardWeight, pass,
                    input = HeldView(pass.input),
                    output_gradient = HeldView(pass.output_gradient),
                    input_gradient = HeldView(pass.input_gradient)](
                       const DeviceAddresses& at) mutable {
      const BackwardPass real = {pass.microbatch, input.At(at),
                                 output_gradient.At(at), input_gradient.At(at),
                                 pass.loss_scale};
      return Done(is_weight ? Base::BackwardWeight(real)
                            : Base::BackwardInput(real));
    };
    return queue_.Launch(std::move(function));
  }

  Queue& queue_;
  std::vector<Buffer> gradients_;
  bool given_ = false;
};

// A queue on which some waits and events are forgotten: those of a function,
// "messenger.cc:Await".
class ForgetfulQueue final : public Queue {
 public:
  ForgetfulQueue(Queue& queue, std::string_view forgotten)
      : queue_(queue), forgotten_(forgotten) {}

  std::string_view name() const override { return queue_.name(); }
  Device& device() const override { return queue_.device(); }
  bool is_immediate() const override { return queue_.is_immediate(); }
  absl::Status Copy(std::span<const std::byte> source,
                    std::span<std::byte> target, SourcePlace place) override {
    return queue_.Copy(source, target, place);
  }
  absl::Status Fill(std::byte value, std::span<std::byte> target,
                    SourcePlace place) override {
    return queue_.Fill(value, target, place);
  }
  absl::Status Launch(HostFunction function, SourcePlace place) override {
    return queue_.Launch(std::move(function), place);
  }
  absl::StatusOr<Event> Record(SourcePlace place) override {
    if (IsForgotten(place)) return Event();
    return queue_.Record(place);
  }
  absl::Status Wait(const Event& event, SourcePlace place) override {
    if (IsForgotten(place)) return absl::OkStatus();
    return queue_.Wait(event, place);
  }
  absl::Status Synchronize(SourcePlace place) override {
    return queue_.Synchronize(place);
  }

 private:
  bool IsForgotten(const SourcePlace& place) const {
    return !forgotten_.empty() &&
           absl::EndsWith(
               absl::StrCat(place.file_name(), ":", place.function_name()),
               absl::StrCat("/", forgotten_));
  }

  Queue& queue_;
  const std::string forgotten_;
};

template <typename T>
absl::StatusOr<StackRank<T>> MakeDeviceStack(EmulatedRank& on,
                                             const Schedule& schedule,
                                             const StackShape& shape,
                                             ExecutorOptions options) {
  StackRank<T> rank;
  const auto number = static_cast<int32_t>(on.communicator.rank().value());
  rank.numbers = schedule.map.StagesOf(number);
  for (const int32_t stage : rank.numbers) {
    rank.stages.push_back(
        std::make_unique<DeviceLayerStage<T>>(shape, stage, on.queue));
    rank.bindings.push_back({stage, rank.stages.back().get()});
  }
  if (options.queue == nullptr) options.queue = &on.queue;
  TESSERA_ASSIGN_OR_RETURN(
      rank.executor,
      Executor::Create(on.communicator, schedule, rank.bindings, options));
  return rank;
}

// A training step in two parts, in which the host waits only in the second.
template <typename T>
absl::StatusOr<StepResult> StepOn(EmulatedRank& on, StackRank<T>& rank) {
  for (auto& stage : rank.stages) stage->ZeroGradients();
  const int64_t before = on.device.counts().host_waits;
  TESSERA_RETURN_IF_ERROR(rank.executor->Start());
  const int64_t started = on.device.counts().host_waits;
  TESSERA_ASSIGN_OR_RETURN(StepResult step, rank.executor->Finish());
  const int64_t finished = on.device.counts().host_waits;
  EXPECT_EQ(started - before, 0);
  EXPECT_EQ(finished - started, 1);
  for (auto& stage : rank.stages) {
    TESSERA_RETURN_IF_ERROR(
        static_cast<DeviceLayerStage<T>&>(*stage).ReadGradients());
  }
  return step;
}

template <typename T>
absl::Status ExpectSame(const StepResult& step, const StackRank<T>& rank,
                        const StepResult& cpu_step,
                        const StackRank<T>& cpu_rank) {
  const auto differs = [](auto&&... what) {
    return absl::InternalError(absl::StrCat(what..., " from the CPU's"));
  };
  if (step.losses != cpu_step.losses || step.loss != cpu_step.loss) {
    return differs("the loss ", step.loss, " differs");
  }
  for (size_t i = 0; i < rank.stages.size(); ++i) {
    const Layer<T>& layer = rank.stages[i]->layer();
    const Layer<T>& cpu = cpu_rank.stages[i]->layer();
    if (layer.weight_gradient != cpu.weight_gradient ||
        layer.bias_gradient != cpu.bias_gradient) {
      return differs("the gradient of stage ", rank.numbers[i], " differs");
    }
    if (rank.stages[i]->kept() != 0) {
      return absl::InternalError("something was never released");
    }
  }
  return absl::OkStatus();
}

// Training steps with evaluations on the device `on`, compared with one on
// the CPU, bit by bit.
template <typename T>
absl::Status CheckDeviceStack(EmulatedRank& on, const Schedule& schedule,
                              const StackShape& shape,
                              const ExecutorOptions& options = {},
                              int steps = 2) {
  TESSERA_ASSIGN_OR_RETURN(
      const StackRank<T> cpu_rank,
      MakeStackRank<T>(on.communicator.host(), schedule, shape,
                       {.tied = options.tied, .trace = options.trace}));
  TESSERA_ASSIGN_OR_RETURN(const StepResult cpu, cpu_rank.executor->Run());
  TESSERA_ASSIGN_OR_RETURN(StackRank<T> rank,
                           MakeDeviceStack<T>(on, schedule, shape, options));
  for (int step = 0; step < steps; ++step) {
    TESSERA_ASSIGN_OR_RETURN(const StepResult result, StepOn(on, rank));
    TESSERA_RETURN_IF_ERROR(ExpectSame(result, rank, cpu, cpu_rank));
    TESSERA_RETURN_IF_ERROR(
        CheckTimeline(*rank.executor, on.communicator.rank().value()));
    TESSERA_ASSIGN_OR_RETURN(const StepResult forward,
                             rank.executor->RunForward());
    TESSERA_RETURN_IF_ERROR(ExpectSame(forward, rank, cpu, cpu_rank));
  }
  return absl::OkStatus();
}

// The only stage of a model whose loss is the product of a micro-batch's number
// and a factor of the step, and errors of its author about captured passes.
class ProductStage final : public Stage {
 public:
  enum class Planted { kNone, kValueInAPass, kUploadInAPass, kMovesMemory };

  ProductStage(Queue& queue, Planted planted)
      : queue_(queue), planted_(planted), staging_(queue) {}
  ~ProductStage() override { queue_.Synchronize().IgnoreError(); }

  void BeginStep(int step) { step_ = step; }
  double LossOf(int32_t microbatch) const {
    return (microbatch + 1) * (10.0 * step_ + 1);
  }

  absl::Status LoadInputs(const MicroBatchInputs& inputs) override {
    return planted_ == Planted::kUploadInAPass ? absl::OkStatus()
                                               : Upload(inputs.microbatch);
  }
  absl::Status Forward(const ForwardPass& pass) override {
    if (planted_ == Planted::kUploadInAPass) {
      TESSERA_RETURN_IF_ERROR(Upload(pass.microbatch));
    }
    const std::span<std::byte> own = memory_[pass.microbatch].bytes();
    const double planted =
        planted_ == Planted::kValueInAPass ? LossOf(pass.microbatch) : 0;
    return queue_.Launch(
        {.name = "product",
         .accesses = {ReadsFrom(own), WritesTo(*pass.loss)},
         .run = [own, planted,
                 loss = pass.loss->data()](const DeviceAddresses& at) {
           double factors[2];
           std::memcpy(factors, at(own.data()), sizeof factors);
           const double product =
               planted != 0 ? planted : factors[0] * factors[1];
           std::memcpy(at(loss), &product, sizeof product);
           return absl::StatusOr<Event>(Event());
         }});
  }
  absl::Status BackwardInput(const BackwardPass&) override {
    return absl::OkStatus();
  }
  absl::Status BackwardWeight(const BackwardPass&) override {
    return absl::OkStatus();
  }

 private:
  absl::Status Upload(int32_t microbatch) {
    Buffer& own = memory_[microbatch];
    if (own.size() == 0 || planted_ == Planted::kMovesMemory) {
      TESSERA_ASSIGN_OR_RETURN(
          own, Buffer::Allocate(queue_.device().memory(), 2 * sizeof(double)));
    }
    const double factors[] = {microbatch + 1.0, 10.0 * step_ + 1};
    return staging_.Upload(std::as_bytes(std::span(factors)), own.bytes());
  }

  Queue& queue_;
  const Planted planted_;
  StagingPool staging_;
  int step_ = 0;
  std::map<int32_t, Buffer> memory_;  // By micro-batch.
};

// DataLoss if a step has another loss than its own.
absl::Status TrainProduct(ProductStage::Planted planted, uint64_t seed) {
  const Schedule schedule = *Generate("gpipe", {1, 1, 3});
  return RunEmulated(1, seed, [&](EmulatedRank& on) -> absl::Status {
    ProductStage stage(on.queue, planted);
    TESSERA_ASSIGN_OR_RETURN(
        const auto executor,
        Executor::Create(on.communicator, schedule, {{0, &stage}},
                         {.queue = &on.queue, .captures = true}));
    for (int step = 0; step < 6; ++step) {
      stage.BeginStep(step);
      TESSERA_ASSIGN_OR_RETURN(const StepResult result, executor->Run());
      EXPECT_EQ(executor->graph() != nullptr, step > 0);
      for (int32_t microbatch = 0; microbatch < 3; ++microbatch) {
        const double loss = result.losses[static_cast<size_t>(microbatch)];
        if (loss == stage.LossOf(microbatch)) continue;
        return absl::DataLossError(absl::StrCat("step ", step, ": ", loss));
      }
    }
    EXPECT_EQ(executor->graph()->operations(), 3);
    return absl::OkStatus();
  })[0];
}

class ExecutorDeviceTest : public ::testing::TestWithParam<uint64_t> {};

TEST_P(ExecutorDeviceTest, EveryScheduleMatchesCpuBitForBit) {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    EXPECT_THAT(RunEmulated(ranks, GetParam(),
                            [&](EmulatedRank& on) -> absl::Status {
                              return ForEachSchedule(
                                  ranks, 2, [&](const Schedule& schedule) {
                                    return CheckDeviceStack<double>(
                                        on, schedule, ShapeFor(schedule));
                                  });
                            }),
                Each(IsOk()))
        << ranks << " ranks";
  }
}

TEST_P(ExecutorDeviceTest, CapturedStepsMatchCpuBitForBit) {
  EXPECT_THAT(RunEmulated(1, GetParam(),
                          [&](EmulatedRank& on) -> absl::Status {
                            return ForEachSchedule(
                                1, 3, [&](const Schedule& schedule) {
                                  return CheckDeviceStack<double>(
                                      on, schedule, ShapeFor(schedule),
                                      {.captures = true}, /*steps=*/5);
                                });
                          }),
              Each(IsOk()));
}

TEST_P(ExecutorDeviceTest, MessageLimitsChangeOnlyBufferCount) {
  const Schedule schedule = *Generate("1f1b", {3, 1, 9});
  for (const int64_t ahead : {0, 1, 3}) {
    for (const int64_t in_flight : {1, 2, 4}) {
      EXPECT_THAT(RunEmulated(3, GetParam(),
                              [&](EmulatedRank& on) -> absl::Status {
                                return CheckDeviceStack<float>(
                                    on, schedule, ShapeFor(schedule),
                                    {.receives_ahead = ahead,
                                     .sends_in_flight = in_flight,
                                     .trace = false});
                              }),
                  Each(IsOk()))
          << ahead << " receives ahead, " << in_flight << " sends in flight";
    }
  }
}

TEST_P(ExecutorDeviceTest, FusedMessagesDoNotWaitForEachOther) {
  const Schedule fused =
      FuseMessages(*AddCommunication(*Generate("1f1b", {4, 1, 9})));
  EXPECT_THAT(RunEmulated(4, GetParam(),
                          [&](EmulatedRank& on) -> absl::Status {
                            return CheckDeviceStack<double>(on, fused,
                                                            ShapeFor(fused));
                          }),
              Each(IsOk()));
}

TEST_P(ExecutorDeviceTest, SumsGradientsOfTiedWeights) {
  struct Case {
    const char* name;
    int64_t ranks, chunks;
  };
  for (const Case& test : {Case{"1f1b", 3, 1}, Case{"zb_v", 2, 2},
                           Case{"dualpipe", 2, 1}, Case{"dualpipe", 4, 1}}) {
    SCOPED_TRACE(test.name);
    const Schedule schedule =
        *Generate(test.name, {test.ranks, test.chunks, 5});
    StackShape shape = ShapeFor(schedule);
    const auto last = static_cast<int32_t>(schedule.map.stages()) - 1;
    shape.widths.assign(shape.widths.size(), 4);
    EXPECT_THAT(RunEmulated(test.ranks, GetParam(),
                            [&](EmulatedRank& on) -> absl::Status {
                              return CheckDeviceStack<double>(
                                  on, schedule, shape,
                                  {.tied = {{"embedding", {0, last}}}});
                            }),
                Each(IsOk()));
  }
}

TEST_P(ExecutorDeviceTest, ReplaysUseInputsOfTheirStep) {
  using Planted = ProductStage::Planted;
  TESSERA_EXPECT_OK(TrainProduct(Planted::kNone, GetParam()));
}

TEST_P(ExecutorDeviceTest, DetectsErrorsOfCapturedPasses) {
  using Planted = ProductStage::Planted;
  // The first replay after the captured step has that step's loss.
  EXPECT_THAT(TrainProduct(Planted::kValueInAPass, GetParam()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("step 2: 11")));
  EXPECT_THAT(TrainProduct(Planted::kUploadInAPass, GetParam()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("capture of a step's computations"),
                             HasSubstr("inside the capture"))));
  EXPECT_THAT(TrainProduct(Planted::kMovesMemory, GetParam()),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("\"product\""),
                             HasSubstr("not within one allocation"))));
}

TEST(ExecutorDeviceErrorsTest, RejectsCapturesOfSeveralRanksAndOfTheHost) {
  const auto create = [](int64_t ranks, bool on_device) {
    return RunEmulated(ranks, /*seed=*/1, [&](EmulatedRank& on) {
      const Schedule schedule = *Generate("1f1b", {ranks, 1, 2});
      return MakeDeviceStack<double>(
                 on, schedule, ShapeFor(schedule),
                 {.queue = on_device ? &on.queue : &HostQueue(),
                  .captures = true})
          .status();
    })[0];
  };
  EXPECT_THAT(create(2, true), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("pipeline of 2 ranks")));
  EXPECT_THAT(create(1, false), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("does work at once")));
  TESSERA_EXPECT_OK(create(1, true));
}

TEST_P(ExecutorDeviceTest, ShapesMayChangeBetweenSteps) {
  const Schedule schedule = *Generate("1f1b", {2, 1, 4});
  EXPECT_THAT(RunEmulated(2, GetParam(),
                          [&](EmulatedRank& on) -> absl::Status {
                            TESSERA_ASSIGN_OR_RETURN(
                                StackRank<double> rank,
                                MakeDeviceStack<double>(
                                    on, schedule, ShapeFor(schedule), {}));
                            TESSERA_RETURN_IF_ERROR(StepOn(on, rank).status());
                            rank.executor->ForgetShapes();
                            return StepOn(on, rank).status();
                          }),
              Each(IsOk()));
}

// The errors of a step on which some waits are forgotten.
std::vector<absl::Status> StepWithout(std::string_view forgotten,
                                      uint64_t seed) {
  const Schedule schedule = *Generate("1f1b", {2, 1, 8});
  return RunEmulated(2, seed, [&](EmulatedRank& on) -> absl::Status {
    ForgetfulQueue queue(on.queue, forgotten);
    TESSERA_ASSIGN_OR_RETURN(
        const StackRank<double> rank,
        MakeDeviceStack<double>(on, schedule, ShapeFor(schedule),
                                {.queue = &queue, .sends_in_flight = 1}));
    return rank.executor->Run().status();
  });
}

TEST_P(ExecutorDeviceTest, DetectsMissingWaits) {
  struct Case {
    const char* forgotten;
    const char* first;
    const char* second;
  };
  for (const Case& test : {
           // A stage uses a tensor that is still being received.
           Case{"messenger.cc:Await", "receive", "forward"},
           // A stage writes a buffer whose send may not be done.
           Case{"messenger.cc:Acquire", " writes ", "\"send\" on queue"},
           // A message is received into a buffer that a stage still reads.
           Case{"messenger.cc:ReleaseOnDevice", "backward", "receive"},
           // A tensor is sent that a stage still writes.
           Case{"messenger.cc:StartSend", "forward", "send"},
       }) {
    EXPECT_THAT(StepWithout(test.forgotten, GetParam()),
                Contains(StatusIs(
                    absl::StatusCode::kInternal,
                    AllOf(HasSubstr(test.first), HasSubstr(test.second)))))
        << test.forgotten;
  }
  EXPECT_THAT(StepWithout("", GetParam()), Each(IsOk()));
}

TEST_P(ExecutorDeviceTest, StepNeedsOnlyOneHostWait) {
  const Schedule schedule = *Generate("1f1b", {2, 1, 4});
  EXPECT_THAT(
      RunEmulated(2, GetParam(),
                  [&](EmulatedRank& on) -> absl::Status {
                    TESSERA_ASSIGN_OR_RETURN(
                        const StackRank<double> rank,
                        MakeDeviceStack<double>(on, schedule,
                                                ShapeFor(schedule), {}));
                    TESSERA_RETURN_IF_ERROR(rank.executor->Start());
                    // As an optimizer does.
                    TESSERA_RETURN_IF_ERROR(on.queue.Synchronize());
                    TESSERA_RETURN_IF_ERROR(rank.executor->Finish().status());
                    EXPECT_EQ(on.device.counts().host_waits, 1);
                    return absl::OkStatus();
                  }),
      Each(IsOk()));
}

TEST_P(ExecutorDeviceTest, AllocatesNothingAfterFirstStep) {
  const Schedule schedule = *Generate("zb_h1", {3, 1, 7});
  EXPECT_THAT(
      RunEmulated(3, GetParam(),
                  [&](EmulatedRank& on) -> absl::Status {
                    TESSERA_ASSIGN_OR_RETURN(
                        StackRank<double> rank,
                        MakeDeviceStack<double>(on, schedule,
                                                ShapeFor(schedule), {}));
                    TESSERA_RETURN_IF_ERROR(StepOn(on, rank).status());
                    const int64_t first = on.device.counts().allocations;
                    for (int step = 0; step < 3; ++step) {
                      TESSERA_RETURN_IF_ERROR(StepOn(on, rank).status());
                    }
                    EXPECT_EQ(on.device.counts().allocations, first);
                    return absl::OkStatus();
                  }),
      Each(IsOk()));
}

INSTANTIATE_TEST_SUITE_P(Orders, ExecutorDeviceTest,
                         ::testing::Range<uint64_t>(1, 5));

enum class Fault { kNone, kError, kErrorOfWork, kLate };

// Does no arithmetic; has a fault in the forward of micro-batch 1.
class FaultyStage final : public Stage {
 public:
  FaultyStage(Queue& queue, Fault fault) : queue_(queue), fault_(fault) {}

  absl::StatusOr<TensorSpec> OutputSpec(const TensorSpec*) override {
    return TensorSpec{DType::kF32, {64}};
  }
  absl::Status Forward(const ForwardPass& pass) override {
    const Fault fault = pass.microbatch == 1 ? fault_ : Fault::kNone;
    if (fault == Fault::kError) return Error();
    if (fault == Fault::kLate) absl::SleepFor(absl::Seconds(1));
    HostFunction function{.name = "forward"};
    if (pass.output != nullptr) {
      function.accesses.push_back(WritesTo(*pass.output));
    }
    function.run = [fault](const DeviceAddresses&) -> absl::StatusOr<Event> {
      if (fault == Fault::kErrorOfWork) return Error();
      return Event();
    };
    return queue_.Launch(std::move(function));
  }
  absl::Status BackwardInput(const BackwardPass& pass) override {
    if (pass.input_gradient == nullptr) return absl::OkStatus();
    return queue_.Fill(std::byte{0},
                       {pass.input_gradient->data(), 64 * sizeof(float)});
  }
  absl::Status BackwardWeight(const BackwardPass&) override {
    return absl::OkStatus();
  }

 private:
  static absl::Status Error() {
    return absl::DataLossError("the weights are gone");
  }

  Queue& queue_;
  const Fault fault_;
};

// The errors of a step in which rank 1 of 3 has a fault.
std::vector<absl::Status> StepWith(Fault fault, absl::Duration timeout) {
  const Schedule schedule = *Generate("1f1b", {3, 1, 4});
  return RunEmulated(3, /*seed=*/1, [&](EmulatedRank& on) -> absl::Status {
    const auto number = static_cast<int32_t>(on.communicator.rank().value());
    FaultyStage stage(on.queue, number == 1 ? fault : Fault::kNone);
    TESSERA_ASSIGN_OR_RETURN(
        const auto executor,
        Executor::Create(on.communicator, schedule, {{number, &stage}},
                         {.queue = &on.queue, .timeout = timeout}));
    const absl::Status status = executor->Run().status();
    EXPECT_THAT(executor->Finish(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("accepts no further work")));
    return status;
  });
}

TEST(ExecutorDeviceErrorsTest, EveryRankReportsFailedStage) {
  for (const Fault fault : {Fault::kError, Fault::kErrorOfWork}) {
    const auto statuses = StepWith(fault, absl::Seconds(20));
    EXPECT_THAT(
        statuses[1],
        StatusIs(absl::StatusCode::kDataLoss,
                 AllOf(HasSubstr("the weights are gone"),
                       HasSubstr(fault == Fault::kError
                                     ? "(1F1): stage 1, micro-batch 1"
                                     : "\"forward\" on queue compute"))));
    for (const size_t rank : {0, 2}) {
      EXPECT_THAT(statuses[rank],
                  StatusIs(absl::StatusCode::kAborted,
                           AllOf(HasSubstr("aborted on rank 1"),
                                 HasSubstr("the weights are gone"))))
          << "rank " << rank;
    }
  }
}

TEST(ExecutorDeviceErrorsTest, NamesLateRankAtDeadline) {
  const auto statuses = StepWith(Fault::kLate, absl::Milliseconds(200));
  int deadlines = 0;
  for (const size_t rank : {0, 2}) {
    EXPECT_FALSE(statuses[rank].ok());
    EXPECT_THAT(statuses[rank].message(), HasSubstr("rank 1"));
    deadlines += absl::IsDeadlineExceeded(statuses[rank]) ? 1 : 0;
  }
  EXPECT_GE(deadlines, 1);
  EXPECT_FALSE(statuses[1].ok());
}

}  // namespace
}  // namespace tessera::pipeline

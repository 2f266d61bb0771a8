#include "zero3/state/testing/toy_training.h"

#include <cmath>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device/emulated_device.h"
#include "base/dtype/convert.h"
#include "base/status_macros.h"
#include "collectives/emulated/emulated_communicator.h"
#include "collectives/in_process/in_process.h"

namespace tessera::zero3::testing {
namespace {

double Noise(uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  uint64_t x = 0x9e3779b97f4a7c15ULL * (a + 1) ^
               0xbf58476d1ce4e5b9ULL * (b + 1) ^
               0x94d049bb133111ebULL * (c + 1) ^ (d + 1);
  for (int i = 0; i < 2; ++i) {
    x ^= x >> 31;
    x *= 0xd6e8feb86659fd93ULL;
  }
  x ^= x >> 32;
  return static_cast<double>(x >> 11) / 9007199254740992.0 * 2 - 1;
}

// The windows of a pass: the groups of the model, where the next one is
// gathered while the current one is used.
absl::Status ForEachWindow(
    ShardedState& state, bool backwards,
    const std::function<absl::Status(std::span<const ParameterId>)>& use) {
  const ModelParameters& model = state.layout().model();
  const auto window = [&](int64_t i) {
    return model.group(backwards ? model.group_count() - 1 - i : i);
  };
  TESSERA_RETURN_IF_ERROR(state.StartGather(window(0)));
  for (int64_t i = 0; i < model.group_count(); ++i) {
    if (i + 1 < model.group_count()) {
      TESSERA_RETURN_IF_ERROR(state.AnnounceGather(window(i + 1)));
      TESSERA_RETURN_IF_ERROR(state.StartGather(window(i + 1)));
    }
    TESSERA_RETURN_IF_ERROR(state.AwaitGather(window(i)));
    TESSERA_RETURN_IF_ERROR(use(window(i)));
    TESSERA_RETURN_IF_ERROR(state.Release(window(i)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<double>> AsDoubles(const ConstTensorView& view) {
  std::vector<double> values(static_cast<size_t>(view.element_count()));
  TESSERA_RETURN_IF_ERROR(Convert(
      view.dtype(), {view.data(), static_cast<size_t>(view.size_in_bytes())},
      DType::kF64, std::as_writable_bytes(std::span(values))));
  return values;
}

absl::StatusOr<std::vector<double>> Downloaded(ShardedState& state,
                                               const ConstTensorView& view) {
  TESSERA_ASSIGN_OR_RETURN(
      const Download download,
      state.staging().StartDownload(
          {view.data(), static_cast<size_t>(view.size_in_bytes())}));
  TESSERA_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes,
                           download.Wait());
  std::vector<double> values(static_cast<size_t>(view.element_count()));
  TESSERA_RETURN_IF_ERROR(Convert(view.dtype(), bytes, DType::kF64,
                                  std::as_writable_bytes(std::span(values))));
  return values;
}

// A backward pass, on the state's queue.
absl::Status AddGradient(ShardedState& state, int64_t step, int64_t part,
                         ParameterId id) {
  TESSERA_ASSIGN_OR_RETURN(const TensorView value, state.Value(id));
  TESSERA_ASSIGN_OR_RETURN(const TensorView gradient, state.Gradient(id));
  const double scale = state.loss_scale();
  return state.queue().Launch(
      {.name = "backward",
       .accesses = {ReadsFrom(value), WritesTo(gradient)},
       .run = [=](const DeviceAddresses& at) -> absl::StatusOr<Event> {
         TESSERA_ASSIGN_OR_RETURN(const std::vector<double> values,
                                  AsDoubles(at(value)));
         const TensorView to = at(gradient);
         TESSERA_ASSIGN_OR_RETURN(std::vector<double> sums, AsDoubles(to));
         for (size_t e = 0; e < sums.size(); ++e) {
           sums[e] += scale * GradientOf(step, part, id.value(),
                                         static_cast<int64_t>(e), values[e]);
         }
         TESSERA_RETURN_IF_ERROR(
             Convert(DType::kF64, std::as_bytes(std::span(sums)), to.dtype(),
                     {to.data(), static_cast<size_t>(to.size_in_bytes())}));
         return Event();
       }});
}

absl::Status FillToy(const ModelParameter& parameter, int64_t begin,
                     TensorView elements) {
  std::vector<double> values;
  for (int64_t i = 0; i < elements.element_count(); ++i) {
    values.push_back(FirstValue(parameter.id.value(), begin + i));
  }
  return Convert(
      DType::kF64, std::as_bytes(std::span(values)), elements.dtype(),
      {elements.data(), static_cast<size_t>(elements.size_in_bytes())});
}

absl::Status AskAll(ShardedState& state) {
  for (const ModelParameter& parameter : state.layout().model().all()) {
    if (!parameter.trainable()) continue;
    TESSERA_RETURN_IF_ERROR(state.Gradient(parameter.id).status());
  }
  return absl::OkStatus();
}

absl::Status ReduceAll(ShardedState& state) {
  const ModelParameters& model = state.layout().model();
  for (int64_t i = model.group_count(); i-- > 0;) {
    TESSERA_RETURN_IF_ERROR(state.ReduceGradients(model.group(i)));
  }
  return absl::OkStatus();
}

// The elements of a rank in two parts, one after the other.
class ToyUpdates final : public MatrixUpdates {
 public:
  explicit ToyUpdates(ShardedState& state) : state_(state) {}

  absl::Status Run(MatrixShards& shards) override {
    for (const Extent& extent : shards.layout().ExtentsOf(shards.rank())) {
      const ModelParameter& parameter =
          shards.layout().model()[extent.parameter];
      if (!parameter.spec.orthogonalized) continue;
      const int64_t middle = extent.begin + extent.size() / 3;
      TESSERA_RETURN_IF_ERROR(Pass(shards, parameter, extent.begin, middle));
      TESSERA_RETURN_IF_ERROR(Pass(shards, parameter, middle, extent.end));
    }
    return state_.queue().Synchronize();
  }

 private:
  absl::Status Pass(MatrixShards& shards, const ModelParameter& parameter,
                    int64_t begin, int64_t end) {
    if (begin == end) return absl::OkStatus();
    const DType dtype =
        parameter.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
    TESSERA_ASSIGN_OR_RETURN(
        Buffer memory,
        Buffer::Allocate(
            state_.queue().device().memory(),
            static_cast<size_t>((end - begin) * SizeInBytes(dtype))));
    const offload::TypedSpan direction(memory.data(), dtype, end - begin);
    TESSERA_RETURN_IF_ERROR(
        shards.WriteDirection(parameter.id, begin, direction));
    TESSERA_RETURN_IF_ERROR(shards.Apply(parameter.id, begin, direction));
    return state_.queue().Synchronize();
  }

  ShardedState& state_;
};

absl::StatusOr<ToyResult> TrainRank(const ToyOptions& options,
                                    collectives::Communicator& world,
                                    Queue* queue) {
  const int64_t rank = world.rank().value();
  TESSERA_ASSIGN_OR_RETURN(auto shard,
                           world.Split(rank / options.ranks, rank, "data"));
  TESSERA_ASSIGN_OR_RETURN(auto replicas,
                           world.Split(rank % options.ranks, rank, "replicas"));
  ShardedStateOptions state_options = options.state;
  state_options.key_prefix = absl::StrCat("rank ", rank, "/");
  state_options.queue = queue;
  if (options.adapt) options.adapt(rank, state_options);
  TESSERA_ASSIGN_OR_RETURN(
      auto state,
      ShardedState::Create(
          ToyModel(options.dtype, options.state.optimizer), state_options,
          {.shard = shard.get(),
           .replicas = options.replicas > 1 ? replicas.get() : nullptr}));
  TESSERA_RETURN_IF_ERROR(state->Fill(FillToy));
  ToyUpdates updates(*state);
  MatrixUpdates* const matrices =
      options.state.optimizer == OptimizerKind::kMuon ? &updates : nullptr;
  ToyResult result;
  const int64_t world_size = options.ranks * options.replicas;
  const int64_t mine = options.parts / world_size;
  for (int step = 0; step < options.steps; ++step) {
    const DeviceCounts before = state->queue().device().counts();
    if (options.holds_gradients) TESSERA_RETURN_IF_ERROR(AskAll(*state));
    for (int64_t i = 0; i < mine; ++i) {
      const bool reduce = !options.holds_gradients &&
                          (options.state.stage >= 2 || i + 1 == mine);
      TESSERA_RETURN_IF_ERROR(
          RunPart(*state, step, rank + i * world_size, reduce));
    }
    if (options.holds_gradients) TESSERA_RETURN_IF_ERROR(ReduceAll(*state));
    const DeviceCounts passed = state->queue().device().counts();
    TESSERA_ASSIGN_OR_RETURN(const UpdateReport report, state->Step(matrices));
    result.reports.push_back(report);
    const DeviceCounts after = state->queue().device().counts();
    result.host_waits.push_back(after.host_waits - before.host_waits);
    result.waits_in_step.push_back(after.host_waits - passed.host_waits);
    result.allocations.push_back(after.allocations - before.allocations);
  }
  result.usage = state->usage();
  TESSERA_ASSIGN_OR_RETURN(result.values, ReadValues(*state));
  return result;
}

absl::StatusOr<ToyResult> TrainOnDevice(
    const ToyOptions& options,
    std::unique_ptr<collectives::Communicator> host) {
  TESSERA_ASSIGN_OR_RETURN(
      const std::shared_ptr<EmulatedDevice> device,
      EmulatedDevice::Create(
          {.memory_bytes = size_t{64} << 20,
           .seed = 100 * options.device_seed +
                   static_cast<uint64_t>(host->rank().value()),
           .timing = options.timing}));
  TESSERA_ASSIGN_OR_RETURN(const auto queue, device->CreateQueue("compute"));
  TESSERA_ASSIGN_OR_RETURN(
      const auto world,
      collectives::CreateEmulatedCommunicator(std::move(host), *device));
  TESSERA_ASSIGN_OR_RETURN(ToyResult result,
                           TrainRank(options, *world, queue.get()));
  result.time = device->simulated_time();
  return result;
}

// Steps `p`; the new momentum.
double SgdStep(const offload::SgdOptions& sgd, int t, double g, double m,
               double& p) {
  const bool is_coupled = sgd.decay == offload::WeightDecay::kCoupled;
  if (is_coupled) g += sgd.weight_decay * p;
  m = t == 1 ? g : sgd.momentum * m + (1 - sgd.dampening) * g;
  const double direction = sgd.nesterov ? g + sgd.momentum * m : m;
  if (!is_coupled) p -= sgd.learning_rate * sgd.weight_decay * p;
  p -= sgd.learning_rate * direction;
  return m;
}

}  // namespace

ModelParameters ToyModel(DType dtype, OptimizerKind optimizer) {
  ModelParameters::Builder builder;
  builder.Add({.name = "embedding", .shape = {13, 6}, .dtype = dtype});
  for (int64_t layer = 1; layer <= 3; ++layer) {
    builder.Add({.name = absl::StrCat("layer", layer, ".weight"),
                 .shape = {7, 3 + layer},
                 .dtype = dtype,
                 .orthogonalized = optimizer == OptimizerKind::kMuon,
                 .group = layer});
    builder.Add({.name = absl::StrCat("layer", layer, ".bias"),
                 .shape = {7},
                 .dtype = dtype,
                 .group = layer});
  }
  builder.Add({.name = "frozen",
               .shape = {5, 5},
               .dtype = dtype,
               .trainable = false,
               .group = 2});
  builder.Add({.name = "temperature", .dtype = dtype, .group = 4});
  builder.Add({.name = "nothing", .shape = {0, 4}, .dtype = dtype, .group = 4});
  builder.Add({.name = "head", .shape = {6, 19}, .dtype = dtype, .group = 5});
  return *builder.Build();
}

double FirstValue(int64_t parameter, int64_t element) {
  return Noise(1000, static_cast<uint64_t>(parameter),
               static_cast<uint64_t>(element), 0);
}

double GradientOf(int64_t step, int64_t part, int64_t parameter,
                  int64_t element, double value) {
  const auto p = static_cast<uint64_t>(parameter);
  const auto e = static_cast<uint64_t>(element);
  const auto s = static_cast<uint64_t>(step), b = static_cast<uint64_t>(part);
  return (value - Noise(2000, p, e, 0)) * (1.5 + Noise(s, b, p, e)) / 8 +
         Noise(b, s + 77, e, p) / 16;
}

absl::Status RunPart(ShardedState& state, int64_t step, int64_t part,
                     bool reduce) {
  TESSERA_RETURN_IF_ERROR(ForEachWindow(
      state, /*backwards=*/false,
      [](std::span<const ParameterId>) { return absl::OkStatus(); }));
  const ModelParameters& model = state.layout().model();
  return ForEachWindow(
      state, /*backwards=*/true, [&](std::span<const ParameterId> window) {
        for (ParameterId id : window) {
          if (!model[id].trainable()) continue;
          TESSERA_RETURN_IF_ERROR(AddGradient(state, step, part, id));
        }
        return reduce ? state.ReduceGradients(window) : absl::OkStatus();
      });
}

absl::StatusOr<std::vector<std::vector<double>>> ReadValues(
    ShardedState& state) {
  const ModelParameters& model = state.layout().model();
  std::vector<std::vector<double>> all(static_cast<size_t>(model.count()));
  // In the order of a forward pass, with which a step begins.
  TESSERA_RETURN_IF_ERROR(ForEachWindow(
      state, /*backwards=*/false, [&](std::span<const ParameterId> window) {
        for (ParameterId id : window) {
          TESSERA_ASSIGN_OR_RETURN(const TensorView value, state.Value(id));
          TESSERA_ASSIGN_OR_RETURN(all[static_cast<size_t>(id.value())],
                                   Downloaded(state, value));
        }
        return absl::OkStatus();
      }));
  return all;
}

std::vector<absl::StatusOr<ToyResult>> Train(const ToyOptions& options) {
  const int64_t ranks = options.ranks * options.replicas;
  auto engines = collectives::CreateInProcessEngines(ranks);
  std::vector<absl::StatusOr<ToyResult>> results(
      static_cast<size_t>(ranks), absl::UnknownError("did not run"));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&, r] {
      collectives::CommunicatorOptions how;
      how.reproducible = options.reproducible;
      auto world =
          collectives::Communicator::Create(std::move((*engines)[r]), how);
      if (!world.ok()) {
        results[r] = world.status();
      } else if (options.device_seed == 0) {
        results[r] = TrainRank(options, **world, nullptr);
      } else {
        results[r] = TrainOnDevice(options, *std::move(world));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

std::vector<std::vector<double>> TrainByFormula(const ToyOptions& options) {
  const ModelParameters model =
      ToyModel(options.dtype, options.state.optimizer);
  std::vector<std::vector<double>> all;
  for (const ModelParameter& parameter : model.all()) {
    std::vector<double> values;
    offload::AdamWOptions adamw = options.state.adamw;
    offload::SgdOptions sgd = options.state.sgd;
    offload::LionOptions lion = options.state.lion;
    if (options.state.decayed == DecayedParameters::kMatrices &&
        parameter.spec.shape.size() < 2) {
      adamw.weight_decay = sgd.weight_decay = lion.weight_decay = 0;
    }
    const ParameterRates rates =
        RatesOf(options.state.parameter_groups, parameter.name());
    for (auto* rate :
         {&adamw.learning_rate, &sgd.learning_rate, &lion.learning_rate}) {
      *rate *= rates.learning_rate;
    }
    for (auto* decay :
         {&adamw.weight_decay, &sgd.weight_decay, &lion.weight_decay}) {
      *decay = rates.weight_decay.value_or(*decay);
    }
    for (int64_t e = 0; e < parameter.elements; ++e) {
      double p = FirstValue(parameter.id.value(), e), m = 0, v = 0;
      for (int t = 1; parameter.trainable() && t <= options.steps; ++t) {
        double g = 0;
        for (int64_t part = 0; part < options.parts; ++part) {
          g += GradientOf(t - 1, part, parameter.id.value(), e, p);
        }
        if (options.state.optimizer == OptimizerKind::kSgd) {
          m = SgdStep(sgd, t, g, m, p);
          continue;
        }
        if (options.state.optimizer == OptimizerKind::kLion) {
          const double mean = lion.beta1 * m + (1 - lion.beta1) * g;
          m = lion.beta2 * m + (1 - lion.beta2) * g;
          p -= lion.learning_rate * lion.weight_decay * p;
          p -= lion.learning_rate * (mean > 0 ? 1 : mean < 0 ? -1 : 0);
          continue;
        }
        if (parameter.spec.orthogonalized) {
          m = options.state.muon_momentum * m + g;
          p = p * (1 - adamw.learning_rate * adamw.weight_decay) +
              adamw.learning_rate * (g + options.state.muon_momentum * m);
          continue;
        }
        m = adamw.beta1 * m + (1 - adamw.beta1) * g;
        v = adamw.beta2 * v + (1 - adamw.beta2) * g * g;
        p -= adamw.learning_rate * adamw.weight_decay * p;
        p -= adamw.learning_rate * m / (1 - std::pow(adamw.beta1, t)) /
             (std::sqrt(v / (1 - std::pow(adamw.beta2, t))) + adamw.epsilon);
      }
      values.push_back(p);
    }
    all.push_back(std::move(values));
  }
  return all;
}

}  // namespace tessera::zero3::testing

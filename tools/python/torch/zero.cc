#include <ATen/ATen.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/device/host_device.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/counting_memory.h"
#include "base/tensor/tensor_view.h"
#include "collectives/communicator.h"
#include "collectives/counting/counting_engine.h"
#include "offload/optimizer/parameter_range.h"
#include "offload/tier/accounting.h"
#include "tools/python/torch/backend.h"
#include "tools/python/torch/process_group.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_manifest.h"
#include "zero3/checkpoint/checkpoint_writer.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/config/offload_config.h"
#include "zero3/parameters/model_parameters.h"
#include "zero3/parameters/parameter_groups.h"
#include "zero3/state/sharded_state.h"
#include "zero3/state/state_operations.h"

namespace tessera::torch_backend {
namespace {

namespace py = pybind11;
using collectives::Communicator;
using zero3::ModelParameter;
using zero3::ModelParameters;
using zero3::ParameterId;
using zero3::ShardedStateOptions;
using Release = py::call_guard<py::gil_scoped_release>;

// The arguments of tessera_torch.zero.shard, by name.
struct ZeroSettings {
  int stage = 3;
  std::string optimizer = "adamw";
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0.01;
  double momentum = 0;
  std::string moments = "f32";
  double clip_norm = 0;
  std::string parameter_groups = "";
  int64_t bucket_bytes = 25'000'000;
  int64_t persistence_threshold = 0;
  int threads = 1;
  std::string offload = "";  // As OffloadConfig::Parse; empty: nothing.
};

DType TypeOf(const std::string& name, const at::Tensor& tensor) {
  Require(tensor.is_cpu(), name, " is on ", tensor.device().str(),
          "; parameters must be in the memory of the CPU");
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return DType::kF64;
    case at::kFloat:
      return DType::kF32;
    case at::kBFloat16:
      return DType::kBF16;
    default:
      throw std::invalid_argument(
          absl::StrCat("tessera: ", name, " is of type ",
                       c10::toString(tensor.scalar_type()),
                       "; parameters can be float64, float32 or bfloat16"));
  }
}

at::ScalarType TypeOf(DType type) {
  return type == DType::kF64   ? at::kDouble
         : type == DType::kF32 ? at::kFloat
                               : at::kBFloat16;
}

at::Tensor TensorOf(const TensorView& view) {
  const auto& shape = view.layout().shape();
  return at::from_blob(view.data(),
                       std::vector<int64_t>(shape.begin(), shape.end()),
                       at::TensorOptions(TypeOf(view.dtype())));
}

// A tensor whose memory is set later.
at::Tensor TensorWithoutMemory(const ModelParameter& parameter) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), parameter.bytes,
      at::DataPtr(nullptr, at::kCPU), /*allocator=*/nullptr,
      /*resizable=*/false);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(std::move(storage)),
      c10::DispatchKeySet(c10::DispatchKey::CPU),
      c10::scalarTypeToTypeMeta(TypeOf(parameter.dtype())));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(parameter.spec.shape);
  return tensor;
}

absl::StatusOr<zero3::OptimizerKind> OptimizerOf(const std::string& name) {
  if (name == "adamw") return zero3::OptimizerKind::kAdamW;
  if (name == "sgd") return zero3::OptimizerKind::kSgd;
  if (name == "lion") return zero3::OptimizerKind::kLion;
  return absl::InvalidArgumentError(
      absl::StrCat("optimizer=\"", name, "\"; use adamw, sgd or lion"));
}

absl::StatusOr<ShardedStateOptions> OptionsOf(
    const ZeroSettings& settings, const std::vector<std::string>& names) {
  if (settings.betas.size() != 2) {
    return absl::InvalidArgumentError("betas has two numbers");
  }
  ShardedStateOptions options = {
      .stage = settings.stage,
      .persistence_threshold = settings.persistence_threshold,
      .bucket_bytes = settings.bucket_bytes,
      .average_gradients = true,
      .allow_unused = true,
      .adamw = {.learning_rate = settings.lr,
                .beta1 = settings.betas[0],
                .beta2 = settings.betas[1],
                .epsilon = settings.eps,
                .weight_decay = settings.weight_decay,
                .threads = settings.threads},
      .sgd = {.learning_rate = settings.lr,
              .momentum = settings.momentum,
              .weight_decay = settings.weight_decay,
              .threads = settings.threads},
      .lion = {.learning_rate = settings.lr,
               .beta1 = settings.betas[0],
               .beta2 = settings.betas[1],
               .weight_decay = settings.weight_decay,
               .threads = settings.threads},
      .clip_norm = settings.clip_norm};
  TESSERA_ASSIGN_OR_RETURN(options.optimizer, OptimizerOf(settings.optimizer));
  TESSERA_ASSIGN_OR_RETURN(options.moments,
                           offload::ParseMomentFormat(settings.moments));
  TESSERA_ASSIGN_OR_RETURN(
      options.parameter_groups,
      zero3::ParseParameterGroups(settings.parameter_groups));
  TESSERA_RETURN_IF_ERROR(
      zero3::CheckPatternsMatch(options.parameter_groups, names));
  return options;
}

std::map<std::string, int64_t> BytesOf(const offload::Usage& usage) {
  std::map<std::string, int64_t> bytes = {{"current", usage.current},
                                          {"peak", usage.peak}};
  for (const offload::Purpose purpose : offload::kAllPurposes) {
    if (usage.of(purpose).peak == 0) continue;
    bytes[std::string(PurposeName(purpose))] = usage.of(purpose).current;
  }
  return bytes;
}

// The parameters of a module, by name.
struct ZeroParameters {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;  // Only their types and shapes are used.
  std::vector<bool> trainable;
  std::vector<int64_t> units;
};

ModelParameters ModelOf(const ZeroParameters& parameters) {
  ModelParameters::Builder model;
  for (size_t i = 0; i < parameters.names.size(); ++i) {
    model.Add({.name = parameters.names[i],
               .shape = parameters.tensors[i].sizes().vec(),
               .dtype = TypeOf(parameters.names[i], parameters.tensors[i]),
               .trainable = parameters.trainable[i],
               .group = parameters.units[i]});
  }
  return Value(model.Build());
}

// The sharded state of a module's parameters. Parameters are numbered in the
// module's order; units are the groups of a ModelParameters, which are gathered
// together.
class ZeroState {
 public:
  // A collective of the group.
  static std::unique_ptr<ZeroState> Create(c10d::ProcessGroup& group,
                                           const ZeroParameters& parameters,
                                           const ZeroSettings& settings) {
    auto state = absl::WrapUnique(new ZeroState(parameters));
    auto world = CommunicatorOf(group);
    const py::gil_scoped_release release;
    // Errors of the settings come before the group: a rank that left it would
    // disturb the others while they join.
    ShardedStateOptions options = Value(OptionsOf(settings, parameters.names));
    if (!settings.offload.empty()) {
      const auto config = Value(zero3::OffloadConfig::Parse(settings.offload));
      state->offload_ =
          Value(zero3::MakeOffloadTier(config, state->TypeToCompress()));
      AddTo(options, config, state->offload_.tier.get());
    }
    std::vector<collectives::Rank> members;
    for (int64_t i = 0; i < world->size(); ++i) members.emplace_back(i);
    state->group_ = Value(world->Subgroup(members, "zero"));
    state->CreateState(options);
    return state;
  }

  // The state of rank 0 of `ranks`, without memory and communication: it only
  // counts the bytes.
  static std::unique_ptr<ZeroState> CreateDry(int64_t ranks,
                                              const ZeroParameters& parameters,
                                              const ZeroSettings& settings) {
    Require(settings.offload.empty(),
            "predict counts the memory of a rank; leave offload out");
    auto state = absl::WrapUnique(new ZeroState(parameters));
    const auto memory = std::make_shared<CountingMemory>();
    state->dry_device_ = std::make_unique<CountingDevice>(memory, memory);
    state->dry_queue_ = Value(state->dry_device_->CreateQueue("compute"));
    state->group_ = Value(Communicator::Create(
        Value(collectives::CreateCountingEngine({.rank = collectives::Rank(0),
                                                 .ranks = ranks,
                                                 .memory = memory}))));
    ShardedStateOptions options = Value(OptionsOf(settings, parameters.names));
    options.queue = state->dry_queue_.get();
    options.ops = zero3::DryStateOps();
    state->CreateState(options);
    return state;
  }

  ZeroState(const ZeroState&) = delete;
  ZeroState& operator=(const ZeroState&) = delete;
  ~ZeroState() {
    const py::gil_scoped_release release;
    for (const at::Tensor& tensor : gathered_) SetMemory(tensor, nullptr);
    fork_guard_.Free(state_);
    fork_guard_.Free(offload_.tier);
    fork_guard_.Free(group_);
  }

  bool is_dry() const { return dry_device_ != nullptr; }

  // Sets all values.
  void Fill(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> flat;
    for (const at::Tensor& tensor : tensors) {
      flat.push_back(tensor.detach().contiguous().view(-1));
    }
    Check(state().Fill([&flat](const ModelParameter& parameter, int64_t begin,
                               TensorView elements) {
      const at::NoGradGuard no_gradients;
      const at::Tensor target = TensorOf(elements);
      target.copy_(
          flat[zero3::IndexOf(parameter.id)].narrow(0, begin, target.numel()));
      return absl::OkStatus();
    }));
  }

  void StartGather(int64_t unit) { Check(state().StartGather(Window(unit))); }
  void AwaitGather(int64_t unit) { Check(state().AwaitGather(Window(unit))); }

  // The parameter as a whole; its unit must be gathered. All calls return the
  // same storage, so that views of it which autograd has saved have the values
  // of the next gather, wherever these are.
  at::Tensor Gathered(int64_t parameter) {
    SetMemory(gathered_[parameter],
              Value(state().Value(ParameterId(parameter))).data());
    return gathered_[parameter];
  }

  void ReleaseUnit(int64_t unit) {
    for (const ParameterId id : Window(unit)) {
      SetMemory(gathered_[zero3::IndexOf(id)], nullptr);
    }
    Check(state().Release(Window(unit)));
  }

  // Without a gradient it only allocates the memory for it.
  void AddGradient(int64_t parameter,
                   const std::optional<at::Tensor>& gradient) {
    const at::NoGradGuard no_gradients;
    const TensorView sum = Value(state().Gradient(ParameterId(parameter)));
    if (gradient) TensorOf(sum).add_(*gradient);
  }

  void Reduce(int64_t unit) {
    std::vector<ParameterId> window;
    for (const ParameterId id : Window(unit)) {
      if (model_[id].trainable()) window.push_back(id);
    }
    if (!window.empty()) Check(state().ReduceGradients(window));
  }

  void SetLearningRate(double rate) { Check(state().SetLearningRate(rate)); }

  zero3::UpdateReport Step() { return Value(state().Step()); }
  int64_t Steps() { return state().steps(); }

  std::map<std::string, int64_t> Memory() { return BytesOf(state().usage()); }

  std::string Save(const std::string& directory, int64_t keep,
                   zero3::CheckpointMetadata metadata) {
    return Value(zero3::SaveCheckpoint({.shard = group_.get()},
                                       {.directory = directory, .keep = keep},
                                       state(), std::move(metadata)));
  }

  // Returns the metadata.
  zero3::CheckpointMetadata Load(const std::string& path) {
    zero3::LoadedCheckpoint loaded =
        Value(zero3::LoadCheckpoint(path, {.shard = group_.get()}, state()));
    return std::move(loaded.metadata);
  }

 private:
  explicit ZeroState(const ZeroParameters& parameters)
      : model_(ModelOf(parameters)) {}

  void CreateState(const ShardedStateOptions& options) {
    state_ = Value(
        zero3::ShardedState::Create(model_, options, {.shard = group_.get()}));
    for (const ModelParameter& parameter : model_.all()) {
      gathered_.push_back(TensorWithoutMemory(parameter));
    }
  }

  zero3::ShardedState& state() const {
    Check(fork_guard_.Check());
    return *state_;
  }

  // Empty if the unit has no parameters.
  std::span<const ParameterId> Window(int64_t unit) const {
    for (int64_t i = 0; i < model_.group_count(); ++i) {
      const std::span<const ParameterId> group = model_.group(i);
      if (model_[group.front()].spec.group == unit) return group;
    }
    return {};
  }

  static void SetMemory(const at::Tensor& tensor, void* data) {
    tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        at::DataPtr(data, at::kCPU));
  }

  // The type that decides whether a codec may round: that of most elements.
  DType TypeToCompress() const {
    std::map<DType, int64_t> elements;
    for (const ModelParameter& parameter : model_.all()) {
      elements[parameter.dtype()] += parameter.elements;
    }
    return std::max_element(
               elements.begin(), elements.end(),
               [](const auto& a, const auto& b) { return a.second < b.second; })
        ->first;
  }

  const ForkGuard fork_guard_;
  const ModelParameters model_;
  // A group of its own: calls of the process group do not wait for it.
  std::unique_ptr<Communicator> group_;
  // Set if the state is dry.
  std::unique_ptr<CountingDevice> dry_device_;
  std::unique_ptr<Queue> dry_queue_;
  zero3::OffloadTier offload_;
  std::unique_ptr<zero3::ShardedState> state_;
  std::vector<at::Tensor> gathered_;  // Without memory unless gathered.
};

void BindSettings(py::module_& module) {
  py::class_<ZeroSettings>(module, "ZeroSettings")
      .def(py::init<>())
      .def_readwrite("stage", &ZeroSettings::stage)
      .def_readwrite("optimizer", &ZeroSettings::optimizer)
      .def_readwrite("lr", &ZeroSettings::lr)
      .def_readwrite("betas", &ZeroSettings::betas)
      .def_readwrite("eps", &ZeroSettings::eps)
      .def_readwrite("weight_decay", &ZeroSettings::weight_decay)
      .def_readwrite("momentum", &ZeroSettings::momentum)
      .def_readwrite("moments", &ZeroSettings::moments)
      .def_readwrite("clip_norm", &ZeroSettings::clip_norm)
      .def_readwrite("parameter_groups", &ZeroSettings::parameter_groups)
      .def_readwrite("bucket_bytes", &ZeroSettings::bucket_bytes)
      .def_readwrite("persistence_threshold",
                     &ZeroSettings::persistence_threshold)
      .def_readwrite("threads", &ZeroSettings::threads)
      .def_readwrite("offload", &ZeroSettings::offload);
}

}  // namespace

void BindZero(py::module_& module) {
  BindSettings(module);
  py::class_<ZeroParameters>(module, "ZeroParameters")
      .def(py::init<std::vector<std::string>, std::vector<at::Tensor>,
                    std::vector<bool>, std::vector<int64_t>>());
  py::class_<zero3::UpdateReport>(module, "ZeroReport")
      .def_readonly("gradient_norm", &zero3::UpdateReport::gradient_norm)
      .def_readonly("clip_factor", &zero3::UpdateReport::clip_factor)
      .def_readonly("skipped", &zero3::UpdateReport::skipped)
      .def_readonly("non_finite", &zero3::UpdateReport::non_finite);
  py::class_<ZeroState>(module, "ZeroState")
      .def(py::init([](const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       const ZeroParameters& parameters,
                       const ZeroSettings& settings) {
        return ZeroState::Create(*group, parameters, settings);
      }))
      .def_static("dry", &ZeroState::CreateDry, Release())
      .def_property_readonly("is_dry", &ZeroState::is_dry)
      .def("fill", &ZeroState::Fill, Release())
      .def("start_gather", &ZeroState::StartGather, Release())
      .def("await_gather", &ZeroState::AwaitGather, Release())
      .def("gathered", &ZeroState::Gathered)
      .def("release", &ZeroState::ReleaseUnit, Release())
      .def("add_gradient", &ZeroState::AddGradient, Release())
      .def("reduce", &ZeroState::Reduce, Release())
      .def("set_learning_rate", &ZeroState::SetLearningRate, Release())
      .def("step", &ZeroState::Step, Release())
      .def_property_readonly("steps", &ZeroState::Steps)
      .def_property_readonly("memory", &ZeroState::Memory)
      .def("save", &ZeroState::Save, Release())
      .def("load", &ZeroState::Load, Release());
  module.def(
      "latest_checkpoint",
      [](const std::string& directory) {
        return Value(zero3::LatestCheckpoint(directory)).path;
      },
      Release());
}

}  // namespace tessera::torch_backend

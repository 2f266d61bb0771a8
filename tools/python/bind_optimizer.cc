// tessera.optim: AdamW over memory that the caller owns, with moments and
// master weights in memory or in files.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/convert.h"
#include "base/dtype/dtype.h"
#include "base/os/thread_pool.h"
#include "base/status_macros.h"
#include "offload/optimizer/adamw.h"
#include "offload/optimizer/gradient_statistics.h"
#include "offload/tier/accounting.h"
#include "offload/tier/file_tier.h"
#include "tools/python/bindings.h"
#include "zero3/state/shard_store.h"

namespace tessera::python {
namespace {

namespace py = pybind11;
using offload::ConstTypedSpan;
using offload::MomentFormat;
using offload::MomentSpan;
using offload::ParameterRange;
using offload::StepScale;
using offload::TypedSpan;

// Elements in memory that the caller owns.
struct Memory {
  uintptr_t address = 0;
  std::string dtype;
  int64_t size = 0;

  TypedSpan span() const {
    return {reinterpret_cast<std::byte*>(address), Value(ParseDType(dtype)),
            size};
  }
  std::span<std::byte> bytes() const {
    const TypedSpan elements = span();
    return {elements.data(), static_cast<size_t>(elements.size_in_bytes())};
  }
};

MomentFormat FormatFor(DType parameter, const std::string& moments) {
  return parameter == DType::kF64 ? MomentFormat::F64()
                                  : Value(offload::ParseMomentFormat(moments));
}

// A parameter with its moments, created once and used in every step.
class Parameter {
 public:
  Parameter(std::string name, const Memory& parameter, const Memory& first,
            const Memory& second, const std::optional<Memory>& copy,
            const std::string& moments)
      : name_(std::move(name)) {
    range_.name = name_;
    range_.parameter = parameter.span();
    const MomentFormat format = FormatFor(range_.parameter.dtype(), moments);
    range_.first =
        Value(MomentSpan::Over(format, parameter.size, first.bytes()));
    range_.second =
        Value(MomentSpan::Over(format, parameter.size, second.bytes()));
    if (copy) range_.copy = copy->span();
  }

  const ParameterRange& range() const { return range_; }

 private:
  const std::string name_;
  ParameterRange range_;
};

// The memory of a gradient: address and type. It has as many elements as the
// parameter.
using Gradient = std::pair<uintptr_t, std::string>;

ConstTypedSpan GradientOf(const Gradient& gradient, int64_t elements) {
  return {reinterpret_cast<const std::byte*>(gradient.first),
          Value(ParseDType(gradient.second)), elements};
}

// The files that contain the states of parameters. During a step, states are
// prefetched and written back asynchronously, in the order of the last step.
class StateFiles {
 public:
  StateFiles(const std::string& directory, int64_t near_bytes)
      : tier_(Value(offload::FileTier::Create(
            std::make_shared<offload::Accounting>("optimizer states",
                                                  offload::kUnlimited),
            {.path = directory}))),
        device_({std::make_shared<offload::Accounting>("near memory",
                                                       offload::kUnlimited)}),
        prefetch_(std::make_shared<zero3::ShardPrefetch>(
            zero3::ShardPrefetch::Options{.near_bytes = near_bytes,
                                          .device = device_})) {}

  std::unique_ptr<zero3::ShardStore> Store(
      std::vector<zero3::ShardBlock> blocks) {
    for (zero3::ShardBlock& block : blocks) block.tier = tier_.get();
    return Value(zero3::ShardStore::Create(
        std::move(blocks), {.device = device_, .prefetch = prefetch_}));
  }
  zero3::ShardPrefetch& prefetch() { return *prefetch_; }
  int64_t next_key() { return next_key_++; }
  int64_t file_bytes() const { return tier_->file_bytes(); }
  // Serialises all uses.
  std::mutex& mutex() { return mutex_; }

 private:
  const std::unique_ptr<offload::FileTier> tier_;
  const zero3::StateDevice device_;
  const std::shared_ptr<zero3::ShardPrefetch> prefetch_;
  int64_t next_key_ = 0;
  std::mutex mutex_;
};

// A parameter whose master weights and moments are in files, in blocks of some
// million elements, of which only a few are in memory.
class FiledParameter {
 public:
  // A block consists of master weights, then the moments.
  static constexpr int64_t kElementsOfBlock = int64_t{1} << 21;

  FiledParameter(std::shared_ptr<StateFiles> files, std::string name,
                 const Memory& parameter, const std::string& moments)
      : files_(std::move(files)),
        name_(std::move(name)),
        parameter_(parameter.span()),
        format_(FormatFor(parameter_.dtype(), moments)),
        has_master_(parameter_.dtype() != DType::kF32 &&
                    parameter_.dtype() != DType::kF64) {
    const std::lock_guard lock(files_->mutex());
    const int64_t key = files_->next_key();
    std::vector<zero3::ShardBlock> blocks;
    for (int64_t begin = 0; begin < parameter_.size();
         begin += kElementsOfBlock) {
      blocks.push_back({.key = absl::StrCat(key, ".", blocks.size()),
                        .bytes = PartsOf(CountAt(begin)).end});
    }
    store_ = files_->Store(std::move(blocks));
    if (has_master_) Check(SetMasters());
  }
  ~FiledParameter() {
    const std::lock_guard lock(files_->mutex());
    store_ = nullptr;
  }

  // The number of steps of the states in the files.
  int64_t steps = 0;

  void Announce() {
    for (size_t i = 0; i < store_->size(); ++i) store_->Announce(i);
  }

  absl::Status Step(offload::AdamW& adamw, int64_t step, const StepScale& scale,
                    const ConstTypedSpan& gradient) {
    for (size_t i = 0; i < store_->size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> block,
                               store_->Open(i), NameProgress(_, i));
      const ParameterRange range = RangeOf(i, block, gradient);
      const absl::Status status = adamw.Step(step, scale, {&range, 1});
      TESSERA_RETURN_IF_ERROR(store_->Close(i, status.ok()));
      TESSERA_RETURN_IF_ERROR(status);
    }
    steps = step;
    return absl::OkStatus();
  }

  // Copies "master", "exp_avg" or "exp_avg_sq" from or to memory, in the layout
  // of a parameter in memory.
  absl::Status Copy(const std::string& part, const Memory& memory,
                    bool to_files) {
    const std::lock_guard lock(files_->mutex());
    for (size_t i = 0; i < store_->size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> block,
                               store_->Open(i));
      const absl::Status status = CopyBlock(part, i, block, memory, to_files);
      TESSERA_RETURN_IF_ERROR(store_->Close(i, to_files && status.ok()));
      TESSERA_RETURN_IF_ERROR(status);
    }
    return store_->Settle();
  }

  const std::shared_ptr<StateFiles>& files() const { return files_; }
  int64_t elements() const { return parameter_.size(); }
  const std::string& name() const { return name_; }

 private:
  struct Parts {
    int64_t master = 0;
    int64_t moment = 0;
    int64_t end = 0;
  };

  int64_t CountAt(int64_t begin) const {
    return std::min(kElementsOfBlock, parameter_.size() - begin);
  }
  Parts PartsOf(int64_t count) const {
    constexpr int64_t kAlignment = 64;
    const auto padded = [](int64_t bytes) {
      return (bytes + kAlignment - 1) / kAlignment * kAlignment;
    };
    Parts parts;
    parts.master = has_master_ ? padded(4 * count) : 0;
    parts.moment = Value(offload::MomentBytes(format_, count));
    parts.end = parts.master + 2 * padded(parts.moment);
    return parts;
  }

  ParameterRange RangeOf(size_t i, std::span<std::byte> block,
                         const ConstTypedSpan& gradient) const {
    const int64_t begin = static_cast<int64_t>(i) * kElementsOfBlock;
    const int64_t count = CountAt(begin);
    const Parts parts = PartsOf(count);
    const auto moment_at = [&](int64_t at) {
      return Value(
          MomentSpan::Over(format_, count,
                           block.subspan(static_cast<size_t>(at),
                                         static_cast<size_t>(parts.moment))));
    };
    ParameterRange range;
    range.name = name_;
    range.begin = begin;
    range.whole = parameter_.size();
    const TypedSpan own(parameter_.At(begin), parameter_.dtype(), count);
    range.parameter =
        has_master_ ? TypedSpan(block.data(), DType::kF32, count) : own;
    if (has_master_) range.copy = own;
    range.gradient =
        ConstTypedSpan(gradient.At(begin), gradient.dtype(), count);
    range.first = moment_at(parts.master);
    range.second = moment_at(parts.master + (parts.end - parts.master) / 2);
    return range;
  }

  absl::Status SetMasters() {
    for (size_t i = 0; i < store_->size(); ++i) {
      TESSERA_ASSIGN_OR_RETURN(const std::span<std::byte> block,
                               store_->Open(i));
      const int64_t begin = static_cast<int64_t>(i) * kElementsOfBlock;
      const auto count = static_cast<size_t>(CountAt(begin));
      const absl::Status status = Convert(
          parameter_.dtype(), std::span(parameter_.At(begin), 2 * count),
          DType::kF32, block.first(4 * count));
      TESSERA_RETURN_IF_ERROR(store_->Close(i, status.ok()));
      TESSERA_RETURN_IF_ERROR(status);
    }
    return store_->Settle();
  }

  absl::Status CopyBlock(const std::string& part, size_t i,
                         std::span<std::byte> block, const Memory& memory,
                         bool to_files) const {
    const auto copy = [to_files](void* file, void* whole, size_t bytes) {
      std::memcpy(to_files ? file : whole, to_files ? whole : file, bytes);
    };
    const ParameterRange range = RangeOf(i, block, {});
    const auto count = static_cast<size_t>(range.first.size);
    if (part == "master") {
      copy(block.data(), memory.bytes().data() + 4 * range.begin, 4 * count);
      return absl::OkStatus();
    }
    TESSERA_ASSIGN_OR_RETURN(
        const MomentSpan all,
        MomentSpan::Over(format_, parameter_.size(), memory.bytes()));
    TESSERA_ASSIGN_OR_RETURN(const MomentSpan whole,
                             all.Piece(range.begin, range.first.size));
    const MomentSpan& own = part == "exp_avg" ? range.first : range.second;
    const size_t scales = own.largest.size_bytes();
    const size_t values =
        static_cast<size_t>(PartsOf(own.size).moment) - scales;
    copy(own.values, whole.values, values);
    if (scales > 0) copy(own.largest.data(), whole.largest.data(), scales);
    return absl::OkStatus();
  }

  absl::Status NameProgress(const absl::Status& status, size_t block) const {
    if (block == 0) return status;
    return absl::Status(
        status.code(),
        absl::StrCat(name_, " is stepped in part, up to element ",
                     static_cast<int64_t>(block) * kElementsOfBlock,
                     ": restore a saved state; ", status.message()));
  }

  const std::shared_ptr<StateFiles> files_;
  const std::string name_;
  const TypedSpan parameter_;
  const MomentFormat format_;
  const bool has_master_;
  std::unique_ptr<zero3::ShardStore> store_;
};

class Optimizer {
 public:
  Optimizer(double learning_rate, double beta1, double beta2, double epsilon,
            double weight_decay, uint64_t seed,
            std::shared_ptr<ThreadPool> pool)
      : adamw_(Value(offload::AdamW::Create({.learning_rate = learning_rate,
                                             .beta1 = beta1,
                                             .beta2 = beta2,
                                             .epsilon = epsilon,
                                             .weight_decay = weight_decay,
                                             .seed = seed,
                                             .pool = std::move(pool)}))) {}

  // Checks all arguments before writing anything.
  void Step(int64_t step, double clip_factor,
            const std::vector<std::pair<Parameter*, Gradient>>& parameters) {
    std::vector<ParameterRange> ranges;
    ranges.reserve(parameters.size());
    for (const auto& [parameter, gradient] : parameters) {
      ParameterRange& range = ranges.emplace_back(parameter->range());
      range.gradient = GradientOf(gradient, range.parameter.size());
    }
    Check(adamw_->Step(step, {.clip_factor = clip_factor}, ranges));
  }

  // Steps parameters that share one StateFiles. After an error, the `steps` of
  // a parameter tell whether it was updated.
  void StepFiled(
      int64_t step, double clip_factor,
      const std::vector<std::pair<FiledParameter*, Gradient>>& parameters) {
    if (parameters.empty()) return;
    StateFiles& files = *parameters.front().first->files();
    const std::lock_guard lock(files.mutex());
    Check(files.prefetch().BeginStep());
    const absl::Status stepped = StepAll(step, clip_factor, parameters);
    const absl::Status ended = files.prefetch().EndStep().status();
    Check(stepped);
    Check(ended);
  }

 private:
  absl::Status StepAll(
      int64_t step, double clip_factor,
      const std::vector<std::pair<FiledParameter*, Gradient>>& parameters) {
    for (const auto& [parameter, gradient] : parameters) parameter->Announce();
    for (const auto& [parameter, gradient] : parameters) {
      TESSERA_RETURN_IF_ERROR(
          parameter->Step(*adamw_, step, {.clip_factor = clip_factor},
                          GradientOf(gradient, parameter->elements())));
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<offload::AdamW> adamw_;
};

// The norm of all gradients together, and the number of elements that are not
// finite.
std::pair<double, int64_t> GradientNorm(const std::vector<Memory>& gradients,
                                        ThreadPool& pool) {
  offload::GradientStatistics all;
  for (const Memory& gradient : gradients) {
    all.Add(Value(offload::MeasureGradient(gradient.span(), pool)));
  }
  return {all.Norm(), all.non_finite};
}

}  // namespace

void BindOptimizer(py::module_& module) {
  py::class_<Memory>(module, "Memory")
      .def(py::init<uintptr_t, std::string, int64_t>(), py::arg("address"),
           py::arg("dtype"), py::arg("size"));
  py::class_<ThreadPool, std::shared_ptr<ThreadPool>>(module, "ThreadPool")
      .def(py::init([](int threads, uintptr_t team) {
             if (threads < 1 || threads > 1024) {
               throw StatusException(absl::InvalidArgumentError(
                   absl::StrCat(threads, " threads; 1 to 1024 are allowed")));
             }
             if (team == 0) return std::make_shared<ThreadPool>(threads);
             return std::make_shared<ThreadPool>(
                 threads, reinterpret_cast<ThreadPool::Team>(team));
           }),
           py::arg("threads"), py::arg("team") = 0)
      .def_property_readonly("threads", &ThreadPool::threads);
  module.def("moment_bytes", [](const std::string& format, int64_t elements) {
    return Value(offload::MomentBytes(Value(offload::ParseMomentFormat(format)),
                                      elements));
  });
  module.def("gradient_norm", &GradientNorm, Release(), py::arg("gradients"),
             py::arg("pool"));
  module.def("clip_factor", &offload::ClipFactor, py::arg("norm"),
             py::arg("max_norm"));
  py::class_<Parameter>(module, "Parameter")
      .def(py::init<std::string, Memory, Memory, Memory, std::optional<Memory>,
                    std::string>(),
           py::arg("name"), py::arg("parameter"), py::arg("first"),
           py::arg("second"), py::arg("copy"), py::arg("moments"));
  py::class_<StateFiles, std::shared_ptr<StateFiles>>(module, "StateFiles")
      .def(py::init<std::string, int64_t>(), Release(), py::arg("directory"),
           py::arg("near_bytes"))
      .def_property_readonly("file_bytes", &StateFiles::file_bytes);
  py::class_<FiledParameter>(module, "FiledParameter")
      .def(py::init<std::shared_ptr<StateFiles>, std::string, Memory,
                    std::string>(),
           Release(), py::arg("files"), py::arg("name"), py::arg("parameter"),
           py::arg("moments"))
      .def_readwrite("steps", &FiledParameter::steps)
      .def_property_readonly("elements", &FiledParameter::elements)
      .def("copy", &FiledParameter::Copy, Release(), py::arg("part"),
           py::arg("memory"), py::arg("to_files"));
  py::class_<Optimizer>(module, "AdamW")
      .def(py::init<double, double, double, double, double, uint64_t,
                    std::shared_ptr<ThreadPool>>(),
           py::arg("lr"), py::arg("beta1"), py::arg("beta2"), py::arg("eps"),
           py::arg("weight_decay"), py::arg("seed"), py::arg("pool"))
      .def("step", &Optimizer::Step, Release(), py::arg("step"),
           py::arg("clip_factor"), py::arg("parameters"))
      .def("step_filed", &Optimizer::StepFiled, Release(), py::arg("step"),
           py::arg("clip_factor"), py::arg("parameters"));
}

}  // namespace tessera::python

// The module tessera._core: meshes, pipeline schedules, checkpoints and the CPU
// optimizer for Python. The package's Python files add types, defaults and
// torch.
//
// Errors become the exceptions of tessera.errors. Calls that compute release
// the interpreter's lock.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/os/thread_pool.h"
#include "offload/optimizer/adamw.h"
#include "pipeline/draw/svg.h"
#include "pipeline/draw/terminal.h"
#include "pipeline/generate/generate.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/proof/validate.h"
#include "pipeline/schedule/schedule_text.h"
#include "pipeline/simulate/simulate.h"
#include "pipeline/synthesize/synthesize.h"
#include "topology/mesh.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/checkpoint/state_format.h"

namespace tessera::python {
namespace {

namespace py = pybind11;
using pipeline::Action;
using pipeline::Costs;
using pipeline::Schedule;
using pipeline::StageCosts;
using pipeline::Timeline;
using topology::Axis;
using topology::AxisSize;
using topology::Mesh;
using topology::Rank;

class StatusException : public std::exception {
 public:
  explicit StatusException(absl::Status status)
      : status_(std::move(status)), text_(status_.message()) {}
  const absl::Status& status() const { return status_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  absl::Status status_;
  std::string text_;
};

void Check(const absl::Status& status) {
  if (!status.ok()) throw StatusException(status);
}

template <typename T>
T Value(absl::StatusOr<T> value) {
  Check(value.status());
  return *std::move(value);
}

void RaiseStatus(std::exception_ptr error) {
  try {
    if (error) std::rethrow_exception(error);
  } catch (const StatusException& failed) {
    // from_code(code, message) returns the exception of the code's class.
    const py::object exception =
        py::module_::import("tessera.errors")
            .attr("from_code")(absl::StatusCodeToString(failed.status().code()),
                               py::str(failed.what()));
    PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
  }
}

using Release = py::call_guard<py::gil_scoped_release>;

// ---- tessera.topology ----

std::vector<Axis> AxesOf(
    const std::vector<std::pair<std::string, int64_t>>& sizes) {
  std::vector<Axis> axes;
  for (const auto& [name, size] : sizes) {
    axes.push_back({name, AxisSize(size)});
  }
  return axes;
}

std::vector<std::pair<std::string, int64_t>> SizesOf(
    std::span<const Axis> axes) {
  std::vector<std::pair<std::string, int64_t>> sizes;
  for (const Axis& axis : axes) {
    sizes.emplace_back(axis.name, axis.size.value());
  }
  return sizes;
}

std::vector<int64_t> Numbers(std::span<const Rank> ranks) {
  std::vector<int64_t> numbers;
  for (const Rank rank : ranks) numbers.push_back(rank.value());
  return numbers;
}

void BindTopology(py::module_& module) {
  module.def("parse_axes", [](const std::string& text) {
    return SizesOf(Value(topology::ParseAxes(text)));
  });
  py::class_<Mesh>(module, "Mesh")
      .def(py::init([](const std::vector<std::pair<std::string, int64_t>>& axes,
                       const std::optional<std::string>& order,
                       int64_t first_rank) {
             const std::vector<Axis> list = AxesOf(axes);
             return Value(order ? Mesh::Create(list, *order, Rank(first_rank))
                                : Mesh::Create(list, Rank(first_rank)));
           }),
           py::arg("axes"), py::arg("order"), py::arg("first_rank"))
      .def_property_readonly("world_size", &Mesh::world_size)
      .def_property_readonly(
          "first_rank",
          [](const Mesh& mesh) { return mesh.first_rank().value(); })
      .def_property_readonly("order", &Mesh::order)
      .def_property_readonly(
          "axes", [](const Mesh& mesh) { return SizesOf(mesh.axes()); })
      .def("size_of",
           [](const Mesh& mesh, const std::string& axis) {
             return Value(mesh.SizeOf(axis)).value();
           })
      .def("coordinate",
           [](const Mesh& mesh, int64_t rank, const std::string& axis) {
             return Value(mesh.CoordinateOf(Rank(rank), axis));
           })
      .def("coordinates",
           [](const Mesh& mesh, int64_t rank) {
             const auto all = Value(mesh.CoordinatesOf(Rank(rank)));
             return std::vector<int64_t>(all.begin(), all.end());
           })
      .def("rank_at",
           [](const Mesh& mesh, const std::vector<int64_t>& coordinates) {
             return Value(mesh.RankAt(coordinates)).value();
           })
      .def("groups",
           [](const Mesh& mesh, const std::string& axes) {
             std::vector<std::vector<int64_t>> groups;
             for (const auto& group : Value(mesh.GroupsAlong(axes)).All()) {
               groups.push_back(Numbers(group));
             }
             return groups;
           })
      .def("group_of",
           [](const Mesh& mesh, int64_t rank, const std::string& axes) {
             const auto groups = Value(mesh.GroupsAlong(axes));
             return Numbers(
                 Value(groups.Members(Value(groups.GroupOf(Rank(rank))))));
           })
      .def("group_name",
           [](const Mesh& mesh, int64_t rank, const std::string& axes) {
             return Value(topology::GroupName(mesh, axes, Rank(rank)));
           })
      .def("redivide",
           [](const Mesh& mesh, const std::string& axes,
              const std::vector<std::pair<std::string, int64_t>>& parts) {
             return Value(mesh.Redivide(axes, AxesOf(parts)));
           })
      .def("with_expert_axes", [](const Mesh& mesh, int64_t ep, int64_t etp) {
        return Value(
            topology::WithExpertAxes(mesh, AxisSize(ep), AxisSize(etp)));
      });
}

// ---- tessera.pipeline ----

// One entry for all stages, or one for each.
Costs CostsOf(const std::vector<StageCosts>& costs, int64_t stages,
              double latency, double bandwidth, bool overlap) {
  Costs all;
  all.stages = costs;
  if (costs.size() == 1) {
    all = Costs::Uniform(stages, costs.front());
  }
  all.links.everywhere = {.latency = latency, .bandwidth = bandwidth};
  all.overlap_communication = overlap;
  return all;
}

bool IsLowered(const Schedule& schedule) {
  for (const std::vector<Action>& rank : schedule.ranks) {
    for (const Action& action : rank) {
      if (Communicates(action.kind)) return true;
    }
  }
  return false;
}

// "", or the name of a map of stages to ranks.
std::optional<pipeline::StageMap> MapOf(const std::string& placement,
                                        int64_t ranks, int64_t chunks) {
  using pipeline::StageMap;
  if (placement.empty()) return std::nullopt;
  if (placement == "linear" && chunks == 1)
    return Value(StageMap::Linear(ranks));
  if (placement == "loop") return Value(StageMap::Loop(ranks, chunks));
  if (placement == "zigzag") return Value(StageMap::Zigzag(ranks, chunks));
  throw StatusException(absl::InvalidArgumentError(
      absl::StrCat("placement \"", placement, "\" of ", chunks,
                   " stages a rank; use linear (of 1), loop or zigzag")));
}

void BindPipeline(py::module_& module) {
  py::class_<StageCosts>(module, "StageCosts")
      .def(py::init<>())
      .def_readwrite("forward", &StageCosts::forward)
      .def_readwrite("backward_input", &StageCosts::backward_input)
      .def_readwrite("backward_weight", &StageCosts::backward_weight)
      .def_readwrite("communication", &StageCosts::communication)
      .def_readwrite("forward_bytes", &StageCosts::forward_bytes)
      .def_readwrite("backward_input_bytes", &StageCosts::backward_input_bytes)
      .def_readwrite("backward_weight_bytes",
                     &StageCosts::backward_weight_bytes)
      .def_readwrite("activation_bytes", &StageCosts::activation_bytes)
      .def_readwrite("gradient_bytes", &StageCosts::gradient_bytes)
      .def_readwrite("optimizer", &StageCosts::optimizer);

  py::class_<Schedule>(module, "Schedule")
      .def_readonly("name", &Schedule::name)
      .def_readonly("microbatches", &Schedule::microbatches)
      .def_property_readonly(
          "ranks",
          [](const Schedule& schedule) { return schedule.map.ranks(); })
      .def_property_readonly(
          "stages",
          [](const Schedule& schedule) { return schedule.map.stages(); })
      .def("stages_of",
           [](const Schedule& schedule, int32_t rank) {
             if (rank < 0 || rank >= schedule.map.ranks()) {
               throw py::index_error(absl::StrCat("rank ", rank, "; there are ",
                                                  schedule.map.ranks()));
             }
             return schedule.map.StagesOf(rank);
           })
      .def_property_readonly("is_lowered", &IsLowered)
      .def("to_csv", &pipeline::WriteCsv, Release())
      .def("to_json", &pipeline::WriteJson, Release())
      .def("__eq__",
           [](const Schedule& a, const Schedule& b) { return a == b; });
  module.def(
      "read_csv",
      [](const std::string& text, const std::string& name) {
        return Value(pipeline::ReadCsv(text, name));
      },
      Release());
  module.def(
      "read_json",
      [](const std::string& text) { return Value(pipeline::ReadJson(text)); },
      Release());

  module.def("generators", [] {
    std::vector<std::tuple<std::string, std::string, int64_t>> all;
    for (const pipeline::Generator& generator : pipeline::Generators()) {
      all.emplace_back(generator.name, generator.paper, generator.chunks);
    }
    return all;
  });
  module.def(
      "generate",
      [](const std::string& name, int64_t ranks, int64_t microbatches,
         int64_t chunks) {
        return Value(pipeline::Generate(
            name,
            {.ranks = ranks, .chunks = chunks, .microbatches = microbatches}));
      },
      Release());
  module.def(
      "lower",
      [](const Schedule& schedule) {
        return Value(pipeline::AddCommunication(schedule));
      },
      Release());

  py::class_<pipeline::Proof>(module, "Proof")
      .def_readonly("computations", &pipeline::Proof::computations)
      .def_readonly("messages", &pipeline::Proof::messages)
      .def_readonly("peak_activations", &pipeline::Proof::peak_activations);
  module.def(
      "validate",
      [](const Schedule& schedule, int64_t buffers) {
        pipeline::ValidateOptions options;
        options.buffers = buffers;
        options.communication = IsLowered(schedule)
                                    ? pipeline::Communication::kExplicit
                                    : pipeline::Communication::kImplied;
        return Value(pipeline::Validate(schedule, options));
      },
      Release());

  py::class_<Timeline>(module, "Timeline")
      .def_readonly("makespan", &Timeline::makespan)
      .def_property_readonly(
          "bubble_rate",
          [](const Timeline& timeline) { return timeline.BubbleRate(); })
      .def_property_readonly(
          "bubble_rates",
          [](const Timeline& timeline) {
            std::vector<double> rates;
            for (size_t r = 0; r < timeline.ranks.size(); ++r) {
              rates.push_back(timeline.BubbleRate(static_cast<int32_t>(r)));
            }
            return rates;
          })
      .def_property_readonly("busy",
                             [](const Timeline& timeline) {
                               std::vector<double> busy;
                               for (const auto& rank : timeline.ranks) {
                                 busy.push_back(rank.busy);
                               }
                               return busy;
                             })
      .def_property_readonly("peak_bytes",
                             [](const Timeline& timeline) {
                               std::vector<int64_t> peaks;
                               for (const auto& rank : timeline.ranks) {
                                 peaks.push_back(rank.peak_bytes);
                               }
                               return peaks;
                             })
      .def_property_readonly("peak_activations",
                             [](const Timeline& timeline) {
                               std::vector<int64_t> peaks;
                               for (const auto& rank : timeline.ranks) {
                                 peaks.push_back(rank.peak_activations);
                               }
                               return peaks;
                             })
      // By rank: the computations, each with begin and end.
      .def_property_readonly("computations", [](const Timeline& timeline) {
        std::vector<std::vector<std::tuple<std::string, double, double>>> all;
        for (const auto& rank : timeline.ranks) {
          auto& list = all.emplace_back();
          for (const auto& timed : rank.computations) {
            list.emplace_back(timed.action.ToString(), timed.begin, timed.end);
          }
        }
        return all;
      });
  module.def(
      "simulate",
      [](const Schedule& schedule, const std::vector<StageCosts>& costs,
         double latency, double bandwidth, bool overlap) {
        return Value(
            pipeline::Simulate(schedule, CostsOf(costs, schedule.map.stages(),
                                                 latency, bandwidth, overlap)));
      },
      Release());
  module.def(
      "draw_svg",
      [](const std::vector<std::pair<std::string, Timeline>>& timelines,
         const std::string& unit, double microseconds) {
        std::vector<pipeline::Exhibit> exhibits;
        for (const auto& [title, timeline] : timelines) {
          exhibits.push_back({title, timeline});
        }
        return Value(pipeline::DrawSvg(exhibits, {unit, microseconds}));
      },
      Release());
  module.def(
      "draw_terminal",
      [](const std::vector<std::pair<std::string, Timeline>>& timelines,
         const std::string& unit, double microseconds, int64_t width) {
        std::vector<pipeline::Exhibit> exhibits;
        for (const auto& [title, timeline] : timelines) {
          exhibits.push_back({title, timeline});
        }
        return Value(pipeline::DrawTerminal(exhibits, {unit, microseconds},
                                            {.width = width}));
      },
      Release());

  py::class_<pipeline::Synthesis>(module, "Synthesis")
      .def_readonly("schedule", &pipeline::Synthesis::schedule)
      .def_readonly("timeline", &pipeline::Synthesis::timeline)
      .def_readonly("lower_bound", &pipeline::Synthesis::lower_bound)
      .def_readonly("gap", &pipeline::Synthesis::gap)
      .def_readonly("origin", &pipeline::Synthesis::origin);
  module.def(
      "synthesize",
      [](int64_t ranks, int64_t microbatches, int64_t chunks,
         const std::vector<StageCosts>& costs, double latency, double bandwidth,
         bool overlap, int64_t memory_limit, double effort, uint64_t seed,
         bool prefer_makespan, const std::string& placement) {
        pipeline::SynthesisProblem problem{
            .ranks = ranks, .chunks = chunks, .microbatches = microbatches};
        problem.costs =
            CostsOf(costs, ranks * chunks, latency, bandwidth, overlap);
        problem.memory_limit = memory_limit;
        problem.map = MapOf(placement, ranks, chunks);
        return Value(
            pipeline::Synthesize(problem, {.prefer_makespan = prefer_makespan,
                                           .effort = effort,
                                           .seed = seed}));
      },
      Release());
}

// ---- tessera.checkpoint ----

// The bytes of a part of a parameter's state.
struct StateBytes {
  std::unique_ptr<std::byte[]> bytes;
  int64_t size = 0;
  zero3::StateFormat format;
};

// One part of a checkpoint; reads verify all checksums.
class CheckpointPart {
 public:
  CheckpointPart(const std::string& path, const std::string& part)
      : reader_(Value(zero3::CheckpointReader::Open(path, part))) {}

  const zero3::CheckpointPart& part() const { return reader_->part(); }

  std::unique_ptr<StateBytes> Read(const std::string& name,
                                   const std::string& what) {
    const std::lock_guard lock(mutex_);
    const zero3::ModelParameters& model = part().model();
    const zero3::ModelParameter& parameter = model[Value(model.Find(name))];
    std::string known;
    for (const zero3::StatePart state : zero3::kAllStateParts) {
      const std::optional<zero3::StateFormat> format =
          zero3::StateFormatOf(parameter, part().moment_kinds(), state);
      if (!format) continue;
      if (zero3::StatePartName(state) == what) {
        return ReadPart(parameter, state, *format);
      }
      absl::StrAppend(&known, known.empty() ? "" : ", ",
                      zero3::StatePartName(state));
    }
    throw StatusException(absl::NotFoundError(
        absl::StrCat("parameter \"", name, "\" has no state \"", what,
                     "\"; it has ", known)));
  }

 private:
  std::unique_ptr<StateBytes> ReadPart(const zero3::ModelParameter& parameter,
                                       zero3::StatePart state,
                                       const zero3::StateFormat& format) {
    auto result = std::make_unique<StateBytes>();
    result->format = format;
    result->size = format.BytesOf(parameter.elements);
    result->bytes = std::make_unique_for_overwrite<std::byte[]>(
        static_cast<size_t>(result->size));
    Check(reader_->Read(parameter.id, state, 0, parameter.elements,
                        {format, 0, parameter.elements, result->bytes.get()}));
    return result;
  }

  std::mutex mutex_;
  const std::unique_ptr<zero3::CheckpointReader> reader_;
};

void BindCheckpoint(py::module_& module) {
  module.def(
      "latest_checkpoint",
      [](const std::string& directory) {
        return Value(zero3::LatestCheckpoint(directory)).path;
      },
      Release());
  module.def(
      "verify_checkpoint",
      [](const std::string& path) { Check(zero3::VerifyCheckpoint(path)); },
      Release());
  py::class_<zero3::CheckpointManifest>(module, "Manifest")
      .def_readonly("step", &zero3::CheckpointManifest::step)
      .def_readonly("world_size", &zero3::CheckpointManifest::world)
      .def_property_readonly("parts",
                             [](const zero3::CheckpointManifest& manifest) {
                               std::vector<std::string> names;
                               for (const auto& part : manifest.parts) {
                                 names.push_back(part.name);
                               }
                               return names;
                             });
  module.def(
      "read_manifest",
      [](const std::string& path) { return Value(zero3::ReadManifest(path)); },
      Release());
  py::class_<StateBytes>(module, "StateBytes", py::buffer_protocol())
      .def_property_readonly(
          "dtype",
          [](const StateBytes& state) {
            return std::string(DTypeName(state.format.dtype));
          })
      .def_property_readonly(
          "block", [](const StateBytes& state) { return state.format.block; })
      .def_buffer([](StateBytes& state) {
        return py::buffer_info(state.bytes.get(), 1,
                               py::format_descriptor<uint8_t>::format(), 1,
                               {state.size}, {1});
      });
  py::class_<CheckpointPart>(module, "CheckpointPart")
      .def(py::init<const std::string&, const std::string&>(), Release(),
           py::arg("path"), py::arg("part"))
      .def_property_readonly(
          "metadata",
          [](const CheckpointPart& part) { return part.part().metadata; })
      // Name, shape, type and whether it is trained.
      .def_property_readonly(
          "parameters",
          [](const CheckpointPart& part) {
            std::vector<std::tuple<std::string, std::vector<int64_t>,
                                   std::string, bool>>
                all;
            for (const auto& parameter : part.part().model().all()) {
              all.emplace_back(parameter.name(), parameter.spec.shape,
                               DTypeName(parameter.dtype()),
                               parameter.trainable());
            }
            return all;
          })
      .def("read", &CheckpointPart::Read, Release(), py::arg("name"),
           py::arg("state"));
}

// ---- tessera.optim ----

// A tensor's memory, which the caller keeps.
struct Memory {
  uintptr_t address = 0;
  std::string dtype;
  int64_t size = 0;

  DType type() const { return Value(ParseDType(dtype)); }
  std::byte* data() const { return reinterpret_cast<std::byte*>(address); }
};

// A parameter with its gradient, its moments (in bytes) and a copy.
using Range = std::tuple<std::string, Memory, Memory, Memory, Memory,
                         std::optional<Memory>>;

class Optimizer {
 public:
  Optimizer(double learning_rate, double beta1, double beta2, double epsilon,
            double weight_decay, const std::string& moments, uint64_t seed,
            std::shared_ptr<ThreadPool> pool)
      : format_(Value(offload::ParseMomentFormat(moments))),
        adamw_(Value(offload::AdamW::Create({.learning_rate = learning_rate,
                                             .beta1 = beta1,
                                             .beta2 = beta2,
                                             .epsilon = epsilon,
                                             .weight_decay = weight_decay,
                                             .seed = seed,
                                             .pool = std::move(pool)}))) {}

  void Step(int64_t step, const std::vector<Range>& given) {
    std::vector<offload::ParameterRange> ranges;
    for (const auto& [name, parameter, gradient, first, second, copy] : given) {
      offload::ParameterRange& range = ranges.emplace_back();
      range.name = name;
      range.parameter = {parameter.data(), parameter.type(), parameter.size};
      range.gradient = {gradient.data(), gradient.type(), gradient.size};
      range.first = Moment(first, parameter);
      range.second = Moment(second, parameter);
      if (copy) range.copy = {copy->data(), copy->type(), copy->size};
    }
    Check(adamw_->Step(step, {}, ranges));
  }

 private:
  offload::MomentSpan Moment(const Memory& memory,
                             const Memory& parameter) const {
    const offload::MomentFormat format = parameter.type() == DType::kF64
                                             ? offload::MomentFormat::F64()
                                             : format_;
    return Value(offload::MomentSpan::Over(
        format, parameter.size,
        std::span(memory.data(), static_cast<size_t>(memory.size))));
  }

  const offload::MomentFormat format_;
  const std::unique_ptr<offload::AdamW> adamw_;
};

void BindOptimizer(py::module_& module) {
  py::class_<Memory>(module, "Memory")
      .def(py::init<uintptr_t, std::string, int64_t>(), py::arg("address"),
           py::arg("dtype"), py::arg("size"));
  py::class_<ThreadPool, std::shared_ptr<ThreadPool>>(module, "ThreadPool")
      .def(py::init([](int threads) {
             if (threads < 1 || threads > 1024) {
               throw StatusException(absl::InvalidArgumentError(
                   absl::StrCat(threads, " threads; 1 to 1024 are allowed")));
             }
             return std::make_shared<ThreadPool>(threads);
           }),
           py::arg("threads"))
      .def_property_readonly("threads", &ThreadPool::threads);
  module.def("moment_bytes", [](const std::string& format, int64_t elements) {
    return Value(offload::MomentBytes(Value(offload::ParseMomentFormat(format)),
                                      elements));
  });
  py::class_<Optimizer>(module, "AdamW")
      .def(py::init<double, double, double, double, double, std::string,
                    uint64_t, std::shared_ptr<ThreadPool>>(),
           py::arg("lr"), py::arg("beta1"), py::arg("beta2"), py::arg("eps"),
           py::arg("weight_decay"), py::arg("moments"), py::arg("seed"),
           py::arg("pool"))
      .def("step", &Optimizer::Step, Release(), py::arg("step"),
           py::arg("ranges"));
}

}  // namespace
}  // namespace tessera::python

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ part of tessera.";
  pybind11::register_local_exception_translator(&tessera::python::RaiseStatus);
  tessera::python::BindTopology(module);
  tessera::python::BindPipeline(module);
  tessera::python::BindCheckpoint(module);
  tessera::python::BindOptimizer(module);
}

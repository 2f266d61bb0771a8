// tessera.checkpoint: the trainer's checkpoints.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "tools/checkpoint/hugging_face_model.h"
#include "tools/checkpoint/write_run.h"
#include "tools/python/bindings.h"
#include "tools/train/checkpoint/saved_run.h"
#include "tools/train/settings/run_options.h"
#include "zero3/checkpoint/checkpoint_directory.h"
#include "zero3/checkpoint/checkpoint_reader.h"
#include "zero3/checkpoint/load_checkpoint.h"
#include "zero3/layout/state_format.h"

namespace tessera::python {
namespace {

namespace py = pybind11;

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

int CheckedStage(int zero) {
  if (zero < 0 || zero > 3) {
    throw StatusException(absl::InvalidArgumentError(
        absl::StrCat("zero=", zero, "; 0 to 3 are allowed")));
  }
  return zero;
}

void BindReading(py::module_& module) {
  module.def(
      "verify_checkpoint",
      [](const std::string& path) { return zero3::VerifyCheckpoint(path); },
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
  module.def("read_manifest", &zero3::ReadManifest, Release());
  py::class_<StateBytes>(module, "StateBytes", py::buffer_protocol())
      .def_property_readonly(
          "dtype",
          [](const StateBytes& state) { return DTypeName(state.format.dtype); })
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
      // Name, shape, type, and whether the parameter is trained.
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

void BindWriting(py::module_& module) {
  module.def("resolve_checkpoint", &train::ResolveCheckpoint, Release());
  module.def(
      "reshard",
      [](const std::string& from, const std::string& to,
         const std::string& mesh, int zero) {
        return tools::ReshardRun(from, to,
                                 {.mesh = Value(train::MeshSizes::Parse(mesh)),
                                  .zero = CheckedStage(zero)});
      },
      Release());
  module.def(
      "export_model",
      [](const std::string& from, const std::string& to,
         const std::string& dtype, int64_t max_shard_bytes,
         const std::string& tokenizer) {
        return tools::ExportModel(from, to,
                                  {.dtype = Value(ParseDType(dtype)),
                                   .max_shard_bytes = max_shard_bytes,
                                   .tokenizer = tokenizer});
      },
      Release());
  module.def(
      "export_adapter",
      [](const std::string& from, const std::string& to,
         const std::string& base, const std::string& dtype) {
        return tools::ExportAdapter(from, to, base,
                                    {.dtype = Value(ParseDType(dtype))});
      },
      Release());
  module.def(
      "import_model",
      [](const std::string& from, const std::string& to,
         const std::string& mesh, int zero,
         const std::optional<std::string>& dtype) {
        tools::ImportOptions options = {
            .mesh = Value(train::MeshSizes::Parse(mesh)),
            .zero = CheckedStage(zero)};
        if (dtype) options.dtype = Value(ParseDType(*dtype));
        return tools::ImportModel(from, to, options);
      },
      Release());
}

}  // namespace

void BindCheckpoint(py::module_& module) {
  BindReading(module);
  BindWriting(module);
}

}  // namespace tessera::python

// tessera.optim: AdamW over memory that the caller keeps.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/dtype/dtype.h"
#include "base/os/thread_pool.h"
#include "offload/optimizer/adamw.h"
#include "tools/python/bindings.h"

namespace tessera::python {
namespace {

namespace py = pybind11;

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

}  // namespace

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

}  // namespace tessera::python

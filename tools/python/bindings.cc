// The module tessera._core. The package's Python files add types, defaults and
// torch.
#include "tools/python/bindings.h"

#include <pybind11/pybind11.h>

#include <exception>

#include "absl/status/status.h"

namespace tessera::python {
namespace {

namespace py = pybind11;

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

}  // namespace
}  // namespace tessera::python

PYBIND11_MODULE(_core, module) {
  module.doc() = "The C++ part of tessera.";
  pybind11::register_local_exception_translator(&tessera::python::RaiseStatus);
  tessera::python::BindTopology(module);
  tessera::python::BindPipeline(module);
  tessera::python::BindPlan(module);
  tessera::python::BindLaunch(module);
  tessera::python::BindCheckpoint(module);
  tessera::python::BindDlpack(module);
  tessera::python::BindOptimizer(module);
}

// tessera.launch: the ranks of a program on this host.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/launch/launcher.h"
#include "tools/python/bindings.h"

namespace tessera::python {

namespace py = pybind11;

void BindLaunch(py::module_& module) {
  // Must be called on the main thread of a process without other threads
  // (launcher.h). Returns the exit code, and the code and message of the
  // status.
  module.def(
      "launch",
      [](const std::vector<std::string>& command,
         const std::vector<std::string>& environment, int64_t np,
         int64_t nnodes, int64_t node_rank, const std::string& master_addr,
         int64_t master_port, double timeout, double grace,
         const std::string& output, const std::string& bind, bool colour) {
        tools::LaunchPlan plan;
        plan.command = command;
        plan.environment = environment;
        plan.np = np;
        plan.nnodes = nnodes;
        plan.node_rank = node_rank;
        plan.master_addr = master_addr;
        plan.master_port = master_port;
        plan.timeout = absl::Seconds(timeout);
        plan.grace = absl::Seconds(grace);
        plan.colour = colour;
        Check(tools::SetOutput(output, plan));
        Check(tools::SetBind(bind, plan));
        const tools::LaunchOutcome outcome = Value(tools::Launch(plan, {}));
        const absl::Status status = outcome.ToStatus();
        return std::make_tuple(outcome.ExitCode(),
                               absl::StatusCodeToString(status.code()),
                               std::string(status.message()));
      },
      Release(), py::arg("command"), py::arg("environment"), py::arg("np"),
      py::arg("nnodes"), py::arg("node_rank"), py::arg("master_addr"),
      py::arg("master_port"), py::arg("timeout"), py::arg("grace"),
      py::arg("output"), py::arg("bind"), py::arg("colour"));
}

}  // namespace tessera::python

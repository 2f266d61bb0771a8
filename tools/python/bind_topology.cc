// tessera.topology: meshes, clusters and placement.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/python/bindings.h"
#include "topology/cluster/cluster.h"
#include "topology/cluster/cluster_file.h"
#include "topology/config/parallel_config.h"
#include "topology/mesh.h"
#include "topology/placement/placement.h"
#include "topology/placement/traffic.h"

namespace tessera::python {
namespace {

namespace py = pybind11;
using topology::Axis;
using topology::AxisSize;
using topology::AxisTraffic;
using topology::DeviceIndex;
using topology::Mesh;
using topology::Placement;
using topology::Rank;

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

// An axis: name, size, and the messages of its ranks in a step (kind, bytes,
// times).
using AxisTransfers =
    std::tuple<std::string, int64_t,
               std::vector<std::tuple<std::string, double, double>>>;

topology::CollectiveKind CollectiveKindOf(const std::string& name) {
  std::string known;
  for (int i = 0; i < topology::kCollectiveKinds; ++i) {
    const auto kind = static_cast<topology::CollectiveKind>(i);
    if (CollectiveKindName(kind) == name) return kind;
    absl::StrAppend(&known, known.empty() ? "" : ", ",
                    CollectiveKindName(kind));
  }
  throw StatusException(absl::InvalidArgumentError(
      absl::StrCat("a transfer of kind \"", name, "\"; use ", known)));
}

std::vector<AxisTraffic> TrafficOf(const std::vector<AxisTransfers>& axes) {
  std::vector<AxisTraffic> all;
  for (const auto& [name, size, transfers] : axes) {
    AxisTraffic& traffic = all.emplace_back();
    traffic.axis = {name, AxisSize(size)};
    for (const auto& [kind, bytes, times] : transfers) {
      traffic.transfers.push_back({CollectiveKindOf(kind), bytes, times});
    }
  }
  return all;
}

std::vector<AxisTransfers> TransfersOf(const std::vector<AxisTraffic>& all) {
  std::vector<AxisTransfers> axes;
  for (const AxisTraffic& traffic : all) {
    auto& [name, size, transfers] = axes.emplace_back();
    name = traffic.axis.name;
    size = traffic.axis.size.value();
    for (const topology::Transfer& transfer : traffic.transfers) {
      transfers.emplace_back(CollectiveKindName(transfer.kind), transfer.bytes,
                             transfer.times);
    }
  }
  return axes;
}

void BindMesh(py::module_& module) {
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

void BindCluster(py::module_& module) {
  using topology::Cluster;
  py::class_<Cluster>(module, "Cluster")
      .def_static(
          "parse",
          [](const std::string& line) {
            return Value(topology::ParseCluster(line));
          },
          Release())
      .def_static(
          "from_json",
          [](const std::string& text) {
            return Value(topology::ClusterFromJson(text));
          },
          Release())
      .def_static(
          "load",
          [](const std::string& path) {
            return Value(topology::LoadCluster(path));
          },
          Release())
      .def(
          "save",
          [](const Cluster& cluster, const std::string& path) {
            Check(topology::SaveCluster(cluster, path));
          },
          Release())
      .def("to_json", &topology::ClusterToJson, Release())
      .def("describe",
           [](const Cluster& cluster) { return topology::Describe(cluster); })
      .def_property_readonly("hosts", &Cluster::num_hosts)
      .def_property_readonly("devices", &Cluster::num_devices)
      // Host, its name, the number on the host, kind, model, bytes of memory,
      // socket, NUMA node and NVLink domain.
      .def("device",
           [](const Cluster& cluster, int64_t number) {
             const DeviceIndex index(number);
             const topology::DevicePlace place = Value(cluster.Locate(index));
             const topology::Device device = Value(cluster.DeviceAt(index));
             return std::make_tuple(
                 place.host.value(), Value(cluster.HostName(place.host)),
                 place.local, std::string(DeviceKindName(device.kind)),
                 device.model, device.memory_bytes, device.socket,
                 device.numa_node, device.nvlink_domain);
           })
      // Level, kind, latency and bandwidth.
      .def("link",
           [](const Cluster& cluster, int64_t a, int64_t b) {
             const topology::Link link =
                 Value(cluster.LinkBetween(DeviceIndex(a), DeviceIndex(b)));
             return std::make_tuple(std::string(LinkLevelName(link.level)),
                                    std::string(LinkKindName(link.speed.kind)),
                                    link.speed.latency, link.speed.bandwidth);
           })
      .def("__eq__", [](const Cluster& a, const Cluster& b) { return a == b; });
}

void BindPlacement(py::module_& module) {
  using topology::TransformerShape;
  py::class_<TransformerShape>(module, "TransformerShape")
      .def(py::init<>())
      .def_readwrite("layers", &TransformerShape::layers)
      .def_readwrite("hidden", &TransformerShape::hidden)
      .def_readwrite("kv_hidden", &TransformerShape::kv_hidden)
      .def_readwrite("sequence", &TransformerShape::sequence)
      .def_readwrite("micro_batch", &TransformerShape::micro_batch)
      .def_readwrite("micro_batches", &TransformerShape::micro_batches)
      .def_readwrite("dense_parameters", &TransformerShape::dense_parameters)
      .def_readwrite("expert_parameters", &TransformerShape::expert_parameters)
      .def_readwrite("experts_per_token", &TransformerShape::experts_per_token)
      .def_readwrite("activation_bytes", &TransformerShape::activation_bytes)
      .def_readwrite("weight_bytes", &TransformerShape::weight_bytes)
      .def_readwrite("gradient_bytes", &TransformerShape::gradient_bytes)
      .def_readwrite("zero_stage", &TransformerShape::zero_stage);
  py::class_<Placement>(module, "Placement")
      .def_property_readonly(
          "axes",
          [](const Placement& placement) { return SizesOf(placement.order); })
      .def_readonly("seconds_per_step", &Placement::seconds_per_step)
      .def_readonly("busiest_host_bytes", &Placement::busiest_host_bytes)
      .def_readonly("warnings", &Placement::warnings)
      // For each axis: name, stride, seconds, farthest level, and bytes between
      // hosts.
      .def_property_readonly(
          "costs",
          [](const Placement& placement) {
            std::vector<
                std::tuple<std::string, int64_t, double, std::string, double>>
                costs;
            for (const topology::AxisPlacement& axis : placement.axes) {
              costs.emplace_back(axis.axis.name, axis.stride,
                                 axis.seconds_per_step,
                                 std::string(LinkLevelName(axis.worst_level)),
                                 axis.network_bytes);
            }
            return costs;
          })
      .def("describe", [](const Placement& placement) {
        return topology::Describe(placement);
      });
  module.def(
      "transformer_traffic",
      [](const std::vector<std::pair<std::string, int64_t>>& axes,
         const TransformerShape& shape) {
        const std::vector<Axis> list = AxesOf(axes);
        return TransfersOf(
            Value(topology::EstimateTransformerTraffic(list, shape)));
      },
      Release());
  module.def(
      "place",
      [](const topology::Cluster& cluster,
         const std::vector<AxisTransfers>& axes, bool keep_order) {
        const std::vector<AxisTraffic> traffic = TrafficOf(axes);
        return Value(keep_order ? topology::EvaluatePlacement(traffic, cluster)
                                : topology::FindPlacement(traffic, cluster));
      },
      Release());
}

}  // namespace

namespace {

// Configurations are JSON, as ParallelConfig reads and writes them.
void BindParallelConfig(py::module_& module) {
  using topology::ParallelConfig;
  module.def("parallel_config", [](const std::string& json,
                                   std::optional<int64_t> ranks) {
    const ParallelConfig config = Value(ParallelConfig::FromJson(json));
    Check(config.Validate(ranks));
    return config.ToJson();
  });
  module.def("layers_per_stage", [](const std::string& json,
                                    const std::vector<double>& costs) {
    const ParallelConfig config = Value(ParallelConfig::FromJson(json));
    Check(config.Validate());
    return Value(config.LayersPerStage(costs));
  });
}

}  // namespace

void BindTopology(py::module_& module) {
  BindParallelConfig(module);
  BindMesh(module);
  BindCluster(module);
  BindPlacement(module);
}

}  // namespace tessera::python

// tessera.topology: meshes, clusters and placement.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
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

namespace pybind11::detail {

template <>
struct type_caster<tessera::topology::Coordinates>
    : list_caster<tessera::topology::Coordinates, int64_t> {};

// An axis is a pair of name and size.
template <>
struct type_caster<tessera::topology::Axis> {
  using Axis = tessera::topology::Axis;
  using Pair = std::pair<std::string, tessera::topology::AxisSize>;
  PYBIND11_TYPE_CASTER(Axis, make_caster<Pair>::name);

  bool load(handle source, bool convert) {
    make_caster<Pair> pair;
    if (!pair.load(source, convert)) return false;
    auto [axis, size] = cast_op<Pair>(pair);
    value = {std::move(axis), size};
    return true;
  }
  static handle cast(const Axis& axis, return_value_policy policy,
                     handle parent) {
    return make_caster<Pair>::cast(Pair(axis.name, axis.size), policy, parent);
  }
};

}  // namespace pybind11::detail

namespace tessera::python {
namespace {

namespace py = pybind11;
using topology::Axis;
using topology::AxisSize;
using topology::AxisTraffic;
using topology::Mesh;
using topology::Placement;
using topology::Rank;

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
  module.def("parse_axes", &topology::ParseAxes);
  py::class_<Mesh>(module, "Mesh")
      .def(py::init([](const std::vector<Axis>& axes,
                       const std::optional<std::string>& order, Rank first) {
             return Value(order ? Mesh::Create(axes, *order, first)
                                : Mesh::Create(axes, first));
           }),
           py::arg("axes"), py::arg("order"), py::arg("first_rank"))
      .def_property_readonly("world_size", &Mesh::world_size)
      .def_property_readonly("first_rank", &Mesh::first_rank)
      .def_property_readonly("order", &Mesh::order)
      .def_property_readonly("axes", &Mesh::axes)
      .def("size_of", &Mesh::SizeOf)
      .def("coordinate", &Mesh::CoordinateOf)
      .def("coordinates", &Mesh::CoordinatesOf)
      .def("rank_at", &Mesh::RankAt)
      .def("groups",
           [](const Mesh& mesh, std::string_view axes) {
             return Value(mesh.GroupsAlong(axes)).All();
           })
      .def("group_of",
           [](const Mesh& mesh, Rank rank, std::string_view axes) {
             return Value(mesh.GroupsAlong(axes)).MembersWith(rank);
           })
      .def("group_name",
           [](const Mesh& mesh, Rank rank, std::string_view axes) {
             return topology::GroupName(mesh, axes, rank);
           })
      .def("redivide", &Mesh::Redivide)
      .def("with_expert_axes", &topology::WithExpertAxes);
}

void BindCluster(py::module_& module) {
  using topology::Cluster;
  py::class_<Cluster>(module, "Cluster")
      .def_static("parse", &topology::ParseCluster, Release())
      .def_static("from_json", &topology::ClusterFromJson, Release())
      .def_static("load", &topology::LoadCluster, Release())
      .def("save", &topology::SaveCluster, Release())
      .def("to_json", &topology::ClusterToJson, Release())
      .def("describe", py::overload_cast<const Cluster&>(&topology::Describe))
      .def_property_readonly("hosts", &Cluster::num_hosts)
      .def_property_readonly("devices", &Cluster::num_devices)
      // Host, its name, the number on the host, kind, model, bytes of memory,
      // socket, NUMA node and NVLink domain.
      .def("device",
           [](const Cluster& cluster, topology::DeviceIndex index) {
             const topology::DevicePlace place = Value(cluster.Locate(index));
             const topology::Device device = Value(cluster.DeviceAt(index));
             return std::make_tuple(
                 place.host, Value(cluster.HostName(place.host)), place.local,
                 DeviceKindName(device.kind), device.model, device.memory_bytes,
                 device.socket, device.numa_node, device.nvlink_domain);
           })
      // Level, kind, latency and bandwidth.
      .def("link",
           [](const Cluster& cluster, topology::DeviceIndex a,
              topology::DeviceIndex b) {
             const topology::Link link = Value(cluster.LinkBetween(a, b));
             return std::make_tuple(LinkLevelName(link.level),
                                    LinkKindName(link.speed.kind),
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
      .def_readonly("axes", &Placement::order)
      .def_readonly("seconds_per_step", &Placement::seconds_per_step)
      .def_readonly("busiest_host_bytes", &Placement::busiest_host_bytes)
      .def_readonly("warnings", &Placement::warnings)
      // For each axis: name, stride, seconds, farthest level, and bytes between
      // hosts.
      .def_property_readonly(
          "costs",
          [](const Placement& placement) {
            std::vector<std::tuple<std::string, int64_t, double,
                                   std::string_view, double>>
                costs;
            for (const topology::AxisPlacement& axis : placement.axes) {
              costs.emplace_back(
                  axis.axis.name, axis.stride, axis.seconds_per_step,
                  LinkLevelName(axis.worst_level), axis.network_bytes);
            }
            return costs;
          })
      .def("describe",
           py::overload_cast<const Placement&>(&topology::Describe));
  module.def(
      "transformer_traffic",
      [](const std::vector<Axis>& axes, const TransformerShape& shape) {
        return TransfersOf(
            Value(topology::EstimateTransformerTraffic(axes, shape)));
      },
      Release());
  module.def(
      "place",
      [](const topology::Cluster& cluster,
         const std::vector<AxisTransfers>& axes, bool keep_order) {
        const std::vector<AxisTraffic> traffic = TrafficOf(axes);
        return keep_order ? topology::EvaluatePlacement(traffic, cluster)
                          : topology::FindPlacement(traffic, cluster);
      },
      Release());
}

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
    return config.LayersPerStage(costs);
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

#include "tools/train/predict/print_prediction.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/json/json.h"
#include "collectives/operation/operation.h"
#include "nlohmann/json.hpp"
#include "tools/train/predict/message_table.h"
#include "topology/config/parallel_config.h"
#include "zero3/parameters/statistics.h"

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;

std::string Bytes(int64_t bytes) {
  return BytesText(static_cast<double>(bytes));
}

// One column per purpose. The names are also the JSON keys.
using Column = std::pair<const char*, int64_t>;

bool HasDevice(const RunPrediction& run) {
  return run.on_gpu || run.on_emulated;
}

// The columns of the memory in which the rank computes; the last one is their
// peak.
std::vector<Column> DeviceMemoryOf(const RunPrediction& run,
                                   const RankPrediction& rank) {
  const StateMemory& state = rank.state;
  const ActivationMemory& activations = rank.activations;
  std::vector<Column> columns = {
      {"parameters", state.parameters},
      {"gradients", state.gradients},
      {"optimizer", state.optimizer},
      {"buffers", state.buffers + (HasDevice(run) ? 0 : state.staging)},
      {"activations", activations.pools},
      {"boundaries", activations.boundaries},
      {"layers", activations.layers}};
  if (HasDevice(run)) {
    columns.emplace_back("workspaces", rank.workspaces);
    columns.emplace_back("headroom", run.HeadroomOf(rank));
  }
  columns.emplace_back("device",
                       HasDevice(run) ? run.DeviceBytesOf(rank) : rank.device);
  return columns;
}

// The columns of other memory. The last one is the peak of the host's memory.
std::vector<Column> HostMemoryOf(const RunPrediction& run,
                                 const RankPrediction& rank) {
  const StateMemory& state = rank.state;
  std::vector<Column> columns = {{"host", state.host}};
  if (HasDevice(run)) {
    columns.emplace_back(
        "staging",
        std::max<int64_t>(rank.host - state.host, 0) + state.staging);
  }
  columns.insert(columns.end(), {{"files", state.files},
                                 {"windows", rank.windows},
                                 {"process", run.room.process},
                                 {"checkpoint", state.snapshot}});
  if (run.keeps_copies) columns.emplace_back("copies", run.CopiesOf(rank));
  columns.emplace_back("resident", run.ResidentOf(rank));
  return columns;
}

std::vector<Column> MemoryOf(const RunPrediction& run,
                             const RankPrediction& rank) {
  std::vector<Column> columns = DeviceMemoryOf(run, rank);
  const std::vector<Column> host = HostMemoryOf(run, rank);
  columns.insert(columns.end(), host.begin(), host.end());
  return columns;
}

std::string PlaceName(const RunPrediction& run, const RankPrediction& rank) {
  const RankPlace& place = rank.place;
  return absl::StrFormat("%4d  %3d %3d %3d %3d", place.RankIn(run.mesh),
                         place.dp, place.pp, place.cp, place.tp);
}

void PrintMemory(const RunPrediction& run, std::ostream& out) {
  constexpr size_t kMostRows = 16;
  if (HasDevice(run)) {
    const size_t columns = DeviceMemoryOf(run, run.ranks.front()).size();
    out << absl::StrFormat("%21s%*s  | memory of the host\n", "",
                           -12 * static_cast<int>(columns),
                           "   memory of the device");
  }
  out << "rank   dp  pp  cp  tp";
  for (const auto& [name, bytes] : MemoryOf(run, run.ranks.front())) {
    out << absl::StrFormat("%12s", name);
  }
  out << "\n";
  for (const RankPrediction& rank : run.ranks) {
    const bool shown =
        run.ranks.size() <= kMostRows ||
        (rank.place.dp == 0 && rank.place.cp == 0 && rank.place.tp == 0);
    if (!shown) continue;
    out << PlaceName(run, rank);
    for (const auto& [name, bytes] : MemoryOf(run, rank)) {
      out << absl::StrFormat("%12s", bytes == 0 ? "-" : Bytes(bytes));
    }
    out << "\n";
  }
}

void PrintTraffic(const RunPrediction& run, std::ostream& out) {
  const RankPrediction& most = run.busiest();
  if (most.traffic.all().empty()) {
    out << "no messages: one rank\n";
    return;
  }
  out << "messages of rank " << most.place.RankIn(run.mesh)
      << " in a step (it sends most)\n";
  PrintCells(MessageTable(most.traffic), out);
}

const char* Verdict(bool fits) { return fits ? "it fits" : "IT DOES NOT FIT"; }

void PrintDeviceFit(const RunPrediction& run, std::ostream& out) {
  out << absl::StrFormat("device memory of %d %s: %s", run.ranks_of_gpu,
                         run.ranks_of_gpu == 1 ? "rank" : "ranks of a GPU",
                         Bytes(run.device_needed));
  if (run.on_emulated) {
    out << ", which is host memory and counted there, as far as it is used\n";
  } else if (!run.room.device) {
    out << "; no GPU is here to compare with\n";
  } else {
    out << absl::StrFormat(" of %s that %s has free: %s\n",
                           Bytes(run.room.device->bytes),
                           run.room.device->limit, Verdict(*run.fits_device()));
  }
}

void PrintFit(const RunPrediction& run, std::ostream& out) {
  if (HasDevice(run)) PrintDeviceFit(run, out);
  out << absl::StrFormat(
      "%smemory of the %d ranks here: %s of %s that the %s has left: %s\n",
      HasDevice(run) ? "host " : "", run.ranks_here, Bytes(run.needed),
      Bytes(run.room.bytes), run.room.limit, Verdict(run.fits_host()));
  if (run.fits()) return;
  if (run.advice.empty()) {
    out << "no flag helps: more ranks on more machines, or a smaller model\n";
  }
  for (const MemoryAdvice& advice : run.advice) {
    out << "  " << (advice.and_before ? "and " : "") << advice.flag << ": ";
    if (run.on_gpu) {
      out << Bytes(advice.device_needed) << " of device memory, ";
    }
    out << Bytes(advice.needed) << (run.on_gpu ? " of host memory" : "")
        << (advice.fits ? ", which fits" : "") << "\n";
  }
}

Json TrafficAsJson(const RankTraffic& traffic) {
  Json list = Json::array();
  for (const auto& [key, of] : traffic.all()) {
    list.push_back({{"axis", TrafficAxisName(key.first)},
                    {"ranks", RanksAlong(key.first, traffic.mesh())},
                    {"operation", collectives::OpKindName(key.second)},
                    {"count", of.count},
                    {"bytes", of.bytes},
                    {"sent", SentBy(key.second, of)}});
  }
  return list;
}

// Null if the processor computes.
Json DeviceAsJson(const RunPrediction& run) {
  if (!HasDevice(run)) return nullptr;
  Json json = {{"needed", run.device_needed},
               {"ranks", run.ranks_of_gpu},
               {"available", nullptr},
               {"limit", run.on_emulated ? "host memory" : "no GPU is here"},
               {"fits", nullptr}};
  if (run.on_gpu && run.room.device) {
    json["available"] = run.room.device->bytes;
    json["limit"] = run.room.device->limit;
    json["fits"] = *run.fits_device();
  }
  return json;
}

Json StatisticsAsJson(const zero3::ParameterStatistics& of) {
  return {{"count", of.count},
          {"elements", of.elements},
          {"bytes", of.bytes},
          {"trainable_count", of.trainable_count},
          {"trainable_elements", of.trainable_elements},
          {"trainable_bytes", of.trainable_bytes},
          {"mean", of.mean},
          {"mean_remainder", of.mean_remainder},
          {"median",
           static_cast<double>(of.median) + (of.median_has_half ? 0.5 : 0)},
          {"least", of.least},
          {"most", of.most}};
}

Json RankAsJson(const RunPrediction& run, const RankPrediction& rank) {
  const RankPlace& place = rank.place;
  Json memory;
  for (const auto& [name, bytes] : MemoryOf(run, rank)) memory[name] = bytes;
  return {{"rank", place.RankIn(run.mesh)},
          {"dp", place.dp},
          {"pp", place.pp},
          {"cp", place.cp},
          {"tp", place.tp},
          {"parameters", rank.parameters},
          {"weights", StatisticsAsJson(rank.weights)},
          {"micro_batches_in_flight", rank.activations.micro_batches},
          {"memory", memory},
          {"traffic", TrafficAsJson(rank.traffic)}};
}

}  // namespace

void PrintPredictionText(const RunPrediction& run, std::ostream& out) {
  out << "mesh " << run.mesh.ToString() << ", order "
      << topology::FormatAxisOrder(run.mesh.order) << ": "
      << run.mesh.world_size() << " ranks; " << run.schedule << " of "
      << run.stages << " stages and " << run.micro_batches << " micro-batches\n"
      << run.ranks.front().placement << "\n"
      << absl::StrFormat("model of %.4g parameters; a step takes %.4g flops",
                         static_cast<double>(run.parameters), run.work.model);
  if (run.work.recomputed > 0) {
    out << absl::StrFormat(" and computes %.4g again", run.work.recomputed);
  }
  const RankPrediction& first = run.ranks.front();
  out << "\nrank " << first.place.RankIn(run.mesh) << ": "
      << first.weights.ToString();
  out << absl::StrFormat("\nbubble %.1f %% of the step\n\n", 100 * run.bubble);
  if (run.ranks_like_each > 1) {
    out << "one rank of each pipeline rank, the one that needs most\n";
  }
  PrintMemory(run, out);
  if (!run.host_budget.empty()) out << run.host_budget << "\n";
  out << "\n";
  PrintTraffic(run, out);
  out << "\n";
  PrintFit(run, out);
}

std::string PredictionAsJson(const RunPrediction& run) {
  Json json;
  json["mesh"] = run.mesh.ToString();
  json["order"] = topology::FormatAxisOrder(run.mesh.order);
  json["world_size"] = run.mesh.world_size();
  json["schedule"] = run.schedule;
  json["placement"] = run.ranks.front().placement;
  json["stages"] = run.stages;
  json["micro_batches"] = run.micro_batches;
  json["parameters"] = run.parameters;
  json["bubble"] = run.bubble;
  json["flops"] = {{"model", run.work.model},
                   {"recomputed", run.work.recomputed}};
  json["ranks"] = Json::array();
  for (const RankPrediction& rank : run.ranks) {
    json["ranks"].push_back(RankAsJson(run, rank));
  }
  json["ranks_like_each"] = run.ranks_like_each;
  json["memory"] = {
      {"ranks_here", run.ranks_here}, {"needed", run.needed},
      {"available", run.room.bytes},  {"limit", run.room.limit},
      {"fits", run.fits()},           {"device", DeviceAsJson(run)}};
  json["advice"] = Json::array();
  for (const MemoryAdvice& advice : run.advice) {
    json["advice"].push_back({{"flag", advice.flag},
                              {"needed", advice.needed},
                              {"device_needed", advice.device_needed},
                              {"fits", advice.fits},
                              {"and_before", advice.and_before}});
  }
  return DumpJson(json, 2) + "\n";
}

}  // namespace tessera::train

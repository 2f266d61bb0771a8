// The C interface: converts arguments and errors, and calls the modules.
#include "tools/c/tessera.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/dtype/dtype.h"
#include "base/quoted.h"
#include "base/status_macros.h"
#include "collectives/bootstrap/join_job.h"
#include "collectives/communicator.h"
#include "collectives/engine/engine_registry.h"
#include "collectives/in_process/in_process.h"
#include "pipeline/generate/generate.h"
#include "pipeline/passes/add_communication.h"
#include "pipeline/proof/validate.h"
#include "pipeline/schedule/schedule_text.h"
#include "pipeline/simulate/simulate.h"
#include "tools/cli/cli.h"
#include "tools/plan/request.h"
#include "tools/plan/search.h"
#include "tools/train/checkpoint/saved_run.h"
#include "topology/cluster/cluster_file.h"
#include "topology/mesh.h"

struct tessera_mesh {
  tessera::topology::Mesh mesh;
};

struct tessera_communicator {
  // Outlives the communicator. Null in groups and within a process.
  std::unique_ptr<tessera::collectives::Store> store;
  std::unique_ptr<tessera::collectives::Communicator> communicator;
};

struct tessera_checkpoint {
  std::unique_ptr<tessera::train::SavedRun> run;
  std::vector<std::string> names;
};

namespace tessera::c {
namespace {

using collectives::Buffer;
using collectives::Communicator;
using collectives::ConstBuffer;
using collectives::Reduction;
using topology::Rank;

thread_local std::string last_error;

// Returns the code of `status`, and keeps its message for the thread.
tessera_status Report(const absl::Status& status) {
  if (!status.ok()) last_error = std::string(status.message());
  return static_cast<tessera_status>(status.code());
}

// Runs the body of a function of the interface. No exception leaves it.
template <typename Body>
tessera_status Call(const Body& body) {
  try {
    return Report(body());
  } catch (const std::bad_alloc&) {
    return Report(absl::ResourceExhaustedError("no memory is left"));
  } catch (const std::exception& error) {
    return Report(absl::InternalError(error.what()));
  }
}

absl::StatusOr<std::string_view> Text(std::string_view name, const char* text) {
  if (text == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is NULL"));
  }
  return std::string_view(text);
}

// A copy that C code frees.
char* CopyOf(const std::string& text) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

absl::StatusOr<DType> TypeOf(tessera_dtype dtype) {
  if (dtype < 0 || dtype >= static_cast<int32_t>(kAllDTypes.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype ", dtype, "; use TESSERA_F32 or another of them"));
  }
  return static_cast<DType>(dtype);
}

absl::StatusOr<Reduction> ReductionOf(tessera_reduction reduction) {
  const auto op = static_cast<collectives::ReduceOp>(reduction);
  if (reduction < 0 || reduction > TESSERA_BIT_XOR ||
      op == collectives::ReduceOp::kScaledSum) {
    return absl::InvalidArgumentError(absl::StrCat(
        "reduction ", reduction, "; use TESSERA_SUM or another of them"));
  }
  return Reduction{op, 1.0};
}

// Runs the operation that `make` returns for the element type and the number of
// ranks.
template <typename Make>
tessera_status Run(tessera_communicator* group, tessera_dtype dtype,
                   const Make& make) {
  return Call([&]() -> absl::Status {
    if (group == nullptr) {
      return absl::InvalidArgumentError("communicator is NULL");
    }
    TESSERA_ASSIGN_OR_RETURN(const DType type, TypeOf(dtype));
    TESSERA_ASSIGN_OR_RETURN(const collectives::Operation operation,
                             make(type, group->communicator->size()));
    return group->communicator->Run(operation);
  });
}

using OperationOr = absl::StatusOr<collectives::Operation>;

absl::StatusOr<std::unique_ptr<tessera_communicator>> Join(
    std::string_view engine, absl::Duration timeout) {
  TESSERA_ASSIGN_OR_RETURN(
      collectives::Job job,
      collectives::JoinJob(collectives::ProcessEnvironment(),
                           {.timeout = timeout}));
  TESSERA_ASSIGN_OR_RETURN(
      auto made,
      collectives::CreateEngine(engine, {.rank = job.rank,
                                         .size = job.world_size.value(),
                                         .store = job.store.get()}));
  collectives::CommunicatorOptions options;
  options.timeout = timeout;
  auto joined = std::make_unique<tessera_communicator>();
  TESSERA_ASSIGN_OR_RETURN(
      joined->communicator,
      Communicator::Create(std::move(made), std::move(options)));
  joined->store = std::move(job.store);
  return joined;
}

absl::StatusOr<std::string> GenerateTable(std::string_view name, int64_t ranks,
                                          int64_t micro_batches,
                                          int64_t chunks) {
  TESSERA_ASSIGN_OR_RETURN(
      const pipeline::Schedule schedule,
      pipeline::Generate(
          name,
          {.ranks = ranks, .chunks = chunks, .microbatches = micro_batches}));
  TESSERA_ASSIGN_OR_RETURN(const pipeline::Schedule lowered,
                           pipeline::AddCommunication(schedule));
  TESSERA_RETURN_IF_ERROR(pipeline::Validate(lowered).status());
  return pipeline::WriteCsv(schedule);
}

absl::StatusOr<const train::SavedTensor*> TensorOf(
    const tessera_checkpoint* checkpoint, const char* name) {
  TESSERA_ASSIGN_OR_RETURN(const std::string_view valid, Text("name", name));
  return checkpoint->run->Get(valid);
}

absl::Status ReadTensor(train::SavedRun& run, const train::SavedTensor& tensor,
                        void* values, int64_t bytes) {
  const train::HeldTensor whole = train::WholeTensor(tensor.name, tensor.shape);
  const int64_t elements = whole.whole_elements();
  const std::optional<zero3::StateFormat> format =
      run.FormatOf(tensor, zero3::StatePart::kValue);
  const int64_t needed = format->BytesOf(elements);
  if (bytes != needed || values == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", Quoted(tensor.name), " has ", needed,
                     " bytes; the buffer has ", values == nullptr ? 0 : bytes));
  }
  TESSERA_ASSIGN_OR_RETURN(
      const auto copies,
      run.CopiesOf(tensor, zero3::StatePart::kValue, whole, 0, elements));
  return run.Read(tensor, zero3::StatePart::kValue, copies,
                  {*format, 0, elements, static_cast<std::byte*>(values)});
}

}  // namespace

extern "C" {

const char* tessera_version() { return TESSERA_VERSION; }

const char* tessera_error_message() { return last_error.c_str(); }

void tessera_free_text(char* text) { std::free(text); }

tessera_status tessera_mesh_create(const char* axes, const char* order,
                                   tessera_mesh** mesh) {
  return Call([&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view text, Text("axes", axes));
    TESSERA_ASSIGN_OR_RETURN(std::vector<topology::Axis> parsed,
                             topology::ParseAxes(text));
    if (order != nullptr) {
      TESSERA_ASSIGN_OR_RETURN(parsed, topology::OrderAxes(parsed, order));
    }
    TESSERA_ASSIGN_OR_RETURN(topology::Mesh made,
                             topology::Mesh::Create(parsed));
    *mesh = new tessera_mesh{std::move(made)};
    return absl::OkStatus();
  });
}

void tessera_mesh_destroy(tessera_mesh* mesh) { delete mesh; }

int64_t tessera_mesh_world_size(const tessera_mesh* mesh) {
  return mesh->mesh.world_size();
}

tessera_status tessera_mesh_coordinate(const tessera_mesh* mesh, int64_t rank,
                                       const char* axis, int64_t* coordinate) {
  return Call([&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view name, Text("axis", axis));
    TESSERA_ASSIGN_OR_RETURN(*coordinate,
                             mesh->mesh.CoordinateOf(Rank(rank), name));
    return absl::OkStatus();
  });
}

tessera_status tessera_mesh_group(const tessera_mesh* mesh, int64_t rank,
                                  const char* axes, int64_t* ranks,
                                  int64_t capacity, int64_t* size) {
  return Call([&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view text, Text("axes", axes));
    TESSERA_ASSIGN_OR_RETURN(const topology::Groups groups,
                             mesh->mesh.GroupsAlong(text));
    TESSERA_ASSIGN_OR_RETURN(const std::vector<Rank> members,
                             groups.MembersWith(Rank(rank)));
    *size = static_cast<int64_t>(members.size());
    for (int64_t i = 0; i < std::min(*size, capacity); ++i) {
      ranks[i] = members[static_cast<size_t>(i)].value();
    }
    return absl::OkStatus();
  });
}

tessera_status tessera_communicators_create_in_process(
    int64_t size, tessera_communicator** communicators) {
  return Call([&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(auto engines,
                             collectives::CreateInProcessEngines(size));
    std::vector<std::unique_ptr<tessera_communicator>> made;
    for (std::unique_ptr<collectives::Engine>& engine : engines) {
      made.push_back(std::make_unique<tessera_communicator>());
      TESSERA_ASSIGN_OR_RETURN(made.back()->communicator,
                               Communicator::Create(std::move(engine)));
    }
    for (size_t rank = 0; rank < made.size(); ++rank) {
      communicators[rank] = made[rank].release();
    }
    return absl::OkStatus();
  });
}

tessera_status tessera_communicator_join(const char* engine, double timeout,
                                         tessera_communicator** communicator) {
  return Call([&]() -> absl::Status {
    if (!(timeout > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("timeout ", timeout, "; must be more than 0 seconds"));
    }
    TESSERA_ASSIGN_OR_RETURN(
        auto joined, Join(engine ? engine : "auto", absl::Seconds(timeout)));
    *communicator = joined.release();
    return absl::OkStatus();
  });
}

tessera_status tessera_communicator_split(tessera_communicator* communicator,
                                          int64_t colour, int64_t key,
                                          tessera_communicator** group) {
  return Call([&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(auto split,
                             communicator->communicator->Split(colour, key));
    *group =
        split ? new tessera_communicator{nullptr, std::move(split)} : nullptr;
    return absl::OkStatus();
  });
}

void tessera_communicator_destroy(tessera_communicator* communicator) {
  if (communicator == nullptr) return;
  communicator->communicator.reset();
  delete communicator;
}

int64_t tessera_communicator_rank(const tessera_communicator* communicator) {
  return communicator->communicator->rank().value();
}

int64_t tessera_communicator_size(const tessera_communicator* communicator) {
  return communicator->communicator->size();
}

void tessera_communicator_abort(tessera_communicator* communicator,
                                const char* reason) {
  communicator->communicator->Abort(reason ? reason : "aborted");
}

tessera_status tessera_all_reduce(tessera_communicator* communicator,
                                  const void* input, void* output,
                                  int64_t count, tessera_dtype dtype,
                                  tessera_reduction reduction) {
  return Run(communicator, dtype, [&](DType type, int64_t) -> OperationOr {
    TESSERA_ASSIGN_OR_RETURN(const Reduction valid, ReductionOf(reduction));
    return collectives::AllReduceOf(ConstBuffer(input, count, type),
                                    Buffer(output, count, type), valid);
  });
}

tessera_status tessera_reduce_scatter(tessera_communicator* communicator,
                                      const void* input, void* output,
                                      int64_t count, tessera_dtype dtype,
                                      tessera_reduction reduction) {
  return Run(communicator, dtype, [&](DType type, int64_t size) -> OperationOr {
    TESSERA_ASSIGN_OR_RETURN(const Reduction valid, ReductionOf(reduction));
    return collectives::ReduceScatterOf(ConstBuffer(input, count * size, type),
                                        Buffer(output, count, type), valid);
  });
}

tessera_status tessera_all_gather(tessera_communicator* communicator,
                                  const void* input, void* output,
                                  int64_t count, tessera_dtype dtype) {
  return Run(communicator, dtype, [&](DType type, int64_t size) -> OperationOr {
    return collectives::AllGatherOf(ConstBuffer(input, count, type),
                                    Buffer(output, count * size, type));
  });
}

tessera_status tessera_broadcast(tessera_communicator* communicator, void* data,
                                 int64_t count, tessera_dtype dtype,
                                 int64_t root) {
  return Run(communicator, dtype, [&](DType type, int64_t) -> OperationOr {
    const Buffer buffer(data, count, type);
    return collectives::BroadcastOf(buffer, buffer, Rank(root));
  });
}

tessera_status tessera_all_to_all(tessera_communicator* communicator,
                                  const void* input, void* output,
                                  int64_t count, tessera_dtype dtype) {
  return Run(communicator, dtype, [&](DType type, int64_t size) -> OperationOr {
    return collectives::AllToAllOf(ConstBuffer(input, count * size, type),
                                   Buffer(output, count * size, type));
  });
}

tessera_status tessera_barrier(tessera_communicator* communicator) {
  return Run(communicator, TESSERA_U8, [](DType, int64_t) -> OperationOr {
    return collectives::BarrierOf();
  });
}

tessera_status tessera_send(tessera_communicator* communicator,
                            const void* data, int64_t count,
                            tessera_dtype dtype, int64_t destination) {
  return Run(communicator, dtype, [&](DType type, int64_t) -> OperationOr {
    return collectives::SendOf(ConstBuffer(data, count, type),
                               Rank(destination));
  });
}

tessera_status tessera_receive(tessera_communicator* communicator, void* data,
                               int64_t count, tessera_dtype dtype,
                               int64_t source) {
  return Run(communicator, dtype, [&](DType type, int64_t) -> OperationOr {
    return collectives::ReceiveOf(Buffer(data, count, type), Rank(source));
  });
}

tessera_status tessera_schedule_generate(const char* name, int64_t ranks,
                                         int64_t micro_batches, int64_t chunks,
                                         char** csv) {
  return Call([&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view valid, Text("name", name));
    TESSERA_ASSIGN_OR_RETURN(
        const std::string table,
        GenerateTable(valid, ranks, micro_batches, chunks));
    *csv = CopyOf(table);
    return absl::OkStatus();
  });
}

tessera_status tessera_schedule_simulate(const char* csv, double forward,
                                         double backward_input,
                                         double backward_weight,
                                         double* duration, double* bubble) {
  return Call([&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view text, Text("csv", csv));
    TESSERA_ASSIGN_OR_RETURN(const pipeline::Schedule schedule,
                             pipeline::ReadCsv(text));
    TESSERA_ASSIGN_OR_RETURN(
        const pipeline::Timeline timeline,
        pipeline::Simulate(
            schedule,
            pipeline::Costs::Uniform(schedule.map.stages(),
                                     {.forward = forward,
                                      .backward_input = backward_input,
                                      .backward_weight = backward_weight})));
    *duration = timeline.makespan;
    *bubble = timeline.BubbleRate();
    return absl::OkStatus();
  });
}

tessera_status tessera_plan_find(const char* model, const char* cluster,
                                 int64_t batch, int64_t length, char** json) {
  return Call([&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view name, Text("model", model));
    TESSERA_ASSIGN_OR_RETURN(const std::string_view text,
                             Text("cluster", cluster));
    TESSERA_ASSIGN_OR_RETURN(const topology::Cluster parsed,
                             topology::ParseCluster(text));
    TESSERA_ASSIGN_OR_RETURN(
        const plan::PlanRequest request,
        plan::MakeRequest(
            {.model = std::string(name), .batch = batch, .length = length},
            parsed));
    TESSERA_ASSIGN_OR_RETURN(const plan::PlanReport report,
                             plan::FindPlans(request));
    std::ostringstream printed;
    plan::PrintPlans(request, report, tools::OutputFormat::kJson, printed);
    *json = CopyOf(printed.str());
    return absl::OkStatus();
  });
}

tessera_status tessera_checkpoint_open(const char* path,
                                       tessera_checkpoint** checkpoint) {
  return Call([&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const std::string_view text, Text("path", path));
    TESSERA_ASSIGN_OR_RETURN(std::string resolved,
                             train::ResolveCheckpoint(std::string(text)));
    auto opened = std::make_unique<tessera_checkpoint>();
    TESSERA_ASSIGN_OR_RETURN(opened->run,
                             train::SavedRun::Open(std::move(resolved)));
    for (const auto& [name, tensor] : opened->run->tensors()) {
      opened->names.push_back(name);
    }
    *checkpoint = opened.release();
    return absl::OkStatus();
  });
}

void tessera_checkpoint_destroy(tessera_checkpoint* checkpoint) {
  delete checkpoint;
}

int64_t tessera_checkpoint_steps(const tessera_checkpoint* checkpoint) {
  return checkpoint->run->steps();
}

int64_t tessera_checkpoint_tensor_count(const tessera_checkpoint* checkpoint) {
  return static_cast<int64_t>(checkpoint->names.size());
}

const char* tessera_checkpoint_tensor_name(const tessera_checkpoint* checkpoint,
                                           int64_t index) {
  return index >= 0 && index < tessera_checkpoint_tensor_count(checkpoint)
             ? checkpoint->names[static_cast<size_t>(index)].c_str()
             : nullptr;
}

tessera_status tessera_checkpoint_tensor_shape(
    const tessera_checkpoint* checkpoint, const char* name,
    tessera_dtype* dtype, int64_t shape[2], int32_t* rank) {
  return Call([&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const train::SavedTensor* const tensor,
                             TensorOf(checkpoint, name));
    *dtype = static_cast<tessera_dtype>(tensor->dtype);
    *rank = static_cast<int32_t>(tensor->shape.size());
    std::copy(tensor->shape.begin(), tensor->shape.end(), shape);
    return absl::OkStatus();
  });
}

tessera_status tessera_checkpoint_read(tessera_checkpoint* checkpoint,
                                       const char* name, void* values,
                                       int64_t bytes) {
  return Call([&]() -> absl::Status {
    TESSERA_ASSIGN_OR_RETURN(const train::SavedTensor* const tensor,
                             TensorOf(checkpoint, name));
    return ReadTensor(*checkpoint->run, *tensor, values, bytes);
  });
}

}  // extern "C"
}  // namespace tessera::c

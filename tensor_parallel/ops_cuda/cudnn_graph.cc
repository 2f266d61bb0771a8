#include "tensor_parallel/ops_cuda/cudnn_graph.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera::tensor_parallel {
namespace {

absl::StatusCode CodeOf(cudnnStatus_t status) {
  // Statuses come in groups of a thousand (cudnn_graph_v9.h).
  switch (status / 1000) {
    case 1:
      return absl::StatusCode::kUnavailable;
    case 2:
      return absl::StatusCode::kInvalidArgument;
    case 3:
      return absl::StatusCode::kUnimplemented;
    case 4:
      return status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                     status ==
                         CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
                 ? absl::StatusCode::kResourceExhausted
                 : absl::StatusCode::kInternal;
    default:
      return absl::StatusCode::kInternal;
  }
}

absl::StatusOr<CudnnDescriptor> NewDescriptor(cudnnBackendDescriptorType_t type,
                                              std::string_view what) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  TESSERA_RETURN_IF_ERROR(
      CudnnStatus(cudnnBackendCreateDescriptor(type, &descriptor), what));
  return CudnnDescriptor(descriptor);
}

absl::Status SetOne(const CudnnDescriptor& descriptor,
                    cudnnBackendAttributeName_t name,
                    cudnnBackendAttributeType_t type, const void* value,
                    std::string_view what, int64_t count = 1) {
  return CudnnStatus(
      cudnnBackendSetAttribute(descriptor.get(), name, type, count, value),
      what);
}

absl::Status SetDescriptor(const CudnnDescriptor& descriptor,
                           cudnnBackendAttributeName_t name,
                           const CudnnDescriptor& value,
                           std::string_view what) {
  cudnnBackendDescriptor_t raw = value.get();
  return SetOne(descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, &raw, what);
}

absl::Status FinalizeAll(const CudnnDescriptor& descriptor,
                         std::string_view what) {
  return CudnnStatus(cudnnBackendFinalize(descriptor.get()), what);
}

// The engine configurations that the heuristics propose, best first.
absl::StatusOr<std::vector<CudnnDescriptor>> Configurations(
    const CudnnDescriptor& graph, const CudnnDescriptor& device,
    cudnnBackendHeurMode_t mode) {
  constexpr std::string_view kWhat = "cuDNN's heuristics";
  TESSERA_ASSIGN_OR_RETURN(
      CudnnDescriptor heuristics,
      NewDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, kWhat));
  TESSERA_RETURN_IF_ERROR(SetDescriptor(
      heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph, kWhat));
  TESSERA_RETURN_IF_ERROR(SetOne(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE,
                                 CUDNN_TYPE_HEUR_MODE, &mode, kWhat));
  TESSERA_RETURN_IF_ERROR(SetDescriptor(
      heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device, kWhat));
  TESSERA_RETURN_IF_ERROR(FinalizeAll(heuristics, kWhat));

  int64_t count = 0;
  TESSERA_RETURN_IF_ERROR(CudnnStatus(
      cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count,
                               nullptr),
      kWhat));
  std::vector<CudnnDescriptor> configurations;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < count; ++i) {
    TESSERA_ASSIGN_OR_RETURN(
        CudnnDescriptor configuration,
        NewDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, kWhat));
    raw.push_back(configuration.get());
    configurations.push_back(std::move(configuration));
  }
  TESSERA_RETURN_IF_ERROR(CudnnStatus(
      cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count,
                               raw.data()),
      kWhat));
  configurations.resize(count);
  return configurations;
}

absl::StatusOr<CudnnDescriptor> EngineOf(const CudnnDescriptor& configuration) {
  constexpr std::string_view kWhat = "the engine of a configuration";
  TESSERA_ASSIGN_OR_RETURN(
      CudnnDescriptor engine,
      NewDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, kWhat));
  cudnnBackendDescriptor_t raw = engine.get();
  int64_t count = 0;
  TESSERA_RETURN_IF_ERROR(CudnnStatus(
      cudnnBackendGetAttribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
      kWhat));
  return engine;
}

}  // namespace

absl::Status CudnnStatus(cudnnStatus_t status, std::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  std::array<char, 512> message = {};
  cudnnGetLastErrorString(message.data(), message.size());
  return absl::Status(
      CodeOf(status),
      absl::StrCat(what, ": ", cudnnGetErrorString(status),
                   message[0] == '\0' ? "" : ": ", message.data()));
}

absl::StatusOr<CudnnDescriptor> CudnnPropertiesOfDevice(int ordinal) {
  constexpr std::string_view kWhat = "the device's properties for cuDNN";
  TESSERA_RETURN_IF_ERROR(LoadCudnn());
  TESSERA_ASSIGN_OR_RETURN(
      CudnnDescriptor properties,
      NewDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, kWhat));
  const int32_t device = ordinal;
  TESSERA_RETURN_IF_ERROR(SetOne(properties, CUDNN_ATTR_DEVICEPROP_DEVICE_ID,
                                 CUDNN_TYPE_INT32, &device, kWhat));
  TESSERA_RETURN_IF_ERROR(FinalizeAll(properties, kWhat));
  return properties;
}

absl::StatusOr<CudnnDescriptor> CudnnPropertiesFromJson(std::string_view json) {
  constexpr std::string_view kWhat = "a device's properties in JSON";
  TESSERA_RETURN_IF_ERROR(LoadCudnn());
  TESSERA_ASSIGN_OR_RETURN(
      CudnnDescriptor properties,
      NewDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, kWhat));
  TESSERA_RETURN_IF_ERROR(SetOne(
      properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
      json.data(), kWhat, static_cast<int64_t>(json.size())));
  TESSERA_RETURN_IF_ERROR(FinalizeAll(properties, kWhat));
  return properties;
}

CudnnDims RowMajorStrides(const CudnnDims& sizes) {
  return {sizes[1] * sizes[2] * sizes[3], sizes[2] * sizes[3], sizes[3], 1};
}

absl::Status CudnnPlan::Run(cudnnHandle_t handle,
                            std::span<const CudnnArgument> arguments,
                            void* workspace) const {
  constexpr std::string_view kWhat = "the arguments of a cuDNN plan";
  std::vector<int64_t> ids;
  std::vector<const void*> data;
  for (const CudnnArgument& argument : arguments) {
    ids.push_back(argument.id);
    data.push_back(argument.data);
  }
  TESSERA_ASSIGN_OR_RETURN(
      CudnnDescriptor pack,
      NewDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, kWhat));
  const auto count = static_cast<int64_t>(ids.size());
  TESSERA_RETURN_IF_ERROR(SetOne(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                 CUDNN_TYPE_INT64, ids.data(), kWhat, count));
  TESSERA_RETURN_IF_ERROR(SetOne(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                 CUDNN_TYPE_VOID_PTR, data.data(), kWhat,
                                 count));
  TESSERA_RETURN_IF_ERROR(SetOne(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                 CUDNN_TYPE_VOID_PTR, &workspace, kWhat));
  TESSERA_RETURN_IF_ERROR(FinalizeAll(pack, kWhat));
  return CudnnStatus(cudnnBackendExecute(handle, plan_.get(), pack.get()),
                     "cuDNN's execution of a plan");
}

void CudnnGraphBuilder::Keep(cudnnStatus_t status) {
  if (status_.ok()) status_ = CudnnStatus(status, current_);
}

cudnnBackendDescriptor_t CudnnGraphBuilder::Create(
    cudnnBackendDescriptorType_t type, std::string_view what) {
  current_ = what;
  if (!status_.ok()) return nullptr;
  cudnnBackendDescriptor_t descriptor = nullptr;
  Keep(cudnnBackendCreateDescriptor(type, &descriptor));
  descriptors_.emplace_back(descriptor);
  return descriptor;
}

template <typename T>
void CudnnGraphBuilder::Set(cudnnBackendDescriptor_t descriptor,
                            cudnnBackendAttributeName_t name,
                            cudnnBackendAttributeType_t type,
                            std::span<const T> values) {
  if (!status_.ok()) return;
  Keep(cudnnBackendSetAttribute(descriptor, name, type,
                                static_cast<int64_t>(values.size()),
                                values.data()));
}

void CudnnGraphBuilder::Finalize(cudnnBackendDescriptor_t descriptor) {
  if (status_.ok()) Keep(cudnnBackendFinalize(descriptor));
}

CudnnTensor CudnnGraphBuilder::Tensor(int64_t id, cudnnDataType_t type,
                                      const CudnnDims& sizes,
                                      const CudnnDims& strides, bool is_virtual,
                                      bool is_by_value) {
  constexpr int64_t kAlignment = 16;
  const CudnnTensor tensor =
      Create(CUDNN_BACKEND_TENSOR_DESCRIPTOR, "a tensor of a cuDNN graph");
  Set(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, type);
  Set(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64,
      std::span<const int64_t>(sizes));
  Set(tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64,
      std::span<const int64_t>(strides));
  Set(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  Set(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, kAlignment);
  Set(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is_virtual);
  Set(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, is_by_value);
  Finalize(tensor);
  return tensor;
}

CudnnTensor CudnnGraphBuilder::Real(int64_t id, cudnnDataType_t type,
                                    const CudnnDims& sizes,
                                    const CudnnDims& strides) {
  return Tensor(id, type, sizes, strides, /*is_virtual=*/false,
                /*is_by_value=*/false);
}

CudnnTensor CudnnGraphBuilder::ByValue(int64_t id, cudnnDataType_t type) {
  return Tensor(id, type, {1, 1, 1, 1}, {1, 1, 1, 1}, /*is_virtual=*/false,
                /*is_by_value=*/true);
}

CudnnTensor CudnnGraphBuilder::Virtual(cudnnDataType_t type,
                                       const CudnnDims& sizes,
                                       const CudnnDims& strides) {
  return Tensor(next_virtual_id_++, type, sizes, strides, /*is_virtual=*/true,
                /*is_by_value=*/false);
}

CudnnTensor CudnnGraphBuilder::Virtual(cudnnDataType_t type,
                                       const CudnnDims& sizes) {
  return Virtual(type, sizes, RowMajorStrides(sizes));
}

cudnnBackendDescriptor_t CudnnGraphBuilder::PointwiseMode(
    cudnnPointwiseMode_t mode, cudnnDataType_t precision, int64_t axis) {
  const auto descriptor = Create(CUDNN_BACKEND_POINTWISE_DESCRIPTOR,
                                 "a pointwise mode of a cuDNN graph");
  Set(descriptor, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  Set(descriptor, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
      precision);
  if (mode == CUDNN_POINTWISE_GEN_INDEX) {
    Set(descriptor, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, axis);
  }
  Finalize(descriptor);
  return descriptor;
}

void CudnnGraphBuilder::AddPointwise(cudnnBackendDescriptor_t mode,
                                     CudnnTensor x, CudnnTensor b,
                                     CudnnTensor selector, CudnnTensor y) {
  const auto operation = Create(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR,
                                "a pointwise operation of a cuDNN graph");
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
      CUDNN_TYPE_BACKEND_DESCRIPTOR, mode);
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC,
      CUDNN_TYPE_BACKEND_DESCRIPTOR, x);
  if (b != nullptr) {
    Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC,
        CUDNN_TYPE_BACKEND_DESCRIPTOR, b);
  }
  if (selector != nullptr) {
    Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC,
        CUDNN_TYPE_BACKEND_DESCRIPTOR, selector);
  }
  Set(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC,
      CUDNN_TYPE_BACKEND_DESCRIPTOR, y);
  Finalize(operation);
  operations_.push_back(operation);
}

void CudnnGraphBuilder::Pointwise(cudnnPointwiseMode_t mode, CudnnTensor x,
                                  CudnnTensor y, cudnnDataType_t precision) {
  AddPointwise(PointwiseMode(mode, precision, 0), x, nullptr, nullptr, y);
}

void CudnnGraphBuilder::Pointwise(cudnnPointwiseMode_t mode, CudnnTensor x,
                                  CudnnTensor b, CudnnTensor y,
                                  cudnnDataType_t precision) {
  AddPointwise(PointwiseMode(mode, precision, 0), x, b, nullptr, y);
}

void CudnnGraphBuilder::Select(CudnnTensor x, CudnnTensor otherwise,
                               CudnnTensor condition, CudnnTensor y) {
  AddPointwise(
      PointwiseMode(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0), x,
      otherwise, condition, y);
}

void CudnnGraphBuilder::Index(int64_t axis, CudnnTensor x, CudnnTensor y) {
  AddPointwise(PointwiseMode(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, axis),
               x, nullptr, nullptr, y);
}

void CudnnGraphBuilder::Matmul(CudnnTensor a, CudnnTensor b, CudnnTensor c) {
  const auto mode =
      Create(CUDNN_BACKEND_MATMUL_DESCRIPTOR, "a product of a cuDNN graph");
  const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
  Set(mode, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, precision);
  Finalize(mode);
  const auto operation = Create(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR,
                                "a product of a cuDNN graph");
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC,
      CUDNN_TYPE_BACKEND_DESCRIPTOR, a);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC,
      CUDNN_TYPE_BACKEND_DESCRIPTOR, b);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC,
      CUDNN_TYPE_BACKEND_DESCRIPTOR, c);
  Set(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC,
      CUDNN_TYPE_BACKEND_DESCRIPTOR, mode);
  Finalize(operation);
  operations_.push_back(operation);
}

void CudnnGraphBuilder::Reduce(cudnnReduceTensorOp_t mode, CudnnTensor x,
                               CudnnTensor y) {
  const auto reduction = Create(CUDNN_BACKEND_REDUCTION_DESCRIPTOR,
                                "a reduction of a cuDNN graph");
  const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
  Set(reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE,
      precision);
  Set(reduction, CUDNN_ATTR_REDUCTION_OPERATOR,
      CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, mode);
  Finalize(reduction);
  const auto operation = Create(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR,
                                "a reduction of a cuDNN graph");
  Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC,
      CUDNN_TYPE_BACKEND_DESCRIPTOR, reduction);
  Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC,
      CUDNN_TYPE_BACKEND_DESCRIPTOR, x);
  Set(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC,
      CUDNN_TYPE_BACKEND_DESCRIPTOR, y);
  Finalize(operation);
  operations_.push_back(operation);
}

void CudnnGraphBuilder::Reshape(CudnnTensor x, CudnnTensor y) {
  const auto operation = Create(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR,
                                "a reshape of a cuDNN graph");
  Set(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC,
      CUDNN_TYPE_BACKEND_DESCRIPTOR, x);
  Set(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC,
      CUDNN_TYPE_BACKEND_DESCRIPTOR, y);
  Finalize(operation);
  operations_.push_back(operation);
}

absl::StatusOr<CudnnDescriptor> CudnnGraphBuilder::OperationGraph() {
  constexpr std::string_view kWhat = "a cuDNN graph";
  TESSERA_RETURN_IF_ERROR(status_);
  TESSERA_ASSIGN_OR_RETURN(
      CudnnDescriptor graph,
      NewDescriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, kWhat));
  TESSERA_RETURN_IF_ERROR(SetOne(
      graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
      operations_.data(), kWhat, static_cast<int64_t>(operations_.size())));
  TESSERA_RETURN_IF_ERROR(FinalizeAll(graph, kWhat));
  return graph;
}

absl::StatusOr<CudnnPlan> CudnnGraphBuilder::Build(
    const CudnnDescriptor& device) && {
  constexpr std::string_view kWhat = "a cuDNN plan";
  TESSERA_ASSIGN_OR_RETURN(CudnnDescriptor graph, OperationGraph());
  absl::Status refusal =
      absl::UnimplementedError("cuDNN has no engine for this graph and device");
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    auto configurations = Configurations(graph, device, mode);
    if (!configurations.ok()) {
      refusal = configurations.status();
      continue;
    }
    for (CudnnDescriptor& configuration : *configurations) {
      CudnnPlan plan;
      TESSERA_ASSIGN_OR_RETURN(
          plan.plan_,
          NewDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, kWhat));
      TESSERA_RETURN_IF_ERROR(
          SetDescriptor(plan.plan_, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                        configuration, kWhat));
      const absl::Status compiled = FinalizeAll(plan.plan_, kWhat);
      if (!compiled.ok()) {
        refusal = compiled;
        continue;
      }
      TESSERA_ASSIGN_OR_RETURN(const CudnnDescriptor engine,
                               EngineOf(configuration));
      int64_t count = 0;
      TESSERA_RETURN_IF_ERROR(CudnnStatus(
          cudnnBackendGetAttribute(engine.get(), CUDNN_ATTR_ENGINE_GLOBAL_INDEX,
                                   CUDNN_TYPE_INT64, 1, &count, &plan.engine_),
          kWhat));
      TESSERA_RETURN_IF_ERROR(CudnnStatus(
          cudnnBackendGetAttribute(
              plan.plan_.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
              CUDNN_TYPE_INT64, 1, &count, &plan.workspace_bytes_),
          kWhat));
      plan.parts_ = std::move(descriptors_);
      plan.parts_.push_back(std::move(graph));
      plan.parts_.push_back(std::move(configuration));
      return plan;
    }
  }
  return refusal;
}

}  // namespace tessera::tensor_parallel

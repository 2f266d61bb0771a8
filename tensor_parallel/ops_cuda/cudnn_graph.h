// CudnnGraphBuilder: a graph of cuDNN operations, compiled into a CudnnPlan.
//
//   CudnnGraphBuilder graph;
//   const CudnnTensor scores = graph.Virtual(CUDNN_DATA_FLOAT, {b, h, q, k});
//   graph.Matmul(query, transposed_key, scores);
//   ...
//   TESSERA_ASSIGN_OR_RETURN(CudnnPlan plan,
//                            std::move(graph).Build(device_properties));
//
// Uses cuDNN's backend API. Available only in builds with cuDNN.
#ifndef TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_GRAPH_H_
#define TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_GRAPH_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensor_parallel/ops_cuda/cudnn_calls.h"

namespace tessera::tensor_parallel {

// OK for CUDNN_STATUS_SUCCESS. Otherwise an error with `what`, cuDNN's text for
// the status and its last error message: Unimplemented if cuDNN does not
// support the call, InvalidArgument for invalid parameters, ResourceExhausted
// if memory is exhausted, Unavailable if there is no usable device or driver,
// otherwise Internal.
absl::Status CudnnStatus(cudnnStatus_t status, std::string_view what);

struct DestroyCudnnDescriptor {
  void operator()(void* descriptor) const {
    cudnnBackendDestroyDescriptor(descriptor);
  }
};
using CudnnDescriptor = std::unique_ptr<void, DestroyCudnnDescriptor>;

// The properties of a device for which plans are compiled. Both functions load
// cuDNN.
absl::StatusOr<CudnnDescriptor> CudnnPropertiesOfDevice(int ordinal);
// Reads the properties from cuDNN's JSON, to compile plans without that device.
absl::StatusOr<CudnnDescriptor> CudnnPropertiesFromJson(std::string_view json);

// A tensor of a graph; the builder owns it.
using CudnnTensor = cudnnBackendDescriptor_t;
// Batch, head, row, column.
using CudnnDims = std::array<int64_t, 4>;

CudnnDims RowMajorStrides(const CudnnDims& sizes);

// The address of a tensor of a graph during an execution of its plan. For
// tensors by value it is an address of the host.
struct CudnnArgument {
  int64_t id = 0;
  const void* data = nullptr;
};

// A compiled graph. It may be executed on several handles.
class CudnnPlan {
 public:
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // cuDNN's number of the engine, for logs.
  int64_t engine() const { return engine_; }

  // Enqueues the plan on the stream of `handle`. `workspace` is device memory
  // of workspace_bytes(), aligned to 256 bytes.
  absl::Status Run(cudnnHandle_t handle,
                   std::span<const CudnnArgument> arguments,
                   void* workspace) const;

 private:
  friend class CudnnGraphBuilder;

  std::vector<CudnnDescriptor> parts_;  // To which plan_ refers.
  CudnnDescriptor plan_;
  int64_t workspace_bytes_ = 0;
  int64_t engine_ = -1;
};

// The first error of any call is kept and returned by Build.
class CudnnGraphBuilder {
 public:
  // A tensor in device memory; ids are positive and below 100.
  CudnnTensor Real(int64_t id, cudnnDataType_t type, const CudnnDims& sizes,
                   const CudnnDims& strides);
  // A single value at an address of the host.
  CudnnTensor ByValue(int64_t id, cudnnDataType_t type);
  // A tensor that exists only inside the plan.
  CudnnTensor Virtual(cudnnDataType_t type, const CudnnDims& sizes);
  CudnnTensor Virtual(cudnnDataType_t type, const CudnnDims& sizes,
                      const CudnnDims& strides);

  // y = mode(x), mode(x, b) or mode(x, b, selector).
  void Pointwise(cudnnPointwiseMode_t mode, CudnnTensor x, CudnnTensor y,
                 cudnnDataType_t precision = CUDNN_DATA_FLOAT);
  void Pointwise(cudnnPointwiseMode_t mode, CudnnTensor x, CudnnTensor b,
                 CudnnTensor y, cudnnDataType_t precision = CUDNN_DATA_FLOAT);
  void Select(CudnnTensor x, CudnnTensor otherwise, CudnnTensor condition,
              CudnnTensor y);
  // Every element of y is its index along `axis` of x.
  void Index(int64_t axis, CudnnTensor x, CudnnTensor y);
  void Matmul(CudnnTensor a, CudnnTensor b, CudnnTensor c);
  void Reduce(cudnnReduceTensorOp_t mode, CudnnTensor x, CudnnTensor y);
  // y has the elements of x with other sizes or strides.
  void Reshape(CudnnTensor x, CudnnTensor y);

  // Compiles for the device, with the first engine of cuDNN's heuristics that
  // supports the graph. `device` must outlive the plan. Unimplemented if no
  // engine supports the graph.
  absl::StatusOr<CudnnPlan> Build(const CudnnDescriptor& device) &&;

 private:
  // A new descriptor; null after an error.
  cudnnBackendDescriptor_t Create(cudnnBackendDescriptorType_t type,
                                  std::string_view what);
  template <typename T>
  void Set(cudnnBackendDescriptor_t descriptor,
           cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           std::span<const T> values);
  template <typename T>
  void Set(cudnnBackendDescriptor_t descriptor,
           cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           const T& value) {
    Set(descriptor, name, type, std::span<const T>(&value, 1));
  }
  void Finalize(cudnnBackendDescriptor_t descriptor);
  void Keep(cudnnStatus_t status);
  CudnnTensor Tensor(int64_t id, cudnnDataType_t type, const CudnnDims& sizes,
                     const CudnnDims& strides, bool is_virtual,
                     bool is_by_value);
  cudnnBackendDescriptor_t PointwiseMode(cudnnPointwiseMode_t mode,
                                         cudnnDataType_t precision,
                                         int64_t axis);
  void AddPointwise(cudnnBackendDescriptor_t mode, CudnnTensor x, CudnnTensor b,
                    CudnnTensor selector, CudnnTensor y);
  absl::StatusOr<CudnnDescriptor> OperationGraph();

  absl::Status status_;
  std::string_view current_ = "";  // The described object, for errors.
  std::vector<CudnnDescriptor> descriptors_;
  std::vector<cudnnBackendDescriptor_t> operations_;
  int64_t next_virtual_id_ = 100;
};

}  // namespace tessera::tensor_parallel

#endif  // TESSERA_TENSOR_PARALLEL_OPS_CUDA_CUDNN_GRAPH_H_

// DLPack, by which array libraries exchange tensors without copies
// (github.com/dmlc/dlpack, version 1.1). This file declares the used part of
// its ABI.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tools/python/bindings.h"

namespace tessera::python {
namespace {

namespace py = pybind11;

struct DLDevice {
  int32_t type = 1;
  int32_t id = 0;
};

struct DLDataType {
  uint8_t code = 0;
  uint8_t bits = 0;
  uint16_t lanes = 1;
};

struct DLTensor {
  void* data = nullptr;
  DLDevice device;
  int32_t ndim = 0;
  DLDataType dtype;
  int64_t* shape = nullptr;
  int64_t* strides = nullptr;  // Elements; null: row-major.
  uint64_t byte_offset = 0;
};

struct DLManagedTensor {
  DLTensor tensor;
  void* context = nullptr;
  void (*deleter)(DLManagedTensor*) = nullptr;
};

struct DLManagedTensorVersioned {
  uint32_t major = 1;
  uint32_t minor = 1;
  void* context = nullptr;
  void (*deleter)(DLManagedTensorVersioned*) = nullptr;
  uint64_t flags = 0;
  DLTensor tensor;
};

constexpr int32_t kCpu = 1;
constexpr uint64_t kReadOnly = 1;

struct NamedType {
  const char* name;
  DLDataType type;
};

// With the names of base/dtype.
constexpr NamedType kTypes[] = {
    {"f64", {2, 64, 1}},      {"f32", {2, 32, 1}}, {"f16", {2, 16, 1}},
    {"bf16", {4, 16, 1}},     {"i64", {0, 64, 1}}, {"i32", {0, 32, 1}},
    {"i8", {0, 8, 1}},        {"u8", {1, 8, 1}},   {"fp8_e4m3", {10, 8, 1}},
    {"fp8_e5m2", {12, 8, 1}},
};

std::string NameOf(const DLDataType& type) {
  for (const NamedType& known : kTypes) {
    if (known.type.code == type.code && known.type.bits == type.bits &&
        type.lanes == 1) {
      return known.name;
    }
  }
  return absl::StrCat("DLPack type ", type.code, " of ", type.bits, " bits");
}

bool IsContiguous(const DLTensor& tensor) {
  if (tensor.strides == nullptr) return true;
  if (std::count(tensor.shape, tensor.shape + tensor.ndim, 0) > 0) return true;
  int64_t expected = 1;
  for (int32_t i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

// Holds a tensor of another library and keeps it alive.
class ForeignTensor {
 public:
  explicit ForeignTensor(const py::capsule& capsule) {
    if (std::string(capsule.name()) == "dltensor_versioned") {
      auto* const managed =
          static_cast<DLManagedTensorVersioned*>(capsule.get_pointer());
      if (managed->major != 1) {
        throw StatusException(absl::InvalidArgumentError(absl::StrCat(
            "a tensor of DLPack ", managed->major, "; 1 is supported")));
      }
      tensor_ = managed->tensor;
      is_read_only_ = (managed->flags & kReadOnly) != 0;
      keep_ = {managed, [](void* pointer) {
                 auto* const held =
                     static_cast<DLManagedTensorVersioned*>(pointer);
                 if (held->deleter != nullptr) held->deleter(held);
               }};
      PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
    } else {
      auto* const managed = static_cast<DLManagedTensor*>(
          PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
      if (managed == nullptr) throw py::error_already_set();
      tensor_ = managed->tensor;
      keep_ = {managed, [](void* pointer) {
                 auto* const held = static_cast<DLManagedTensor*>(pointer);
                 if (held->deleter != nullptr) held->deleter(held);
               }};
      PyCapsule_SetName(capsule.ptr(), "used_dltensor");
    }
  }

  uintptr_t address() const {
    return reinterpret_cast<uintptr_t>(tensor_.data) + tensor_.byte_offset;
  }
  std::string dtype() const { return NameOf(tensor_.dtype); }
  std::vector<int64_t> shape() const {
    return {tensor_.shape, tensor_.shape + tensor_.ndim};
  }
  bool is_on_cpu() const { return tensor_.device.type == kCpu; }
  bool is_contiguous() const { return IsContiguous(tensor_); }
  bool is_read_only() const { return is_read_only_; }

 private:
  DLTensor tensor_;
  bool is_read_only_ = false;
  std::unique_ptr<void, void (*)(void*)> keep_ = {nullptr, [](void*) {}};
};

// A tensor over the bytes of an object with the buffer protocol. Keeps that
// object alive.
template <typename Managed>
struct Lent {
  Managed managed;
  std::vector<int64_t> shape;
  py::buffer_info bytes;
};

template <typename Managed>
void Free(Managed* managed) {
  const py::gil_scoped_acquire acquire;
  delete static_cast<Lent<Managed>*>(managed->context);
}

// Frees the tensor of a capsule that was never consumed.
template <typename Managed>
void FreeUnused(PyObject* capsule, const char* name) {
  if (PyCapsule_IsValid(capsule, name) == 0) return;
  auto* const managed =
      static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

template <typename Managed>
py::capsule Lend(const py::buffer& owner, std::vector<int64_t> shape,
                 const DLDataType& type, const char* name,
                 PyCapsule_Destructor destructor) {
  auto lent = std::make_unique<Lent<Managed>>();
  lent->bytes = owner.request();
  lent->shape = std::move(shape);
  DLTensor& tensor = lent->managed.tensor;
  tensor.data = lent->bytes.ptr;
  tensor.ndim = static_cast<int32_t>(lent->shape.size());
  tensor.dtype = type;
  tensor.shape = lent->shape.data();
  lent->managed.context = lent.get();
  lent->managed.deleter = &Free<Managed>;
  PyObject* const capsule = PyCapsule_New(&lent->managed, name, destructor);
  if (capsule == nullptr) throw py::error_already_set();
  lent.release();
  return py::reinterpret_steal<py::capsule>(capsule);
}

py::capsule ToDlpack(const py::buffer& owner, const std::string& dtype,
                     std::vector<int64_t> shape, bool versioned) {
  for (const NamedType& known : kTypes) {
    if (dtype != known.name) continue;
    if (versioned) {
      return Lend<DLManagedTensorVersioned>(
          owner, std::move(shape), known.type, "dltensor_versioned",
          [](PyObject* capsule) {
            FreeUnused<DLManagedTensorVersioned>(capsule, "dltensor_versioned");
          });
    }
    return Lend<DLManagedTensor>(
        owner, std::move(shape), known.type, "dltensor", [](PyObject* capsule) {
          FreeUnused<DLManagedTensor>(capsule, "dltensor");
        });
  }
  throw StatusException(
      absl::InvalidArgumentError(absl::StrCat("DLPack has no type ", dtype)));
}

}  // namespace

void BindDlpack(py::module_& module) {
  py::class_<ForeignTensor>(module, "ForeignTensor")
      .def(py::init<const py::capsule&>(), py::arg("capsule"))
      .def_property_readonly("address", &ForeignTensor::address)
      .def_property_readonly("dtype", &ForeignTensor::dtype)
      .def_property_readonly("shape", &ForeignTensor::shape)
      .def_property_readonly("is_on_cpu", &ForeignTensor::is_on_cpu)
      .def_property_readonly("is_contiguous", &ForeignTensor::is_contiguous)
      .def_property_readonly("is_read_only", &ForeignTensor::is_read_only);
  module.def("bytes_of", [](const py::buffer& owner) {
    return reinterpret_cast<uintptr_t>(owner.request(/*writable=*/true).ptr);
  });
  module.def("to_dlpack", &ToDlpack, py::arg("owner"), py::arg("dtype"),
             py::arg("shape"), py::arg("versioned"));
}

}  // namespace tessera::python

#include "collectives/mpi/mpi_types.h"

#include <mpi.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/engine/library_engine.h"

namespace tessera::collectives {

namespace {

// MPI exists once per process, and so does its state.
std::mutex start_mutex;
std::atomic<bool> abandoned = false;

void EndMpi() {
  if (MpiRuns() && !abandoned) MPI_Finalize();
}

absl::Status CheckThreads(int level) {
  if (level >= MPI_THREAD_MULTIPLE) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "MPI was initialised with thread level ", level,
      "; a communicator needs MPI_THREAD_MULTIPLE (", MPI_THREAD_MULTIPLE,
      "): call MPI_Init_thread with it, or let the engine initialise MPI"));
}

}  // namespace

bool MpiRuns() {
  int started = 0, ended = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  return started != 0 && ended == 0;
}

absl::Status StartMpi() {
  const std::lock_guard lock(start_mutex);
  int ended = 0;
  MPI_Finalized(&ended);
  if (ended != 0) {
    return absl::FailedPreconditionError(
        "MPI_Finalize was called; MPI cannot be initialised again in this "
        "process");
  }
  int level = 0;
  if (MpiRuns()) {
    MPI_Query_thread(&level);
    return CheckThreads(level);
  }
  const int code =
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  if (code != MPI_SUCCESS) return MpiStatus(code, "MPI_Init_thread");
  std::atexit(EndMpi);
  return CheckThreads(level);
}

void AbandonMpi() { abandoned = true; }

absl::Status MpiStatus(int code, const char* call) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0, kind = MPI_ERR_UNKNOWN;
  MPI_Error_string(code, text, &length);
  MPI_Error_class(code, &kind);
  const std::string message = absl::StrCat(
      call, ": ", std::string_view(text, static_cast<size_t>(length)));
  switch (kind) {
    case MPI_ERR_TRUNCATE:
      return absl::FailedPreconditionError(
          absl::StrCat(message, "; a rank sent more than its peer expects"));
    case MPI_ERR_NO_MEM:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

namespace {

constexpr std::array<ReduceOp, 4> kFolds = {ReduceOp::kSum, ReduceOp::kProduct,
                                            ReduceOp::kMin, ReduceOp::kMax};

ReduceOp FoldOf(ReduceOp op) {
  return op == ReduceOp::kAverage || op == ReduceOp::kScaledSum ? ReduceOp::kSum
                                                                : op;
}

// MPI_OP_NULL for other operators.
MPI_Op BitOpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kBitAnd:
      return MPI_BAND;
    case ReduceOp::kBitOr:
      return MPI_BOR;
    case ReduceOp::kBitXor:
      return MPI_BXOR;
    default:
      return MPI_OP_NULL;
  }
}

size_t IndexOf(ReduceOp fold, DType dtype) {
  size_t index = 0;
  while (kFolds[index] != fold) ++index;
  return index * kAllDTypes.size() + static_cast<size_t>(dtype);
}

// The user function: `inout` = `in` op `inout`, where `in` comes from lower
// ranks.
template <ReduceOp kFold, DType kType>
void Apply(void* in, void* inout, int* count, MPI_Datatype*) {
  CombineTwo({.dtype = kType, .op = kFold}, in, inout, inout, *count);
}

template <ReduceOp kFold>
MPI_User_function* FunctionOf(DType dtype) {
  constexpr bool kExtreme = kFold == ReduceOp::kMin || kFold == ReduceOp::kMax;
  if (dtype == DType::kF16) return Apply<kFold, DType::kF16>;
  if (dtype == DType::kBF16) return Apply<kFold, DType::kBF16>;
  if (kExtreme && dtype == DType::kF32) return Apply<kFold, DType::kF32>;
  if (kExtreme && dtype == DType::kF64) return Apply<kFold, DType::kF64>;
  return nullptr;  // MPI's own operator.
}

MPI_User_function* FunctionOf(ReduceOp fold, DType dtype) {
  switch (fold) {
    case ReduceOp::kProduct:
      return FunctionOf<ReduceOp::kProduct>(dtype);
    case ReduceOp::kMin:
      return FunctionOf<ReduceOp::kMin>(dtype);
    case ReduceOp::kMax:
      return FunctionOf<ReduceOp::kMax>(dtype);
    default:
      return FunctionOf<ReduceOp::kSum>(dtype);
  }
}

bool IsOurs(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16;
}

MPI_Datatype OwnTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return MPI_DOUBLE;
    case DType::kF32:
      return MPI_FLOAT;
    case DType::kI64:
      return MPI_INT64_T;
    case DType::kI32:
      return MPI_INT32_T;
    case DType::kI8:
      return MPI_INT8_T;
    default:
      return MPI_UINT8_T;
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MpiTypes>> MpiTypes::Create() {
  const std::shared_ptr<MpiTypes> types(new MpiTypes);
  TESSERA_RETURN_IF_ERROR(types->CreateTypes());
  TESSERA_RETURN_IF_ERROR(types->CreateOps());
  return types;
}

absl::Status MpiTypes::CreateTypes() {
  for (DType dtype : kAllDTypes) {
    MPI_Datatype& type = types_[static_cast<size_t>(dtype)];
    type = OwnTypeOf(dtype);
    if (!IsOurs(dtype)) continue;
    TESSERA_RETURN_IF_ERROR(
        MpiStatus(MPI_Type_contiguous(static_cast<int>(SizeInBytes(dtype)),
                                      MPI_BYTE, &type),
                  "MPI_Type_contiguous"));
    TESSERA_RETURN_IF_ERROR(
        MpiStatus(MPI_Type_commit(&type), "MPI_Type_commit"));
  }
  return absl::OkStatus();
}

absl::Status MpiTypes::CreateOps() {
  for (ReduceOp fold : kFolds) {
    for (DType dtype : kAllDTypes) {
      MPI_User_function* const function = FunctionOf(fold, dtype);
      if (function == nullptr) continue;
      TESSERA_RETURN_IF_ERROR(MpiStatus(
          MPI_Op_create(function, /*commute=*/1, &ops_[IndexOf(fold, dtype)]),
          "MPI_Op_create"));
    }
  }
  return absl::OkStatus();
}

MpiTypes::~MpiTypes() {
  if (!MpiRuns()) return;
  for (MPI_Op& op : ops_) {
    if (op != MPI_OP_NULL) MPI_Op_free(&op);
  }
  for (DType dtype : kAllDTypes) {
    if (IsOurs(dtype)) MPI_Type_free(&types_[static_cast<size_t>(dtype)]);
  }
}

MPI_Op MpiTypes::OpOf(ReduceOp op, DType dtype) const {
  if (IsBitwise(op)) return BitOpOf(op);
  const ReduceOp fold = FoldOf(op);
  const MPI_Op ours = ops_[IndexOf(fold, dtype)];
  if (ours != MPI_OP_NULL) return ours;
  switch (fold) {
    case ReduceOp::kProduct:
      return MPI_PROD;
    case ReduceOp::kMin:
      return MPI_MIN;
    case ReduceOp::kMax:
      return MPI_MAX;
    default:
      return MPI_SUM;
  }
}

}  // namespace tessera::collectives

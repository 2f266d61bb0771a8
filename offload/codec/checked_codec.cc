#include "offload/codec/checked_codec.h"

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/dtype/convert_value.h"
#include "base/dtype/dtype_traits.h"
#include "base/status_macros.h"

namespace tessera::offload {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 60;
constexpr std::byte kMagic[] = {std::byte{'T'}, std::byte{'c'}};
constexpr std::byte kVersion{1};

using Header = std::array<std::byte, kCodecHeaderBytes>;

Header MakeHeader(CodecFormat format, DType dtype, int64_t elements) {
  Header header = {kMagic[0], kMagic[1], kVersion,
                   static_cast<std::byte>(format),
                   static_cast<std::byte>(dtype)};
  std::memcpy(&header[8], &elements, sizeof(elements));
  return header;
}

}  // namespace

absl::Status CheckedCodec::Refuse(std::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat("codec ", name_, ": ", what));
}

absl::Status CheckedCodec::Damaged(std::string_view what) const {
  return absl::DataLossError(
      absl::StrCat("codec ", name_, ": the encoding is damaged: ", what));
}

absl::StatusOr<int64_t> CheckedCodec::CountElements(DType dtype,
                                                    size_t bytes) const {
  TESSERA_RETURN_IF_ERROR(MaxEncodedBytes(dtype, 0).status());
  const size_t size = static_cast<size_t>(SizeInBytes(dtype));
  if (bytes % size != 0) {
    return Refuse(absl::StrCat("values of ", bytes,
                               " bytes are not a whole number of ",
                               DTypeName(dtype), " elements of ", size));
  }
  return static_cast<int64_t>(bytes / size);
}

bool CheckedCodec::IsLossless(DType dtype) const {
  return IsValid(dtype) && PayloadError(dtype).IsZero();
}

absl::StatusOr<ErrorBound> CheckedCodec::MaxError(DType dtype) const {
  TESSERA_RETURN_IF_ERROR(MaxEncodedBytes(dtype, 0).status());
  return PayloadError(dtype);
}

absl::StatusOr<int64_t> CheckedCodec::MaxEncodedBytes(DType dtype,
                                                      int64_t elements) const {
  if (!IsValid(dtype)) {
    return Refuse(absl::StrCat("dtype number ", static_cast<int>(dtype),
                               " is not valid; expected 0 to ",
                               kAllDTypes.size() - 1));
  }
  const int64_t most = kMostBytes / SizeInBytes(dtype);
  if (elements < 0 || elements > most) {
    return Refuse(absl::StrCat(elements, " elements of ", DTypeName(dtype),
                               "; expected 0 to ", most));
  }
  return kCodecHeaderBytes + MaxPayloadBytes(dtype, elements);
}

absl::Status CheckedCodec::CheckDisjoint(std::span<const std::byte> a,
                                         std::span<const std::byte> b) const {
  const auto at = reinterpret_cast<uintptr_t>(a.data());
  const auto other = reinterpret_cast<uintptr_t>(b.data());
  if (at < other + b.size() && other < at + a.size()) {
    return Refuse(absl::StrCat("values and encoding of ", a.size(), " and ",
                               b.size(),
                               " bytes overlap; give separate memory"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> CheckedCodec::Encode(
    DType dtype, std::span<const std::byte> values,
    std::span<std::byte> encoded) const {
  TESSERA_ASSIGN_OR_RETURN(const int64_t elements,
                           CountElements(dtype, values.size()));
  TESSERA_ASSIGN_OR_RETURN(const int64_t room,
                           MaxEncodedBytes(dtype, elements));
  if (encoded.size() < static_cast<size_t>(room)) {
    return Refuse(absl::StrCat("buffer of ", encoded.size(), " encoded bytes; ",
                               elements, " elements of ", DTypeName(dtype),
                               " need ", room));
  }
  TESSERA_RETURN_IF_ERROR(CheckDisjoint(values, encoded));
  const Header header = MakeHeader(format_, dtype, elements);
  std::memcpy(encoded.data(), header.data(), header.size());
  const auto payload =
      encoded.subspan(header.size(), static_cast<size_t>(room) - header.size());
  TESSERA_ASSIGN_OR_RETURN(const int64_t bytes,
                           EncodePayload(dtype, values, payload));
  return kCodecHeaderBytes + bytes;
}

absl::Status CheckedCodec::CheckHeader(DType dtype,
                                       std::span<const std::byte> encoded,
                                       int64_t elements) const {
  if (encoded.size() < kCodecHeaderBytes) {
    return Damaged(absl::StrCat("it has ", encoded.size(), " bytes; at least ",
                                kCodecHeaderBytes, " are needed"));
  }
  Header header;
  std::memcpy(header.data(), encoded.data(), header.size());
  int64_t held = 0;
  std::memcpy(&held, &header[8], sizeof(held));
  const Header wanted = MakeHeader(format_, dtype, elements);
  if (header == wanted) return absl::OkStatus();
  if (std::memcmp(header.data(), wanted.data(), 3) != 0) {
    return Refuse("the bytes are not an encoding of this library and version");
  }
  if (header[3] != wanted[3]) {
    return Refuse(
        absl::StrCat("the encoding is of format ", static_cast<int>(header[3]),
                     "; this codec decodes ", static_cast<int>(format_),
                     "; use the codec that encoded it"));
  }
  if (header[4] != wanted[4]) {
    return Refuse(absl::StrCat("the encoding is of ",
                               DTypeName(static_cast<DType>(header[4])),
                               " elements; requested: ", DTypeName(dtype)));
  }
  if (held != elements) {
    return Refuse(absl::StrCat("the encoding is of ", held,
                               " elements; there is room for exactly ",
                               elements));
  }
  return Damaged("bytes 5 to 7 of the header are not zero");
}

absl::Status CheckedCodec::Decode(DType dtype,
                                  std::span<const std::byte> encoded,
                                  std::span<std::byte> values) const {
  TESSERA_ASSIGN_OR_RETURN(const int64_t elements,
                           CountElements(dtype, values.size()));
  TESSERA_RETURN_IF_ERROR(CheckHeader(dtype, encoded, elements));
  TESSERA_RETURN_IF_ERROR(CheckDisjoint(encoded, values));
  return DecodePayload(dtype, encoded.subspan(kCodecHeaderBytes), values);
}

absl::Status CheckedCodec::CheckPayloadBytes(std::span<const std::byte> payload,
                                             int64_t wanted) const {
  if (payload.size() == static_cast<size_t>(wanted)) return absl::OkStatus();
  return Damaged(absl::StrCat("it has ", kCodecHeaderBytes + payload.size(),
                              " bytes; expected ", kCodecHeaderBytes + wanted));
}

absl::Status CheckedCodec::CannotHold(DType dtype,
                                      std::span<const std::byte> values,
                                      int64_t index,
                                      std::string_view advice) const {
  return Refuse(
      absl::StrCat("cannot hold element ", index, " of ",
                   values.size() / static_cast<size_t>(SizeInBytes(dtype)),
                   ", the ", DTypeName(dtype), " ",
                   ElementAsDouble(dtype, values, index), "; ", advice));
}

double ElementAsDouble(DType dtype, std::span<const std::byte> values,
                       int64_t index) {
  return DispatchDType(dtype, [&]<typename T>(std::type_identity<T>) {
    T value;
    std::memcpy(&value, &values[static_cast<size_t>(index) * sizeof(T)],
                sizeof(T));
    return ConvertValue<double>(value);
  });
}

}  // namespace tessera::offload

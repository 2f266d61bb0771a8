#include "topology/config/internal/config_fields.h"

#include <type_traits>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest_name.h"
#include "base/status_macros.h"

namespace tessera::topology::internal {
namespace {

std::string Quoted(std::string_view text) {
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, 40)),
                      text.size() > 40 ? "..." : "", "\"");
}

absl::Status WrongType(std::string_view expected, const Scalar& found) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", expected, ", found ", Describe(found)));
}

// How a field of each type is read and written.
template <typename T>
struct Codec;

template <>
struct Codec<int64_t> {
  static constexpr std::string_view kExpected = "an integer below 2^63";
  static absl::Status Read(const Scalar& from, int64_t& to) {
    const auto* value = std::get_if<int64_t>(&from);
    if (value == nullptr) return WrongType(kExpected, from);
    to = *value;
    return absl::OkStatus();
  }
  static Scalar Write(int64_t value) { return value; }
};

template <>
struct Codec<AxisSize> {
  static absl::Status Read(const Scalar& from, AxisSize& to) {
    int64_t size = 0;
    TESSERA_RETURN_IF_ERROR(Codec<int64_t>::Read(from, size));
    to = AxisSize(size);
    return absl::OkStatus();
  }
  static Scalar Write(AxisSize value) { return value.value(); }
};

template <>
struct Codec<std::string> {
  static constexpr std::string_view kExpected = "a string";
  static absl::Status Read(const Scalar& from, std::string& to) {
    const auto* value = std::get_if<std::string>(&from);
    if (value == nullptr) return WrongType(kExpected, from);
    to = *value;
    return absl::OkStatus();
  }
  static Scalar Write(const std::string& value) { return value; }
};

template <NamedEnum Enum>
struct Codec<Enum> {
  static absl::Status Read(const Scalar& from, Enum& to) {
    const auto* name = std::get_if<std::string>(&from);
    if (name == nullptr) {
      return WrongType(
          absl::StrCat("one of the strings ", AllowedNames<Enum>()), from);
    }
    TESSERA_ASSIGN_OR_RETURN(to, ParseEnum<Enum>(*name));
    return absl::OkStatus();
  }
  static Scalar Write(Enum value) { return std::string(EnumName(value)); }
};

template <>
struct Codec<ByteSize> {
  static constexpr std::string_view kExpected =
      "a string such as \"80GiB\" or an integer number of bytes below 2^63";
  static absl::Status Read(const Scalar& from, ByteSize& to) {
    if (const auto* bytes = std::get_if<int64_t>(&from); bytes != nullptr) {
      to = ByteSize(*bytes);
      return absl::OkStatus();
    }
    const auto* text = std::get_if<std::string>(&from);
    if (text == nullptr) return WrongType(kExpected, from);
    TESSERA_ASSIGN_OR_RETURN(to, ParseByteSize(*text));
    return absl::OkStatus();
  }
  // A negative size has no text that reads back.
  static Scalar Write(ByteSize value) {
    if (value < ByteSize(0)) return value.bytes();
    return value.ToString();
  }
};

template <>
struct Codec<absl::Duration> {
  static constexpr std::string_view kExpected =
      "a string such as \"30s\" or a number of seconds";
  static absl::Status Read(const Scalar& from, absl::Duration& to) {
    if (const auto* whole = std::get_if<int64_t>(&from); whole != nullptr) {
      to = absl::Seconds(*whole);
      return absl::OkStatus();
    }
    if (const auto* seconds = std::get_if<double>(&from); seconds != nullptr) {
      to = absl::Seconds(*seconds);
      return absl::OkStatus();
    }
    const auto* text = std::get_if<std::string>(&from);
    absl::Duration parsed;
    if (text == nullptr || text->size() > 64 ||
        !absl::ParseDuration(*text, &parsed)) {
      return WrongType(kExpected, from);
    }
    to = parsed;
    return absl::OkStatus();
  }
  static Scalar Write(absl::Duration value) {
    return absl::FormatDuration(value);
  }
};

template <auto kMember>
constexpr ConfigField Field(std::string_view name) {
  using T = std::remove_cvref_t<decltype(ParallelConfig().*kMember)>;
  return {.name = name,
          .set =
              [](const Scalar& value, ParallelConfig& config) {
                return Codec<T>::Read(value, config.*kMember);
              },
          .get =
              [](const ParallelConfig& config) {
                return Codec<T>::Write(config.*kMember);
              }};
}

constexpr ConfigField kFields[] = {
    Field<&ParallelConfig::dp>("dp"),
    Field<&ParallelConfig::tp>("tp"),
    Field<&ParallelConfig::pp>("pp"),
    Field<&ParallelConfig::cp>("cp"),
    Field<&ParallelConfig::ep>("ep"),
    Field<&ParallelConfig::order>("order"),
    Field<&ParallelConfig::layers>("layers"),
    Field<&ParallelConfig::micro_batch_size>("micro_batch_size"),
    Field<&ParallelConfig::micro_batches>("micro_batches"),
    Field<&ParallelConfig::schedule>("schedule"),
    Field<&ParallelConfig::chunks>("chunks"),
    Field<&ParallelConfig::memory_strategy>("memory_strategy"),
    Field<&ParallelConfig::communication_strategy>("communication_strategy"),
    Field<&ParallelConfig::precision>("precision"),
    Field<&ParallelConfig::device_memory>("device_memory"),
    Field<&ParallelConfig::timeout>("timeout"),
};

struct Describer {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(int64_t value) const {
    return absl::StrCat("the integer ", value);
  }
  std::string operator()(uint64_t value) const {
    return absl::StrCat("the integer ", value);
  }
  std::string operator()(double value) const {
    return absl::StrCat("the number ", value);
  }
  std::string operator()(const std::string& value) const {
    return absl::StrCat("the string ", Quoted(value));
  }
};

}  // namespace

std::string Describe(const Scalar& scalar) {
  return std::visit(Describer(), scalar);
}

std::span<const ConfigField> ConfigFields() { return kFields; }

const ConfigField* FindConfigField(std::string_view name) {
  for (const ConfigField& field : kFields) {
    if (field.name == name) return &field;
  }
  return nullptr;
}

absl::Status UnknownField(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ConfigField& field : kFields) names.push_back(field.name);
  return absl::InvalidArgumentError(
      absl::StrCat("unknown key ", Quoted(name), "; did you mean \"",
                   NearestName(name, names),
                   "\"? Known keys: ", absl::StrJoin(names, ", ")));
}

}  // namespace tessera::topology::internal

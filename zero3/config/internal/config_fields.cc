#include "zero3/config/internal/config_fields.h"

#include <algorithm>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/nearest_name.h"
#include "base/quoted.h"
#include "base/status_macros.h"

namespace tessera::zero3::internal {
namespace {

absl::Status WrongType(std::string_view expected, const Scalar& found) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", expected, ", found ", Describe(found)));
}

// Takes a value of just the type T.
template <typename T>
absl::Status ReadAs(const Scalar& from, std::string_view expected, T& to) {
  const T* value = std::get_if<T>(&from);
  if (value == nullptr) return WrongType(expected, from);
  to = *value;
  return absl::OkStatus();
}

absl::Status Read(const Scalar& from, bool& to) {
  return ReadAs(from, "true or false", to);
}
absl::Status Read(const Scalar& from, int64_t& to) {
  return ReadAs(from, "an integer below 2^63", to);
}
absl::Status Read(const Scalar& from, std::string& to) {
  return ReadAs(from, "a string", to);
}
absl::Status Read(const Scalar& from, double& to) {
  if (const auto* whole = std::get_if<int64_t>(&from); whole != nullptr) {
    to = static_cast<double>(*whole);
    return absl::OkStatus();
  }
  if (const auto* large = std::get_if<uint64_t>(&from); large != nullptr) {
    to = static_cast<double>(*large);
    return absl::OkStatus();
  }
  return ReadAs(from, "a number", to);
}
absl::Status Read(const Scalar& from, ByteSize& to) {
  if (const auto* bytes = std::get_if<int64_t>(&from); bytes != nullptr) {
    to = ByteSize(*bytes);
    return absl::OkStatus();
  }
  std::string text;
  TESSERA_RETURN_IF_ERROR(ReadAs(
      from,
      "a string such as \"32GiB\" or an integer number of bytes below 2^63",
      text));
  TESSERA_ASSIGN_OR_RETURN(to, ParseByteSize(text));
  return absl::OkStatus();
}
template <topology::NamedEnum Enum>
absl::Status Read(const Scalar& from, Enum& to) {
  std::string name;
  TESSERA_RETURN_IF_ERROR(ReadAs(
      from, absl::StrCat("one of the strings ", topology::AllowedNames<Enum>()),
      name));
  TESSERA_ASSIGN_OR_RETURN(to, topology::ParseEnum<Enum>(name));
  return absl::OkStatus();
}

template <typename T>
Scalar Write(const T& value) {
  if constexpr (topology::NamedEnum<T>) {
    return std::string(topology::EnumName(value));
  } else if constexpr (std::is_same_v<T, ByteSize>) {
    // A negative size has no text that reads back.
    if (value < ByteSize(0)) return value.bytes();
    return value.ToString();
  } else {
    return value;
  }
}

template <auto kMember>
constexpr ConfigField Field(std::string_view name) {
  return {
      .name = name,
      .set = [](const Scalar& value,
                ZeroConfig& config) { return Read(value, config.*kMember); },
      .get = [](const ZeroConfig& config) { return Write(config.*kMember); }};
}

constexpr ConfigField kFields[] = {
    Field<&ZeroConfig::stage>("stage"),
    Field<&ZeroConfig::layout>("layout"),
    Field<&ZeroConfig::alignment>("alignment"),
    Field<&ZeroConfig::offload_parameters>("offload_parameters"),
    Field<&ZeroConfig::offload_gradients>("offload_gradients"),
    Field<&ZeroConfig::offload_optimizer>("offload_optimizer"),
    Field<&ZeroConfig::cpu_budget>("cpu_budget"),
    Field<&ZeroConfig::device_parameter_budget>("device_parameter_budget"),
    Field<&ZeroConfig::swap_directory>("swap_directory"),
    Field<&ZeroConfig::compression>("compression"),
    Field<&ZeroConfig::strategy>("strategy"),
    Field<&ZeroConfig::prefetch_buffer>("prefetch_buffer"),
    Field<&ZeroConfig::async_prefetch>("async_prefetch"),
    Field<&ZeroConfig::overlap>("overlap"),
    Field<&ZeroConfig::pin_memory>("pin_memory"),
    Field<&ZeroConfig::reduce_bucket_size>("reduce_bucket_size"),
    Field<&ZeroConfig::parameter_persistence_threshold>(
        "parameter_persistence_threshold"),
    Field<&ZeroConfig::max_live_parameters>("max_live_parameters"),
    Field<&ZeroConfig::max_reuse_distance>("max_reuse_distance"),
    Field<&ZeroConfig::allow_unused_parameters>("allow_unused_parameters"),
    Field<&ZeroConfig::gradient_accumulation_steps>(
        "gradient_accumulation_steps"),
    Field<&ZeroConfig::gradient_type>("gradient_type"),
    Field<&ZeroConfig::gradient_clipping>("gradient_clipping"),
    Field<&ZeroConfig::loss_scale>("loss_scale"),
    Field<&ZeroConfig::initial_scale_power>("initial_scale_power"),
    Field<&ZeroConfig::loss_scale_window>("loss_scale_window"),
    Field<&ZeroConfig::hysteresis>("hysteresis"),
    Field<&ZeroConfig::min_loss_scale>("min_loss_scale"),
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
  const auto nearest = std::min_element(
      std::begin(kFields), std::end(kFields),
      [&](const ConfigField& a, const ConfigField& b) {
        return EditDistance(name, a.name) < EditDistance(name, b.name);
      });
  std::string known;
  for (const ConfigField& field : kFields) {
    absl::StrAppend(&known, known.empty() ? "" : ", ", field.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown key ", Quoted(name), "; did you mean \"",
                   nearest->name, "\"? Known keys: ", known));
}

}  // namespace tessera::zero3::internal

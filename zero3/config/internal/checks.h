// Checker: collects what is wrong with the fields of a ZeroConfig.
//
// Each check adds a problem, with a replacement that is allowed, or nothing.
#ifndef TESSERA_ZERO3_CONFIG_INTERNAL_CHECKS_H_
#define TESSERA_ZERO3_CONFIG_INTERNAL_CHECKS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/byte_size.h"
#include "topology/config/options/config_problem.h"
#include "topology/config/options/named_enum.h"

namespace tessera::zero3::internal {

class Checker {
 public:
  void Range(std::string_view field, int64_t value, int64_t least,
             int64_t most);
  void Bytes(std::string_view field, ByteSize value, int64_t least);
  // Finite and at least `least`.
  void Number(std::string_view field, double value, double least);
  // Above 0 and at most the scale to begin with.
  void LeastScale(std::string_view field, double value, int64_t initial_power);
  // At most 4096 bytes, none of them 0.
  void Path(std::string_view field, const std::string& value);
  template <topology::NamedEnum Enum>
  void Choice(std::string_view field, Enum value) {
    if (!topology::EnumName(value).empty()) return;
    Add(field, absl::StrCat(static_cast<int64_t>(value)),
        topology::AllowedNames<Enum>(),
        std::string(topology::EnumNames<Enum>::kTable[0].name));
  }

  const std::vector<topology::ConfigProblem>& problems() const {
    return problems_;
  }

 private:
  void Add(std::string_view field, std::string given, std::string allowed,
           std::string replacement);

  std::vector<topology::ConfigProblem> problems_;
};

}  // namespace tessera::zero3::internal

#endif  // TESSERA_ZERO3_CONFIG_INTERNAL_CHECKS_H_

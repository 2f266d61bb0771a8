// Macros that return errors to the caller.
//
//   absl::StatusOr<Mesh> Load(std::string_view path) {
//     TESSERA_RETURN_IF_ERROR(CheckReadable(path));
//     TESSERA_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
//     TESSERA_ASSIGN_OR_RETURN(auto axes, ParseAxes(text),
//                              Annotate(_, path));
//     ...
//
// With a third argument TESSERA_ASSIGN_OR_RETURN returns that expression
// instead, in which `_` is the error. TESSERA_RETURN_IF_ERROR takes it as its
// second argument.
#ifndef TESSERA_BASE_STATUS_MACROS_H_
#define TESSERA_BASE_STATUS_MACROS_H_

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace tessera {

// Returns the same code with the message prefixed by "`context`: ". An OK
// status stays OK.
inline absl::Status Annotate(const absl::Status& status,
                             std::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(context, ": ", status.message()));
}

}  // namespace tessera

#define TESSERA_STATUS_CONCAT_INNER_(a, b) a##b
#define TESSERA_STATUS_CONCAT_(a, b) TESSERA_STATUS_CONCAT_INNER_(a, b)
#define TESSERA_STATUS_PICK_(_1, _2, _3, name, ...) name

#define TESSERA_RETURN_IF_ERROR(...)                               \
  TESSERA_STATUS_PICK_(__VA_ARGS__, , TESSERA_RETURN_IF_ERROR_OR_, \
                       TESSERA_RETURN_IF_ERROR_PLAIN_, )           \
  (__VA_ARGS__)
#define TESSERA_RETURN_IF_ERROR_PLAIN_(expression) \
  TESSERA_RETURN_IF_ERROR_OR_(expression, _)
#define TESSERA_RETURN_IF_ERROR_OR_(expression, error)        \
  do {                                                        \
    if (absl::Status _ = (expression); !_.ok()) return error; \
  } while (false)

#define TESSERA_ASSIGN_OR_RETURN(...)                             \
  TESSERA_STATUS_PICK_(__VA_ARGS__, TESSERA_ASSIGN_OR_RETURN_OR_, \
                       TESSERA_ASSIGN_OR_RETURN_PLAIN_, , )       \
  (__VA_ARGS__)
#define TESSERA_ASSIGN_OR_RETURN_PLAIN_(lhs, expression) \
  TESSERA_ASSIGN_OR_RETURN_OR_(lhs, expression, _)
#define TESSERA_ASSIGN_OR_RETURN_OR_(lhs, expression, error)        \
  TESSERA_ASSIGN_OR_RETURN_NAMED_(                                  \
      TESSERA_STATUS_CONCAT_(tessera_status_or_, __COUNTER__), lhs, \
      expression, error)
#define TESSERA_ASSIGN_OR_RETURN_NAMED_(name, lhs, expression, error) \
  auto name = (expression);                                           \
  if (!name.ok()) {                                                   \
    [[maybe_unused]] absl::Status _ = std::move(name).status();       \
    return error;                                                     \
  }                                                                   \
  lhs = *std::move(name)

#endif  // TESSERA_BASE_STATUS_MACROS_H_

#include "tensor_parallel/ops/products.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/device/operand_checker.h"
#include "base/dtype/dtype.h"
#include "base/status_macros.h"
#include "base/tensor/layout.h"

namespace tessera::tensor_parallel {

namespace {

// Types that are cast to fp8, and of products in fp8.
bool IsBesideFp8(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16;
}

// An output that the caller does not want.
bool IsAbsent(const ConstTensorView& view) {
  return view.rank() == 2 && view.shape()[0] == 0 && view.shape()[1] == 0;
}

}  // namespace

namespace op {

absl::Status Gemm::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("a", a, 2));
  check.Requires(b.rank() == 2,
                 absl::StrCat("\"b\" has shape ", DimsToString(b.shape()),
                              "; it should have 2 dimensions."));
  TESSERA_RETURN_IF_ERROR(check.status());
  const int64_t m = a.shape()[options.transpose_a ? 1 : 0];
  const int64_t n = b.shape()[options.transpose_b ? 0 : 1];
  const int64_t k = a.shape()[options.transpose_a ? 0 : 1];
  if (options.transpose_b) {
    check.Reads("b", b, {{n, k}});
  } else {
    check.Reads("b", b, {{k, n}});
  }
  return check.WritesEither("c", c, {{m, n}}).status();
}

std::vector<Gemm> GroupedGemm::Products() const {
  const auto groups = static_cast<int64_t>(rows.size());
  const bool sums_rows = options.transpose_a;
  const int64_t height = (sums_rows ? c : b).shape()[0] / groups;
  std::vector<Gemm> products;
  int64_t first = 0;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t count = rows[static_cast<size_t>(group)];
    const auto rows_of = [&](const auto& x) {
      return *x.Narrow(0, first, count);
    };
    const auto matrix_of = [&](const auto& x) {
      return *x.Narrow(0, group * height, height);
    };
    const Gemm product = {options, rows_of(a),
                          sums_rows ? rows_of(b) : matrix_of(b),
                          sums_rows ? matrix_of(c) : rows_of(c)};
    const bool adds_nothing = sums_rows && count == 0 && options.beta == 1;
    if (!product.IsEmpty() && !adds_nothing) products.push_back(product);
    first += count;
  }
  return products;
}

absl::Status GroupedGemm::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("a", a, 2));
  const auto groups = static_cast<int64_t>(rows.size());
  const std::string_view stack = options.transpose_a ? "c" : "b";
  const ConstTensorView& stacked = options.transpose_a ? c : b;
  check
      .Requires(!options.transpose_a || !options.transpose_b,
                "transpose_a and transpose_b are set; at most one may be.")
      .Requires(
          groups > 0 &&
              std::ranges::all_of(rows,
                                  [](int64_t count) { return count >= 0; }) &&
              std::accumulate(rows.begin(), rows.end(), int64_t{0}) ==
                  a.shape()[0],
          absl::StrCat("the groups have [", absl::StrJoin(rows, ","),
                       "] rows; these should be at least 0, and their sum ",
                       a.shape()[0], ", the rows of \"a\"."))
      .Requires(b.rank() == 2,
                absl::StrCat("\"b\" has shape ", DimsToString(b.shape()),
                             "; it should have 2 dimensions."));
  TESSERA_RETURN_IF_ERROR(check.status());
  check.Requires(
      stacked.rank() == 2 && stacked.shape()[0] % groups == 0,
      absl::StrCat("\"", stack, "\" has shape ", DimsToString(stacked.shape()),
                   "; it should have 2 dimensions, the first of which is a "
                   "multiple of the ",
                   groups, " groups."));
  TESSERA_RETURN_IF_ERROR(check.status());
  const int64_t width = a.shape()[1];
  if (options.transpose_a) {
    const int64_t n = b.shape()[1];
    return check.Reads("b", b, {{a.shape()[0], n}})
        .WritesEither("c", c, {{groups * width, n}})
        .status();
  }
  const int64_t height = b.shape()[0] / groups;
  const int64_t n = options.transpose_b ? height : b.shape()[1];
  check.Reads("b", b,
              {{b.shape()[0], options.transpose_b ? width : b.shape()[1]}});
  check.Requires(options.transpose_b || height == width,
                 absl::StrCat("\"b\" has shape ", DimsToString(b.shape()),
                              "; it should have ", groups * width, " rows."));
  return check.WritesEither("c", c, {{a.shape()[0], n}}).status();
}

absl::Status CastTranspose::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("x", x, 2));
  const int64_t m = x.shape()[0], n = x.shape()[1];
  check
      .Requires(IsBesideFp8(x.dtype()),
                absl::StrCat("\"x\" is of ", DTypeName(x.dtype()),
                             "; it may be of f32 or bf16."))
      .ReadsScalar("scale", scale)
      .WritesScalar("amax", amax);
  if (!IsAbsent(y)) check.WritesFp8("y", y, {{m, n}});
  if (!IsAbsent(transposed)) {
    check.WritesFp8("transposed", transposed, {{n, m}});
  }
  check.Requires(
      IsAbsent(y) || IsAbsent(transposed) || y.dtype() == transposed.dtype(),
      "\"y\" and \"transposed\" should be of one type.");
  return check.status();
}

absl::Status GemmFp8::Check(OperandChecker& check) const {
  for (const auto& [name, view] : {std::pair("a", a), std::pair("b", b),
                                   std::pair("c", ConstTensorView(c))}) {
    check.Requires(
        view.rank() == 2,
        absl::StrCat("\"", name, "\" has shape ", DimsToString(view.shape()),
                     "; it should have 2 dimensions."));
  }
  TESSERA_RETURN_IF_ERROR(check.status());
  TESSERA_RETURN_IF_ERROR(check.Leads("c", c, 2));
  const int64_t m = a.shape()[0], n = b.shape()[0], k = a.shape()[1];
  check.ReadsFp8("a", a, {{m, k}})
      .ReadsFp8("b", b, {{n, k}})
      .ReadsScalar("a_inverse", a_inverse)
      .ReadsScalar("b_inverse", b_inverse)
      .Writes("c", c, {{m, n}})
      .Requires(IsBesideFp8(c.dtype()),
                absl::StrCat("\"c\" is of ", DTypeName(c.dtype()),
                             "; it may be of f32 or bf16."))
      .Requires(a.dtype() != DType::kF8E5M2 || b.dtype() != DType::kF8E5M2,
                "\"a\" and \"b\" are of fp8_e5m2; one should be of fp8_e4m3.");
  return check.status();
}

absl::Status UpdateScales::Check(OperandChecker& check) const {
  TESSERA_RETURN_IF_ERROR(check.Leads("largest", largest, 1));
  const int64_t n = largest.shape()[0];
  check.ReadsList("largest", largest, DType::kF32, n)
      .WritesStatistics("amax", amax, {{n}})
      .Requires(
          history.rank() == 2,
          absl::StrCat("\"history\" has shape ", DimsToString(history.shape()),
                       "; it should have 2 dimensions."));
  TESSERA_RETURN_IF_ERROR(check.status());
  check.WritesStatistics("history", history, {{history.shape()[0], n}})
      .WritesStatistics("scale", scale, {{n}})
      .WritesStatistics("inverse", inverse, {{n}})
      .Requires(
          margin >= 0 && margin <= 100,
          absl::StrCat("the margin is ", margin, "; it must be in [0, 100]."));
  return check.status();
}

}  // namespace op

}  // namespace tessera::tensor_parallel

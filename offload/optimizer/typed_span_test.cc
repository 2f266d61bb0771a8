#include "offload/optimizer/typed_span.h"

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype/bfloat16.h"
#include "base/status_matchers.h"
#include "base/tensor/tensor_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::offload {
namespace {

TEST(TypedSpan, KnowsTheTypeOfASpan) {
  std::vector<BF16> values(5);
  const TypedSpan span = std::span(values);
  EXPECT_EQ(span.dtype(), DType::kBF16);
  EXPECT_EQ(span.size(), 5);
  EXPECT_EQ(span.size_in_bytes(), 10);
  EXPECT_EQ(span.At(3), reinterpret_cast<std::byte*>(&values[3]));
  const ConstTypedSpan constant = span;
  EXPECT_EQ(constant.data(), span.data());
  const ConstTypedSpan direct = std::span<const BF16>(values);
  EXPECT_EQ(direct.dtype(), DType::kBF16);
  EXPECT_TRUE(TypedSpan().empty());
  EXPECT_EQ(TypedSpan().At(0), nullptr);
}

TEST(TypedSpan, TakesContiguousViewsAlone) {
  std::vector<float> values(12);
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView view,
                               TensorView::Of(std::span(values), {{3, 4}}));
  TESSERA_ASSERT_OK_AND_ASSIGN(const TypedSpan span, TypedSpan::Of(view));
  EXPECT_EQ(span.size(), 12);
  TESSERA_ASSERT_OK_AND_ASSIGN(TensorView columns, view.Narrow(1, 1, 2));
  EXPECT_THAT(TypedSpan::Of(columns),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       ::testing::HasSubstr("contiguous tensors in host")));
}

}  // namespace
}  // namespace tessera::offload

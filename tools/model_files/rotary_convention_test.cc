// Hugging Face's weights need no permutation: CpuOps::Rotate computes what
// transformers' apply_rotary_pos_emb does, written out here from its formula:
//   cos = cos(concat(f, f)), sin = sin(concat(f, f)), f[i] = position *
//   theta^(-2i/d), i < d/2; q' = q cos + concat(-q[d/2:], q[:d/2]) sin.
#include <cmath>
#include <random>
#include <span>
#include <vector>

#include "base/status_matchers.h"
#include "base/tensor/tensor_view.h"
#include "gtest/gtest.h"
#include "tensor_parallel/ops_cpu/cpu_ops.h"

namespace tessera::model_files {
namespace {

std::vector<double> HuggingFaceRotation(const std::vector<double>& q,
                                        double theta, int64_t position) {
  const size_t size = q.size();
  std::vector<double> angles, half_turned;
  for (int copy = 0; copy < 2; ++copy) {
    for (size_t i = 0; i < size / 2; ++i) {
      const double exponent = 2 * static_cast<double>(i) / double(size);
      angles.push_back(static_cast<double>(position) *
                       (1 / std::pow(theta, exponent)));
    }
  }
  for (size_t i = size / 2; i < size; ++i) half_turned.push_back(-q[i]);
  for (size_t i = 0; i < size / 2; ++i) half_turned.push_back(q[i]);
  std::vector<double> turned(size);
  for (size_t i = 0; i < size; ++i) {
    turned[i] =
        q[i] * std::cos(angles[i]) + half_turned[i] * std::sin(angles[i]);
  }
  return turned;
}

TEST(RotaryConventionTest, RotateIsApplyRotaryPosEmb) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  tensor_parallel::CpuOps ops;
  for (const int64_t size : {2, 4, 32, 64, 100, 128}) {
    for (const int64_t position : {0, 1, 2, 77, 2047}) {
      for (const double theta : {1e4, 5e5}) {
        std::vector<double> q(static_cast<size_t>(size));
        for (double& x : q) x = normal(random);
        const std::vector<double> expected =
            HuggingFaceRotation(q, theta, position);
        TESSERA_ASSERT_OK_AND_ASSIGN(
            const TensorView view,
            TensorView::Of(std::span(q), {{1, 1, size}}));
        std::vector<double> turns(static_cast<size_t>(size));
        TESSERA_ASSERT_OK_AND_ASSIGN(
            const TensorView table,
            TensorView::Of(std::span(turns), {{1, size}}));
        tensor_parallel::SetRotaryTable(
            tensor_parallel::RotaryFrequencies{.base = theta}.Of(size, 2048),
            std::span<const int64_t>(&position, 1), table);
        TESSERA_ASSERT_OK(ops.Run(
            tensor_parallel::op::Rotate{/*inverse=*/false, table, view}));
        for (size_t i = 0; i < q.size(); ++i) {
          ASSERT_NEAR(q[i], expected[i], 1e-9) << size << " " << position;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::model_files

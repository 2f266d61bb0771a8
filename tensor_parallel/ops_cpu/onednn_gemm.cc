#include "tensor_parallel/ops_cpu/onednn_gemm.h"

#include <omp.h>

#include <array>
#include <cstdint>
#include <memory>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "base/dtype/dtype.h"

namespace tessera::tensor_parallel::cpu {
namespace {

using DataType = dnnl::memory::data_type;

// A matrix as oneDNN sees it: op(x) with `rows` rows and `columns` columns.
struct Matrix {
  DataType type = DataType::f32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // From stored row to stored row.
  bool transposed = false;

  friend bool operator==(const Matrix&, const Matrix&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const Matrix& m) {
    return H::combine(std::move(hash), static_cast<int>(m.type), m.rows,
                      m.columns, m.stride, m.transposed);
  }

  dnnl::memory::desc Describe() const {
    return {{rows, columns},
            type,
            transposed ? dnnl::memory::dims{1, stride}
                       : dnnl::memory::dims{stride, 1}};
  }
};

struct Key {
  std::array<Matrix, 3> matrices;
  double beta = 0;

  friend bool operator==(const Key&, const Key&) = default;
  template <typename H>
  friend H AbslHashValue(H hash, const Key& k) {
    return H::combine(std::move(hash), k.matrices, k.beta);
  }
};

DataType TypeOf(DType dtype) {
  return dtype == DType::kBF16 ? DataType::bf16 : DataType::f32;
}

Matrix MatrixOf(const ConstTensorView& x, bool transposed) {
  const int64_t rows = x.shape()[0], columns = x.shape()[1];
  // The stride of a single row is arbitrary.
  const int64_t stride = rows == 1 ? columns : x.strides()[0];
  return {TypeOf(x.dtype()), transposed ? columns : rows,
          transposed ? rows : columns, stride, transposed};
}

const dnnl::engine& Engine() {
  static const dnnl::engine& engine =
      *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

#if DNNL_VERSION_MAJOR >= 3
dnnl::matmul::primitive_desc Plan(const Key& key,
                                  const dnnl::primitive_attr& attributes) {
  return {Engine(), key.matrices[0].Describe(), key.matrices[1].Describe(),
          key.matrices[2].Describe(), attributes};
}
#else
dnnl::matmul::primitive_desc Plan(const Key& key,
                                  const dnnl::primitive_attr& attributes) {
  return {
      dnnl::matmul::desc(key.matrices[0].Describe(), key.matrices[1].Describe(),
                         key.matrices[2].Describe()),
      attributes, Engine()};
}
#endif

// A compiled product of one thread, with memory objects whose addresses are set
// for each call.
class Product {
 public:
  // nullopt if oneDNN would use a slow loop.
  static std::optional<Product> Create(const Key& key) {
    dnnl::primitive_attr attributes;
    if (key.beta != 0) {
      dnnl::post_ops sum;
      sum.append_sum(static_cast<float>(key.beta));
      attributes.set_post_ops(sum);
    }
    try {
      const dnnl::matmul::primitive_desc plan = Plan(key, attributes);
      const std::string_view name = plan.impl_info_str();
      if (!absl::StartsWith(name, "brg") && !absl::StartsWith(name, "jit") &&
          !absl::StartsWith(name, "gemm:jit")) {
        return std::nullopt;
      }
      return Product(key, plan);
    } catch (const dnnl::error&) {
      return std::nullopt;  // It has no such product.
    }
  }

  // False if oneDNN reports an error.
  bool Run(const void* a, const void* b, void* c) {
    arguments_[0].set_data_handle(const_cast<void*>(a));
    arguments_[1].set_data_handle(const_cast<void*>(b));
    arguments_[2].set_data_handle(c);
    try {
      product_.execute(stream_, by_name_);
      stream_.wait();
    } catch (const dnnl::error&) {
      return false;
    }
    return true;
  }

 private:
  Product(const Key& key, const dnnl::matmul::primitive_desc& plan)
      : product_(plan), stream_(Engine()) {
    for (const Matrix& matrix : key.matrices) {
      arguments_.push_back(dnnl::memory(matrix.Describe(), Engine(), nullptr));
    }
    by_name_ = {{DNNL_ARG_SRC, arguments_[0]},
                {DNNL_ARG_WEIGHTS, arguments_[1]},
                {DNNL_ARG_DST, arguments_[2]}};
  }

  dnnl::matmul product_;
  dnnl::stream stream_;
  std::vector<dnnl::memory> arguments_;
  std::unordered_map<int, dnnl::memory> by_name_;  // The same objects.
};

// The thread's product; null if oneDNN has none.
Product* ProductOf(const Key& key) {
  // Products hold scratch memory; a model has a few dozen shapes.
  constexpr size_t kMostProducts = 512;
  thread_local absl::flat_hash_map<Key, std::unique_ptr<Product>> products;
  const auto found = products.find(key);
  if (found != products.end()) return found->second.get();
  if (products.size() >= kMostProducts) products.clear();
  std::optional<Product> made = Product::Create(key);
  return products
      .emplace(key, made.has_value()
                        ? std::make_unique<Product>(*std::move(made))
                        : nullptr)
      .first->second.get();
}

}  // namespace

bool OneDnnMultipliesBF16() {
  static const bool does = [] {
    switch (dnnl::get_effective_cpu_isa()) {
      case dnnl::cpu_isa::avx512_core_bf16:
      case dnnl::cpu_isa::avx512_core_amx:
        return true;
#if DNNL_VERSION_MAJOR >= 3
      case dnnl::cpu_isa::avx512_core_fp16:
      case dnnl::cpu_isa::avx512_core_amx_fp16:
      case dnnl::cpu_isa::avx2_vnni_2:
        return true;
#endif
      default:
        return false;
    }
  }();
  return does;
}

bool OneDnnGemm(const GemmOptions& options, const ConstTensorView& a,
                const ConstTensorView& b, const TensorView& c) {
  const bool is_faster = a.dtype() == DType::kBF16 && OneDnnMultipliesBF16();
  if (!is_faster || options.alpha != 1) return false;
  const Key key = {{MatrixOf(a, options.transpose_a),
                    MatrixOf(b, options.transpose_b), MatrixOf(c, false)},
                   options.beta};
  // With more threads oneDNN divides long sums among them, which changes bits.
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  Product* const product = ProductOf(key);
  const bool done =
      product != nullptr && product->Run(a.data(), b.data(), c.data());
  omp_set_num_threads(before);
  return done;
}

}  // namespace tessera::tensor_parallel::cpu

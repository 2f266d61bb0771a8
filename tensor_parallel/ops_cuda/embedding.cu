// Kernels of row tables: GatherRows and AddRows.
//
// AddRows gives the same bits as the CPU: the rows of one id are added to its
// row of the table in the order of i, in the type of statistics, and rounded
// once. For this the held (id, i) are sorted by blocks in shared memory and
// then merged; each step depends only on the ids.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/cuda/kernel.h"
#include "base/status_macros.h"
#include "base/tensor/tensor_view.h"
#include "tensor_parallel/ops/ops.h"
#include "tensor_parallel/ops_cuda/cuda_backend.h"
#include "tensor_parallel/ops_cuda/kernel_types.h"
#include "tensor_parallel/ops_cuda/scratch.h"
#include "tensor_parallel/sharding/partition.h"

namespace tessera::tensor_parallel::TESSERA_KERNELS {
namespace {

using ::tessera::TESSERA_KERNELS::Launch;

constexpr int kThreads = 256;
// The number of elements that a block sorts.
constexpr int kSorted = 1024;
constexpr int kSortThreads = kSorted / 2;
// The number of rows of an id whose loads are in flight together.
constexpr int kRowsInFlight = 8;

// (id - held.begin) << 32 | i. Keys are distinct, so that their order does not
// depend on how they are sorted. The keys of ids that are not held come last.
using Key = uint64_t;
constexpr uint32_t kNotHeld = ~uint32_t{0};

__device__ uint32_t RowOf(Key key) { return static_cast<uint32_t>(key >> 32); }

// Each thread copies one word of y, unchanged.
template <typename Word>
__global__ void GatherRowsKernel(const Word* __restrict__ table,
                                 int64_t table_stride, IndexRange held,
                                 const int64_t* __restrict__ ids,
                                 Word* __restrict__ y, int64_t y_stride,
                                 int64_t words, unsigned blocks_of_row) {
  const int64_t i = blockIdx.x / blocks_of_row;
  const int64_t at =
      int64_t{blockIdx.x % blocks_of_row} * blockDim.x + threadIdx.x;
  if (at >= words) return;
  const int64_t row = ids[i] - held.begin;
  Word word = {};
  if (row >= 0 && row < held.end - held.begin) {
    word = table[row * table_stride + at];
  }
  y[i * y_stride + at] = word;
}

template <typename Word>
absl::Status GatherWords(KernelStream stream, const ConstTensorView& table,
                         IndexRange held, const ConstTensorView& ids,
                         const TensorView& y) {
  const int64_t size = SizeInBytes(y.dtype());
  const int64_t word = sizeof(Word);
  const int64_t words = y.shape()[1] * size / word;
  const int threads =
      static_cast<int>(std::min<int64_t>(kThreads, (words + 31) / 32 * 32));
  const int64_t blocks = (words + threads - 1) / threads;
  const int64_t grid = blocks * y.shape()[0];
  if (grid > INT32_MAX) {
    return absl::InvalidArgumentError(
        absl::StrCat("GatherRows: \"y\" of shape ", DimsToString(y.shape()),
                     " is too large for one launch: gather fewer rows."));
  }
  Launch(GatherRowsKernel<Word>, static_cast<unsigned>(grid),
         static_cast<unsigned>(threads), 0, stream, DataOf<Word>(table),
         table.strides()[0] * size / word, held, DataOf<int64_t>(ids),
         DataOf<Word>(y), y.strides()[0] * size / word, words,
         static_cast<unsigned>(blocks));
  return absl::OkStatus();
}

// Sorts each kSorted elements by Batcher's bitonic network. Behind `count` come
// the largest keys.
__global__ void __launch_bounds__(kSortThreads)
    SortBlocksKernel(const int64_t* __restrict__ ids, int64_t begin,
                     int64_t rows, int64_t count, Key* __restrict__ sorted) {
  TESSERA_SHARED(Key, keys, kSorted);
  const int64_t first = int64_t{blockIdx.x} * kSorted;
  for (int at = threadIdx.x; at < kSorted; at += kSortThreads) {
    const int64_t i = first + at;
    Key key = ~Key{0};
    if (i < count) {
      const int64_t row = ids[i] - begin;
      const bool is_held = row >= 0 && row < rows;
      key = Key{is_held ? static_cast<uint32_t>(row) : kNotHeld} << 32 |
            static_cast<uint32_t>(i);
    }
    keys[at] = key;
  }
  for (int size = 2; size <= kSorted; size *= 2) {
    for (int distance = size / 2; distance > 0; distance /= 2) {
      __syncthreads();
      const int thread = static_cast<int>(threadIdx.x);
      const int low = thread / distance * distance * 2 + thread % distance;
      const int high = low + distance;
      const bool ascends = (low & size) == 0;
      const Key a = keys[low], b = keys[high];
      if ((a > b) == ascends) {
        keys[low] = b;
        keys[high] = a;
      }
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < kSorted && first + at < count;
       at += kSortThreads) {
    sorted[first + at] = keys[at];
  }
}

// The number of keys below `key` in the sorted keys [begin, end).
__device__ int64_t CountBelow(const Key* keys, int64_t begin, int64_t end,
                              Key key) {
  int64_t low = begin;
  while (low < end) {
    const int64_t middle = low + (end - low) / 2;
    if (keys[middle] < key) {
      low = middle + 1;
    } else {
      end = middle;
    }
  }
  return low - begin;
}

// Merges pairs of sorted runs of `run` keys: each key goes to its own index
// plus the number of smaller keys in the other run.
__global__ void MergeRunsKernel(const Key* __restrict__ from, int64_t run,
                                int64_t count, Key* __restrict__ to) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int64_t pair = i / (2 * run) * (2 * run);
  const bool is_first = i - pair < run;
  const int64_t other = is_first ? pair + run : pair;
  const int64_t begin = other < count ? other : count;
  const int64_t end = other + run < count ? other + run : count;
  const Key key = from[i];
  const int64_t below = CountBelow(from, begin, end, key);
  to[is_first ? i + below : i - run + below] = key;
}

// Adds the rows of an id to its row of the table. The thread of the id's first
// key does it, for `pack` columns.
template <typename T, typename Target, int pack>
__global__ void AddSortedRowsKernel(const Key* __restrict__ keys, int64_t count,
                                    const T* __restrict__ gradient,
                                    int64_t stride, Target* __restrict__ table,
                                    int64_t table_stride, int64_t n,
                                    unsigned blocks_of_row) {
  using S = StatisticOf<T>;
  const int64_t first = blockIdx.x / blocks_of_row;
  const int64_t at =
      (int64_t{blockIdx.x % blocks_of_row} * blockDim.x + threadIdx.x) * pack;
  const uint32_t row = RowOf(keys[first]);
  if (row == kNotHeld || at >= n) return;
  if (first > 0 && RowOf(keys[first - 1]) == row) return;

  using Rows = Pack<T, pack>;
  using Sums = Pack<Target, pack>;
  Sums* const target =
      reinterpret_cast<Sums*>(table + int64_t{row} * table_stride + at);
  const Sums old = *target;
  S sums[pack];
  for (int j = 0; j < pack; ++j) sums[j] = static_cast<S>(old.values[j]);

  for (int64_t i = first; i < count; i += kRowsInFlight) {
    Rows rows[kRowsInFlight];
    bool is_own[kRowsInFlight];
    for (int k = 0; k < kRowsInFlight; ++k) {
      const Key key = i + k < count ? keys[i + k] : ~Key{0};
      is_own[k] = RowOf(key) == row;
      if (is_own[k]) {
        const auto from = static_cast<int64_t>(static_cast<uint32_t>(key));
        rows[k] = *reinterpret_cast<const Rows*>(gradient + from * stride + at);
      }
    }
    for (int k = 0; k < kRowsInFlight; ++k) {
      if (!is_own[k]) continue;
      for (int j = 0; j < pack; ++j) {
        sums[j] = sums[j] + static_cast<S>(rows[k].values[j]);
      }
    }
    if (!is_own[kRowsInFlight - 1]) break;
  }
  Sums result;
  for (int j = 0; j < pack; ++j) {
    result.values[j] = static_cast<Target>(sums[j]);
  }
  *target = result;
}

// The sorted keys of all ids, in one of the halves of `buffers`, each of
// `count` keys.
const Key* SortKeys(KernelStream stream, const int64_t* ids, IndexRange held,
                    int64_t count, Key* buffers) {
  Key* from = buffers;
  Key* to = buffers + count;
  Launch(SortBlocksKernel,
         static_cast<unsigned>((count + kSorted - 1) / kSorted), kSortThreads,
         0, stream, ids, held.begin, held.size(), count, from);
  for (int64_t run = kSorted; run < count; run *= 2) {
    Launch(MergeRunsKernel,
           static_cast<unsigned>((count + kThreads - 1) / kThreads), kThreads,
           0, stream, from, run, count, to);
    std::swap(from, to);
  }
  return from;
}

template <typename T, typename Target, int pack>
absl::Status AddSortedRows(KernelStream stream, const Key* keys,
                           const ConstTensorView& gradient,
                           const TensorView& table) {
  const int64_t count = gradient.shape()[0], n = gradient.shape()[1];
  const int64_t packs = (n + pack - 1) / pack;
  // Blocks are small: blocks of keys that are not the first of their id exit at
  // once, and columns of frequent ids are distributed over many processors.
  const int threads =
      static_cast<int>(std::min<int64_t>(128, (packs + 31) / 32 * 32));
  const int64_t blocks = (packs + threads - 1) / threads;
  if (count * blocks > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        "AddRows: \"gradient\" of shape ", DimsToString(gradient.shape()),
        " is too large for one launch: add fewer rows."));
  }
  Launch(AddSortedRowsKernel<T, Target, pack>,
         static_cast<unsigned>(count * blocks), static_cast<unsigned>(threads),
         0, stream, keys, count, DataOf<T>(gradient), gradient.strides()[0],
         DataOf<Target>(table), table.strides()[0], n,
         static_cast<unsigned>(blocks));
  return absl::OkStatus();
}

// Packs of 8 bytes of bf16, so that their sums are a 16-byte access of f32.
template <typename T, typename Target>
absl::Status AddSortedRowsOf(KernelStream stream, const Key* keys,
                             const ConstTensorView& gradient,
                             const TensorView& table) {
  constexpr int kPack = kPackOf<StatisticOf<T>>;
  if (gradient.shape()[1] % kPack == 0 && RowsAreAligned(gradient) &&
      RowsAreAligned(table)) {
    return AddSortedRows<T, Target, kPack>(stream, keys, gradient, table);
  }
  return AddSortedRows<T, Target, 1>(stream, keys, gradient, table);
}

}  // namespace

absl::Status Run(CudaBackend& cuda, const op::GatherRows& call) {
  if (call.y.element_count() == 0) return absl::OkStatus();
  const int64_t size = SizeInBytes(call.y.dtype());
  if (call.y.shape()[1] * size % 16 == 0 && RowsAreAligned(call.table) &&
      RowsAreAligned(call.y)) {
    return GatherWords<Pack<uint64_t, 2>>(cuda.stream, call.table, call.held,
                                          call.ids, call.y);
  }
  if (size == 8)
    return GatherWords<uint64_t>(cuda.stream, call.table, call.held, call.ids,
                                 call.y);
  if (size == 4)
    return GatherWords<uint32_t>(cuda.stream, call.table, call.held, call.ids,
                                 call.y);
  return GatherWords<uint16_t>(cuda.stream, call.table, call.held, call.ids,
                               call.y);
}

absl::Status Run(CudaBackend& cuda, const op::AddRows& call) {
  const int64_t count = call.gradient.shape()[0];
  if (call.gradient.element_count() == 0 || call.held.empty())
    return absl::OkStatus();
  if (count > INT32_MAX || call.held.size() >= int64_t{kNotHeld}) {
    return absl::InvalidArgumentError(
        absl::StrCat("AddRows: ", count, " call.ids and ", call.held.size(),
                     " rows; there may be 2^31-1 call.ids and 2^32-2 rows: add "
                     "fewer rows."));
  }
  TESSERA_ASSIGN_OR_RETURN(
      std::byte* const memory,
      cuda.scratch.Reserve(2 * count * static_cast<int64_t>(sizeof(Key))));
  const Key* const keys =
      SortKeys(cuda.stream, DataOf<int64_t>(call.ids), call.held, count,
               reinterpret_cast<Key*>(memory));
  return ForComputedType(
      call.gradient.dtype(), [&]<typename T>(std::type_identity<T>) {
        if (call.table_gradient.dtype() == call.gradient.dtype()) {
          return AddSortedRowsOf<T, T>(cuda.stream, keys, call.gradient,
                                       call.table_gradient);
        }
        return AddSortedRowsOf<T, StatisticOf<T>>(
            cuda.stream, keys, call.gradient, call.table_gradient);
      });
}

void AddRowTableKernels(CudaKernelTable& table) {
  table.Add<op::GatherRows, op::AddRows>(
      [](CudaBackend& cuda, const auto& call) { return Run(cuda, call); });
}

}  // namespace tessera::tensor_parallel::TESSERA_KERNELS

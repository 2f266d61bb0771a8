// The loops of Combine, compiled once for every instruction set.
//
// Four vectors of every source are folded in registers and stored to every
// destination, so each source is read once and each destination written once.
// Two, three and four sources have loops of their own.
#if defined(TESSERA_COLLECTIVES_REDUCTION_KERNELS_INL_H_) == \
    defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_COLLECTIVES_REDUCTION_KERNELS_INL_H_
#undef TESSERA_COLLECTIVES_REDUCTION_KERNELS_INL_H_
#else
#define TESSERA_COLLECTIVES_REDUCTION_KERNELS_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "collectives/reduction/arithmetic-inl.h"
#include "collectives/reduction/combine_job.h"
#include "collectives/reduction/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::collectives::internal {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kLineBytes = 64;

// True if four vectors fill whole cache lines, as streaming stores should.
template <class Lanes>
inline constexpr bool kWholeLines =
    4 * hn::MaxLanes(typename Lanes::Tag()) *
        sizeof(typename Lanes::Stored) % kLineBytes
    == 0;

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
inline constexpr bool kHasMasks = true;
#else
inline constexpr bool kHasMasks = false;
#endif

// Reads or writes the first `count` elements of a vector, no byte beyond.
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> LoadFirst(D d, const T* from, size_t count) {
  if constexpr (kHasMasks) {
    return hn::MaskedLoad(hn::FirstN(d, count), d, from);
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(D())] = {};
    std::memcpy(lanes, from, count * sizeof(T));
    return hn::Load(d, lanes);
  }
}
template <class D, typename T = hn::TFromD<D>>
HWY_INLINE void StoreFirst(hn::Vec<D> v, D d, T* to, size_t count) {
  if constexpr (kHasMasks) {
    hn::BlendedStore(v, hn::FirstN(d, count), d, to);
  } else {
    HWY_ALIGN T lanes[hn::MaxLanes(D())];
    hn::Store(v, d, lanes);
    std::memcpy(to, lanes, count * sizeof(T));
  }
}

// The sources of a job: kCount pointers in registers, or any number in memory.
template <typename T, size_t kCount>
struct Sources {
  HWY_INLINE explicit Sources(const CombineJob& job) {
    for (size_t s = 0; s < kCount; ++s) {
      first[s] = static_cast<const T*>(job.sources[s]);
    }
  }
  HWY_INLINE constexpr size_t count() const { return kCount; }
  HWY_INLINE const T* operator[](size_t s) const { return first[s]; }

  const T* first[kCount];
};
template <typename T>
struct Sources<T, 0> {
  HWY_INLINE explicit Sources(const CombineJob& job)
      : first(job.sources), size(job.source_count) {}
  HWY_INLINE size_t count() const { return size; }
  HWY_INLINE const T* operator[](size_t s) const {
    return static_cast<const T*>(first[s]);
  }

  const void* const* first;
  size_t size;
};

// Computes results from an index on: one vector, part of a vector, or four
// vectors.
template <class Lanes, Fold fold, size_t kSources, bool kGeneral>
class Folder {
 public:
  using T = typename Lanes::Stored;
  using Tag = typename Lanes::Tag;
  using Packed = typename Lanes::Packed;
  using Wide = typename Lanes::Wide;
  using WideTag = typename Lanes::WideTag;
  static constexpr int64_t kLanes = hn::MaxLanes(Tag());

  struct Four {
    Packed a, b, c, d;
  };

  HWY_INLINE explicit Folder(const CombineJob& job)
      : sources_(job),
        scaled_(job.scale != 1.0),
        factor_(
            hn::Set(WideTag(), static_cast<hn::TFromD<WideTag>>(job.scale))),
        finish_(job.divisor) {}

  HWY_INLINE Packed One(int64_t at) const {
    Wide sum = Load(sources_[0] + at);
    for (size_t s = 1; s < sources_.count(); ++s) {
      sum = Apply<fold>(sum, Load(sources_[s] + at));
    }
    return Lanes::Narrow(Finished(finish_, sum));
  }

  HWY_INLINE Packed Part(int64_t at, size_t count) const {
    Wide sum = Scaled(LoadFirst(Tag(), sources_[0] + at, count));
    for (size_t s = 1; s < sources_.count(); ++s) {
      sum = Apply<fold>(sum, Scaled(LoadFirst(Tag(), sources_[s] + at, count)));
    }
    return Lanes::Narrow(Finished(finish_, sum));
  }

  HWY_INLINE Four FourFrom(int64_t at) const {
    const T* from = sources_[0] + at;
    Wide a = Load(from), b = Load(from + kLanes);
    Wide c = Load(from + 2 * kLanes), d = Load(from + 3 * kLanes);
    for (size_t s = 1; s < sources_.count(); ++s) {
      from = sources_[s] + at;
      a = Apply<fold>(a, Load(from));
      b = Apply<fold>(b, Load(from + kLanes));
      c = Apply<fold>(c, Load(from + 2 * kLanes));
      d = Apply<fold>(d, Load(from + 3 * kLanes));
    }
    return {Lanes::Narrow(Finished(finish_, a)),
            Lanes::Narrow(Finished(finish_, b)),
            Lanes::Narrow(Finished(finish_, c)),
            Lanes::Narrow(Finished(finish_, d))};
  }

 private:
  HWY_INLINE Wide Scaled(Packed x) const {
    const Wide wide = Lanes::Widen(x);
    return kGeneral && scaled_ ? Multiply(wide, factor_) : wide;
  }
  HWY_INLINE Wide Load(const T* from) const {
    return Scaled(hn::LoadU(Tag(), from));
  }

  Sources<T, kSources> sources_;
  bool scaled_;
  hn::Vec<WideTag> factor_;
  Finish<WideTag, kGeneral> finish_;
};

template <class Lanes>
class Destinations {
 public:
  using T = typename Lanes::Stored;
  using Tag = typename Lanes::Tag;
  using Packed = typename Lanes::Packed;
  static constexpr int64_t kLanes = hn::MaxLanes(Tag());
  HWY_INLINE explicit Destinations(const CombineJob& job)
      : first_(job.destinations),
        count_(job.destination_count),
        stream_(job.stream && kWholeLines<Lanes>) {}

  HWY_INLINE void One(int64_t at, Packed v) const {
    for (size_t k = 0; k < count_; ++k) hn::StoreU(v, Tag(), Place(k, at));
  }
  HWY_INLINE void Part(int64_t at, Packed v, size_t count) const {
    for (size_t k = 0; k < count_; ++k) {
      StoreFirst(v, Tag(), Place(k, at), count);
    }
  }
  template <class Four>
  HWY_INLINE void FourFrom(int64_t at, const Four& v) const {
    for (size_t k = 0; k < count_; ++k) {
      T* const to = Place(k, at);
      if (stream_ && reinterpret_cast<uintptr_t>(to) % kLineBytes == 0) {
        hn::Stream(v.a, Tag(), to);
        hn::Stream(v.b, Tag(), to + kLanes);
        hn::Stream(v.c, Tag(), to + 2 * kLanes);
        hn::Stream(v.d, Tag(), to + 3 * kLanes);
      } else {
        hn::StoreU(v.a, Tag(), to);
        hn::StoreU(v.b, Tag(), to + kLanes);
        hn::StoreU(v.c, Tag(), to + 2 * kLanes);
        hn::StoreU(v.d, Tag(), to + 3 * kLanes);
      }
    }
  }

 private:
  HWY_INLINE T* Place(size_t k, int64_t at) const {
    return static_cast<T*>(first_[k]) + at;
  }

  void* const* first_;
  size_t count_;
  bool stream_;
};

// Combines the elements [at, end).
template <class Lanes, Fold fold, size_t kSources, bool kGeneral>
void Run(const CombineJob& job, int64_t at, int64_t end) {
  const Folder<Lanes, fold, kSources, kGeneral> folder(job);
  const Destinations<Lanes> to(job);
  constexpr int64_t kLanes = hn::MaxLanes(typename Lanes::Tag());
  for (; at + 4 * kLanes <= end; at += 4 * kLanes) {
    to.FourFrom(at, folder.FourFrom(at));
  }
  if constexpr (!kHasMasks) {
    for (; at + kLanes <= end; at += kLanes) to.One(at, folder.One(at));
  }
  for (; at < end; at += kLanes) {
    const auto count = static_cast<size_t>(HWY_MIN(kLanes, end - at));
    to.Part(at, folder.Part(at, count), count);
  }
}

using Kernel = void (*)(const CombineJob&, int64_t, int64_t);

// General, any number of sources, 2, 3, 4. Only sums have all of these loops:
// for other folds they add more code size than they save time.
template <class Lanes, Fold fold>
inline constexpr Kernel kKernelsOf[] = {
    Run<Lanes, fold, 0, true>,
    Run<Lanes, fold, 0, false>,
    Run<Lanes, fold, 2, false>,
    Run<Lanes, fold, fold == Fold::kAdd ? 3 : 0, false>,
    Run<Lanes, fold, fold == Fold::kAdd ? 4 : 0, false>,
};

// Floating-point types have no bitwise folds; their entries are never used.
template <class Lanes>
constexpr Fold OfIntegers(Fold fold) {
  return std::is_integral_v<typename Lanes::Stored> ? fold : Fold::kAdd;
}

// By fold.
template <class Lanes>
inline constexpr const Kernel* kKernels[] = {
    kKernelsOf<Lanes, Fold::kAdd>,
    kKernelsOf<Lanes, Fold::kMultiply>,
    kKernelsOf<Lanes, Fold::kMin>,
    kKernelsOf<Lanes, Fold::kMax>,
    kKernelsOf<Lanes, OfIntegers<Lanes>(Fold::kAnd)>,
    kKernelsOf<Lanes, OfIntegers<Lanes>(Fold::kOr)>,
    kKernelsOf<Lanes, OfIntegers<Lanes>(Fold::kXor)>,
};

// Number of elements before the first destination's next cache line, if
// aligning it pays off.
template <class Lanes>
HWY_INLINE int64_t Lead(const CombineJob& job) {
  constexpr int64_t kSize = sizeof(typename Lanes::Stored);
  constexpr int64_t kWorthIt = 16 * hn::MaxLanes(typename Lanes::Tag());
  if (!kWholeLines<Lanes> || job.count < kWorthIt) return 0;
  const auto address = reinterpret_cast<uintptr_t>(job.destinations[0]);
  return static_cast<int64_t>(-address % kLineBytes) / kSize;
}

template <class Lanes>
HWY_INLINE void RunBest(const CombineJob& job) {
  size_t variant = 1;
  if (!IsPlain<typename Lanes::WideTag>(job)) {
    variant = 0;
  } else if (job.source_count >= 2 && job.source_count <= 4) {
    variant = job.source_count;
  }
  const Kernel kernel = kKernels<Lanes>[static_cast<size_t>(job.fold)][variant];
  const int64_t lead = Lead<Lanes>(job);
  if (lead > 0) kernel(job, 0, lead);
  kernel(job, lead, job.count);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::collectives::internal
HWY_AFTER_NAMESPACE();

#endif  // TESSERA_COLLECTIVES_REDUCTION_KERNELS_INL_H_

// Defines functions of newer C libraries that the static C++ library calls, so
// that the module runs on glibc 2.34 (the wheel's tag) even if it was built
// with a newer one. They have hidden visibility: the rest of the process uses
// its own.
#include <link.h>
#include <sys/random.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace {

#if __GLIBC_PREREQ(2, 35)
// A search for the object that contains `address`; sets what the unwinder
// reads.
struct ObjectSearch {
  uintptr_t address = 0;
  dl_find_object* result = nullptr;
};

int FillIfInside(dl_phdr_info* object, size_t, void* data) {
  const auto& search = *static_cast<ObjectSearch*>(data);
  uintptr_t begin = UINTPTR_MAX, end = 0, unwind_table = 0;
  bool is_inside = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object->dlpi_phdr[i];
    const uintptr_t at = object->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_GNU_EH_FRAME) unwind_table = at;
    if (header.p_type != PT_LOAD) continue;
    const uintptr_t behind = at + header.p_memsz;
    if (at < begin) begin = at;
    if (behind > end) end = behind;
    is_inside |= at <= search.address && search.address < behind;
  }
  if (!is_inside || unwind_table == 0) return 0;
  *search.result = {};
  search.result->dlfo_map_start = reinterpret_cast<void*>(begin);
  search.result->dlfo_map_end = reinterpret_cast<void*>(end);
  search.result->dlfo_eh_frame = reinterpret_cast<void*>(unwind_table);
  return 1;
}
#endif

}  // namespace

extern "C" {

#if __GLIBC_PREREQ(2, 35)
// Part of glibc since 2.35.
__attribute__((visibility("hidden"))) int _dl_find_object(
    void* address, dl_find_object* result) noexcept {
  ObjectSearch search = {reinterpret_cast<uintptr_t>(address), result};
  return dl_iterate_phdr(&FillIfInside, &search) == 1 ? 0 : -1;
}
#endif

#if __GLIBC_PREREQ(2, 36)
// Part of glibc since 2.36.
__attribute__((visibility("hidden"))) uint32_t arc4random() noexcept {
  uint32_t number = 0;
  if (getentropy(&number, sizeof(number)) != 0) abort();
  return number;
}
#endif

}  // extern "C"

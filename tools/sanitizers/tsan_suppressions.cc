// Abseil 20220623's absl::Mutex passes its wake-up semaphore between threads in
// a way that ThreadSanitizer does not recognise.

extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:AbslInternalPerThreadSemPost\n"
         "race:absl::*::synchronization_internal::\n";
}

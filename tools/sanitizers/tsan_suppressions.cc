// Abseil 20220623's absl::Mutex hands its wake-up semaphore from one thread to
// another in a way that ThreadSanitizer does not recognise.

extern "C" const char* __tsan_default_suppressions();

extern "C" const char* __tsan_default_suppressions() {
  return "race:AbslInternalPerThreadSemPost\n"
         "race:absl::*::synchronization_internal::\n";
}

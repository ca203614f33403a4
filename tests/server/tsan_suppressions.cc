// What ThreadSanitizer cannot see of absl::Mutex::Await: the library, which is not instrumented,
// evaluates conditions under a lock that it took itself. A race with a condition cannot be real,
// since every evaluation holds the mutex; races of the code around an Await are still reported.

extern "C" const char* __tsan_default_suppressions() {
  return "race:absl::debian3::Mutex::AwaitWithDeadline\n";
}

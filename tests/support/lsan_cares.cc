// c-ares 1.18 (Debian 12) leaks the name at each look-up of "localhost", which gRPC makes for us.
// The leak sanitizer looks for this function in the program.

extern "C" const char* __lsan_default_suppressions();  // NOLINT: the sanitizer's name

extern "C" const char* __lsan_default_suppressions() { return "leak:libcares\n"; }

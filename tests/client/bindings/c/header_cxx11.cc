// Goal: the headers are C++11, and a program can query the library's version.

#include "client/bindings/c/ckv.h"

int main() {
  uint32_t major = 0, minor = 0;
  ckv_api_version(&major, &minor);
  return major == CKV_API_MAJOR && minor == CKV_API_MINOR ? 0 : 1;
}

// Whether this program has a sanitizer, for tests whose full size would take it a minute. The
// release build runs that size; with a sanitizer a few cases of each kind run the same code.

#pragma once

namespace ckv {

#if defined(CKV_TEST_ADDRESS_SANITIZER) || defined(CKV_TEST_THREAD_SANITIZER)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace ckv

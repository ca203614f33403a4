#include "proto/base/version.h"

namespace ckv {

std::string_view Version() { return CKV_VERSION; }

}  // namespace ckv

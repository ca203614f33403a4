#include "proto/base/version.h"

#include "ckv_commit.h"

namespace ckv {

std::string_view Version() { return CKV_VERSION; }
std::string_view Commit() { return CKV_COMMIT; }

}  // namespace ckv

#include "server/directory/prompt/tenant_keys.h"

#include <sys/random.h>

#include "proto/base/status.h"

namespace ckv {

TenantKey RandomTenantKey() {
  TenantKey key;
  // Up to 256 bytes are returned at once, and no signal interrupts the call (getrandom(2)).
  do {
    CKV_CHECK(getrandom(key.bytes.data(), key.bytes.size(), 0) ==
              static_cast<ssize_t>(key.bytes.size()));
  } while (key.IsZero());
  return key;
}

std::optional<TenantKey> TenantKeys::Find(std::string_view tenant) const {
  const auto found = keys_.find(tenant);
  if (found == keys_.end()) return std::nullopt;
  return found->second;
}

}  // namespace ckv

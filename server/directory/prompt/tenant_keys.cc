#include "server/directory/prompt/tenant_keys.h"

#include <span>

#include "proto/host/platform.h"

namespace ckv {

TenantKey RandomTenantKey() {
  TenantKey key;
  do {
    RandomBytes(std::as_writable_bytes(std::span(key.bytes)));
  } while (key.IsZero());
  return key;
}

std::optional<TenantKey> TenantKeys::Find(std::string_view tenant) const {
  const auto found = keys_.find(tenant);
  if (found == keys_.end()) return std::nullopt;
  return found->second;
}

}  // namespace ckv

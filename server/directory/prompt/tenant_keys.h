// The keys of tenants, by which the ids of their chunks are made.

#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/ids.h"

namespace ckv {

// Returns 32 bytes of the system's random source, not all zero.
TenantKey RandomTenantKey();

// Not thread-safe. Keys are never printed.
class TenantKeys {
 public:
  // Keys that a directory makes, some 200 bytes each.
  static constexpr size_t kTenantKeyCountMax = 100'000;

  // Adds the key of a tenant. Returns false if it has one already, which stays.
  bool Add(std::string_view tenant, const TenantKey& key) {
    return keys_.emplace(tenant, key).second;
  }
  std::optional<TenantKey> Find(std::string_view tenant) const;
  size_t size() const { return keys_.size(); }
  // Returns all keys in the order of tenants.
  std::vector<std::pair<std::string, TenantKey>> All() const {
    return {keys_.begin(), keys_.end()};
  }

 private:
  std::map<std::string, TenantKey, std::less<>> keys_;
};

}  // namespace ckv

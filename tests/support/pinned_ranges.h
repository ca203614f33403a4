// The ranges of memory that a test's backend or pinner has pinned.

#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>

#include "proto/base/status.h"

namespace ckv::test {

// Thread-safe.
class PinnedRanges {
 public:
  // Returns false, and adds nothing, if the range shares a page with one that is here.
  bool Add(std::span<const std::byte> range) {
    CKV_CHECK(!range.empty());
    const uintptr_t begin = Address(range.data()) / kPageBytes;
    const uintptr_t end = (Address(range.data()) + range.size() - 1) / kPageBytes;
    const std::lock_guard lock(mu_);
    for (const auto& [at, bytes] : ranges_) {
      if (at / kPageBytes <= end && begin <= (at + bytes - 1) / kPageBytes) return false;
    }
    ranges_[Address(range.data())] = range.size();
    return true;
  }
  // Ends the process if the range was not added.
  void Remove(std::span<const std::byte> range) {
    const std::lock_guard lock(mu_);
    const auto it = ranges_.find(Address(range.data()));
    CKV_CHECK(it != ranges_.end() && it->second == range.size());
    ranges_.erase(it);
  }
  // Ends the process unless one range has all of these bytes.
  void Check(const void* data, size_t bytes) const {
    if (bytes == 0) return;
    const std::lock_guard lock(mu_);
    auto it = ranges_.upper_bound(Address(data));
    CKV_CHECK(it != ranges_.begin());
    --it;
    CKV_CHECK(Address(data) + bytes <= it->first + it->second);
  }
  size_t count() const {
    const std::lock_guard lock(mu_);
    return ranges_.size();
  }
  size_t bytes() const {
    const std::lock_guard lock(mu_);
    size_t sum = 0;
    for (const auto& [at, bytes] : ranges_) sum += bytes;
    return sum;
  }

 private:
  static constexpr uintptr_t kPageBytes = 4096;
  static uintptr_t Address(const void* data) { return reinterpret_cast<uintptr_t>(data); }

  mutable std::mutex mu_;
  std::map<uintptr_t, size_t> ranges_;  // bytes by the address of the first
};

}  // namespace ckv::test

// The visible rows of a sequence of a paged cache as slots of a layer, for selections.

#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "client/paged/paged_cache.h"
#include "proto/base/status.h"

namespace ckv::test {

//   NotFound            there is no such sequence.
inline absl::StatusOr<std::vector<int32_t>> SlotsOf(const PagedCache& cache,
                                                    CacheSequenceId sequence) {
  CKV_ASSIGN_OR_RETURN(const uint64_t count, cache.token_count(sequence));
  std::vector<CacheBlock> table;
  CKV_RETURN_IF_ERROR(cache.Table(sequence, table));
  std::vector<int32_t> slots(count);
  for (size_t t = 0; t < slots.size(); ++t) {
    slots[t] = static_cast<int32_t>(table[t / kCacheBlockTokens] * kCacheBlockTokens +
                                    t % kCacheBlockTokens);
  }
  return slots;
}

}  // namespace ckv::test

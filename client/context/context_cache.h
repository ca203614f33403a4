// Caches the contexts of calls that list their chunks every time (AttendCall).

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "client/calls.h"
#include "client/context/context_state.h"

namespace ckv {

// A call over the same chunks as a recent call finds its context by comparing them. Part of a call
// context; not thread-safe.
class ContextCache {
 public:
  // The number of contexts kept. They also keep their corpora alive.
  static constexpr size_t kContextCountMax = 8;

  // Returns the context of these chunks, or of the whole corpus if `chunks` is empty. The pointer
  // is valid until kContextCountMax other contexts were requested.
  //   InvalidArgument     as ContextState::Make.
  absl::StatusOr<const ContextState*> For(const std::shared_ptr<const Corpus>& corpus,
                                          std::span<const ChunkUse> chunks);

 private:
  struct Entry {
    std::shared_ptr<const ContextState> state;
    std::vector<ChunkUse> chunks;
    uint64_t last_use = 0;
  };
  std::vector<Entry> entries_;
  uint64_t use_count_ = 0;
};

}  // namespace ckv

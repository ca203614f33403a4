// Memory of a holder that its backend reaches: host memory, or memory that it pins
// (attention/backend.h).

#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "attention/backend.h"
#include "proto/base/status.h"
#include "transport/memory_region.h"

namespace ckv {

// Returns the kind of memory that a holder has its chunks and the slots of its lanes in: kHost, or
// kPinned. Returns nullopt if it cannot serve with a backend of this reach.
constexpr std::optional<MemoryKind> HolderMemory(const BackendReach& reach) {
  for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kPinned}) {
    if (reach.queries.Has(kind) && reach.rows.Has(kind) && reach.partials.Has(kind) &&
        reach.merged.Has(kind)) {
      return kind;
    }
  }
  return std::nullopt;
}

// Memory that stays pinned as long as this lives, which it must not outlive.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  //   Errors of MemoryPinner::Pin.
  static absl::StatusOr<PinnedMemory> Pin(std::shared_ptr<MemoryPinner> pinner,
                                          std::span<std::byte> memory) {
    CKV_RETURN_IF_ERROR(pinner->Pin(memory));
    return PinnedMemory(std::move(pinner), memory);
  }
  PinnedMemory(PinnedMemory&& other) noexcept
      : pinner_(std::move(other.pinner_)), memory_(other.memory_) {}
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(pinner_, other.pinner_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~PinnedMemory() {
    if (pinner_ != nullptr) pinner_->Unpin(memory_);
  }

 private:
  PinnedMemory(std::shared_ptr<MemoryPinner> pinner, std::span<std::byte> memory)
      : pinner_(std::move(pinner)), memory_(memory) {}

  std::shared_ptr<MemoryPinner> pinner_;  // null if nothing is pinned
  std::span<std::byte> memory_;
};

}  // namespace ckv

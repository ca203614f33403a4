// The geometries of a holder's chunks: one copy of each, to which its chunks point.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/geometry.h"

namespace ckv {

// Thread-safe. Does not remove a copy before its own end.
class GeometrySet {
 public:
  static constexpr size_t kCountMax = 64;

  // Returns the one copy of `geometry`, which exists as long as the set, even when no chunk uses it
  // any more.
  //   InvalidArgument     the geometry is not valid (ValidateGeometry).
  //   ResourceExhausted   the set already has kCountMax geometries.
  absl::StatusOr<const Geometry*> Intern(const Geometry& geometry) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the copy of `geometry`, or null if there is none.
  const Geometry* Find(const Geometry& geometry) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the geometries that chunks use now.
  std::vector<Geometry> InUse() const ABSL_LOCKS_EXCLUDED(mu_);

  // Counts a chunk that uses the copy `geometry` from now on, or no longer.
  void AddUse(const Geometry* geometry) ABSL_LOCKS_EXCLUDED(mu_);
  void RemoveUse(const Geometry* geometry) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Interned {
    std::unique_ptr<const Geometry> geometry;
    uint64_t chunk_count = 0;  // chunks that use it
  };
  Interned& At(const Geometry* geometry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable absl::Mutex mu_;
  std::vector<Interned> geometries_ ABSL_GUARDED_BY(mu_);
};

}  // namespace ckv

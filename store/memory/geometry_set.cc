#include "store/memory/geometry_set.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "proto/base/status.h"

namespace ckv {

absl::StatusOr<const Geometry*> GeometrySet::Intern(const Geometry& geometry) {
  CKV_RETURN_IF_ERROR(ValidateGeometry(geometry));
  absl::MutexLock lock(&mu_);
  for (const Interned& interned : geometries_) {
    if (*interned.geometry == geometry) return interned.geometry.get();
  }
  if (geometries_.size() == kCountMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("chunk table: already %d geometries", kCountMax));
  }
  geometries_.push_back({std::make_unique<const Geometry>(geometry)});
  return geometries_.back().geometry.get();
}

const Geometry* GeometrySet::Find(const Geometry& geometry) const {
  absl::MutexLock lock(&mu_);
  for (const Interned& interned : geometries_) {
    if (*interned.geometry == geometry) return interned.geometry.get();
  }
  return nullptr;
}

std::vector<Geometry> GeometrySet::InUse() const {
  std::vector<Geometry> geometries;
  absl::MutexLock lock(&mu_);
  for (const Interned& interned : geometries_) {
    if (interned.chunk_count > 0) geometries.push_back(*interned.geometry);
  }
  return geometries;
}

void GeometrySet::AddUse(const Geometry* geometry) {
  absl::MutexLock lock(&mu_);
  At(geometry).chunk_count += 1;
}

void GeometrySet::RemoveUse(const Geometry* geometry) {
  absl::MutexLock lock(&mu_);
  At(geometry).chunk_count -= 1;
}

GeometrySet::Interned& GeometrySet::At(const Geometry* geometry) {
  const auto interned =
      std::find_if(geometries_.begin(), geometries_.end(),
                   [geometry](const Interned& other) { return other.geometry.get() == geometry; });
  CKV_CHECK(interned != geometries_.end());
  return *interned;
}

}  // namespace ckv
